//! Images that get another size, on a disk that loses power and beside those of qemu-img.
//!
//! What can go wrong: the power goes between any two writes, what was written since the last sync survives in any part
//! and order, a single write or sync fails and the process goes on, the disk is full. Then the disk has its old size and
//! all it had, or the new one: what it keeps, and zeroes. What must not show through where it is new: what was behind the end
//! before it became smaller, the backing file, what a cluster has behind the old end. Snapshots keep what they hold.
//! Afterwards the image is used, and gets other sizes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, bail, ensure};
use block::{
    Access, Answer, BatchPieces, ByteCount, Child, Claim, DiskSize, FailKind, FileId, HostMemory,
    Lane, LaneContext, LaneError, Mapping, Node, Operation, ResizeError, Rights,
};
use qcow2::{Children, FreedClusterDiscards, OverlapCheck, Qcow2Node, Qcow2Settings};
use tasks::ControlExecutor;
use testkit::qcow2rig::child::{ControlThread, FileChild, Life};
use testkit::qcow2rig::disk::Disk;
use testkit::qcow2rig::make::{Made, Recipe};
use testkit::qcow2rig::{check, image};
use testkit::rng::Rng;

use crate::node::sentence;
use crate::rig::rounds;

/// So often the power goes after each operation.
const ROUNDS: u64 = 4;

/// An image on a disk that loses power, and what it holds.
pub(crate) struct Rig {
    pub(crate) disk: Arc<Disk>,
    pub(crate) image: FileId,
    data: Option<FileId>,
    backing: Option<FileId>,
    pub(crate) made: Made,
    pub(crate) seed: u64,
}

/// A process that has it open.
pub(crate) struct Process {
    pub(crate) node: Arc<Qcow2Node>,
    pub(crate) control: ControlThread,
    /// Changes and syncs of the image file so far.
    pub(crate) operations: Arc<AtomicU64>,
    // Dropped last.
    _claim: Claim,
}

/// What becomes of one operation on the image file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    None,
    /// The one of this number, of changes and syncs, fails.
    Fails(u64),
    /// Those that would make the file longer than that.
    Full(u64),
}

impl Rig {
    pub(crate) fn new(recipe: &Recipe, seed: u64) -> Result<Self> {
        let made = recipe.make(&mut Rng::new(seed))?;
        let disk = Arc::new(Disk::default());
        let image = disk.add(&made.image);
        let data = made.data.as_ref().map(|bytes| disk.add(bytes));
        let backing = made.backing.as_ref().map(|bytes| disk.add(bytes));
        Ok(Self { disk, image, data, backing, made, seed })
    }

    pub(crate) fn open(&self, trouble: Trouble) -> Result<Process> {
        let life = Life::new(u64::MAX);
        let file = |file: FileId, access| -> Arc<dyn Node> {
            let (name, disk, life) =
                (format!("{file:?}"), Arc::clone(&self.disk), Arc::clone(&life));
            Arc::new(FileChild { name, disk, file, access, discards: true, life })
        };
        let operations = Arc::<AtomicU64>::default();
        let troubled: Arc<dyn Node> = Arc::new(Troubled {
            file: file(self.image, Access::ReadWrite),
            trouble,
            operations: Arc::clone(&operations),
        });
        let children = Children {
            file: Child::new(troubled),
            backing: self.backing.map(|id| Child::new(file(id, Access::ReadOnly))),
            data_file: self.data.map(|id| Child::new(file(id, Access::ReadWrite))),
        };
        let discards = [FreedClusterDiscards::Passed, FreedClusterDiscards::Ignored];
        let settings = Qcow2Settings {
            access: Access::ReadWrite,
            discards: discards[usize::try_from(self.seed % 2)?],
            l2_cache: ByteCount(self.seed % 3 * 4096),
            refcount_cache: ByteCount(0),
            clean_after: None,
            overlap_check: OverlapCheck::All,
        };
        let control = ControlThread { disk: Arc::clone(&self.disk), life };
        let engines = Arc::new(control.clone());
        let node = Arc::new(Qcow2Node::open("image", children, settings, engines)?);
        let claim = node.claim(Rights::of_user(Access::ReadWrite));
        let claim = claim.map_err(|error| anyhow::anyhow!("{}", sentence(&error)))?;
        Ok(Process { node, control, operations, _claim: claim })
    }

    /// What the image holds now; it has no errors, and so many leaks.
    pub(crate) fn look(&self) -> Result<(Vec<u8>, u64)> {
        let now = self.disk.snapshot(self.image);
        let verdict = check::check(&now).map_err(anyhow::Error::msg)?;
        if let Some(error) = verdict.errors.first() {
            bail!("{} errors, such as {error:?}", verdict.errors.len());
        }
        let data = self.data.map(|file| self.disk.snapshot(file));
        let content = image::read_all(&now, data.as_ref(), self.made.backing.as_deref());
        Ok((content.map_err(anyhow::Error::msg)?, verdict.leaks))
    }
}

impl Process {
    fn resize(&self, size: usize) -> Result<(), ResizeError> {
        self.node.resize(DiskSize(ByteCount(size as u64)))
    }

    /// Does this on a lane that is opened now.
    pub(crate) fn on_lane<T>(&self, work: impl AsyncFnOnce(tasks::AsyncChild) -> T) -> Result<T> {
        let node: Arc<dyn Node> = Arc::clone(&self.node) as Arc<dyn Node>;
        let mut control = ControlExecutor::open(&self.control, &node)?;
        let storage = control.storage();
        Ok(control.run(work(storage)))
    }

    /// The lanes say what they should, and take changes, also at the end.
    pub(crate) fn use_it(&self, content: &mut [u8], rng: &mut Rng) -> Result<()> {
        let bytes = content.len() as u64;
        ensure!(self.node.size().0.0 == bytes, "the node has {:?}", self.node.size());
        if bytes == 0 {
            return Ok(());
        }
        let read = self.on_lane(async |lane| lane.read(0..bytes).await)?;
        let read = read.map_err(|kind| anyhow::anyhow!("read: {kind:?}"))?;
        ensure!(read[..] == *content, "a lane reads something else");
        for at in [bytes - 512, rng.below(bytes / 512) * 512, rng.below(bytes / 512) * 512] {
            let place = usize::try_from(at)?..usize::try_from(at)? + 512;
            rng.fill(&mut content[place.clone()]);
            let memory = HostMemory::of(&content[place]);
            let written = self.on_lane(async |lane| {
                lane.write(at, memory).await?;
                lane.sync().await
            })?;
            written.map_err(|kind| anyhow::anyhow!("write: {kind:?}"))?;
        }
        Ok(())
    }
}

pub(crate) fn sized(content: &[u8], size: usize) -> Vec<u8> {
    let mut content = content[..size.min(content.len())].to_vec();
    content.resize(size, 0);
    content
}

/// Any image that may get another size, and such a size: near the old one, or far from it.
fn any(seed: u64) -> (Recipe, usize) {
    let rng = &mut Rng::new(seed);
    let recipe = loop {
        let recipe = Recipe::any(rng, 9..17);
        if recipe.size <= 4 << 20
            && !(recipe.version == 2 && (recipe.snapshot || recipe.backing.is_some()))
        {
            break recipe;
        }
    };
    // So that the backing file shows through where the disk grows, too.
    let backing = recipe.backing.map(|bytes| if rng.one_in(2) { recipe.size * 2 } else { bytes });
    let size = match rng.below(4) {
        0 => recipe.size + 512 * (1 + rng.below(300)),
        1 => recipe.size.saturating_sub(512 * (1 + rng.below(300))),
        2 => rng.below(recipe.size / 512) * 512,
        _ => recipe.size * (2 + rng.below(4)),
    };
    (Recipe { backing, ..recipe }, usize::try_from(size).expect("small"))
}

#[test]
fn a_disk_keeps_what_it_has_and_has_zeroes_where_it_is_new() -> Result<()> {
    for seed in 0..rounds(30) {
        let (recipe, size) = any(seed);
        let round = || -> Result<()> {
            let rng = &mut Rng::new(seed);
            let rig = Rig::new(&recipe, seed)?;
            let (old, _) = rig.look()?;
            let process = rig.open(Trouble::None)?;
            let mut content = old.clone();
            for size in [size, rng.index(4000) * 512, old.len(), old.len() + 512, size] {
                process.resize(size).map_err(|error| anyhow::anyhow!("{}", sentence(&error)))?;
                content = sized(&content, size);
                process.use_it(&mut content, rng).with_context(|| format!("{size} bytes"))?;
            }
            drop(process);
            let (found, leaks) = rig.look()?;
            ensure!(found == content, "the image holds something else");
            ensure!(leaks == 0, "{leaks} leaks");
            Ok(())
        };
        round().with_context(|| format!("seed {seed}, {recipe:?}, then {size} bytes"))?;
    }
    Ok(())
}

/// Has a disk get one size after the other, and dies after so many operations of the second. Whether it was over before.
fn resize_and_die(
    recipe: &Recipe,
    [first, size]: [usize; 2],
    operations: u64,
    seed: u64,
) -> Result<bool> {
    let rig = Rig::new(recipe, seed)?;
    let old = sized(&rig.look()?.0, first);
    let new = sized(&old, size);
    let process = rig.open(Trouble::None)?;
    process.resize(first).map_err(|error| anyhow::anyhow!("{}", sentence(&error)))?;
    rig.disk.settle();
    process.control.life.limit(operations);
    let resized = process.resize(size);
    process.control.life.end();
    drop(process);
    let is_power_loss = !seed.is_multiple_of(3);
    if is_power_loss {
        rig.disk.lose_power(&mut Rng::new(seed));
    } else {
        rig.disk.outlive_process();
    }
    let (found, _) = rig.look()?;
    ensure!(found == old || found == new, "{} bytes of neither size", found.len());
    ensure!(resized.is_err() || found == new, "it is the old one");
    // Whoever comes next goes on with it, to a size where old bytes could come back.
    let process = rig.open(Trouble::None)?;
    let larger = old.len().max(size) + 1024;
    let mut content = sized(&found, larger);
    process.resize(larger).map_err(|error| anyhow::anyhow!("{}", sentence(&error)))?;
    process.use_it(&mut content, &mut Rng::new(seed))?;
    drop(process);
    ensure!(rig.look()?.0 == content, "the next one finds something else");
    Ok(resized.is_ok())
}

/// An image, and which sizes its disk gets: anything, such that the backing file is behind the end, and such that something
/// else was there before.
fn any_sizes(image: u64) -> Result<(Recipe, [usize; 2])> {
    let small = |seed: &u64| any(*seed).0.size <= 256 << 10;
    let (recipe, size) = any((image * 1000..).find(small).context("there are small ones")?);
    let bytes = usize::try_from(recipe.size)?;
    Ok(match image % 3 {
        1 if recipe.version == 3 => {
            let recipe = Recipe { backing: Some(recipe.size * 2), ..recipe };
            (recipe, [bytes, bytes * 2 + 512])
        }
        2 => (recipe, [bytes / 1024 * 512, bytes + 1024]),
        _ => (recipe, [bytes, size]),
    })
}

#[test]
fn a_loss_of_power_leaves_the_old_size_or_the_new_one() -> Result<()> {
    let mut ends = 0;
    for image in 0..rounds(6) {
        let (recipe, sizes) = any_sizes(image)?;
        let (mut operations, mut is_over) = (0, false);
        while !is_over {
            for round in 0..ROUNDS {
                let seed = image * 100_000 + operations * ROUNDS + round;
                let how = || format!("seed {seed}, {recipe:?}, {operations} operations, {sizes:?}");
                is_over = resize_and_die(&recipe, sizes, operations, seed).with_context(how)?;
                ends += 1;
            }
            operations += 1;
        }
    }
    testkit::report::note(&format!("{ends} ends"));
    Ok(())
}

/// A file of which one operation fails.
#[derive(Debug)]
struct Troubled {
    file: Arc<dyn Node>,
    trouble: Trouble,
    operations: Arc<AtomicU64>,
}

impl Node for Troubled {
    testkit::same_node_as!(file);

    fn open_lane(&self, io: &LaneContext) -> Result<Box<dyn Lane>, LaneError> {
        let (below, operations) = (self.file.open_lane(io)?, Arc::clone(&self.operations));
        Ok(Box::new(TroubledLane { below, trouble: self.trouble, operations }))
    }
}

#[derive(Debug)]
struct TroubledLane {
    below: Box<dyn Lane>,
    trouble: Trouble,
    operations: Arc<AtomicU64>,
}

impl TroubledLane {
    fn fate(&self, operation: Operation) -> Option<FailKind> {
        let end = operation.extent().map_or(0, |extent| extent.bytes().end);
        let counts = operation.is_change() || operation == Operation::Flush;
        let number =
            if counts { self.operations.fetch_add(1, Ordering::Relaxed) } else { u64::MAX };
        match self.trouble {
            Trouble::Fails(fails) if fails == number => Some(FailKind::Io),
            Trouble::Full(bytes) if operation.is_change() && end > bytes => Some(FailKind::NoSpace),
            Trouble::None | Trouble::Fails(_) | Trouble::Full(_) => None,
        }
    }
}

impl Lane for TroubledLane {
    fn map(&mut self, batch: &mut [Mapping], pieces: &mut BatchPieces) {
        for mapping in batch {
            match self.fate(mapping.operation) {
                Some(kind) => mapping.answer = Answer::Refused(kind),
                None => self.below.map(std::slice::from_mut(mapping), pieces),
            }
        }
    }

    block::pass_on_to!(below);
}

#[test]
fn what_fails_leaves_a_disk_that_can_be_used_or_is_not_written() -> Result<()> {
    let (mut failed, mut resized) = (0, 0);
    for seed in 0..rounds(6) {
        let (recipe, size) = any(2000 + seed);
        for number in 0..u64::MAX {
            let rig = Rig::new(&recipe, seed)?;
            let (old, _) = rig.look()?;
            let Ok(process) = rig.open(Trouble::Fails(number)) else { continue };
            let result = process.resize(size);
            let is_over = process.operations.load(Ordering::Relaxed) <= number;
            let how = || format!("seed {seed}, {recipe:?}, {size} bytes, {number}: {result:?}");
            let bytes = usize::try_from(process.node.size().0.0)?;
            ensure!(bytes == old.len() || bytes == size, "{}: {bytes} bytes", how());
            ensure!(result.is_err() || bytes == size, "{}", how());
            let mut content = sized(&old, bytes);
            if is_over {
                break;
            }
            // After a failure in the middle it may be closed, or not be written any more.
            let used = process.use_it(&mut content, &mut Rng::new(seed));
            if result.is_ok() {
                used.with_context(how)?;
            }
            drop(process);
            let (found, _) = rig.look().with_context(how)?;
            ensure!(found == content || result.is_err(), "{}", how());
            // Some of what was written to a disk that is not written any more may be there.
            let expected = sized(&old, found.len());
            let sectors = found.chunks(512).zip(expected.chunks(512));
            let differs = sectors.filter(|(found, expected)| found != expected).count();
            ensure!(differs <= 3, "{}: {differs} sectors differ", how());
            ensure!(found.len() == old.len() || found.len() == size, "{}", how());
            *(if result.is_ok() { &mut resized } else { &mut failed }) += 1;
        }
    }
    testkit::report::note(&format!("{failed} failed, {resized} did not"));
    Ok(())
}

#[test]
fn on_a_full_disk_it_keeps_its_size() -> Result<()> {
    let recipe = Recipe { filled: 60, ..Recipe::plain(9, 1 << 20) };
    let rig = Rig::new(&recipe, 1)?;
    let (old, _) = rig.look()?;
    let process = rig.open(Trouble::Full(rig.made.image.len() as u64))?;
    let said = process.resize(64 << 20).err().context("it is resized")?;
    ensure!(sentence(&said).starts_with("node image: Failed to grow the L1 table"), "{said:?}");
    process.use_it(&mut old.clone(), &mut Rng::new(1)).err();
    drop(process);
    let (_, leaks) = rig.look()?;
    ensure!(leaks == 0, "{leaks} leaks");
    Ok(())
}
