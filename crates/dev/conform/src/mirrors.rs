//! Disks that are copied while guests change them: a mirror's filter and the copy engine on the rig of
//! `testkit::conformance::mirror`.
//!
//! Not here: that guests find what they wrote (`subjects`), and what is switched (`control`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use bitmaps::{CopyBacklog, DirtyBitmap, Granularity};
use block::{Buffers, Clock, Node, Operation, Outcome, SourceRequestSlot};
use copy::{
    BacklogCopy, BacklogEnd, BacklogLimits, CopiedSource, CopyAction, CopyError, CopyJob,
    CopyObserver, CopySettings, CopyWorker, ErrorAction, ErrorPolicy, TargetContent,
};
use layers::{MirrorMode, MirrorNode};
use request_path::{FrontEnd, LogicalUnitIndex, NewRequest, RequestAction};
use testkit::conformance::mirror::{Copier, CopyRequest, MirrorNodes, MirrorParts, play_mirror};
use testkit::conformance::play::Played;
use testkit::conformance::workload::Tally;
use testkit::rng::Rng;

/// Plays the game of this seed.
pub(crate) fn play(seed: u64) -> Result<Played> {
    let played = play_mirror(seed, &|parts| make(seed, parts).map(|(nodes, _)| nodes))?;
    let tally = Tally { done: played.changes + played.copied, refused: played.failed };
    Ok(Played { names: vec!["mirror"], tally, held: 0, kept: 0 })
}

/// The layer and its copy, and what is left to be copied.
fn make(seed: u64, parts: MirrorParts<'_>) -> Result<(MirrorNodes, Arc<CopyBacklog>)> {
    let rng = &mut Rng::new(!seed);
    let (size, granularity) = (parts.target.size(), 512 << rng.below(8));
    let granularity = Granularity::new(granularity).context("a power of two")?;
    let dirty = DirtyBitmap::new(size, granularity)?;
    dirty.set_all();
    let backlog = CopyBacklog::new(dirty)?;
    let mode = [MirrorMode::Background, MirrorMode::WriteBlocking][rng.index(2)];
    let node = MirrorNode::new(parts.source, parts.target, Arc::clone(&backlog), mode);
    let node = Arc::new(node);
    let chunks = [1, 2, usize::MAX][rng.index(3)];
    let limits = BacklogLimits { chunks, chunk_bytes: granularity.bytes() << rng.below(4) };
    let copier = JobCopier::new(&node, &backlog, size.0.0, limits, parts.clock)?;
    let guest = Arc::clone(&node) as Arc<dyn Node>;
    Ok((MirrorNodes { guest, copier: Box::new(copier) }, backlog))
}

/// A worker of a job whose requests somebody else carries out.
struct JobCopier {
    node: Arc<MirrorNode>,
    backlog: Arc<CopyBacklog>,
    job: Arc<CopyJob>,
    worker: CopyWorker,
    news: Arc<News>,
    /// The memory of what is under way.
    memory: BTreeMap<u16, Buffers>,
}

/// What the workers have told.
#[derive(Debug, Default)]
struct News {
    was_equal: AtomicBool,
}

impl CopyObserver for News {
    fn is_equal(&self) {
        self.was_equal.store(true, Ordering::Relaxed);
    }

    fn has_failed(&self, _: CopyError, _: ErrorAction) {}
}

impl JobCopier {
    fn new(
        node: &Arc<MirrorNode>,
        backlog: &Arc<CopyBacklog>,
        bytes: u64,
        limits: BacklogLimits,
        clock: &Arc<dyn Clock>,
    ) -> Result<Self> {
        let news = Arc::new(News::default());
        let settings = CopySettings {
            action: CopyAction::Copy,
            bytes,
            target_bytes: bytes,
            target: TargetContent::Unknown,
            zero_unit: 4096,
            target_unit: 1,
            copied: CopiedSource::Kept,
            bytes_per_second: None,
        };
        let copied = BacklogCopy {
            backlog: Arc::clone(backlog),
            scan: None,
            end: BacklogEnd::WhenCancelled,
            on_source_error: ErrorPolicy::Ignore,
            on_target_error: ErrorPolicy::Ignore,
            limits,
            observer: Arc::clone(&news) as Arc<dyn CopyObserver>,
        };
        let job = CopyJob::of_backlog(settings, copied, Arc::clone(clock));
        let worker = CopyWorker::new(&job)?;
        let (node, backlog, memory) = (Arc::clone(node), Arc::clone(backlog), BTreeMap::new());
        Ok(Self { node, backlog, job, worker, news, memory })
    }
}

impl Copier for JobCopier {
    fn next(&mut self) -> Option<CopyRequest> {
        self.worker.begin_batch();
        let new = self.worker.take().expect("a job that goes on until it is cancelled")?;
        let NewRequest { slot: SourceRequestSlot(slot), reply: (), work } = new;
        let RequestAction::Disk { unit, operation, memory } = work else {
            panic!("a worker asks for operations of disks");
        };
        let memory = std::mem::take(memory);
        let mut data = vec![0; memory.count()];
        if let Operation::Write(..) = operation {
            memory.copy_to(0, &mut data);
        }
        self.memory.insert(slot, memory);
        let is_of_target = unit == LogicalUnitIndex(1);
        Some(CopyRequest { slot, is_of_target, operation, data })
    }

    fn end(&mut self, slot: u16, outcome: Outcome, data: &[u8]) {
        let mut memory = self.memory.remove(&slot).expect("it is under way");
        memory.copy_from(0, data);
        self.worker.answer(SourceRequestSlot(slot), (), outcome);
    }

    fn set_blocking(&mut self, is_blocking: bool) {
        self.node.set_mode(match is_blocking {
            true => MirrorMode::WriteBlocking,
            false => MirrorMode::Background,
        });
    }

    fn is_equal(&mut self) -> bool {
        self.job.hurry();
        self.news.was_equal.load(Ordering::Relaxed) && self.backlog.left_bytes() == 0
    }
}

#[cfg(test)]
mod tests;
