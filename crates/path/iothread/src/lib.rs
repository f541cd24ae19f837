//! The threads that serve rings: event loop, placement, hand-over, stop and drain.
//!
//! Where it stands in the life of a request: it gives each ring its turns. Control threads place
//! a source on an [`Iothread`], move it to another while the guest runs, and stop it.
//!
//! Not here: what happens in a turn (`request_path`), and who decides where a ring belongs
//! (`daemon`).

#![forbid(unsafe_code)]

mod command;
mod drain;
mod event_loop;
mod gauges;
mod handle;
mod looker;
mod neighbours;
mod permits;
mod placed;
mod polling;
mod timer;

pub use drain::{Drained, GaveUp, NotReopened};
pub use gauges::{IothreadUse, LoopGauges};
pub use handle::{Confine, Host, Iothread, SpawnError};
pub use looker::Polling;
pub use placed::{MoveError, PlaceError, Placed, Watcher};
pub use polling::{PollLimit, PollSettings};
