//! What a hostile guest's requests cost: memory and turns of the iothread, on images that make the most of them.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, ensure};
use block::{
    Access, AfterPiecesAction, Answer, BatchPieces, ByteCount, ByteOffset, Child, Claim, Clock,
    EngineFactory, InternalOperation, Lane, LaneCompletionDecision, LaneContext, Mapping, Node,
    Operation, Outcome, Rights, SystemClock, Token,
};
use kernel_io::FileTable;
use qcow2::{Children, FreedClusterDiscards, OverlapCheck, Qcow2Node, Qcow2Settings};
use testkit::counting::{bytes, bytes_most};
use testkit::rng::Rng;

use crate::node::{Guest, engines, file};
use crate::qemu;

const MIB: u64 = 1 << 20;

/// A lane, and what its iothread would have for each request that is carried out: its pieces.
struct Iothread {
    lane: Box<dyn Lane>,
    io: LaneContext,
    engines: Arc<dyn EngineFactory>,
    errands: Vec<InternalOperation>,
    pieces: BatchPieces,
    node: Arc<Qcow2Node>,
    _claim: Claim,
}

impl Iothread {
    fn open(path: &Path, access: Access) -> Result<Self> {
        let table = Arc::new(FileTable::default());
        let settings = Qcow2Settings {
            access,
            discards: FreedClusterDiscards::Passed,
            l2_cache: ByteCount(8 << 20),
            refcount_cache: ByteCount(1 << 20),
            clean_after: None,
            overlap_check: OverlapCheck::Cached,
        };
        let file = Child::new(file(path, &table)?);
        let children = Children { file, backing: None, data_file: None };
        let engines = engines(&table);
        let node = Arc::new(Qcow2Node::open("image", children, settings, Arc::clone(&engines))?);
        let _claim = node.claim(Rights::of_user(access))?;
        let io = LaneContext::idle();
        let (lane, pieces, errands) = (node.open_lane(&io)?, BatchPieces::default(), Vec::new());
        Ok(Self { lane, io, engines, errands, pieces, node, _claim })
    }

    /// A batch of reads, each from there to there.
    fn ask(&mut self, reads: impl Iterator<Item = (u64, u64)>) -> Result<Vec<Mapping>> {
        let size = self.node.size();
        let mapping = |(number, (at, count)): (u32, (u64, u64))| {
            let extent = size.check(ByteOffset(at), ByteCount(count))?;
            Ok(Mapping::new(Token(number), Operation::Read(extent)))
        };
        let mut batch = (0..).zip(reads).map(mapping).collect::<Result<Vec<_>>>()?;
        self.lane.map(&mut batch, &mut self.pieces);
        self.io.take_submitted(&mut self.errands);
        batch.retain(|mapping| mapping.answer != Answer::Held);
        Ok(batch)
    }

    /// Carries out what was answered: how many bytes that was, and how many requests are over.
    fn carry_out(&mut self, answered: &[Mapping]) -> Result<(u64, usize)> {
        let (mut count, mut over) = (0, 0);
        for mapping in answered {
            let Answer::Now(range) = mapping.answer else {
                anyhow::bail!("{:?}: {:?}", mapping.operation, mapping.answer)
            };
            count += self.pieces.get(range).iter().map(|piece| piece.count.0).sum::<u64>();
            over += usize::from(match mapping.after {
                AfterPiecesAction::Finish => true,
                AfterPiecesAction::NotifyLane => {
                    self.lane.completed(mapping.token, Outcome::Done)
                        == LaneCompletionDecision::Finish(Outcome::Done)
                }
            });
        }
        self.pieces.clear();
        Ok((count, over))
    }

    /// A round of the iothread.
    fn round(&mut self) -> Vec<Mapping> {
        for errand in std::mem::take(&mut self.errands) {
            testkit::errands::run(&*self.engines, errand);
        }
        let mut late = Vec::new();
        self.lane.resume(SystemClock.now(), &mut late, &mut self.pieces);
        self.io.take_submitted(&mut self.errands);
        late
    }
}

/// Makes an image of so many MiB of which every second subcluster of 2 KiB is there.
fn make_mosaic(directory: &Path, mebibytes: u64) -> Result<()> {
    let options = "extended_l2=on,cluster_size=64k,preallocation=metadata";
    let size = format!("{mebibytes}M");
    let line = ["qemu-img", "create", "-q", "-f", "qcow2", "-o", options, "a.qcow2", &size];
    qemu::succeeds(directory, &line)?;
    let image = File::options().read(true).write(true).open(directory.join("a.qcow2"))?;
    let word = |at: u64| -> Result<u64> {
        let mut word = [0; 8];
        image.read_exact_at(&mut word, at)?;
        Ok(u64::from_be_bytes(word) & 0x00ff_ffff_ffff_fe00)
    };
    let l1 = word(40)?;
    for table in 0..mebibytes.div_ceil(256) {
        let l2 = word(l1 + table * 8)?;
        for entry in 0..4096 {
            image.write_all_at(&0x5555_5555_u64.to_be_bytes(), l2 + entry * 16 + 8)?;
        }
    }
    Ok(())
}

/// In one answer each of these reads would have 131072 pieces: twice what an answer may have, and 1.5 GiB together.
#[test]
fn a_batch_of_large_reads_of_a_mosaic_takes_little_memory_and_succeeds() -> Result<()> {
    if qemu::is_missing() {
        return Ok(());
    }
    let directory = tempfile::tempdir()?;
    make_mosaic(directory.path(), 256)?;
    let mut iothread = Iothread::open(&directory.path().join("a.qcow2"), Access::ReadOnly)?;
    let before = bytes();
    bytes_most();
    let mut answered = iothread.ask((0..64).map(|_| (0, 256 * MIB)))?;
    let (mut count, mut over) = (0, 0);
    for _ in 0..100_000 {
        let done = iothread.carry_out(&answered)?;
        (count, over) = (count + done.0, over + done.1);
        if over == 64 {
            break;
        }
        answered = iothread.round();
    }
    ensure!(over == 64 && count == 64 * 256 * MIB, "{over} are over, {count} bytes");
    let most = bytes_most() - before;
    ensure!(most < 16 << 20, "{most} bytes at once");
    // The table is in memory, and little else.
    ensure!(bytes() - before < 4 << 20, "{} bytes are left", bytes() - before);
    Ok(())
}

#[test]
fn small_reads_of_large_compressed_clusters_are_decoded_a_few_at_once_and_bit_by_bit() -> Result<()>
{
    if qemu::is_missing() {
        return Ok(());
    }
    const CLUSTERS: u64 = 32;
    let directory = tempfile::tempdir()?;
    let mut content = vec![0; usize::try_from(2 * MIB * CLUSTERS)?];
    let mut random = Rng::new(5);
    content.chunks_mut(4096).for_each(|chunk| random.fill(&mut chunk[..2048]));
    fs::write(directory.path().join("a.raw"), &content)?;
    let options = "compression_type=zstd,cluster_size=2M";
    let line = ["qemu-img", "convert", "-c", "-f", "raw", "-O", "qcow2", "-o", options];
    qemu::succeeds(directory.path(), &[&line[..], &["a.raw", "a.qcow2"]].concat())?;
    drop(content);

    let mut iothread = Iothread::open(&directory.path().join("a.qcow2"), Access::ReadOnly)?;
    let before = bytes();
    bytes_most();
    let reads = (0..CLUSTERS * 2).map(|number| ((number % CLUSTERS) * 2 * MIB + 4096, 512));
    let mut answered = iothread.ask(reads)?;
    let (mut over, mut rounds, mut errands_most) = (0, 0, 0);
    while over < 2 * usize::try_from(CLUSTERS)? {
        over += iothread.carry_out(&answered)?.1;
        errands_most = errands_most.max(iothread.errands.len());
        answered = iothread.round();
        rounds += 1;
        ensure!(rounds < 100_000, "{over} reads are over");
    }
    ensure!(errands_most <= 8, "{errands_most} clusters are read at once");
    // A cluster is decoded in 16 steps, of which a round has one; the first is taken when it was read.
    ensure!(rounds > 15 * CLUSTERS, "{rounds} rounds");
    let most = bytes_most() - before;
    ensure!(most < 24 << 20, "{most} bytes at once");
    let left = bytes() - before;
    ensure!(left < 6 << 20, "{left} bytes are left: more than decoded clusters that are kept");
    Ok(())
}

/// Of more clusters than are changed at once, some of which have their place already.
#[test]
fn a_large_write_is_carried_out_in_rounds() -> Result<()> {
    if qemu::is_missing() {
        return Ok(());
    }
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("a.qcow2");
    let options = ["-o", "cluster_size=512", "a.qcow2", "4M"];
    let create = ["qemu-img", "create", "-q", "-f", "qcow2"];
    qemu::succeeds(directory.path(), &[&create[..], &options].concat())?;
    let mut bytes = vec![0; 2 << 20];
    Rng::new(6).fill(&mut bytes);
    let mut guest = Guest::open(&path)?;
    guest.write(MIB, &[7; 1000 * 512])?;
    guest.write(512 * 1001, &bytes)?;
    ensure!(guest.read(512 * 1001, bytes.len())?[..] == bytes[..], "it reads something else");
    guest.flush()?;
    drop(guest);
    let wrong = qemu::wrong(directory.path(), "a.qcow2")?;
    ensure!(wrong.is_empty(), "{wrong}");
    let convert = ["qemu-img", "convert", "-f", "qcow2", "-O", "raw", "a.qcow2", "a.raw"];
    qemu::succeeds(directory.path(), &convert)?;
    let raw = fs::read(directory.path().join("a.raw"))?;
    ensure!(raw[512 * 1001..][..bytes.len()] == bytes[..], "QEMU reads something else");
    Ok(())
}
