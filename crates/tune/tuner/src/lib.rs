//! Measures a disk with different numbers of iothreads and recommends one.
//!
//! The life of a measurement, from the command line (`run`) to the report:
//!
//! 1. **Settle.** `run::prepare` refuses what can be refused, finds fio and QEMU, tries KVM with a real boot, and says how
//!    long all of it will take (`pace`). The crate `plan` leaves out what cannot be or is of no use, and says why.
//!    `course` then gives one block of runs after the other: those of the crate `plan` are known beforehand, and `search` tells the next
//!    ones from those before. Both are the same each time for the same seed and the same results.
//! 2. **Prepare the storage.** The crate `storage` makes what a variant needs: scratch files, a file system on a loop device, images,
//!    stripes and delays (the kernel's device-mapper where there is one, otherwise ringloom's layers, for the subjects that
//!    ringloom serves). An `Undo` takes it away in reverse order.
//! 3. **Prepare the guests.** `fleet` boots a guest when the first run needs it and keeps it. The crate `guest` plugs disks in
//!    over QMP, so all numbers of iothreads, and both QEMU and ringloom, are compared inside one boot. After a failed run the
//!    guests are ended, and the next run boots new ones.
//! 4. **Measure.** `measure` attaches the disk (`daemon` for each run anew, if ringloom serves it) and has fio run in all
//!    places at once (`measure::fio`: this host, or guests), or runs the loads of the crate `load` (`measure::own`). `records::meter`
//!    samples meanwhile. The measured window is where the load says that it was.
//! 5. **Record.** Each run, measured or failed, becomes a line of `results.jsonl` at once (crate `records`). Everything after that is
//!    a pure function of the lines, so `ringloom report` gives the same report (`reread`, which reads a damaged file as far
//!    as it goes).
//! 6. **Conclude.** The crate `findings` makes rows, blocks and n90 of the lines, and of them one number with its price,
//!    certainty and doubts; the crates `report` and `emit` render it and write configurations.
//!
//! `cluster` does the same on a Kubernetes cluster, where the places are pods and virtual machines.
//!
//! `tests::simulation` drives course, summary and answer on machines whose truth is known (`testkit::machines`).
//!
//! Not here: the load generators (crate `load`) and anything of the daemon, which is only known as a
//! process.
#![forbid(unsafe_code)]

mod baseline;
mod cluster;
mod course;
mod daemon;
mod fleet;
mod given;
mod intervals;
mod kept;
mod measure;
pub mod output;
mod pace;
mod precondition;
mod progress;
mod reread;
mod run;
mod search;
mod ssh;
#[cfg(test)]
mod tests;

pub use daemon::Daemon;
pub use emit;
pub use plan::args::{ReportArgs, TuneArgs};
pub use reread::{ComparisonText, ReportText, rendered, rendered_pair, report};
pub use run::{exit_code, run};
pub use storage::interrupt::Interrupted;
