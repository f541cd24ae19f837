//! What concerns the process as a whole: going to the background, its pidfile, signals, the filter of system calls,
//! processes beside it, errors as a log shows them, how much the log says.
//!
//! Not here: what an iothread waits with and does I/O with (`kernel_io`), and what the daemon makes of all this (`daemon`).

#![deny(unsafe_code)]

mod error_chain;
mod exchange;
mod filter;
mod helper_process;
mod log_levels;
mod peer;
mod pidfile;
mod process;
mod service_manager;
mod signals;
mod wall_clock;

pub use error_chain::chain_of;
pub use exchange::exchange_socket;
pub use filter::{FilterError, RefusalLogging, filter_system_calls};
pub use helper_process::start_apart;
pub use log_levels::{
    LOG_LEVELS, LOG_PARTS, LogLevel, LogLevels, filter_by_log_levels, log_levels, set_log_levels,
};
pub use peer::{Peer, gives_peer_processes, has_ended, peer_of, peer_process};
pub use pidfile::{Pidfile, PidfileError};
pub use process::{
    DaemonizeError, DescriptorError, ForkResult, ReadinessPipe, StartOutcome,
    close_descriptors_but, daemonize, duplicate, duplicate_for_writing, raise_open_files_limit,
};
pub use service_manager::ServiceManager;
pub use signals::{
    SignalEscalation, block_signals, exit_on_second_signal, is_ignored, unblock_signals,
};
pub use wall_clock::since_1970;
