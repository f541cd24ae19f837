//! Self-refilling rings: each iothread plays its own guest, so that the path and its scaling over
//! threads can be measured without a client and on few CPUs.
//!
//! A [`Refilling`] is a front end, a ring with its guest: after each turn it takes what is used and
//! makes as much available, on the same thread. The data path is the shipped one, from the event
//! loop to the used ring; only kick and interrupt are missing, since nobody sleeps.
//!
//! Threads: the ring travels with its guest; only the number of answers is shared.

pub(crate) mod connections;
mod fairness;
mod guest;
mod layers;
pub(crate) mod moves;

use std::error::Error;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use block::{
    Access, ByteCount, Capacity, Child, Claim, Clock, DiscardPolicy, DiskSize, Durability,
    FlushPolicy, Node, Outcome, Rights, SourceRequestSlot, SystemClock,
};
use disk::{FileNode, NullNode, RawNode, RawWindow, ReadContent};
use iothread::{
    Iothread, PlacedFrontEnd, PollSettings, ProcessResources, SourceName, SourceObserver,
};
use kernel_io::{
    Aio, Caching, FileKind, FileTable, LockOptions, Notifier, OpenOptions, ReactorChoice,
};
use load::probe::CacheMode;
use qcow2::{Children, FreedClusterDiscards, OverlapCheck, Qcow2Node, Qcow2Settings};
use request_path::{
    ControlEngineFactory, FrontEnd, FrontEndContext, FrontEndSource, Interest, NewRequest,
    SleepDecision, StreamTransfer,
};
use rustix::event::{EventfdFlags, eventfd};
use virtio::{BlkRules, Ring};
use virtio_blk::{BlkReplyTarget, BlkRing, BlkRingFault, BlkRingSetup};

use crate::clock;
use crate::counters::cpu_ns;
use crate::disks::{DISK_BYTES, DiskFile, Format};
use crate::measure::{Values, as_f64};
use crate::refill::guest::{Direction, Guest, Shape};
use crate::results::Metric;

pub(crate) use crate::refill::fairness::{Company, Fairness};
pub(crate) use crate::refill::layers::{Layer, Recording, measure_writes};

const RAMP: Duration = Duration::from_millis(50);
const LOOK: Duration = Duration::from_millis(1);
/// Those of QEMU, in bytes: more than any image here needs.
const L2_CACHE: u64 = 32 << 20;
const REFCOUNT_CACHE: u64 = 256 << 10;
/// What keeps an iothread busy for ever.
const SATURATED: Shape = Shape { direction: Direction::Read, depth: 64, block: 4096 };
/// The same with writes.
const WRITING: Shape = Shape { direction: Direction::Write, ..SATURATED };

/// The number of answers of one ring, in a cache line of its own. Relaxed: it carries no data.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Answers(AtomicU64);

/// A ring whose guest is served by the same thread.
#[derive(Debug)]
struct Refilling {
    ring: BlkRing,
    guest: Guest,
    answers: Arc<Answers>,
}

impl FrontEnd for Refilling {
    type Reply = BlkReplyTarget;
    type Fault = BlkRingFault;

    fn kick(&self) -> BorrowedFd<'_> {
        self.ring.kick()
    }

    fn interest(&self) -> Interest {
        self.ring.interest()
    }

    fn slots(&self) -> u16 {
        self.ring.slots()
    }

    fn begin_batch(&mut self) {
        self.ring.begin_batch();
    }

    #[inline]
    fn take(&mut self) -> Result<Option<NewRequest<'_, BlkReplyTarget>>, BlkRingFault> {
        self.ring.take()
    }

    #[inline]
    fn answer(&mut self, slot: SourceRequestSlot, reply: BlkReplyTarget, outcome: Outcome) {
        self.ring.answer(slot, reply, outcome);
    }

    fn publish(&mut self, port: &mut FrontEndContext<'_>) {
        self.ring.publish(port);
        let answered = self.guest.refill();
        if answered > 0 {
            let answers = self.answers.0.load(Ordering::Relaxed) + answered;
            self.answers.0.store(answers, Ordering::Relaxed);
            // No kick comes from a guest on this thread.
            port.call();
        }
    }

    fn unpublished(&self) -> usize {
        self.ring.unpublished()
    }

    fn transfer_over(&mut self, transfer: StreamTransfer) {
        self.ring.transfer_over(transfer);
    }

    fn check(&self) -> Result<(), BlkRingFault> {
        self.ring.check()
    }

    fn report_fault(&self, port: &mut FrontEndContext<'_>) {
        self.ring.report_fault(port);
    }

    fn has_new(&self) -> bool {
        self.ring.has_new()
    }

    fn waiting(&self) -> u32 {
        self.ring.waiting()
    }

    fn rest(&mut self) -> SleepDecision {
        self.ring.rest()
    }

    fn inherited(&self) -> usize {
        self.ring.inherited()
    }

    fn stays(&self) -> Option<&'static str> {
        self.ring.stays()
    }

    fn arrive(&mut self, port: &mut FrontEndContext<'_>) {
        self.ring.arrive(port);
    }

    fn leave(&mut self, port: &mut FrontEndContext<'_>) {
        self.ring.leave(port);
    }
}

#[derive(Debug)]
struct NoFault;

impl SourceObserver for NoFault {
    fn broken(&self, fault: &(dyn Error + 'static)) {
        panic!("our own guest broke the rules: {fault}");
    }

    fn kicked_while_empty(&self) {}
}

/// Self-refilling rings on iothreads and one disk.
#[derive(Debug)]
struct Rings {
    placed: Vec<PlacedFrontEnd<Refilling>>,
    answers: Vec<Arc<Answers>>,
}

impl Rings {
    /// So many rings on each of so many threads.
    fn start(stage: &Stage, shape: Shape, threads: u16, rings: u16) -> Result<Self> {
        let mut all = Self { placed: Vec::new(), answers: Vec::new() };
        for number in 0..threads {
            let iothread = stage.iothread(&format!("t{number}"))?;
            for ring in 0..rings {
                let seed = u64::from(number * rings + ring);
                let (placed, answers) = stage.saturate(shape, seed, &iothread)?;
                all.placed.push(placed);
                all.answers.push(answers);
            }
        }
        Ok(all)
    }

    fn answered(&self) -> u64 {
        self.answers.iter().map(|answers| answers.0.load(Ordering::Relaxed)).sum()
    }

    fn stop(self) -> u64 {
        self.placed.into_iter().map(|placed| placed.stop().counters().errors).sum()
    }
}

/// The disk: raw over null or over a file, or an image.
fn node(file: Option<DiskFile<'_>>, files: &Arc<FileTable>) -> Result<Arc<dyn Node>> {
    let access = Access::ReadWrite;
    let below: Arc<dyn Node> = match file {
        None => {
            let size = DiskSize(ByteCount(DISK_BYTES));
            Arc::new(NullNode::new("null", size, access, ReadContent::Untouched))
        }
        Some(DiskFile { path, cache, format: Format::Raw, .. }) => {
            file_node(path, cache, access, files)?
        }
        Some(DiskFile { path, cache, format: Format::Qcow2 { backing, l2_cache }, .. }) => {
            let mut below = None;
            for path in backing.iter().rev() {
                below = Some(image(path, cache, Access::ReadOnly, l2_cache, below, files)?);
            }
            return image(path, cache, access, l2_cache, below, files);
        }
        Some(DiskFile { format: Format::Cluster, .. }) => {
            anyhow::bail!("no row of self-refilling rings stands on a cluster")
        }
    };
    let (child, discard) = (Child::new(below), DiscardPolicy::Unmap);
    Ok(Arc::new(RawNode::new("disk", child, RawWindow::WHOLE, access, discard)?))
}

fn file_node(
    path: &Path,
    cache: CacheMode,
    access: Access,
    files: &Arc<FileTable>,
) -> Result<Arc<dyn Node>> {
    let caching = match cache {
        CacheMode::Direct => Caching::Direct,
        CacheMode::Buffered => Caching::Buffered,
    };
    let path = path.to_path_buf();
    let (kind, aio, flushes) = (FileKind::Regular, Aio::Automatic, FlushPolicy::Obeyed);
    let lock = LockOptions::default();
    let options = OpenOptions { path, kind, access, caching, aio, flushes, lock };
    Ok(Arc::new(FileNode::open("file", &options, DiscardPolicy::Unmap, files)?))
}

fn image(
    path: &Path,
    cache: CacheMode,
    access: Access,
    l2_cache: Option<u64>,
    below: Option<Arc<dyn Node>>,
    files: &Arc<FileTable>,
) -> Result<Arc<dyn Node>> {
    let file = Child::new(file_node(path, cache, access, files)?);
    let children = Children { file, backing: below.map(Child::new), data_file: None };
    let settings = Qcow2Settings {
        access,
        discards: FreedClusterDiscards::Ignored,
        l2_cache: ByteCount(l2_cache.unwrap_or(L2_CACHE)),
        refcount_cache: ByteCount(REFCOUNT_CACHE),
        clean_after: None,
        overlap_check: OverlapCheck::Cached,
    };
    let engines =
        Arc::new(ControlEngineFactory::new(files, &(Arc::new(SystemClock) as Arc<dyn Clock>)));
    Ok(Arc::new(Qcow2Node::open("image", children, settings, engines)?))
}

/// What rings and iothreads need around them.
#[derive(Debug)]
struct Stage {
    node: Arc<dyn Node>,
    host: ProcessResources,
    /// Dropped after the last request.
    _claim: Claim,
}

impl Stage {
    fn new(file: Option<DiskFile<'_>>) -> Result<Self> {
        let files = Arc::new(FileTable::default());
        Self::over(node(file, &files)?, files)
    }

    /// With that disk.
    fn over(node: Arc<dyn Node>, files: Arc<FileTable>) -> Result<Self> {
        let host = ProcessResources {
            files,
            clock: Arc::new(SystemClock),
            sources: Arc::default(),
            reactors: ReactorChoice::Any,
            spare_rings: Arc::default(),
            confine: None,
            alarm: None,
        };
        let claim = node.claim(Rights::of_user(node.access()))?;
        Ok(Self { node, host, _claim: claim })
    }

    fn iothread(&self, name: &str) -> Result<Arc<Iothread>> {
        let iothread = Iothread::spawn(name, self.host.clone(), PollSettings::default())?;
        Ok(Arc::new(iothread))
    }

    /// Places a ring that refills itself.
    fn saturate(
        &self,
        shape: Shape,
        seed: u64,
        on: &Arc<Iothread>,
    ) -> Result<(PlacedFrontEnd<Refilling>, Arc<Answers>)> {
        let guest = Guest::new(shape, seed, DISK_BYTES).context("make a guest")?;
        let (answers, kick) = (Arc::new(Answers::default()), eventfd(0, EventfdFlags::CLOEXEC)?);
        let ring = self.ring(&guest, kick)?;
        let front = Refilling { ring, guest, answers: Arc::clone(&answers) };
        Ok((self.place(front, on)?, answers))
    }

    fn ring(&self, guest: &Guest, kick: OwnedFd) -> Result<BlkRing> {
        let node = &self.node;
        let rules = BlkRules {
            size: node.size(),
            access: node.access(),
            durability: Durability::Cached,
            discard: true,
            write_zeroes: true,
        };
        Ok(BlkRing::new(BlkRingSetup {
            ring: Ring::new(guest.memory(), guest.setup())?,
            rules,
            capacity: Arc::new(Capacity::new(node.size())),
            serial: String::new(),
            kick,
            call: Some(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?),
            error: None,
        }))
    }

    fn place<F: FrontEnd>(&self, front: F, on: &Arc<Iothread>) -> Result<PlacedFrontEnd<F>> {
        let source =
            FrontEndSource::new(front, vec![Arc::clone(&self.node)], Arc::new(Notifier::new()?));
        let name = SourceName { export: "bench".to_owned(), queue: 0 };
        PlacedFrontEnd::on(on, name, source, Arc::new(NoFault))
            .map_err(|error| anyhow::anyhow!("place a ring: {error}"))
    }
}

/// One sample with so many rings on each of so many iothreads.
pub(crate) fn measure(
    threads: u16,
    rings: u16,
    file: Option<DiskFile<'_>>,
    runtime: Duration,
) -> Result<Values> {
    measure_on(&Stage::new(file)?, SATURATED, (threads, rings), runtime)
}

fn measure_on(
    stage: &Stage,
    shape: Shape,
    (threads, rings): (u16, u16),
    runtime: Duration,
) -> Result<Values> {
    let rings = Rings::start(stage, shape, threads, rings)?;
    clock::pause(RAMP);
    let cpu = || cpu_ns(std::process::id());
    let (opened, before, cpu_before) = (clock::now(), rings.answered(), cpu());
    clock::pause(runtime);
    let (elapsed, answered) = (opened.elapsed(), rings.answered() - before);
    let cpu_used = cpu().zip(cpu_before).map(|(now, then)| now.saturating_sub(then));
    let errors = rings.stop();
    anyhow::ensure!(errors == 0, "{errors} requests of self-refilling rings failed");
    let answered = as_f64(answered);
    let mut values = Values::from([(Metric::RequestsPerS, answered / elapsed.as_secs_f64())]);
    if answered > 0.0 {
        let per_request = |ns| (Metric::CpuNsPerRequest, as_f64(ns) / answered);
        values.extend(cpu_used.map(per_request));
    }
    Ok(values)
}

/// Serves at least so many requests on one thread and returns how many it were and how long it took.
pub(crate) fn profile(requests: u64) -> Result<(u64, Duration)> {
    let start = clock::now();
    let rings = Rings::start(&Stage::new(None)?, SATURATED, 1, 1)?;
    while rings.answered() < requests {
        clock::pause(LOOK);
    }
    let (answered, elapsed) = (rings.answered(), start.elapsed());
    rings.stop();
    Ok((answered, elapsed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::images::{Content, Image};

    #[test]
    fn rings_refill_themselves_on_two_threads() {
        let values = measure(2, 1, None, Duration::from_millis(50)).unwrap();
        assert!(values[&Metric::RequestsPerS] > 1000.0, "{values:?}");
        // How much is not for sure: threads of other tests end meanwhile, and their time is gone.
        assert!(values.contains_key(&Metric::CpuNsPerRequest), "{values:?}");
    }

    #[test]
    fn a_file_refills_too() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(DISK_BYTES).unwrap();
        let disk = DiskFile::raw(file.path(), CacheMode::Buffered);
        let values = measure(1, 2, Some(disk), Duration::from_millis(50)).unwrap();
        assert!(values[&Metric::RequestsPerS] > 10.0, "{values:?}");
    }

    #[test]
    fn images_refill_on_two_threads_and_through_a_chain() {
        if let Err(error) = std::process::Command::new("qemu-img").arg("--version").output() {
            return testkit::report::skipped(&format!("qemu-img cannot be started: {error}"));
        }
        let holes = tempfile::NamedTempFile::new().unwrap();
        holes.as_file().set_len(DISK_BYTES).unwrap();
        for content in [Content::Full, Content::Chain] {
            let image = Image { name: "image", content, cluster_bytes: 64 << 10, l2_cache: None };
            let paths = image.make(holes.path()).unwrap();
            let (path, backing) = paths.split_first().unwrap();
            let format = Format::Qcow2 { backing, l2_cache: image.l2_cache };
            let file = DiskFile { path, cache: CacheMode::Buffered, format, nbd: None };
            let values = measure(2, 1, Some(file), Duration::from_millis(50)).unwrap();
            assert!(values[&Metric::RequestsPerS] > 10.0, "{content:?}: {values:?}");
        }
    }

    #[test]
    fn a_profile_serves_what_was_asked_for() {
        assert!(profile(10_000).unwrap().0 >= 10_000);
    }
}
