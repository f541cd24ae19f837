//! How a thread that owns no ring uses a node: with an engine of its own, and a child on that.
//!
//! Threads: belongs to the thread that made it, which it blocks.

use std::sync::Arc;
use std::time::Instant;

use block::{
    ControlEngine, Due, EngineFactory, Lane, LaneError, LaneIo, Mapping, Node, Outcome, PieceList,
    Token, Told,
};

use crate::storage::Storage;

/// A thread's handle on a node, for one use: opening an image, closing it.
#[derive(Debug)]
pub struct Control {
    engine: Box<dyn ControlEngine>,
    storage: Storage,
}

impl Control {
    /// Opens a lane on a node, on an engine that is made for it.
    pub fn open(engines: &dyn EngineFactory, node: &Arc<dyn Node>) -> Result<Self, LaneError> {
        Self::open_with(engines, node, LaneIo::clone)
    }

    /// The same on a node that may not be claimed yet.
    pub fn before_claim(
        engines: &dyn EngineFactory,
        node: &Arc<dyn Node>,
    ) -> Result<Self, LaneError> {
        Self::open_with(engines, node, LaneIo::before_claim)
    }

    fn open_with(
        engines: &dyn EngineFactory,
        node: &Arc<dyn Node>,
        stage: impl Fn(&LaneIo) -> LaneIo,
    ) -> Result<Self, LaneError> {
        let failed = |source| LaneError { node: node.name().to_owned(), source };
        let mut engine = engines.make().map_err(failed)?;
        let alignment = node.limits().request_alignment.get();
        let mut opened = None;
        engine.open(node, &mut |io| {
            let io = stage(io);
            let storage = Storage::new(node.open_lane(&io)?, &io, alignment.into());
            Ok(Box::new(ControlLane(opened.insert(storage).clone())))
        })?;
        Ok(Self { engine, storage: opened.expect("the engine has made its lane") })
    }

    /// The node, for futures.
    pub fn storage(&self) -> Storage {
        self.storage.clone()
    }

    /// Runs a future that uses the node to its end, and what lanes have begun meanwhile for themselves.
    pub fn run<T>(&mut self, future: impl Future<Output = T>) -> T {
        let mut result = None;
        let run = async { result = Some(future.await) };
        self.engine.run(std::pin::pin!(run));
        result.expect("the future has ended")
    }
}

/// A child as a lane of the engine, which calls it. No client asks it for anything.
#[derive(Debug)]
struct ControlLane(Storage);

impl Lane for ControlLane {
    fn map(&mut self, batch: &mut [Mapping], _: &mut PieceList) {
        panic!("nobody brings requests to a control thread: {batch:?}");
    }

    fn due(&self) -> Option<Due> {
        self.0.due()
    }

    fn resume(&mut self, now: Instant, _: &mut Vec<Mapping>, _: &mut PieceList) {
        self.0.resume(now);
    }

    fn release(&mut self) {
        self.0.release();
    }

    fn carried_out(&mut self, token: Token, _: Outcome) -> Told {
        panic!("{token:?} did not ask to be told")
    }
}
