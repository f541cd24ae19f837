//! The conformance suite: what every node, format and layer of the block graph is held to, alone and stacked.
//!
//! Where it stands: a node joins by a [`stack::Subject`]. The suite makes random stacks of subjects, with a check of the
//! contract between any two nodes ([`checked`]) and nodes that refuse, hold and mix requests ([`faults`]), and runs
//! random requests through them ([`workload`]). Each read is compared with what the disk may hold ([`history`]); at
//! the end all is read through the stack, and once more from the files below by the subjects' own arithmetic
//! ([`layout`]), so that mistakes are found that take themselves back.
//!
//! Two forms: [`play`] has simulated iothreads, with real engines, on files in memory and a clock that jumps, and lets the
//! power go ([`crate::simulation`]). The crate `conform` has iothreads and files of the host, and the list of subjects.
//!
//! Invariants: all that is random depends on one seed, which every failure names.

pub mod checked;
mod ends;
pub mod faults;
pub mod history;
pub mod instant;
pub mod layout;
pub mod mirror;
pub mod play;
pub mod stack;
pub mod stamp;
mod status;
pub mod workload;

/// A number as a place in memory.
pub(crate) fn index(number: u64) -> usize {
    usize::try_from(number).expect("a 64-bit host")
}

/// A place in memory as a number.
pub(crate) fn number(index: usize) -> u64 {
    u64::try_from(index).expect("a usize fits 64 bits")
}

#[cfg(test)]
mod tests;
