//! Internal snapshots that come and go, on a disk that loses power, that fails and that is full, and in the eyes of qemu-img.
//!
//! What can go wrong: the power goes between refcounts, flags "copied", the L1 table of the snapshot, the table of snapshots and
//! the header, and what was written since the last sync survives in any part and order; a single write or sync fails and the
//! process goes on; the disk is full; a refcount is too narrow; a lane still thinks that a cluster is its own. Then the image is
//! as before or has the whole snapshot, no error is in it, and nobody's bytes are lost. Clusters may be data, zeroes with and
//! without a place, compressed, shared with older snapshots, in subclusters, or below; afterwards the disk is used, gets another
//! size, and more snapshots.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use block::{ByteCount, DiskSize, HostMemory, NewSnapshot, Node, SnapshotInfo, SnapshotSelector};
use qcow2::{OverlapCheck, SnapshotError};
use std::sync::atomic::Ordering;
use testkit::process::Bench;
use testkit::qcow2rig::image::{InternalSnapshot, read_snapshot, snapshots};
use testkit::qcow2rig::make::Recipe;
use testkit::rng::Rng;

use crate::node::{Guest, Image, sentence};
use crate::qemu;
use crate::resize::{Process, Rig, Trouble, sized};
use crate::rig::rounds;

/// So often the power goes after each operation.
const ROUNDS: u64 = 2;

/// What each snapshot holds, by its identity.
type Kept = BTreeMap<String, Vec<u8>>;

fn any_recipe(rng: &mut Rng, size_max: u64) -> Recipe {
    loop {
        let recipe = Recipe::any(rng, 9..17);
        // A refcount of 1 bit has no room for two.
        if recipe.size <= size_max && !recipe.data_file && recipe.refcount_order > 0 {
            return recipe;
        }
    }
}

fn create(process: &Process, name: &str) -> Result<SnapshotInfo, SnapshotError> {
    let (name, date) = (name.to_owned(), Duration::new(1_795_766_352, 788_193_000));
    process.node.create_snapshot(&NewSnapshot { name, date })
}

fn delete(process: &Process, id: &str) -> Result<SnapshotInfo, SnapshotError> {
    process.node.delete_snapshot(&SnapshotSelector { id: Some(id.to_owned()), name: None })
}

fn said(error: &SnapshotError) -> anyhow::Error {
    anyhow::anyhow!("{}", sentence(error))
}

/// The snapshots of the image on the disk; it has no errors.
fn listed(rig: &Rig) -> Result<Vec<InternalSnapshot>> {
    snapshots(&rig.disk.snapshot(rig.image)).map_err(anyhow::Error::msg)
}

/// Whether the image has these snapshots, which hold that; what the disk holds, and how much leaks.
fn look(rig: &Rig, kept: &Kept) -> Result<(Vec<u8>, u64)> {
    let found = rig.look()?;
    let all = listed(rig)?;
    let ids: Vec<&String> = all.iter().map(|it| &it.id).collect();
    ensure!(all.len() == kept.len(), "snapshots {ids:?}, not {:?}", kept.keys());
    let now = rig.disk.snapshot(rig.image);
    for snapshot in &all {
        let content = kept.get(&snapshot.id).with_context(|| format!("{ids:?}"))?;
        let found = read_snapshot(&now, rig.made.backing.as_deref(), snapshot);
        ensure!(
            found.map_err(anyhow::Error::msg)? == *content,
            "{snapshot:?} holds something else"
        );
    }
    Ok(found)
}

/// What the disk of a rig holds, and its snapshots.
fn begin(rig: &Rig) -> Result<(Vec<u8>, Kept)> {
    let now = rig.disk.snapshot(rig.image);
    let mut kept = Kept::new();
    for snapshot in listed(rig)? {
        let content = read_snapshot(&now, rig.made.backing.as_deref(), &snapshot);
        kept.insert(snapshot.id, content.map_err(anyhow::Error::msg)?);
    }
    Ok((rig.look()?.0, kept))
}

/// Writes, zeroes and discards anywhere.
fn change_disk(process: &Process, content: &mut [u8], rng: &mut Rng) -> Result<()> {
    let sectors = content.len() / 512;
    for _ in 0..4 + rng.index(12) {
        let start = rng.index(sectors);
        let most = [1, 9, 200][rng.index(3)];
        let count = 1 + rng.index(most.min(sectors - start));
        let (at, bytes) = (start * 512, start * 512..(start + count) * 512);
        let done = if rng.one_in(4) {
            content[bytes.clone()].fill(0);
            let bytes = bytes.start as u64..bytes.end as u64;
            process.on_lane(async |lane| lane.zero(bytes).await)?
        } else {
            rng.fill(&mut content[bytes.clone()]);
            let memory = HostMemory::of(&content[bytes]);
            process.on_lane(async |lane| lane.write(at as u64, memory).await.map(drop))?
        };
        done.map_err(|kind| anyhow::anyhow!("a change: {kind:?}"))?;
    }
    process.use_it(content, rng)
}

/// One thing that happens to an image in use.
fn happen(process: &Process, content: &mut Vec<u8>, kept: &mut Kept, rng: &mut Rng) -> Result<()> {
    match rng.below(5) {
        0 | 1 => {
            let before: Vec<String> = kept.keys().cloned().collect();
            match create(process, "name") {
                Ok(info) => {
                    ensure!(!before.contains(&info.id), "{before:?} has {info:?}");
                    kept.insert(info.id, content.clone());
                }
                // Wide enough for some.
                Err(SnapshotError::TooWide { .. }) => {}
                Err(error) => return Err(said(&error)),
            }
        }
        2 => {
            let ids: Vec<String> = kept.keys().cloned().collect();
            if let Some(id) = ids.get(rng.index(ids.len().max(1))) {
                let gone = delete(process, id).map_err(|error| said(&error))?;
                ensure!(gone.id == *id, "{gone:?}");
                kept.remove(id);
            }
        }
        3 if process.node.header().version == 3 && rng.one_in(2) => {
            let bytes = 512 * (1 + rng.index(content.len() / 256));
            let resized = process.node.resize(DiskSize(ByteCount(bytes as u64)));
            resized.map_err(|error| anyhow::anyhow!("{}", sentence(&error)))?;
            *content = sized(content, bytes);
        }
        _ => change_disk(process, content, rng)?,
    }
    let known: Vec<String> = process.node.snapshots().iter().map(|it| it.id.clone()).collect();
    ensure!(known.len() == kept.len() && known.iter().all(|id| kept.contains_key(id)), "{known:?}");
    process.use_it(content, rng)
}

#[test]
fn snapshots_come_and_go_and_keep_what_they_hold() -> Result<()> {
    for seed in 0..rounds(24) {
        let rng = &mut Rng::new(seed);
        let recipe = any_recipe(rng, 2 << 20);
        let mut round = || -> Result<()> {
            let rig = Rig::new(&recipe, seed)?;
            let (mut content, mut kept) = begin(&rig)?;
            for _ in 0..3 {
                let process = rig.open(Trouble::None)?;
                for _ in 0..rng.index(12) {
                    happen(&process, &mut content, &mut kept, rng)?;
                }
                drop(process);
                let (found, leaks) = look(&rig, &kept)?;
                ensure!(found == content, "the disk holds something else");
                ensure!(leaks == 0, "{leaks} leaks");
            }
            Ok(())
        };
        round().with_context(|| format!("seed {seed}, {recipe:?}"))?;
    }
    Ok(())
}

/// What is cut off.
#[derive(Debug, Clone, Copy)]
enum Deed {
    Create,
    Delete,
}

/// Some history, and then a snapshot comes or goes, which is cut off after so many operations. Whether it was over before.
fn die(recipe: &Recipe, deed: Deed, operations: u64, seed: u64) -> Result<bool> {
    let rng = &mut Rng::new(seed);
    let rig = Rig::new(recipe, seed)?;
    let (mut content, mut kept) = begin(&rig)?;
    let process = rig.open(Trouble::None)?;
    for name in ["first", "second"] {
        if let Ok(info) = create(&process, name) {
            kept.insert(info.id, content.clone());
        }
        change_disk(&process, &mut content, rng)?;
    }
    rig.disk.settle();
    let before = kept.clone();
    process.control.life.limit(operations);
    let done = match deed {
        Deed::Create => create(&process, "last").map(|info| {
            kept.insert(info.id, content.clone());
        }),
        Deed::Delete => {
            let first = kept.keys().next().cloned().unwrap_or_default();
            delete(&process, &first).map(|info| drop(kept.remove(&info.id)))
        }
    };
    let is_over = !process.control.life.is_over();
    process.control.life.end();
    drop(process);
    if seed.is_multiple_of(3) {
        rig.disk.outlive_process();
    } else {
        rig.disk.lose_power(&mut Rng::new(seed));
    }
    let found = listed(&rig)?.len();
    if found != kept.len() {
        match deed {
            Deed::Create if done.is_err() => {
                kept.insert(next(&before), content.clone());
            }
            Deed::Delete if done.is_err() => drop(kept.pop_first()),
            Deed::Create | Deed::Delete => bail!("{found} snapshots, though it was over"),
        }
    }
    let (held, leaked) = look(&rig, &kept)?;
    ensure!(held == content, "the disk holds something else");
    // Whoever comes next goes on with it.
    let process = rig.open(Trouble::None)?;
    for _ in 0..3 {
        happen(&process, &mut content, &mut kept, rng)?;
    }
    for id in kept.keys() {
        delete(&process, id).map_err(|error| said(&error))?;
    }
    drop(process);
    let (found, leaks) = look(&rig, &Kept::new())?;
    ensure!(found == content, "the next one finds something else");
    ensure!(leaks == leaked, "{leaks} leaks, not {leaked}");
    Ok(is_over)
}

/// The identity of the next snapshot.
fn next(kept: &Kept) -> String {
    let number = |id: &String| id.parse::<u64>().unwrap_or_default();
    (kept.keys().map(number).max().unwrap_or_default() + 1).to_string()
}

#[test]
fn a_loss_of_power_leaves_the_whole_snapshot_or_none() -> Result<()> {
    let mut ends = 0;
    for image in 0..rounds(4) {
        let recipe = any_recipe(&mut Rng::new(image + 100), 64 << 10);
        let deed = if image % 2 == 0 { Deed::Create } else { Deed::Delete };
        let (mut operations, mut is_over) = (0, false);
        while !is_over {
            for round in 0..ROUNDS {
                let seed = image * 100_000 + operations * ROUNDS + round;
                let how = || format!("seed {seed}, {recipe:?}, {deed:?}, {operations} operations");
                is_over = die(&recipe, deed, operations, seed).with_context(how)?;
                ends += 1;
            }
            operations += 1;
        }
    }
    testkit::report::note(&format!("{ends} ends"));
    Ok(())
}

#[test]
fn what_fails_leaves_the_snapshots_as_they_were() -> Result<()> {
    let (mut failed, mut done) = (0, 0);
    for seed in 0..rounds(6) {
        let recipe = any_recipe(&mut Rng::new(seed + 200), 128 << 10);
        for number in 0..u64::MAX {
            let how = || format!("seed {seed}, {recipe:?}, operation {number}");
            let rig = Rig::new(&recipe, seed)?;
            let (mut content, mut kept) = begin(&rig)?;
            let Ok(process) = rig.open(Trouble::Fails(number)) else { continue };
            let first = kept.keys().next().cloned();
            let result = match &first {
                Some(id) if seed % 2 == 0 => delete(&process, id).map(|info| {
                    kept.remove(&info.id);
                }),
                _ => create(&process, "new").map(|info| {
                    kept.insert(info.id, content.clone());
                }),
            };
            let is_over = process.operations.load(Ordering::Relaxed) <= number;
            if is_over {
                break;
            }
            let used = process.use_it(&mut content, &mut Rng::new(seed));
            if result.is_ok() {
                used.with_context(how)?;
            }
            drop(process);
            let found = listed(&rig)?.len();
            if found != kept.len() {
                // It was made, and the image could not be loaded again; what was written since is not there.
                ensure!(matches!(result, Err(SnapshotError::Open(_))), "{}: {result:?}", how());
                *(if result.is_ok() { &mut done } else { &mut failed }) += 1;
                continue;
            }
            let now = look(&rig, &kept).with_context(how)?.0;
            let sectors = now.chunks(512).zip(content.chunks(512));
            let differs = sectors.filter(|(found, expected)| found != expected).count();
            ensure!(differs <= if result.is_ok() { 0 } else { 3 }, "{}: {differs} sectors", how());
            *(if result.is_ok() { &mut done } else { &mut failed }) += 1;
        }
    }
    testkit::report::note(&format!("{failed} failed, {done} did not"));
    Ok(())
}

#[test]
fn on_a_full_disk_nothing_is_changed() -> Result<()> {
    for cut in [0, 512, 8192, 20_000] {
        let recipe = Recipe { filled: 90, ..Recipe::plain(9, 1 << 20) };
        let rig = Rig::new(&recipe, 1)?;
        let (mut content, kept) = begin(&rig)?;
        let process = rig.open(Trouble::Full(rig.made.image.len() as u64 + cut))?;
        let error = create(&process, "new").err().context("there is room")?;
        ensure!(sentence(&error) == "No space left on device", "{error:?}");
        let read = process.on_lane(async |lane| lane.read(0..1 << 20).await)?;
        ensure!(read.map_err(|kind| anyhow::anyhow!("{kind:?}"))?[..] == *content, "the disk");
        // What has a place can be written.
        process.use_it(&mut content, &mut Rng::new(1)).ok();
        drop(process);
        let (_, leaks) = look(&rig, &kept)?;
        ensure!(leaks == 0, "{leaks} leaks");
    }
    Ok(())
}

#[test]
fn a_refcount_that_is_too_narrow_is_refused_and_nothing_is_changed() -> Result<()> {
    for (order, most) in [(0, 0), (1, 2), (2, 14)] {
        let recipe = Recipe { refcount_order: order, filled: 60, ..Recipe::plain(12, 1 << 20) };
        let rig = Rig::new(&recipe, 3)?;
        let (mut content, mut kept) = begin(&rig)?;
        let process = rig.open(Trouble::None)?;
        for number in 0..=most {
            match create(&process, "new") {
                Ok(info) if number < most => drop(kept.insert(info.id, content.clone())),
                Err(SnapshotError::TooWide { .. }) if number == most => {}
                other => bail!("2^{order} bits, {number}: {other:?}"),
            }
        }
        process.use_it(&mut content, &mut Rng::new(3))?;
        drop(process);
        let (found, leaks) = look(&rig, &kept)?;
        ensure!(found == content && leaks == 0, "{leaks} leaks");
    }
    Ok(())
}

/// What the image holds when that snapshot is converted, or the disk.
fn converted(bench: &Bench, snapshot: Option<&str>) -> Result<Vec<u8>> {
    let mut line = vec!["qemu-img", "convert", "-f", "qcow2", "-O", "raw"];
    line.extend(snapshot.iter().flat_map(|name| ["-l", name]));
    line.extend(["a.qcow2", "a.raw"]);
    qemu::succeeds(&bench.path(""), &line)?;
    Ok(std::fs::read(bench.path("a.raw"))?)
}

fn judged(options: &str) -> Result<()> {
    const DISK: usize = 4 << 20;
    let bench = Bench::new()?;
    let run = |line: &[&str]| qemu::succeeds(&bench.path(""), line);
    run(&["qemu-img", "create", "-q", "-f", "qcow2", "-o", options, "a.qcow2", "4M"])?;
    let (rng, mut disk) = (&mut Rng::new(6), vec![0; DISK]);
    let mut states: Vec<(String, Vec<u8>)> = Vec::new();
    for number in 0..5 {
        let name = format!("state{number}");
        let image = Image::open(&bench.path("a.qcow2"), OverlapCheck::Cached)?;
        let mut guest = Guest::of(&image)?;
        for _ in 0..20 {
            let at = rng.index(DISK / 512) * 512;
            let count = ((1 + rng.index(300)) * 512).min(DISK - at);
            rng.fill(&mut disk[at..at + count]);
            guest.write(at as u64, &disk[at..at + count])?;
        }
        if number % 2 == 0 {
            let claim = guest.without_lane();
            let date = Duration::from_secs(1_795_766_352);
            let made = image.node.create_snapshot(&NewSnapshot { name: name.clone(), date });
            made.map_err(|error| said(&error))?;
            drop(claim);
        } else {
            guest.flush()?;
            drop(guest);
            run(&["qemu-img", "snapshot", "-c", &name, "a.qcow2"])?;
        }
        states.push((name, disk.clone()));
        drop(image);
        let wrong = qemu::wrong(&bench.path(""), "a.qcow2")?;
        ensure!(wrong.is_empty(), "after {number}: {wrong}");
        ensure!(converted(&bench, None)? == disk, "the disk, after {number}");
        for (name, disk) in &states {
            ensure!(converted(&bench, Some(name))? == *disk, "{name}, after {number}");
        }
    }
    let list = run(&["qemu-img", "snapshot", "-l", "a.qcow2"])?;
    ensure!(states.iter().all(|(name, _)| list.contains(name)), "{list}");
    // Some by us, some by the peer, in any order.
    for (turn, number) in [(0, 1), (1, 0), (2, 4), (3, 2)] {
        let (name, _) = &states[number];
        if turn % 2 == 0 {
            let image = Image::open(&bench.path("a.qcow2"), OverlapCheck::Cached)?;
            let claim = Guest::of(&image)?.without_lane();
            let which = SnapshotSelector { id: None, name: Some(name.clone()) };
            image.node.delete_snapshot(&which).map_err(|error| said(&error))?;
            drop(claim);
        } else {
            run(&["qemu-img", "snapshot", "-d", name, "a.qcow2"])?;
        }
        let wrong = qemu::wrong(&bench.path(""), "a.qcow2")?;
        ensure!(wrong.is_empty(), "without {name}: {wrong}");
        ensure!(converted(&bench, None)? == disk, "the disk, without {name}");
        ensure!(converted(&bench, Some("state3"))? == states[3].1, "state3, without {name}");
    }
    run(&["qemu-img", "snapshot", "-a", "state3", "a.qcow2"])?;
    ensure!(converted(&bench, None)? == states[3].1, "the disk as it was");
    ensure!(qemu::wrong(&bench.path(""), "a.qcow2")?.is_empty(), "as it was");
    Ok(())
}

#[test]
fn qemu_img_and_we_make_and_delete_snapshots_of_one_image() -> Result<()> {
    if qemu::is_missing() {
        return Ok(());
    }
    for options in [
        "cluster_size=64k",
        "cluster_size=64k,extended_l2=on",
        "cluster_size=2M",
        "cluster_size=512",
        "compat=0.10,cluster_size=4k",
        "cluster_size=16k,refcount_bits=64",
        "cluster_size=16k,refcount_bits=4",
    ] {
        judged(options).with_context(|| options.to_owned())?;
    }
    Ok(())
}

#[test]
fn what_cannot_be_is_refused_in_the_words_of_qemu() -> Result<()> {
    if qemu::is_missing() {
        return Ok(());
    }
    let bench = Bench::new()?;
    let run = |line: &[&str]| qemu::succeeds(&bench.path(""), line);
    let new = NewSnapshot { name: "new".to_owned(), date: Duration::ZERO };
    run(&["qemu-img", "create", "-q", "-f", "qcow2", "a.qcow2", "1M"])?;
    let image = Image::open(&bench.path("a.qcow2"), OverlapCheck::Cached)?;
    let error = image.node.create_snapshot(&new).err().context("nobody uses it")?;
    ensure!(error.to_string() == "the image is not in use for writing here", "{error}");
    let _claim = Guest::of(&image)?.without_lane();
    let which = SnapshotSelector { id: Some("1".to_owned()), name: None };
    let error = image.node.delete_snapshot(&which).err().context("there is none")?;
    ensure!(matches!(error, SnapshotError::Missing), "{error:?}");
    image.node.create_snapshot(&new).map_err(|error| said(&error))?;
    image.node.create_snapshot(&new).map_err(|error| said(&error))?;
    let ids: Vec<String> = image.node.snapshots().iter().map(|it| it.id.clone()).collect();
    ensure!(ids == ["1", "2"], "{ids:?}");
    Ok(())
}
