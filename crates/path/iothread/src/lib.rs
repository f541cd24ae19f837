//! The threads that serve rings: event loop, placement, hand-over, stop and drain.
//!
//! Where it stands in the life of a request: it gives each ring its turns. Control threads place
//! a source on an [`Iothread`], move it to another while the guest runs, and stop it.
//!
//! **Looking and sleeping** (`event_loop::idle`). Kicks are off while an iothread is awake. When it has nothing to do,
//! it looks at its sources and at the kernel's flags for as long as that is worth (`polling`: QEMU's rule for each
//! source) for those for which it was found to pay (`poll_trial`), and while nobody else wants its CPU (`poll_gate`).
//! Then it asks every source for kicks, looks once more, and sleeps in the kernel. A source that was silent for
//! 100 ms is asked for kicks and not looked at any more. If a layer holds requests, the sleep ends before the first of
//! them is due (`wake_latency`).
//!
//! **Fairness** (`event_loop`, `awake_sources`). An iothread that always has something to do never looks, and the kicks
//! of its awake sources are off. So while several are awake, each round begins with a scan of those that do not wait
//! for a turn already. Those that have something new get their turns first; those that had more than fitted into their
//! last turn get theirs last, in changing order. A turn beside others consists of steps, and ends after the first one
//! during which another source got something new. So a request of a quiet ring waits for at most one step of each other
//! ring, whatever is queued there, and a saturated ring gets at least a step in every round (`tests/it/fairness.rs`
//! counts it). If several disks have busy rings, one of each disk has a turn in a round (`event_loop::disk_rounds`), so a
//! disk gets as much with one busy ring as its neighbour with 16. What an iothread has few of is shared by one rule
//! (`kernel_io::fair_share`), so a disk that hangs for ever keeps what it has, and every other disk goes on. What the
//! disk's own queue does is not bounded: on a disk that 64 requests saturate, a quiet ring's request waits for those.
//!
//! **Moving a source** (`placed_source`, `event_loop::commands`). Requests in flight stay on the iothread that began
//! them, and their outcomes go to the source's mailbox (`request_path::OutcomeMailbox`), so a move never waits for I/O. An
//! iothread that shall end does so when nothing is in flight or held there any more and every outcome was mailed.
//! Any number of threads may have a source (`source_registry`), move it and stop it: moves follow each other, a stop is
//! effective once, and a move that meets it is refused.
//!
//! Not here: what happens in a turn (`request_path`), and who decides where a ring belongs
//! (`daemon`).

#![forbid(unsafe_code)]

mod awake_sources;
mod command;
mod drain;
mod event_loop;
mod gauges;
mod handle;
mod placed_front_end;
mod placed_source;
mod poll_gate;
mod poll_trial;
mod polling;
mod pool;
mod source_registry;
mod turn_probe;
mod wake_latency;
mod work_alarm;

pub use drain::{DrainTimeout, DrainedSection, ReopenError};
pub use gauges::{IothreadUsage, LoopGauges};
pub use handle::{Confinement, Iothread, ProcessResources, SpawnError};
pub use placed_front_end::{PlacedFrontEnd, PlacementError};
pub use placed_source::{
    MoveError, PlacedSource, SourceMove, SourceName, SourceObserver, SourceStopped, move_many,
};
pub use polling::{PollLimitStrictness, PollSettings};
pub use pool::IothreadPool;
pub use source_registry::{ExportSums, QueueSums, SourceRegistry};
pub use work_alarm::WorkAlarm;
