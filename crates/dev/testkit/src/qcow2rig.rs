//! The correctness rig of formats with metadata: many simulated iothreads ([`crate::simulation`]) on one disk that loses
//! power, from one seed.
//!
//! Where it stands: a test gives it a way to open the node under test ([`Subject`]); the rig makes images ([`make`]),
//! plays lives of a process ([`play()`]) that end in a clean close, in a death or in a loss of power at any step, and
//! checks after each what is on the disk: by a checker and reader of its own ([`check`], [`image`]) and, now and then, by
//! qemu-img ([`peer`]).
//!
//! Invariants: all that is random depends on one seed, which every failure names, with the history of the sector or
//! cluster concerned. It shares no code with the crate `qcow2`. [`Mischief`] takes away what the order of writes rests
//! on, and must be found.

pub mod check;
mod checked;
pub mod image;
mod load;
pub mod make;
pub mod peer;
pub mod play;
mod remembered;

pub use crate::simulation::{child, disk};
pub use load::Tally;
pub use play::{Options, Played, play};
pub use remembered::Forgotten;

use std::fmt::Debug;
use std::sync::Arc;

use anyhow::Result;
use block::{Clock, EngineFactory, Node};

/// What the node under test is opened with.
#[derive(Debug)]
pub struct Setup {
    /// The child `file`.
    pub file: Arc<dyn Node>,
    /// The child `backing`, which holds raw bytes.
    pub backing: Option<Arc<dyn Node>>,
    /// In its place the files of images that stand on each other, the lowest first; read-only.
    pub backing_images: Vec<Arc<dyn Node>>,
    /// The child `data-file`.
    pub data_file: Option<Arc<dyn Node>>,
    /// Makes engines for control threads.
    pub engines: Arc<dyn EngineFactory>,
    /// The time, which jumps.
    pub clock: Arc<dyn Clock>,
    /// For choices of the subject, such as the sizes of caches.
    pub seed: u64,
}

/// Opens the node under test.
pub trait Subject: Debug {
    /// Opens it for writing. Not claimed yet.
    fn open(&self, setup: &Setup) -> Result<Arc<dyn Node>>;
}

/// What goes wrong on purpose, so that the rig is seen to find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mischief {
    /// Nothing.
    None,
    /// Each iothread has metadata of its own.
    ClonedMetadata,
    /// Discards and zeroings are told to be over, and are carried out later.
    LateZeroing,
    /// What a lane writes for itself is told to be over, and is carried out later and in another order.
    UnwrittenMetadata,
    /// No sync does anything.
    LyingSyncs,
    /// No sync that a lane asks for itself does anything.
    LyingLaneSyncs,
    /// A lane is told that its answers were carried out while they still are.
    EarlyEnds,
    /// What was under way on a channel when its connection was lost is told to be over.
    ForgetfulChannels,
    /// Reads are carried out where earlier ones of the same bytes were, whatever this has changed since.
    Remembers(Forgotten),
}

#[cfg(test)]
mod tests;
