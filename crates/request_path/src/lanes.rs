//! The lanes one iothread has open, one for each node, shared by all its rings on that node.

use std::sync::Arc;

use block::{Lane, LaneError, Mapping, Node};

/// Names an open lane of one [`crate::Engine`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a lane stays open until it is closed"]
pub struct LaneIndex(usize);

#[derive(Debug, Default)]
pub(crate) struct Lanes {
    places: Vec<Option<OpenLane>>,
}

#[derive(Debug)]
struct OpenLane {
    node: Arc<dyn Node>,
    lane: Box<dyn Lane>,
    users: usize,
}

impl Lanes {
    /// The lane on the node, opened if it is not yet.
    pub(crate) fn open(&mut self, node: &Arc<dyn Node>) -> Result<LaneIndex, LaneError> {
        for (place, entry) in self.places.iter_mut().enumerate() {
            if let Some(open) = entry
                && Arc::ptr_eq(&open.node, node)
            {
                open.users += 1;
                return Ok(LaneIndex(place));
            }
        }
        let open = OpenLane { node: Arc::clone(node), lane: node.open_lane()?, users: 1 };
        let place = self.places.iter().position(Option::is_none).unwrap_or(self.places.len());
        if place == self.places.len() {
            self.places.push(None);
        }
        self.places[place] = Some(open);
        Ok(LaneIndex(place))
    }

    /// Gives a lane back; the last user closes it.
    pub(crate) fn close(&mut self, index: LaneIndex) {
        let place = &mut self.places[index.0];
        let open = place.as_mut().expect("a lane is closed as often as it was opened");
        open.users -= 1;
        if open.users == 0 {
            *place = None;
        }
    }

    /// Asks the lane about a whole batch.
    pub(crate) fn map(&mut self, index: LaneIndex, batch: &mut [Mapping]) {
        let open = self.places[index.0].as_mut().expect("a ring's lane is open while it is served");
        open.lane.map(batch);
    }
}
