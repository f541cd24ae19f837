//! The tasks of one lane that copy clusters before they are changed.
//!
//! Where it stands: between a change that waits and the children, on lanes of their own.
//!
//! Invariants: whoever waits for memory holds no lock; whoever holds one waits for nothing but I/O.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use block::{Durability, FailKind, HostMemory, Operation, ZeroTerms};
use tasks::{AsyncChild, Semaphore, extent};

use super::{CHUNK_BYTES, COPIED_BYTES, SnapshotState};

/// What the tasks of one lane share that preserve clusters.
#[derive(Debug)]
pub(super) struct PreservingTasks {
    pub(super) source: AsyncChild,
    pub(super) target: AsyncChild,
    pub(super) state: Arc<SnapshotState>,
    /// How many bytes are copied at a time: at least what the target gives a place at once.
    chunk_bytes: u64,
    room: Semaphore,
    /// Those that are over, by number.
    over: RefCell<Vec<(u64, Result<(), FailKind>)>>,
}

impl PreservingTasks {
    /// On a target that gives so many bytes a place at once.
    pub(super) fn new(
        source: AsyncChild,
        target: AsyncChild,
        state: Arc<SnapshotState>,
        target_unit: u64,
    ) -> Self {
        let (room, over) = (Semaphore::new(COPIED_BYTES), RefCell::default());
        let chunk_bytes = CHUNK_BYTES.max(target_unit);
        Self { source, target, state, chunk_bytes, room, over }
    }

    /// Preserves the clusters of these bytes, and says under this number how that ended.
    pub(super) async fn serve(self: Rc<Self>, number: u64, bytes: Range<u64>) {
        let result = self.preserve(&bytes).await;
        self.over.borrow_mut().push((number, result));
    }

    /// Takes the ends that nobody has taken.
    pub(super) fn take_over(&self) -> Vec<(u64, Result<(), FailKind>)> {
        self.over.take()
    }

    /// Whether there are any.
    pub(super) fn has_over(&self) -> bool {
        !self.over.borrow().is_empty()
    }

    async fn preserve(&self, bytes: &Range<u64>) -> Result<(), FailKind> {
        let clusters = self.state.clusters_of(bytes);
        let most = self.chunk_bytes.max(self.state.cluster_bytes());
        let mut at = clusters.start;
        while let Some(run) = self.state.next_pending(at..clusters.end) {
            // Nothing is worth copying any more.
            if self.state.broken().is_some() {
                return Ok(());
            }
            let run = run.start..run.end.min(run.start - run.start % most + most);
            at = run.end;
            self.preserve_chunk(run).await?;
        }
        Ok(())
    }

    /// Preserves what is pending of these whole clusters.
    async fn preserve_chunk(&self, chunk: Range<u64>) -> Result<(), FailKind> {
        let count = (chunk.end - chunk.start).min(self.chunk_bytes);
        let _memory = self.room.take(usize::try_from(count).expect("a chunk fits memory")).await;
        let _locked = self.state.lock(chunk.clone()).await;
        let _copying = self.state.begin_copying();
        let mut at = chunk.start;
        // Others may have preserved some of it meanwhile.
        while let Some(run) = self.state.next_pending(at..chunk.end) {
            // Those who waited for the same lock have changed it by now.
            if self.state.broken().is_some() {
                return Ok(());
            }
            at = run.end;
            let mut from = run.start;
            while from < run.end {
                let end = run.end.min(from + self.chunk_bytes);
                self.copy(from..end).await?;
                from = end;
            }
            self.state.set_preserved(run);
        }
        Ok(())
    }

    async fn copy(&self, bytes: Range<u64>) -> Result<(), FailKind> {
        let found = self.source.read(bytes.clone()).await?;
        if found.iter().all(|byte| *byte == 0) {
            let zero = Operation::WriteZeroes(extent(bytes)?, ZeroTerms::UNMAP, Durability::Cached);
            self.target.run(zero, HostMemory::zeroed(0)).await.map(drop)
        } else {
            self.target.write(bytes.start, found).await.map(drop)
        }
    }
}
