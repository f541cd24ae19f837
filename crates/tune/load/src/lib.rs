//! Load generators of the tuner: a vhost-user client and plain file I/O, sharing no code with the daemon.
//!
//! The tuner calls `host::run` or `client::connect` and `Connection::run` once per measurement. Both
//! put the same requests in flight with the same loop (`drive`), so that their samples compare.
//!
//! `cargo xtask bench` uses the same engines with a lighter loop (`light`): `Connection::spin`,
//! `Connection::arrive` and `host::run_lightly`.
//!
//! `fio` has fio put the load, on the host or in a guest: it writes the job file and reads the report.
//!
//! `child` supervises programs: fio here, and for the tuner the daemon, ssh and what makes storage.
//!
//! Not here: what the daemon is started with, statistics and reports, which are the crate `tuner`.
#![deny(unsafe_code)]

mod buffers;
pub mod child;
pub mod client;
mod clock;
mod conduct;
mod drive;
mod error;
pub mod fio;
pub mod host;
mod interval;
mod light;
pub mod loopback;
pub mod probe;
pub mod procfs;
mod random;
mod sample;
mod seconds;
mod spread;
mod workload;

pub use conduct::{Continuation, Timing, Watch};
pub use error::LoadError;
pub use interval::{FIFTHS, Fifth, Interval};
pub use random::Random;
pub use sample::{Latency, Sample};
pub use spread::Spread;
pub use workload::{
    BLOCK_BYTES_MAX, BlockBytes, Direction, IODEPTH_MAX, JOBS_MAX, Operation, Shape, ShapeError,
    UnknownOperation, Workload,
};
