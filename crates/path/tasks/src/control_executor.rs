//! How a thread that owns no ring uses a node: with an engine of its own, and a child on that.
//!
//! Threads: belongs to the thread that made it, which it blocks.

use std::sync::Arc;
use std::time::Instant;

use block::{
    BatchPieces, ControlEngine, EngineFactory, Lane, LaneCompletionDecision, LaneContext,
    LaneError, Mapping, Node, Outcome, Token, WakeTime,
};

use crate::child_io::AsyncChild;

/// Runs futures over lanes to their end on a thread that owns no ring, and carries out their I/O.
#[derive(Debug)]
pub struct ControlExecutor {
    engine: Box<dyn ControlEngine>,
    storage: AsyncChild,
}

impl ControlExecutor {
    /// Opens a lane on a node, on an engine that is made for it.
    pub fn open(engines: &dyn EngineFactory, node: &Arc<dyn Node>) -> Result<Self, LaneError> {
        Self::open_with(engines, node, LaneContext::clone)
    }

    /// The same on a node that may not be claimed yet.
    pub fn before_claim(
        engines: &dyn EngineFactory,
        node: &Arc<dyn Node>,
    ) -> Result<Self, LaneError> {
        Self::open_with(engines, node, LaneContext::before_claim)
    }

    fn open_with(
        engines: &dyn EngineFactory,
        node: &Arc<dyn Node>,
        stage: impl Fn(&LaneContext) -> LaneContext,
    ) -> Result<Self, LaneError> {
        let failed = |source| LaneError { node: node.name().to_owned(), source };
        let mut engine = engines.make().map_err(failed)?;
        let alignment = node.limits().request_alignment.get();
        let mut opened = None;
        engine.open(node, &mut |io| {
            let io = stage(io);
            let storage = AsyncChild::new(node.open_lane(&io)?, &io, alignment.into());
            Ok(Box::new(ControlLane(opened.insert(storage).clone())))
        })?;
        Ok(Self { engine, storage: opened.expect("the engine has made its lane") })
    }

    /// The node, for futures.
    pub fn storage(&self) -> AsyncChild {
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

/// The lane on top of a child that a control engine calls. No client brings requests to it.
#[derive(Debug)]
struct ControlLane(AsyncChild);

impl Lane for ControlLane {
    fn map(&mut self, batch: &mut [Mapping], _: &mut BatchPieces) {
        panic!("nobody brings requests to a control thread: {batch:?}");
    }

    fn due(&self) -> Option<WakeTime> {
        self.0.due()
    }

    fn resume(&mut self, now: Instant, _: &mut Vec<Mapping>, _: &mut BatchPieces) {
        self.0.resume(now);
    }

    fn release(&mut self) {
        self.0.release();
    }

    fn completed(&mut self, token: Token, _: Outcome) -> LaneCompletionDecision {
        panic!("{token:?} did not ask to be told")
    }
}
