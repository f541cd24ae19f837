//! Lanes of a thread that owns no ring: it uses what they stand on itself, beside the calls that are made here.

use std::sync::Arc;

use super::{LaneIndex, Lanes};
use crate::lane_wakeups::LaneWaker;

impl Lanes {
    /// What has this thread look at its lanes again, from any thread; it need not belong to one of them.
    pub(crate) fn new_call(&self) -> Arc<LaneWaker> {
        Arc::new(LaneWaker::new(Arc::clone(&self.calls)))
    }

    /// Notes what follows for each lane from calls that were made of what it stands on.
    pub(crate) fn note_all(&mut self) {
        (0..self.places.len()).map(LaneIndex).for_each(|lane| self.with(lane, |_| ()));
    }

    /// The lanes that there are.
    pub(crate) fn all(&self) -> Vec<LaneIndex> {
        let places = self.places.iter().enumerate();
        places.filter(|(_, open)| open.is_some()).map(|(place, _)| LaneIndex(place)).collect()
    }
}
