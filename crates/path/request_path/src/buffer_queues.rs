//! Transfers that wait for a bounce buffer: a budget for each size, which the lanes of an iothread share.
//!
//! Invariants: those of [`PartyQueues`], for each size by itself: requests of one size do not wait for those of another.
//! Not here: the buffers ([`kernel_io::BouncePool`]).

use kernel_io::{BounceSize, FairShareLimit, PartyQueues};

use crate::io_request::RequestIndex;

/// The small buffers of the lanes: 2 MiB of one that is alone. A transfer keeps its buffer until all of it is through.
const SMALL: FairShareLimit = FairShareLimit::new(128, 1);
/// The large ones: 4 MiB.
const LARGE: FairShareLimit = FairShareLimit::new(16, 1);

/// What waits, by the place of its lane.
#[derive(Debug)]
pub(crate) struct BufferQueues {
    small: PartyQueues<RequestIndex>,
    large: PartyQueues<RequestIndex>,
}

impl Default for BufferQueues {
    fn default() -> Self {
        Self { small: PartyQueues::new(SMALL), large: PartyQueues::new(LARGE) }
    }
}

impl BufferQueues {
    /// A job of that lane wants a buffer.
    pub(crate) fn push(&mut self, lane: usize, size: BounceSize, index: RequestIndex) {
        self.of(size).push(lane, index);
    }

    /// The next job that may have one now, and its size.
    pub(crate) fn take(&mut self) -> Option<(BounceSize, RequestIndex)> {
        BounceSize::ALL.into_iter().find_map(|size| {
            let (_, index) = self.of(size).take()?;
            Some((size, index))
        })
    }

    /// Takes out what waits for a lane and is not wanted any more.
    pub(crate) fn withdraw(
        &mut self,
        lane: usize,
        mut is_over: impl FnMut(&RequestIndex) -> bool,
    ) -> Vec<RequestIndex> {
        let mut over = self.small.withdraw(lane, &mut is_over);
        over.extend(self.large.withdraw(lane, is_over));
        over
    }

    /// A lane gives a buffer back.
    pub(crate) fn done(&mut self, lane: usize, size: BounceSize) {
        self.of(size).done(lane);
    }

    fn of(&mut self, size: BounceSize) -> &mut PartyQueues<RequestIndex> {
        match size {
            BounceSize::Small => &mut self.small,
            BounceSize::Large => &mut self.large,
        }
    }
}
