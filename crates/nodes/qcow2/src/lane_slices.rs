//! The slices that a lane has looked at: found again without a lock.
//!
//! Where it stands in the life of a request: the first look of the fast path. What has gone from the
//! cache of the image says so, and is not used.

use std::sync::Arc;

use crate::geometry::SliceNumber;
use crate::lane_core::LaneCore;
use crate::slice::L2Slice;

/// After so many slices have gone from the cache a lane lets go of those that it still has.
const SWEEP_AFTER: u64 = 256;

/// The L2 slices that a lane has used: found again without a lock.
#[derive(Debug)]
pub(crate) struct LaneSlices {
    slices: Vec<Option<Arc<L2Slice>>>,
    /// How many slices had gone from the cache when this was swept.
    swept: u64,
}

impl LaneSlices {
    pub(crate) fn new(room: usize) -> Self {
        Self { slices: vec![None; room.next_power_of_two()], swept: 0 }
    }

    /// The slice of that number, if it is in memory. Call it inside an epoch.
    // Once for each cluster of a request; what follows a hit is a handful of loads.
    #[inline(always)]
    pub(crate) fn find(&mut self, core: &LaneCore, number: SliceNumber) -> Option<&L2Slice> {
        let mask = self.slices.len() as u64 - 1;
        let place = &mut self.slices[usize::try_from(number.0 & mask).expect("masked")];
        let is_it = |slice: &Arc<L2Slice>| slice.number() == number && !slice.is_evicted();
        if !place.as_ref().is_some_and(is_it) {
            peek(place, core, number)?;
        }
        let slice = place.as_deref()?;
        slice.touch();
        Some(slice)
    }

    /// Lets go of slices that have gone from the cache, if those are many.
    pub(crate) fn sweep(&mut self, core: &LaneCore) {
        let evicted = core.image.slices.evicted();
        if evicted - self.swept >= SWEEP_AFTER {
            self.swept = evicted;
            self.drop_evicted();
        }
    }

    /// Lets go of slices that have gone from the cache.
    pub(crate) fn drop_evicted(&mut self) {
        for place in &mut self.slices {
            if place.as_ref().is_some_and(|slice| slice.is_evicted()) {
                *place = None;
            }
        }
    }

    /// Whether it has none.
    pub(crate) fn is_empty(&self) -> bool {
        self.slices.iter().all(Option::is_none)
    }
}

/// Takes the slice from the cache of the image.
#[cold]
fn peek(place: &mut Option<Arc<L2Slice>>, core: &LaneCore, number: SliceNumber) -> Option<()> {
    *place = Some(core.image.slices.peek(number)?);
    Some(())
}
