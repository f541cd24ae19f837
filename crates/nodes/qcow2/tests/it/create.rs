//! Images that the crate makes: beside those of qemu-img, and on a disk that loses power.
//!
//! What can go wrong: the power goes between any two writes, what was written since the last sync survives in any part
//! and order, a write or a sync fails, the file is full; and what was in the file before shines through, an old image
//! most of all. Afterwards the file is what it was, or no image, or the whole new one.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use block::{
    Access, Answer, BatchPieces, ByteCount, DiskSize, FailKind, Lane, LaneContext, LaneError,
    Mapping, Node,
};
use kernel_io::FileTable;
use qcow2::{CompressionMethod, CreateOptions, ImagePreallocation, ImageVersion, create};
use testkit::process::Bench;
use testkit::qcow2rig::child::{ControlThread, FileChild, Life};
use testkit::qcow2rig::disk::{Disk, Snapshot};
use testkit::qcow2rig::make::Recipe;
use testkit::qcow2rig::{check, image};
use testkit::rng::Rng;

use crate::node;
use crate::qemu;

/// So often the power goes after each operation.
const ROUNDS: u64 = 8;

fn sized(size: u64) -> CreateOptions {
    CreateOptions { size: DiskSize(ByteCount(size)), ..CreateOptions::default() }
}

/// The options, and the same for qemu-img.
fn cases() -> Vec<(CreateOptions, &'static str)> {
    let backing = |options: CreateOptions, format: Option<&str>| CreateOptions {
        backing_file: Some("below.img".to_owned()),
        backing_format: format.map(ToOwned::to_owned),
        ..options
    };
    let cluster = |bytes, options| CreateOptions { cluster_size: ByteCount(bytes), ..options };
    let all = |options| CreateOptions { preallocation: ImagePreallocation::Metadata, ..options };
    let data = |data_file_raw, options| CreateOptions {
        data_file: Some("data.img".to_owned()),
        data_file_raw,
        ..options
    };
    let v2 = |options| CreateOptions { version: ImageVersion::V2, ..options };
    let refcounts = |refcount_bits, options| CreateOptions { refcount_bits, ..options };
    let subclusters = |options| CreateOptions { extended_l2: true, ..options };
    vec![
        (sized(0), ""),
        (sized(1 << 30), ""),
        (sized((1 << 20) + 512), ""),
        (v2(sized(10 << 20)), "compat=0.10"),
        (v2(backing(sized(10 << 20), Some("raw"))), "compat=0.10,backing_file=below.img"),
        (cluster(512, sized(100 << 20)), "cluster_size=512"),
        (cluster(512, refcounts(64, sized(64 << 20))), "cluster_size=512,refcount_bits=64"),
        (cluster(2 << 20, sized(5 << 40)), "cluster_size=2M"),
        (cluster(4096, refcounts(1, sized(1 << 40))), "cluster_size=4k,refcount_bits=1"),
        (backing(sized(1 << 20), Some("raw")), "backing_file=below.img"),
        (
            backing(cluster(512, sized(1 << 20)), Some("raw")),
            "cluster_size=512,backing_file=below.img",
        ),
        (subclusters(sized(1 << 30)), "extended_l2=on"),
        (CreateOptions { lazy_refcounts: true, ..sized(1 << 20) }, "lazy_refcounts=on"),
        (
            CreateOptions { compression: CompressionMethod::Zstd, ..sized(1 << 20) },
            "compression_type=zstd",
        ),
        (all(sized(50 << 20)), "preallocation=metadata"),
        (
            all(cluster(512, refcounts(64, sized(300 << 10)))),
            "cluster_size=512,refcount_bits=64,preallocation=metadata",
        ),
        (
            all(v2(cluster(4096, sized((1 << 20) + 512)))),
            "compat=0.10,cluster_size=4k,preallocation=metadata",
        ),
        (
            all(subclusters(backing(sized(1 << 20), Some("raw")))),
            "extended_l2=on,preallocation=metadata,backing_file=below.img",
        ),
        (data(false, sized(1 << 20)), "data_file=data.img"),
        (data(true, sized(1 << 20)), "data_file=data.img,data_file_raw=on"),
        (
            data(true, subclusters(sized(1 << 20))),
            "data_file=data.img,data_file_raw=on,extended_l2=on",
        ),
    ]
}

/// What qemu-img says of an image, but for how much room it takes.
fn info(directory: &Path, image: &str) -> Result<String> {
    let line = ["qemu-img", "info", "--output=json", image];
    let said = qemu::succeeds(directory, &line)?;
    let is_kept = |line: &&str| !line.contains("actual-size") && !line.contains(image);
    // The file may be longer or shorter.
    let kept = said.lines().filter(is_kept).map(str::to_owned).collect::<Vec<_>>();
    let first = kept.iter().position(|line| line.contains("virtual-size"));
    let second = kept.iter().rposition(|line| line.contains("virtual-size"));
    let is_file = |at: usize| Some(at) == first && first != second;
    let kept = kept.iter().enumerate().filter(|(at, _)| !is_file(*at));
    Ok(kept.map(|(_, line)| line.as_str()).collect::<Vec<_>>().join("\n"))
}

fn check_beside_qemu(options: &CreateOptions, theirs: &str) -> Result<()> {
    let bench = Bench::new()?;
    let directory = bench.path("");
    let size = options.size.0.0;
    std::fs::write(bench.path("below.img"), vec![0xbb; 1 << 20])?;
    // What was there before is nothing.
    std::fs::write(bench.path("ours.qcow2"), vec![0xaa; 3 << 20])?;
    let table = Arc::new(FileTable::default());
    let file: Arc<dyn Node> = node::file(&bench.path("ours.qcow2"), &table)?;
    create(&file, &*node::engines(&table), options)?;
    let header = qcow2::read_header(&file, &*node::engines(&table))?;
    ensure!(header.size == size, "{header:?}");
    let mut line = vec!["qemu-img", "create", "-q", "-f", "qcow2"];
    if theirs.contains("backing") {
        line.extend(["-F", "raw"]);
    }
    let bytes = size.to_string();
    if !theirs.is_empty() {
        line.extend(["-o", theirs]);
    }
    line.extend(["theirs.qcow2", &bytes]);
    qemu::succeeds(&directory, &line)?;
    if let Some(data) = &options.data_file {
        ensure!(std::fs::metadata(bench.path(data))?.len() == size, "theirs");
    }
    let wrong = qemu::wrong(&directory, "ours.qcow2")?;
    ensure!(wrong.is_empty(), "{wrong}");
    let (ours, theirs) = (info(&directory, "ours.qcow2")?, info(&directory, "theirs.qcow2")?);
    ensure!(ours == theirs, "{ours}\ninstead of\n{theirs}");
    if size <= 100 << 20 {
        qemu::succeeds(&directory, &["qemu-img", "compare", "ours.qcow2", "theirs.qcow2"])?;
    }
    Ok(())
}

#[test]
fn images_are_as_qemu_img_makes_them() -> Result<()> {
    if qemu::is_missing() {
        return Ok(());
    }
    for (options, theirs) in cases() {
        check_beside_qemu(&options, theirs).with_context(|| format!("{options:?}"))?;
    }
    Ok(())
}

#[test]
fn what_cannot_be_is_refused_in_the_words_of_qemu() -> Result<()> {
    let disk = Arc::new(Disk::default());
    let file = disk.add(&[7; 4096]);
    let before = disk.snapshot(file);
    let (node, control) = open(&disk, file, u64::MAX);
    let plain = || sized(1 << 20);
    let v2 = || CreateOptions { version: ImageVersion::V2, ..plain() };
    let backing = |name: &str| CreateOptions { backing_file: Some(name.to_owned()), ..plain() };
    let cluster = |bytes, options| CreateOptions { cluster_size: ByteCount(bytes), ..options };
    let metadata = ImagePreallocation::Metadata;
    for (options, expected) in [
        (sized(1000), "Image size must be a multiple of 512 bytes"),
        (cluster(1000, plain()), "Cluster size must be a power of two between 512 and 2048k"),
        (cluster(4 << 20, plain()), "Cluster size must be a power of two between 512 and 2048k"),
        (
            cluster(8192, CreateOptions { extended_l2: true, ..plain() }),
            "Extended L2 entries are only supported with cluster sizes of at least 16384 bytes",
        ),
        (
            CreateOptions { extended_l2: true, ..v2() },
            "Extended L2 entries are only supported with compatibility level 1.1 and above (use version=v3 or greater)",
        ),
        (
            CreateOptions { preallocation: metadata, ..backing("a") },
            "Backing file and preallocation can only be used at the same time if extended_l2 is on",
        ),
        (
            CreateOptions { backing_format: Some("raw".to_owned()), ..plain() },
            "Backing format cannot be used without backing file",
        ),
        (
            CreateOptions { refcount_bits: 24, ..plain() },
            "Refcount width must be a power of two and may not exceed 64 bits",
        ),
        (CreateOptions { data_file_raw: true, ..plain() }, "data-file-raw requires data-file"),
        (
            cluster(512, sized(1 << 40)),
            "Could not resize image: Failed to grow the L1 table: File too large",
        ),
        (
            backing(&"a".repeat(1024)),
            &format!("Could not assign backing file '{}': Invalid argument", "a".repeat(1024)),
        ),
        (
            cluster(512, backing(&"a".repeat(400))),
            &format!(
                "Could not assign backing file '{}': No space left on device",
                "a".repeat(400)
            ),
        ),
    ] {
        let said = create(&node, &control, &options).err().context("it is made")?.to_string();
        ensure!(said == expected, "{said}\ninstead of\n{expected}");
    }
    ensure!(disk.snapshot(file).parts().eq(before.parts()), "the file is another one");
    Ok(())
}

fn open(disk: &Arc<Disk>, file: block::FileId, operations: u64) -> (Arc<dyn Node>, ControlThread) {
    let life = Life::new(operations);
    let disk = || Arc::clone(disk);
    let (name, access) = ("file".to_owned(), Access::ReadWrite);
    let child =
        FileChild { name, disk: disk(), file, access, discards: true, life: Arc::clone(&life) };
    (Arc::new(child), ControlThread { disk: disk(), life })
}

/// What is in the file before: another image, or anything.
fn before(rng: &mut Rng) -> Vec<u8> {
    if rng.one_in(2) {
        let recipe = Recipe { filled: 80, ..Recipe::plain(9, 64 << 9) };
        return recipe.make(rng).expect("it can be made").image;
    }
    let mut bytes = vec![0; rng.index(300) * 512];
    rng.fill(&mut bytes);
    bytes
}

/// What the file is: as it was, no image, or the new one, which has nothing but its backing file.
fn judge(now: &Snapshot, before: &Snapshot, options: &CreateOptions) -> Result<&'static str> {
    let Ok(header) = image::Header::read(now) else { return Ok("no image") };
    if now.parts().eq(before.parts()) && now.bytes() == before.bytes() {
        return Ok("as it was");
    }
    ensure!(header.size == options.size.0.0, "{header:?}");
    let backing = options.backing_file.as_deref().unwrap_or_default();
    ensure!(name_of_backing(now) == backing.as_bytes(), "another backing file");
    let verdict = check::check(now).map_err(anyhow::Error::msg)?;
    ensure!(verdict.errors.is_empty(), "{:?}", verdict.errors.first());
    ensure!(verdict.leaks == 0, "{} leaks", verdict.leaks);
    let below = vec![0xbb; 1 << 20];
    let backing = options.backing_file.as_ref().map(|_| &below[..]);
    let zeroes = Snapshot::of(&[]);
    let data = options.data_file.as_ref().map(|_| &zeroes);
    let content = image::read_all(now, data, backing).map_err(anyhow::Error::msg)?;
    let expected = if backing.is_some() { 0xbb } else { 0 };
    ensure!(content.iter().all(|byte| *byte == expected), "something shines through");
    Ok("the new image")
}

fn name_of_backing(image: &Snapshot) -> Vec<u8> {
    let mut place = [0; 12];
    image.read(8, &mut place);
    let number = |bytes: &[u8]| bytes.iter().fold(0, |value, byte| value << 8 | u64::from(*byte));
    let mut name = vec![0; usize::try_from(number(&place[8..])).expect("a name is short")];
    image.read(number(&place[..8]), &mut name);
    name
}

/// Makes an image and dies after so many operations; what is left then, and whether it was made.
fn make_and_die(
    options: &CreateOptions,
    operations: u64,
    seed: u64,
) -> Result<(&'static str, bool)> {
    let rng = &mut Rng::new(seed);
    let disk = Arc::new(Disk::default());
    let file = disk.add(&before(rng));
    let first = disk.snapshot(file);
    let (node, control) = open(&disk, file, operations);
    let made = create(&node, &control, options);
    // What the kernel has stays there if only the process dies.
    let how = || format!("{options:?}, {operations} operations, seed {seed}: {made:?}");
    let lived = judge(&disk.snapshot(file), &first, options).with_context(how)?;
    disk.lose_power(rng);
    let left = judge(&disk.snapshot(file), &first, options).with_context(how)?;
    ensure!(made.is_err() || (lived, left) == ("the new image", "the new image"), "{}", how());
    Ok((left, made.is_ok()))
}

#[test]
fn a_loss_of_power_leaves_no_image_or_a_whole_one() -> Result<()> {
    let mut seen = std::collections::BTreeMap::new();
    let small = |case: &(CreateOptions, &str)| case.0.size.0.0 <= 2 << 20;
    for (number, (options, _)) in cases().into_iter().filter(small).enumerate() {
        let (mut operations, mut is_made) = (0, false);
        while !is_made {
            for round in 0..ROUNDS {
                let seed = number as u64 * 100_000 + operations * ROUNDS + round;
                let (left, made) = make_and_die(&options, operations, seed)?;
                *seen.entry(left).or_insert(0) += 1;
                is_made = made;
            }
            // Tables are written one by one.
            operations += 1 + operations / 10;
        }
    }
    testkit::report::note(&format!("{seen:?}"));
    ensure!(seen.len() == 3, "{seen:?}");
    Ok(())
}

/// A file that cannot become longer.
#[derive(Debug)]
struct Full {
    file: Arc<dyn Node>,
    bytes: u64,
}

impl Node for Full {
    testkit::same_node_as!(file);

    fn open_lane(&self, io: &LaneContext) -> Result<Box<dyn Lane>, LaneError> {
        Ok(Box::new(FullLane { below: self.file.open_lane(io)?, bytes: self.bytes }))
    }
}

#[derive(Debug)]
struct FullLane {
    below: Box<dyn Lane>,
    bytes: u64,
}

impl Lane for FullLane {
    fn map(&mut self, batch: &mut [Mapping], pieces: &mut BatchPieces) {
        for mapping in batch {
            let end = mapping.operation.extent().map_or(0, |extent| extent.bytes().end);
            if mapping.operation.is_change() && end > self.bytes {
                mapping.answer = Answer::Refused(FailKind::NoSpace);
            } else {
                self.below.map(std::slice::from_mut(mapping), pieces);
            }
        }
    }

    block::pass_on_to!(below);
}

#[test]
fn on_a_full_disk_there_is_no_image() -> Result<()> {
    let disk = Arc::new(Disk::default());
    let image = Recipe::plain(16, 1 << 20).make(&mut Rng::new(1))?.image;
    let file = disk.add(&image);
    let (below, control) = open(&disk, file, u64::MAX);
    let full: Arc<dyn Node> = Arc::new(Full { file: below, bytes: image.len() as u64 });
    let options = CreateOptions { preallocation: ImagePreallocation::Metadata, ..sized(8 << 20) };
    let said = create(&full, &control, &options).err().context("it is made")?.to_string();
    ensure!(said == "node file: Could not write the image (NoSpace)", "{said}");
    ensure!(image::Header::read(&disk.snapshot(file)).is_err(), "it is an image");
    Ok(())
}
