//! Images whose backing file gets another name while they are in use: on a disk that loses power, and beside those of
//! qemu-img.
//!
//! What can go wrong: the power goes between any two writes, or a write survives in part: then the header has the name and the
//! format that it had, or the new ones, never one of each, and all else that it says.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use block::{Access, ByteCount, Child, Claim, DiskSize, FileId, Node, Rights};
use qcow2::{
    Children, CreateOptions, FreedClusterDiscards, Header, ImageVersion, OverlapCheck, Qcow2Node,
    Qcow2Settings, create, read_header,
};
use testkit::process::Bench;
use testkit::qcow2rig::check;
use testkit::qcow2rig::child::{ControlThread, FileChild, Life};
use testkit::qcow2rig::disk::Disk;
use testkit::rng::Rng;

use crate::node::{Image, sentence};
use crate::qemu;
use crate::rig::rounds;

/// So often the power goes after each operation.
const ROUNDS: u64 = 8;

/// A name and a format.
type Backing = (String, Option<&'static str>);

fn open(disk: &Arc<Disk>, file: FileId) -> (Arc<dyn Node>, ControlThread) {
    let life = Life::new(u64::MAX);
    let (name, access) = ("file".to_owned(), Access::ReadWrite);
    let (disk, same) = (Arc::clone(disk), Arc::clone(disk));
    let child = FileChild { name, disk, file, access, discards: true, life: Arc::clone(&life) };
    (Arc::new(child), ControlThread { disk: same, life })
}

/// The image in use.
fn claimed(
    file: &Arc<dyn Node>,
    control: &ControlThread,
    has_data: bool,
) -> Result<(Qcow2Node, Claim)> {
    let settings = Qcow2Settings {
        access: Access::ReadWrite,
        discards: FreedClusterDiscards::Passed,
        l2_cache: ByteCount(0),
        refcount_cache: ByteCount(0),
        clean_after: None,
        overlap_check: OverlapCheck::Cached,
    };
    let child = || Child::new(Arc::clone(file));
    // What it has is not looked at.
    let data_file = has_data.then(child);
    let children = Children { file: child(), backing: None, data_file };
    let node = Qcow2Node::open("image", children, settings, Arc::new(control.clone()))?;
    let claim = node.claim(Rights::of_user(Access::ReadWrite))?;
    Ok((node, claim))
}

fn backing_of(header: &Header) -> (Option<String>, Option<String>) {
    (header.backing.clone(), header.backing_format.clone())
}

fn expected((name, format): &Backing) -> (Option<String>, Option<String>) {
    let is_there = !name.is_empty();
    (is_there.then(|| name.clone()), format.filter(|_| is_there).map(ToOwned::to_owned))
}

fn name(bytes: usize) -> String {
    "/images/below.qcow2".chars().cycle().take(bytes).collect()
}

/// Has an image be made and its backing file be renamed; dies after so many operations. Whether it was over.
fn rename_and_die(
    options: &CreateOptions,
    new: &Backing,
    operations: u64,
    seed: u64,
) -> Result<bool> {
    let disk = Arc::new(Disk::default());
    let file = disk.add(&[]);
    let (node, control) = open(&disk, file);
    create(&node, &control, options)?;
    let old = (options.backing_file.clone(), options.backing_format.clone());
    let (image, claim) = claimed(&node, &control, options.data_file.is_some())?;
    disk.settle();
    let before = read_header(&node, &control)?;
    control.life.limit(operations);
    let named = image.change_backing(&new.0, new.1);
    if let Err(error) = &named {
        ensure!(
            !control.life.is_over() || sentence(error).ends_with("(Io)"),
            "{}",
            sentence(error)
        );
    } else {
        ensure!(backing_of(&image.header()) == expected(new), "{:?}", image.header());
    }
    control.life.end();
    drop((image, claim));
    disk.lose_power(&mut Rng::new(seed));
    let (node, control) = open(&disk, file);
    let after = read_header(&node, &control)?;
    let found = backing_of(&after);
    ensure!(found == old || found == expected(new), "{found:?}");
    ensure!(named.is_err() || found == expected(new), "{found:?} of old");
    let plain = |mut header: Header| {
        (header.backing, header.backing_format) = (None, None);
        header
    };
    let (after, before) = (plain(after), plain(before));
    ensure!(after == before, "{after:?}\nbefore {before:?}");
    let verdict = check::check(&disk.snapshot(file)).map_err(anyhow::Error::msg)?;
    ensure!(verdict.errors.is_empty(), "{:?}", verdict.errors);
    Ok(named.is_ok())
}

/// Any image, and what its backing file shall be called: of any length that fits beside any other.
fn any(rng: &mut Rng) -> (CreateOptions, Backing) {
    let cluster = [512, 1024, 4096, 65536][rng.index(4)];
    let most = if cluster > 2048 { 1023 } else { cluster / 2 - 120 };
    let mut backing = |empty| {
        let bytes = [empty, 7, 20, most.min(300), most][rng.index(5)];
        (name(bytes), [None, Some("raw"), Some("qcow2"), Some("host_device")][rng.index(4)])
    };
    let ((old, format), new) = (backing(0), backing(0));
    let plain = CreateOptions {
        size: DiskSize(ByteCount(1 << 20)),
        cluster_size: ByteCount(cluster as u64),
        backing_format: format.filter(|_| !old.is_empty()).map(ToOwned::to_owned),
        backing_file: Some(old).filter(|old| !old.is_empty()),
        ..CreateOptions::default()
    };
    let options = match rng.below(3) {
        0 => plain,
        1 => CreateOptions { version: ImageVersion::V2, ..plain },
        _ => CreateOptions { data_file: Some("data.img".to_owned()), ..plain },
    };
    (options, new)
}

#[test]
fn a_loss_of_power_leaves_the_old_name_or_the_new_one() -> Result<()> {
    for image in 0..rounds(40) {
        let (options, new) = any(&mut Rng::new(image));
        let (mut operations, mut is_over) = (0, false);
        while !is_over {
            for round in 0..ROUNDS {
                let seed = image * 1000 + operations * ROUNDS + round;
                let how =
                    || format!("{options:?} to {new:?}, {operations} operations, seed {seed}");
                is_over = rename_and_die(&options, &new, operations, seed).with_context(how)?;
            }
            operations += 1;
            ensure!(operations < 20, "{options:?} to {new:?} never ends");
        }
    }
    Ok(())
}

#[test]
fn a_name_that_does_not_fit_is_refused_in_the_words_of_qemu() -> Result<()> {
    let disk = Arc::new(Disk::default());
    let file = disk.add(&[]);
    let (node, control) = open(&disk, file);
    let refused = |options: &CreateOptions, name: &str, format, why: &str| -> Result<()> {
        create(&node, &control, options)?;
        let (image, _claim) = claimed(&node, &control, options.data_file.is_some())?;
        let error = image.change_backing(name, format).err().context("it is changed")?;
        let expected = format!("node file: Could not change backing file to '{name}': {why}");
        ensure!(sentence(&error) == expected, "{}", sentence(&error));
        ensure!(backing_of(&read_header(&node, &control)?) == (None, None), "it was changed");
        Ok(())
    };
    let plain = CreateOptions { size: DiskSize(ByteCount(1 << 20)), ..CreateOptions::default() };
    let small = CreateOptions { cluster_size: ByteCount(512), ..plain.clone() };
    let raw = CreateOptions {
        data_file: Some("data.img".to_owned()),
        data_file_raw: true,
        ..plain.clone()
    };
    let (invalid, full) = ("Invalid argument", "No space left on device");
    refused(&plain, &name(1024), None, invalid)?;
    refused(&plain, "a", Some("a_long_name_of_a_format"), invalid)?;
    refused(&raw, "a", None, invalid)?;
    refused(&small, &name(400), None, full)?;
    create(&node, &control, &plain)?;
    let children = Children { file: Child::new(Arc::clone(&node)), backing: None, data_file: None };
    let settings = Qcow2Settings {
        access: Access::ReadWrite,
        discards: FreedClusterDiscards::Passed,
        l2_cache: ByteCount(0),
        refcount_cache: ByteCount(0),
        clean_after: None,
        overlap_check: OverlapCheck::Cached,
    };
    let image = Qcow2Node::open("image", children, settings, Arc::new(control.clone()))?;
    let error = image.change_backing("a", None).err().context("it is changed")?;
    ensure!(sentence(&error).ends_with("the image is not in use for writing here"), "{error}");
    Ok(())
}

#[test]
fn images_say_what_they_say_after_qemu_img_rebase() -> Result<()> {
    if qemu::is_missing() {
        return Ok(());
    }
    for options in
        ["cluster_size=64k", "compat=0.10", "cluster_size=512", "cluster_size=4k,extended_l2=off"]
    {
        let bench = Bench::new()?;
        let directory = bench.path("");
        let run = |line: &[&str]| qemu::succeeds(&directory, line);
        let long = format!("{}.img", "b".repeat(100));
        for below in ["first.img", &long] {
            run(&["qemu-img", "create", "-q", "-f", "raw", below, "1M"])?;
        }
        let first = ["-b", "first.img", "-F", "raw", "a.qcow2"];
        run(&[&["qemu-img", "create", "-q", "-f", "qcow2", "-o", options], &first[..]].concat())?;
        run(&["qemu-img", "bitmap", "--add", "--disable", "a.qcow2", "records"]).ok();
        for below in [long.as_str(), "first.img", ""] {
            std::fs::copy(bench.path("a.qcow2"), bench.path("b.qcow2"))?;
            run(&["qemu-img", "rebase", "-u", "-f", "qcow2", "-b", below, "-F", "raw", "b.qcow2"])?;
            let image = Image::open(&bench.path("a.qcow2"), OverlapCheck::Cached)?;
            let claim = image.node.claim(Rights::of_user(Access::ReadWrite))?;
            image.node.change_backing(below, Some("raw"))?;
            // It can be claimed once more.
            drop(claim);
            drop(image.node.claim(Rights::of_user(Access::ReadWrite))?);
            let info = |image| -> Result<String> {
                let said = run(&["qemu-img", "info", "--output=json", image])?;
                let differs = |line: &&str| !line.contains("-size") && !line.contains(image);
                Ok(said.lines().filter(differs).collect::<Vec<_>>().join("\n"))
            };
            ensure!(
                info("a.qcow2")? == info("b.qcow2")?,
                "{options}, {below}: {}",
                info("a.qcow2")?
            );
            let wrong = qemu::wrong(&directory, "a.qcow2")?;
            ensure!(wrong.is_empty(), "{options}: {wrong}");
        }
    }
    Ok(())
}
