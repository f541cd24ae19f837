//! The slices that a lane has looked at: found again without a lock.
//!
//! Where it stands in the life of a request: the first look of the fast path. What has gone from the
//! cache of the image says so, and is not used.

use std::sync::Arc;

use crate::core::Core;
use crate::shape::SliceNumber;
use crate::slice::Slice;

/// After so many slices have gone from the cache a lane lets go of those that it still has.
const SWEEP_AFTER: u64 = 256;

/// The slices that this lane has seen, by number: found without a lock.
#[derive(Debug)]
pub(crate) struct Seen {
    slices: Vec<Option<Arc<Slice>>>,
    /// How many slices had gone from the cache when this was swept.
    swept: u64,
}

impl Seen {
    pub(crate) fn new(room: usize) -> Self {
        Self { slices: vec![None; room.next_power_of_two()], swept: 0 }
    }

    /// The slice of that number, if it is in memory. Call it inside an epoch.
    pub(crate) fn find(&mut self, core: &Core, number: SliceNumber) -> Option<&Slice> {
        let mask = self.slices.len() as u64 - 1;
        let place = &mut self.slices[usize::try_from(number.0 & mask).expect("masked")];
        let is_it = |slice: &Arc<Slice>| slice.number() == number && !slice.is_gone();
        if !place.as_ref().is_some_and(is_it) {
            *place = Some(core.image.slices().peek(number)?);
        }
        let slice = place.as_deref()?;
        slice.touch();
        Some(slice)
    }

    /// Lets go of slices that have gone from the cache, if those are many.
    pub(crate) fn sweep(&mut self, core: &Core) {
        let gone = core.image.slices().gone();
        if gone - self.swept >= SWEEP_AFTER {
            self.swept = gone;
            self.let_go();
        }
    }

    /// Lets go of slices that have gone from the cache.
    pub(crate) fn let_go(&mut self) {
        for place in &mut self.slices {
            if place.as_ref().is_some_and(|slice| slice.is_gone()) {
                *place = None;
            }
        }
    }

    /// Whether it has none.
    pub(crate) fn is_empty(&self) -> bool {
        self.slices.iter().all(Option::is_none)
    }
}
