//! Persistent bitmaps on a disk that loses power while they are stored, at each step.
//!
//! What can go wrong: the image names a directory that is not there as a whole; a bitmap is valid that has not all its bits;
//! data are lost of which a bitmap says that they were copied. So the next one who looks finds all bitmaps as they were
//! stored, with all data, or the old ones, inconsistent.

use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use bitmaps::{Granularity, NewBitmap, NodeBitmaps, Persistence, Recording};
use block::{Access, ByteCount, Child, Claim, FileId, HostMemory, Node, Rights};
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

/// An image on a disk that loses power.
struct Rig {
    disk: Arc<Disk>,
    image: FileId,
    data: Option<FileId>,
    made: Made,
}

/// A process that has it open, and records.
struct Process {
    node: Arc<Qcow2Node>,
    bitmaps: Arc<NodeBitmaps>,
    control: ControlThread,
    claim: Option<Claim>,
}

impl Rig {
    fn new(recipe: &Recipe, seed: u64) -> Result<Self> {
        let made = recipe.make(&mut Rng::new(seed))?;
        let disk = Arc::new(Disk::default());
        let image = disk.add(&made.image);
        let data = made.data.as_ref().map(|bytes| disk.add(bytes));
        Ok(Self { disk, image, data, made })
    }

    fn open(&self) -> Result<Process> {
        let life = Life::new(u64::MAX);
        let file = |file: FileId| -> Arc<dyn Node> {
            let (name, disk) = (format!("{file:?}"), Arc::clone(&self.disk));
            let (access, life) = (Access::ReadWrite, Arc::clone(&life));
            Arc::new(FileChild { name, disk, file, access, discards: true, life })
        };
        let children = Children {
            file: Child::new(file(self.image)),
            backing: None,
            data_file: self.data.map(|id| Child::new(file(id))),
        };
        let settings = Qcow2Settings {
            access: Access::ReadWrite,
            discards: FreedClusterDiscards::Passed,
            l2_cache: ByteCount(0),
            refcount_cache: ByteCount(0),
            clean_after: None,
            overlap_check: OverlapCheck::All,
        };
        let control = ControlThread { disk: Arc::clone(&self.disk), life };
        let engines = Arc::new(control.clone());
        let node = Arc::new(Qcow2Node::open("image", children, settings, engines)?);
        let bitmaps = NodeBitmaps::new(node.size());
        node.record_in(&bitmaps);
        let claim = node.claim(Rights::of_user(Access::ReadWrite));
        let claim = claim.map_err(|error| anyhow::anyhow!("{}", sentence(&error)))?;
        Ok(Process { node, bitmaps, control, claim: Some(claim) })
    }

    /// What the image holds; it has no errors, and so many leaks.
    fn look(&self) -> Result<(Vec<u8>, u64)> {
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
    fn add(&self, name: &str, granularity: u64) -> Result<()> {
        let granularity = Granularity::new(granularity).context("it is one")?;
        let (recording, persistence) = (Recording::On, Persistence::Kept);
        let new = NewBitmap { name: name.to_owned(), granularity, recording, persistence };
        let _undo = self.bitmaps.add(&new)?;
        Ok(())
    }

    /// A change that is recorded, and not flushed.
    fn change(&self, at: u64, bytes: &[u8]) -> Result<()> {
        let node: Arc<dyn Node> = Arc::clone(&self.node) as Arc<dyn Node>;
        let mut control = ControlExecutor::open(&self.control, &node)?;
        let storage = control.storage();
        let written = control.run(storage.write(at, HostMemory::of(bytes)));
        written.map_err(|kind| anyhow::anyhow!("write: {kind:?}"))?;
        let changed = at..at + bytes.len() as u64;
        self.bitmaps.recording().set(std::slice::from_ref(&changed));
        Ok(())
    }

    /// The bits of each that can be trusted; none of those that cannot.
    fn bits(&self) -> Vec<(String, Option<Vec<u64>>)> {
        let bits = |name: &str| {
            let bits = self.bitmaps.bits(name).ok()?;
            let mut words = vec![0; bits.word_count()];
            bits.load_words(0, &mut words);
            Some(words)
        };
        let all = self.bitmaps.describe().into_iter().map(|it| it.name);
        let mut all: Vec<_> = all.map(|name| (name.clone(), bits(&name))).collect();
        all.sort();
        all
    }

    fn close(&mut self) {
        self.claim = None;
    }
}

/// Writes and records some changes; a job has copied some of it.
fn some_changes(process: &Process, content: &mut [u8], rng: &mut Rng) -> Result<()> {
    for _ in 0..6 {
        let start = rng.index(content.len() / 512) * 512;
        let end = content.len().min(start + 512 * (1 + rng.index(20)));
        rng.fill(&mut content[start..end]);
        process.change(start as u64, &content[start..end])?;
    }
    let at = rng.below(content.len() as u64);
    process.bitmaps.bits("a")?.clear(at..at + 1);
    Ok(())
}

/// Stores bitmaps again and dies after so many operations of that. Whether it was over before.
fn store_and_die(recipe: &Recipe, operations: u64, seed: u64) -> Result<bool> {
    let rng = &mut Rng::new(seed);
    let rig = Rig::new(recipe, seed)?;
    let mut content = rig.look()?.0;
    let mut first = rig.open()?;
    first.add("a", 512)?;
    first.add("gone", 4096)?;
    some_changes(&first, &mut content, rng)?;
    let stored = first.bits();
    first.close();
    ensure!(rig.look()?.1 == 0, "{} leaks", rig.look()?.1);
    rig.disk.settle();

    let mut second = rig.open()?;
    ensure!(second.bits() == stored, "{:?} was {stored:?}", second.bits());
    rig.disk.settle();
    let _undo = second.bitmaps.remove("gone")?;
    second.add("b", 1024)?;
    some_changes(&second, &mut content, rng)?;
    let expected = second.bits();
    second.control.life.limit(operations);
    second.close();
    let is_over = !second.control.life.is_over();
    second.control.life.end();
    drop(second);
    if seed.is_multiple_of(3) {
        rig.disk.outlive_process();
    } else {
        rig.disk.lose_power(&mut Rng::new(seed));
    }
    let (found, leaks) = rig.look()?;
    let mut third = rig.open()?;
    let bits = third.bits();
    if bits == expected {
        ensure!(found == content, "the bitmaps are there, and the data are not");
    } else {
        let lost = [("a".to_owned(), None), ("gone".to_owned(), None)];
        ensure!(bits == lost, "neither all nor none: {bits:?}");
        ensure!(!is_over, "they were stored");
    }
    ensure!(!is_over || leaks == 0, "{leaks} leaks");
    // Whoever comes next goes on with it.
    for name in third.bitmaps.describe().into_iter().map(|it| it.name) {
        let _undo = third.bitmaps.remove(&name)?;
    }
    third.add("c", 512)?;
    let empty = third.bits();
    third.close();
    let fourth = rig.open()?;
    ensure!(fourth.bits() == empty, "{:?}", fourth.bits());
    Ok(is_over)
}

#[test]
fn a_loss_of_power_leaves_all_bitmaps_with_their_data_or_none_valid() -> Result<()> {
    let mut ends = 0;
    for image in 0..rounds(3) {
        let recipe = Recipe {
            data_file: image % 3 == 1,
            ..Recipe::plain(9 + u32::try_from(image % 3)? * 2, 256 << 10)
        };
        let (mut operations, mut is_over) = (0, false);
        while !is_over {
            for round in 0..ROUNDS {
                let seed = image * 100_000 + operations * ROUNDS + round;
                let how = || format!("seed {seed}, {recipe:?}, {operations} operations");
                is_over = store_and_die(&recipe, operations, seed).with_context(how)?;
                ends += 1;
            }
            operations += 1;
        }
    }
    testkit::report::note(&format!("{ends} ends"));
    Ok(())
}
