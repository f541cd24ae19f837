//! Compressed clusters that qemu-img made: read and written over through lanes of two threads, then judged by
//! qemu-img, which has to find every byte, and no leak.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, Waker};

use anyhow::{Context, Result, ensure};
use block::{
    Access, AfterPiecesAction, Answer, BatchPieces, ByteCount, ByteOffset, Child, Claim, Clock,
    Durability, EngineFactory, FailKind, FileId, HostMemory, Lane, LaneCompletionDecision,
    LaneContext, Mapping, Node, Operation, Outcome, Piece, Rights, SystemClock, Token, ZeroTerms,
};
use qcow2::{Children, FreedClusterDiscards, OverlapCheck, Qcow2Node, Qcow2Settings};
use testkit::qcow2rig::child::{ControlThread, FileChild, Life};
use testkit::qcow2rig::disk::Disk;
use testkit::rng::Rng;

use crate::qemu;

/// Files in memory, an image among them, and two threads' lanes on it.
struct Bench {
    disk: Arc<Disk>,
    image: FileId,
    node: Arc<dyn Node>,
    runner: Arc<ControlThread>,
    threads: Vec<Thread>,
    claim: Option<Claim>,
}

struct Thread {
    lane: Box<dyn Lane>,
    io: LaneContext,
    /// How many internal I/Os it had.
    errands: u64,
}

impl Bench {
    /// With the images of a chain, the top first: what stands below is raw, or has no backing file itself.
    fn open(images: &[&Path], access: Access) -> Result<Self> {
        let disk = Arc::new(Disk::default());
        let life = Life::new(u64::MAX);
        let runner = Arc::new(ControlThread { disk: Arc::clone(&disk), life: Arc::clone(&life) });
        let mut below: Option<Arc<dyn Node>> = None;
        let mut image = FileId(0);
        for (place, path) in images.iter().enumerate().rev() {
            let access = if place == 0 { access } else { Access::ReadOnly };
            image = disk.add(&fs::read(path)?);
            let (name, disk, life) = (format!("file{place}"), Arc::clone(&disk), Arc::clone(&life));
            let file: Arc<dyn Node> =
                Arc::new(FileChild { name, disk, file: image, access, discards: true, life });
            if path.extension().is_some_and(|it| it == "raw") {
                below = Some(file);
                continue;
            }
            let backing = below.take().map(Child::new);
            let children = Children { file: Child::new(file), backing, data_file: None };
            let settings = Qcow2Settings {
                access,
                discards: FreedClusterDiscards::Passed,
                l2_cache: ByteCount(1 << 20),
                refcount_cache: ByteCount(1 << 20),
                clean_after: None,
                overlap_check: OverlapCheck::Cached,
            };
            let engines: Arc<dyn EngineFactory> = Arc::clone(&runner) as _;
            let name = format!("image{place}");
            below = Some(Arc::new(Qcow2Node::open(&name, children, settings, engines)?));
        }
        let node = below.context("a chain has an image")?;
        let claim = Some(node.claim(Rights::of_user(access))?);
        let open = |_| {
            let io = LaneContext::idle();
            Ok(Thread { lane: node.open_lane(&io)?, io, errands: 0 })
        };
        let threads: Result<_> = (0..2).map(open).collect();
        Ok(Self { disk, image, runner, threads: threads?, claim, node: Arc::clone(&node) })
    }

    fn read(&mut self, at: u64, count: u64) -> Result<Vec<u8>, FailKind> {
        let bytes = usize::try_from(count).expect("small");
        let read = Operation::Read(self.extent(at, count));
        self.run(&[read], &vec![0; bytes]).pop().expect("one").map(|it| it.to_vec())
    }

    fn change(&mut self, operation: Operation, bytes: &[u8]) -> Result<(), FailKind> {
        self.run(&[operation], bytes).pop().expect("one").map(drop)
    }

    fn extent(&self, at: u64, count: u64) -> block::Extent {
        self.node.size().check(ByteOffset(at), ByteCount(count)).expect("on the disk")
    }

    /// One batch of one thread, carried out to its end. All have as much memory.
    fn run(
        &mut self,
        operations: &[Operation],
        memory: &[u8],
    ) -> Vec<Result<HostMemory, FailKind>> {
        let Self { threads, runner, .. } = self;
        threads.rotate_left(1);
        let (thread, others) = threads.split_first_mut().expect("there are two");
        let (mut pieces, mut ended) = (BatchPieces::default(), Vec::new());
        let name = |place| Token(u32::try_from(place).expect("few"));
        let asked = operations.iter().enumerate();
        let mut open: Vec<_> = asked.map(|(it, op)| Mapping::new(name(it), *op)).collect();
        let mut memories: Vec<_> = open.iter().map(|_| Some(HostMemory::of(memory))).collect();
        ended.resize_with(open.len(), || None);
        thread.lane.map(&mut open, &mut pieces);
        while ended.iter().any(Option::is_none) {
            for mapping in open.drain(..) {
                let place = mapping.token.0 as usize;
                let result = match mapping.answer {
                    Answer::Held => continue,
                    Answer::Refused(kind) => Err(kind),
                    Answer::Now(range) => {
                        let memory = memories[place].take().expect("it is back");
                        thread.carry_out(runner, &mapping, pieces.get(range), memory)
                    }
                };
                match result {
                    Ok((memory, LaneCompletionDecision::Finish(Outcome::Done))) => {
                        ended[place] = Some(Ok(memory))
                    }
                    Ok((_, LaneCompletionDecision::Finish(Outcome::Failed(kind)))) | Err(kind) => {
                        ended[place] = Some(Err(kind));
                    }
                    Ok((memory, LaneCompletionDecision::HoldAgain)) => {
                        memories[place] = Some(memory)
                    }
                }
            }
            pieces.clear();
            thread.run_errands(runner);
            thread.lane.resume(SystemClock.now(), &mut open, &mut pieces);
            // They may be at what this one waits for.
            others.iter_mut().for_each(|other| other.go_on(runner));
        }
        assert_eq!(thread.io.answer_memory_bytes(), 0, "of what is over nothing is kept");
        ended.into_iter().flatten().collect()
    }

    /// Closes the image; its bytes.
    fn close(mut self) -> Vec<u8> {
        // Clusters that go are given back in tasks.
        while self.threads.iter().any(|thread| thread.io.has_submitted()) {
            self.threads.iter_mut().for_each(|thread| thread.go_on(&self.runner));
        }
        self.threads.clear();
        drop(self.claim.take());
        let image = self.disk.snapshot(self.image);
        let mut bytes = vec![0; usize::try_from(image.bytes()).expect("small")];
        image.read(0, &mut bytes);
        bytes
    }
}

type Carried = Result<(HostMemory, LaneCompletionDecision), FailKind>;

impl Thread {
    fn run_errands(&mut self, runner: &ControlThread) {
        let mut errands = Vec::new();
        self.io.take_submitted(&mut errands);
        for errand in errands {
            self.errands += 1;
            runner.run(errand);
        }
    }

    /// Goes on with what no request waits for.
    fn go_on(&mut self, runner: &ControlThread) {
        self.run_errands(runner);
        let mut late = Vec::new();
        self.lane.resume(SystemClock.now(), &mut late, &mut BatchPieces::default());
        assert!(late.is_empty(), "nothing was asked of it");
    }

    /// Carries out an answer as an internal I/O would be.
    fn carry_out(
        &mut self,
        runner: &ControlThread,
        mapping: &Mapping,
        pieces: &[Piece],
        memory: HostMemory,
    ) -> Carried {
        let mut done = std::pin::pin!(self.io.submit(mapping.operation, pieces, memory));
        self.run_errands(runner);
        let context = &mut TaskContext::from_waker(Waker::noop());
        let Poll::Ready(result) = done.as_mut().poll(context) else { panic!("it was carried out") };
        let memory = result?;
        Ok(match mapping.after {
            AfterPiecesAction::Finish => (memory, LaneCompletionDecision::Finish(Outcome::Done)),
            AfterPiecesAction::NotifyLane => {
                (memory, self.lane.completed(mapping.token, Outcome::Done))
            }
        })
    }
}

const SIZE: u64 = 6 << 20;

/// Bytes of which much, little and nothing can be compressed, by turns, with an odd end.
fn content(seed: u64, bytes: u64) -> Vec<u8> {
    let mut random = Rng::new(seed);
    let mut content = vec![0; usize::try_from(bytes).expect("small")];
    for (place, part) in content.chunks_mut(40_000).enumerate() {
        let random_bytes = part.len() * [3, 0, 24, 9, 2][place % 5] / 24;
        random.fill(&mut part[..random_bytes]);
        part[random_bytes..].fill(u8::try_from(place % 3).expect("small"));
    }
    content
}

/// Makes a compressed image of such bytes.
fn make(directory: &Path, name: &str, seed: u64, options: &str) -> Result<Vec<u8>> {
    // Many small clusters take their time.
    let size = if options.contains("=512") { SIZE / 16 } else { SIZE };
    let content = content(seed, size);
    fs::write(directory.join("content.raw"), &content)?;
    let line = ["qemu-img", "convert", "-c", "-f", "raw", "-O", "qcow2", "-o", options];
    qemu::succeeds(directory, &[&line[..], &["content.raw", name]].concat())?;
    Ok(content)
}

fn check_all(bench: &mut Bench, content: &[u8], step: u64) -> Result<()> {
    let size = u64::try_from(content.len())?;
    for at in (0..size).step_by(usize::try_from(step)?) {
        let count = step.min(size - at);
        let found = bench.read(at, count).map_err(|kind| anyhow::anyhow!("{at}: {kind:?}"))?;
        let start = usize::try_from(at)?;
        ensure!(found == content[start..start + found.len()], "{count} bytes at {at} are wrong");
    }
    Ok(())
}

/// Changes parts of the disk at random; `content` follows.
fn change(bench: &mut Bench, content: &mut [u8], random: &mut Rng) -> Result<()> {
    for round in 0..60 {
        let count = (1 + random.below(400)) * 512;
        let size = u64::try_from(content.len())?;
        let at = random.below((size - count) / 512 + 1) * 512;
        let extent = bench.extent(at, count);
        let part = &mut content[usize::try_from(at)?..usize::try_from(at + count)?];
        let operation = match round % 3 {
            0 => Operation::WriteZeroes(extent, ZeroTerms::UNMAP, Durability::Cached),
            _ => Operation::Write(extent, Durability::Cached),
        };
        if round % 3 == 0 {
            part.fill(0)
        } else {
            random.fill(part)
        }
        bench.change(operation, part).map_err(|kind| anyhow::anyhow!("{operation:?}: {kind:?}"))?;
    }
    bench.change(Operation::Flush, &[]).map_err(|kind| anyhow::anyhow!("a flush: {kind:?}"))
}

/// Reads all, writes over parts, reads all again; then qemu-img judges.
fn check(options: &str) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let path = directory.path();
    let mut content = make(path, "image.qcow2", 1, options)?;
    let image = path.join("image.qcow2");
    let mut bench = Bench::open(&[&image], Access::ReadOnly)?;
    check_all(&mut bench, &content, 4096)?;
    check_all(&mut bench, &content, 1 << 20)?;
    bench.close();
    let mut bench = Bench::open(&[&image], Access::ReadWrite)?;
    change(&mut bench, &mut content, &mut Rng::new(2))?;
    check_all(&mut bench, &content, 64 << 10)?;
    fs::write(&image, bench.close())?;
    qemu::succeeds(path, &["qemu-img", "check", "-q", "-f", "qcow2", "image.qcow2"])?;
    fs::write(path.join("content.raw"), &content)?;
    let compare = ["qemu-img", "compare", "-q", "-f", "qcow2", "-F", "raw", "image.qcow2"];
    qemu::succeeds(path, &[&compare[..], &["content.raw"]].concat())?;
    Ok(())
}

#[test]
fn compressed_clusters_are_read_and_written_over() -> Result<()> {
    if qemu::is_missing() {
        return Ok(());
    }
    for options in [
        "compat=0.10",
        "compat=1.1",
        "compression_type=zstd",
        "cluster_size=512",
        "cluster_size=512,compression_type=zstd",
        "cluster_size=4k,refcount_bits=64,compression_type=zstd",
        "cluster_size=2M",
        "cluster_size=2M,compression_type=zstd",
        "extended_l2=on,cluster_size=128k",
    ] {
        check(options).context(options)?;
    }
    Ok(())
}

#[test]
fn an_image_on_a_compressed_one_copies_from_it() -> Result<()> {
    if qemu::is_missing() {
        return Ok(());
    }
    let directory = tempfile::tempdir()?;
    let path = directory.path();
    let mut content = make(path, "base.qcow2", 3, "compression_type=zstd")?;
    let top = ["qemu-img", "create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", "base.qcow2"];
    qemu::succeeds(path, &[&top[..], &["-o", "cluster_size=128k", "top.qcow2"]].concat())?;
    let (top, base) = (path.join("top.qcow2"), path.join("base.qcow2"));
    let mut bench = Bench::open(&[&top, &base], Access::ReadWrite)?;
    check_all(&mut bench, &content, 4096)?;
    change(&mut bench, &mut content, &mut Rng::new(4))?;
    check_all(&mut bench, &content, 300 << 10)?;
    fs::write(&top, bench.close())?;
    qemu::succeeds(path, &["qemu-img", "check", "-q", "-f", "qcow2", "top.qcow2"])?;
    fs::write(path.join("content.raw"), &content)?;
    qemu::succeeds(path, &["qemu-img", "compare", "-q", "top.qcow2", "content.raw"])?;
    Ok(())
}

#[test]
fn a_cluster_that_is_read_in_parts_is_decoded_once() -> Result<()> {
    if qemu::is_missing() {
        return Ok(());
    }
    let directory = tempfile::tempdir()?;
    let content = make(directory.path(), "image.qcow2", 5, "cluster_size=64k")?;
    let image = directory.path().join("image.qcow2");
    let mut bench = Bench::open(&[&image], Access::ReadOnly)?;
    // The table, by both threads.
    [0, 0].map(|at| bench.read(at, 512).map(drop)).into_iter().collect::<Result<(), _>>().ok();
    let begun: Vec<u64> = bench.threads.iter().map(|thread| thread.errands).collect();
    let reads: Vec<_> = (16..32).map(|it| Operation::Read(bench.extent(it * 4096, 4096))).collect();
    let found = bench.run(&reads, &[0; 4096]);
    for (place, found) in found.into_iter().enumerate() {
        let start = 65536 + place * 4096;
        let found = found.map_err(|kind| anyhow::anyhow!("{kind:?}"))?;
        ensure!(*found == content[start..start + 4096], "part {place}");
    }
    let read = bench.read(65536, 4096).is_ok();
    ensure!(read, "the other thread");
    let ended = bench.threads.iter().map(|thread| thread.errands).collect::<Vec<_>>();
    // Each answer that has a file's bytes costs one here; these have none but one of the compressed bytes.
    let own: u64 = ended.iter().sum::<u64>() - begun.iter().sum::<u64>();
    ensure!(own == 2 + 17, "{begun:?}, then {ended:?}");
    Ok(())
}

#[test]
fn damaged_clusters_fail_their_reads_and_no_others() -> Result<()> {
    if qemu::is_missing() {
        return Ok(());
    }
    for options in ["cluster_size=64k", "cluster_size=64k,compression_type=zstd"] {
        let directory = tempfile::tempdir()?;
        let content = make(directory.path(), "image.qcow2", 6, options)?;
        let image = directory.path().join("image.qcow2");
        let mut bytes = fs::read(&image)?;
        let long = |bytes: &[u8], at: usize| {
            u64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
        };
        let l1 = usize::try_from(long(&bytes, 40))?;
        let l2 = usize::try_from(long(&bytes, l1) & 0x00ff_ffff_ffff_fe00)?;
        let compressed = |place: usize| long(&bytes, l2 + place * 8) >> 62 == 1;
        let places: Vec<usize> = (0..96).filter(|place| compressed(*place)).collect();
        ensure!(places.len() > 20, "{places:?}");
        let (cut, garbage, outside, fine) = (places[0], places[1], places[2], places[3]);
        let at = |place: usize| long(&bytes, l2 + place * 8) & ((1 << 54) - 1);
        let (garbage_at, outside_at) = (usize::try_from(at(garbage))?, l2 + outside * 8);
        let cut_at = l2 + cut * 8;
        let cut_entry = (long(&bytes, cut_at) & ((1 << 54) - 1)) | 1 << 62;
        bytes[cut_at..cut_at + 8].copy_from_slice(&(cut_entry | 511).to_be_bytes());
        bytes[garbage_at..garbage_at + 64].fill(0xff);
        bytes[outside_at..outside_at + 8].copy_from_slice(&(1_u64 << 62 | 1 << 50).to_be_bytes());
        fs::write(&image, &bytes)?;
        let mut bench = Bench::open(&[&image], Access::ReadWrite)?;
        for bad in [cut, garbage, outside] {
            let start = u64::try_from(bad)? << 16;
            ensure!(bench.read(start, 4096) == Err(FailKind::Io), "{options}: {bad} is read");
            // What has to copy from it fails as well, what does not, does not.
            let part = Operation::Write(bench.extent(start, 512), Durability::Cached);
            ensure!(bench.change(part, &[1; 512]) == Err(FailKind::Io), "{options}: {bad}");
            let all = Operation::Write(bench.extent(start, 65536), Durability::Cached);
            ensure!(bench.change(all, &[2; 65536]) == Ok(()), "{options}: {bad}");
            ensure!(bench.read(start, 65536) == Ok(vec![2; 65536]), "{options}: {bad}");
        }
        let start = fine << 16;
        let found = bench.read(u64::try_from(start)?, 65536);
        ensure!(found.as_deref() == Ok(&content[start..start + 65536]), "{options}: the others");
        bench.close();
    }
    Ok(())
}

/// All that is in a cluster of the file goes at once: its space is given back, as that of a cluster which is not shared.
#[test]
fn the_space_of_compressed_clusters_that_go_together_is_given_back() -> Result<()> {
    if qemu::is_missing() {
        return Ok(());
    }
    let directory = tempfile::tempdir()?;
    let name = "together.qcow2";
    make(directory.path(), name, 0x90, "cluster_size=64k")?;
    let before = fs::read(directory.path().join(name))?;
    let mut bench = Bench::open(&[&directory.path().join(name)], Access::ReadWrite)?;
    let zero = Operation::WriteZeroes(bench.extent(0, SIZE), ZeroTerms::UNMAP, Durability::Cached);
    for operation in [zero, Operation::Flush] {
        bench.change(operation, &[]).map_err(|kind| anyhow::anyhow!("{operation:?}: {kind:?}"))?;
    }
    let after = bench.close();
    let used = |bytes: &[u8]| {
        bytes.chunks(65536).filter(|cluster| cluster.iter().any(|byte| *byte != 0)).count()
    };
    // The header, tables and refcounts stay.
    ensure!(used(&before) > 20 && used(&after) < 8, "{} and {}", used(&before), used(&after));
    Ok(())
}
