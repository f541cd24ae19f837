//! What concerns the process as a whole: going to the background, signals, the filter of system calls, processes beside it.
//!
//! Not here: what an iothread waits with and does I/O with (`kernel_io`), and what the daemon makes of all this (`daemon`).

#![deny(unsafe_code)]

mod apart;
mod exchange;
mod filter;
mod peer;
mod process;
mod signals;

pub use apart::start_apart;
pub use exchange::exchange_socket;
pub use filter::{FilterError, Refusals, filter_system_calls};
pub use peer::{Peer, gives_peer_processes, has_ended, peer_of, peer_process};
pub use process::{
    DaemonizeError, Daemonized, Readiness, Verdict, close_descriptors_but, daemonize,
    raise_open_files_limit,
};
pub use signals::{Impatience, is_ignored, leave_if_impatient};
