//! The transfers of a source on its socket that are not over.
//!
//! Invariants: at most one of each direction, over once each, also if a front end or an iothread is wrong. A source that
//! leaves begins none.
//! Threads: travels with its source. Limits: two.

use kernel_io::StreamDirection;

/// Which transfers of one source are under way, on whichever iothread.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct OpenTransfers {
    /// By direction.
    open: [bool; 2],
    /// Whether no more may begin.
    pub(crate) is_closed: bool,
}

impl OpenTransfers {
    /// How many there are.
    pub(crate) fn count(self) -> usize {
        self.open.iter().filter(|open| **open).count()
    }

    /// Whether one of that direction is under way.
    pub(crate) fn has(self, direction: StreamDirection) -> bool {
        self.open[direction as usize]
    }

    /// One begins. Panics if another one of its direction is under way: the bytes of a stream have an order.
    pub(crate) fn begin(&mut self, direction: StreamDirection) {
        let before = std::mem::replace(&mut self.open[direction as usize], true);
        assert!(!before, "a {direction:?} begins while another one is under way");
    }

    /// One is over. Panics if it was before.
    pub(crate) fn end(&mut self, direction: StreamDirection) {
        let before = std::mem::replace(&mut self.open[direction as usize], false);
        assert!(before, "a {direction:?} was over twice");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transfer_of_each_direction_is_under_way_at_a_time() {
        let mut open = OpenTransfers::default();
        open.begin(StreamDirection::Send);
        open.begin(StreamDirection::Receive);
        open.end(StreamDirection::Send);
        assert_eq!((open.count(), open.has(StreamDirection::Receive)), (1, true));
        open.begin(StreamDirection::Send);
    }

    #[test]
    #[should_panic(expected = "a Receive was over twice")]
    fn a_second_end_is_a_mistake() {
        let mut open = OpenTransfers::default();
        open.begin(StreamDirection::Receive);
        open.end(StreamDirection::Receive);
        open.end(StreamDirection::Receive);
    }

    #[test]
    #[should_panic(expected = "a Send begins while another one is under way")]
    fn two_sends_at_once_are_a_mistake() {
        let mut open = OpenTransfers::default();
        open.begin(StreamDirection::Send);
        open.begin(StreamDirection::Send);
    }
}
