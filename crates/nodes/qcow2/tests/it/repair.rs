//! Images whose last writer was killed before it wrote refcounts (lazy refcounts).

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, ensure};
use block::{Answer, BatchPieces, FailKind, Lane, LaneContext, LaneError, Mapping, Node};
use kernel_io::FileTable;
use testkit::process::Bench;
use testkit::rng::Rng;

use crate::node::{self, make_writable};
use crate::qemu;

/// An image that is dirty and whose refcounts are wrong; made by a qemu-io that kills itself.
fn make(bench: &Bench, options: &str, size: &str, before: &[&[&str]]) -> Result<()> {
    let directory = bench.path("");
    let options = format!("lazy_refcounts=on,{options}");
    let line = ["qemu-img", "create", "-q", "-f", "qcow2", "-o", &options, "a.qcow2", size];
    qemu::succeeds(&directory, &line)?;
    for line in before {
        qemu::succeeds(&directory, line)?;
    }
    let writes =
        ["-c", "write -P 1 100k 1M", "-c", "write -P 2 3M 300k", "-c", "write -z 3100k 64k"];
    let death = ["-c", "flush", "-c", "sigraise 9"];
    let line = [&["qemu-io", "-f", "qcow2"][..], &writes, &death, &["a.qcow2"]].concat();
    ensure!(!qemu::run(&directory, &line)?.status.success(), "it has killed itself");
    ensure!(std::fs::read(bench.path("a.qcow2"))?[79] & 1 != 0, "{options}: it is not dirty");
    Ok(())
}

const SNAPSHOTS: &[&[&str]] = &[
    &["qemu-io", "-f", "qcow2", "-c", "write -P 9 0 2M", "a.qcow2"],
    &["qemu-img", "snapshot", "-c", "first", "a.qcow2"],
    &["qemu-io", "-f", "qcow2", "-c", "write -P 8 1M 1M", "a.qcow2"],
    &["qemu-img", "snapshot", "-c", "second", "a.qcow2"],
    &["qemu-img", "bitmap", "--add", "a.qcow2", "records"],
    &["qemu-io", "-f", "qcow2", "-c", "write -c -P 7 4M 2M", "a.qcow2"],
];

/// What a guest reads, by qemu-img.
fn disk(bench: &Bench, image: &str) -> Result<Vec<u8>> {
    let line = ["qemu-img", "convert", "-f", "qcow2", "-O", "raw", image, "out.raw"];
    qemu::succeeds(&bench.path(""), &line)?;
    Ok(std::fs::read(bench.path("out.raw"))?)
}

fn check(options: &str, size: &str, before: &[&[&str]]) -> Result<()> {
    let bench = Bench::new()?;
    make(&bench, options, size, before)?;
    std::fs::copy(bench.path("a.qcow2"), bench.path("qemu.qcow2"))?;
    qemu::run(&bench.path(""), &["qemu-img", "check", "-q", "-r", "all", "qemu.qcow2"])?;
    let header = make_writable(&bench.path("a.qcow2")).map_err(anyhow::Error::msg)?;
    ensure!(!header.features.dirty, "{header:?}");
    let wrong = qemu::wrong(&bench.path(""), "a.qcow2")?;
    ensure!(wrong.is_empty(), "{wrong}");
    ensure!(disk(&bench, "a.qcow2")? == disk(&bench, "qemu.qcow2")?, "other data than QEMU's");
    let again = std::fs::read(bench.path("a.qcow2"))?;
    make_writable(&bench.path("a.qcow2")).map_err(anyhow::Error::msg)?;
    ensure!(again == std::fs::read(bench.path("a.qcow2"))?, "a clean image is left alone");
    Ok(())
}

#[test]
fn an_image_is_repaired_before_it_is_written() -> Result<()> {
    if qemu::is_missing() {
        return Ok(());
    }
    for (options, size, before) in [
        ("cluster_size=64k", "16M", &[][..]),
        ("cluster_size=64k", "16M", SNAPSHOTS),
        ("cluster_size=2M", "64M", SNAPSHOTS),
        ("cluster_size=4k,refcount_bits=64", "16M", SNAPSHOTS),
        // Refcount blocks are missing, and a table has to move.
        ("cluster_size=512", "16M", &[]),
        ("cluster_size=512,refcount_bits=64", "16M", SNAPSHOTS),
        ("cluster_size=16k,refcount_bits=4,compression_type=zstd", "16M", SNAPSHOTS),
        ("cluster_size=1k,refcount_bits=1", "16M", &[]),
        ("cluster_size=32k,extended_l2=on", "16M", SNAPSHOTS),
        ("cluster_size=64k,data_file=a.data", "16M", &[]),
    ] {
        check(options, size, before).with_context(|| options.to_owned())?;
    }
    Ok(())
}

/// Takes so many changes and nothing after them: the file of a process that dies.
#[derive(Debug)]
struct Dying {
    file: Arc<dyn Node>,
    left: Arc<AtomicU64>,
}

impl Node for Dying {
    testkit::same_node_as!(file);

    fn open_lane(&self, io: &LaneContext) -> Result<Box<dyn Lane>, LaneError> {
        let (below, left) = (self.file.open_lane(io)?, Arc::clone(&self.left));
        Ok(Box::new(DyingLane { below, left }))
    }
}

#[derive(Debug)]
struct DyingLane {
    below: Box<dyn Lane>,
    left: Arc<AtomicU64>,
}

impl Lane for DyingLane {
    fn map(&mut self, batch: &mut [Mapping], pieces: &mut BatchPieces) {
        for mapping in batch {
            let left = self.left.load(Ordering::Relaxed);
            if left == 0 {
                mapping.answer = Answer::Refused(FailKind::Io);
                continue;
            }
            self.left.store(left - u64::from(mapping.operation.is_change()), Ordering::Relaxed);
            self.below.map(std::slice::from_mut(mapping), pieces);
        }
    }

    block::pass_on_to!(below);
}

#[test]
fn a_repair_that_dies_after_any_write_is_finished_by_the_next() -> Result<()> {
    if qemu::is_missing() {
        return Ok(());
    }
    let bench = Bench::new()?;
    make(&bench, "cluster_size=512,refcount_bits=64", "16M", SNAPSHOTS)?;
    let image = bench.path("a.qcow2");
    let mut dirty = std::fs::read(&image)?;
    // Worse than any crash: all refcounts are lost, and the table is too small.
    let table = usize::try_from(word(&dirty, 48))?;
    dirty[table..table + 512].fill(0);
    dirty[56..60].copy_from_slice(&1_u32.to_be_bytes());
    std::fs::write(&image, &dirty)?;
    make_writable(&image).map_err(anyhow::Error::msg)?;
    let expected = disk(&bench, "a.qcow2")?;
    let (mut deaths, mut writes) = (0, 0);
    loop {
        // Most of them are alike.
        writes += if writes < 6 { 1 } else { 17 };
        std::fs::write(&image, &dirty)?;
        let table = Arc::new(FileTable::default());
        let (file, left) = (node::file(&image, &table)?, Arc::new(AtomicU64::new(writes)));
        let file: Arc<dyn Node> = Arc::new(Dying { file, left });
        if qcow2::make_writable(&file, &*node::engines(&table)).is_ok() {
            break;
        }
        deaths += 1;
        make_writable(&image).map_err(anyhow::Error::msg)?;
        let wrong = qemu::wrong(&bench.path(""), "a.qcow2")?;
        ensure!(wrong.is_empty(), "after {writes} writes: {wrong}");
        ensure!(disk(&bench, "a.qcow2")? == expected, "after {writes} writes");
    }
    ensure!(deaths > 8, "only {writes} writes");
    Ok(())
}

/// The big-endian word there.
fn word(file: &[u8], at: u64) -> u64 {
    let at = usize::try_from(at).expect("an offset in memory");
    u64::from_be_bytes(file[at..at + 8].try_into().expect("8 bytes"))
}

fn put(file: &mut [u8], at: u64, value: u64) {
    let at = usize::try_from(at).expect("an offset in memory");
    file[at..at + 8].copy_from_slice(&value.to_be_bytes());
}

/// Where the tables of an image with one L2 table, clusters of 64 KiB and a snapshot are.
#[derive(Debug)]
struct Places {
    l1: u64,
    l2: u64,
    refcount_table: u64,
    snapshots: u64,
    bitmaps: u64,
}

fn places(file: &[u8]) -> Places {
    let l1 = word(file, 40);
    let directory = file.windows(7).rposition(|bytes| bytes == b"records").expect("it has a name");
    Places {
        l1,
        l2: word(file, l1) & 0x00ff_ffff_ffff_fe00,
        refcount_table: word(file, 48),
        snapshots: word(file, 64),
        bitmaps: directory as u64 - 24,
    }
}

/// A place, what is there, and what is said.
type Wrong = (fn(&Places) -> u64, fn(&Places) -> u64, &'static str);

const WRONG: &[Wrong] = &[
    (|at| at.l1, |_| 1 << 40, "an L2 table at byte 0x10000000000 of the image is outside the file"),
    (|at| at.l1, |_| 0x5_0200, "an L2 table at byte 0x50200 of the image does not begin a cluster"),
    (
        |at| at.l1,
        |at| at.l2 | 1 << 60,
        "an entry of the L1 table at byte 0x... of the image has reserved bits",
    ),
    (
        |at| at.l1,
        |at| at.l1,
        "the L1 table at byte 0x... of the image is in a cluster that is something else too",
    ),
    (
        |at| at.l2 + 64,
        |at| at.refcount_table,
        "the refcount table at byte 0x... of the image is in a cluster that is something else too",
    ),
    (
        |at| at.l2 + 64,
        |at| at.l2,
        "an L2 table at byte 0x... of the image is in a cluster that is something else too",
    ),
    (
        |at| at.l2 + 64,
        |_| 1 << 50,
        "the L2 entry at byte 0x... of the image names a cluster outside the file",
    ),
    (|at| at.l2 + 64, |_| 2, "the L2 entry at byte 0x... of the image has reserved bits"),
    (
        |at| at.l2 + 64,
        |_| 1 << 62 | 1 << 50,
        "the L2 entry at byte 0x... of the image names compressed data outside the file",
    ),
    (
        |at| at.refcount_table,
        |_| 1 << 41,
        "a refcount block at byte 0x20000000000 of the image is outside the file",
    ),
    (
        |at| at.refcount_table + 8,
        |_| 1 << 9,
        "a refcount block at byte 0x200 of the image does not begin a cluster",
    ),
    (
        |at| at.refcount_table + 8,
        |at| at.l1,
        "the L1 table at byte 0x... of the image is in a cluster that is something else too",
    ),
    (
        |at| at.snapshots,
        |_| 1 << 33,
        "the L1 table of a snapshot at byte 0x200000000 of the image is outside the file",
    ),
    (
        |at| at.snapshots + 8,
        |_| u64::MAX,
        "the L1 table of a snapshot at byte 0x... of the image is too large",
    ),
    (
        |at| at.snapshots + 32,
        |_| 0x1000,
        "the snapshot with the L1 table at byte 0x... of the image has too much extra data",
    ),
    (
        |at| at.bitmaps,
        |_| 1 << 34,
        "a bitmap table at byte 0x400000000 of the image is outside the file",
    ),
    (|at| at.bitmaps + 16, |_| 0, "the bitmap directory at byte 0x... of the image is not one"),
    // Of the header.
    (|_| 40, |_| 1 << 35, "the L1 table at byte 0x800000000 of the image is outside the file"),
    (
        |_| 48,
        |_| 1 << 35,
        "the refcount table at byte 0x800000000 of the image is outside the file",
    ),
    (
        |_| 64,
        |_| 1 << 35,
        "the snapshot table at byte 0x800000000 of the image is outside the file",
    ),
];

/// Whether the sentence is that one; `...` stands for hexadecimal digits.
fn says(said: &str, expected: &str) -> bool {
    let Some((_, said)) = said.split_once("/a.qcow2: the image cannot be written: ") else {
        return false;
    };
    match expected.split_once("...") {
        None => said == expected,
        Some((start, end)) => {
            let digits = said.strip_prefix(start).and_then(|it| it.strip_suffix(end));
            digits.is_some_and(|it| it.bytes().all(|digit| digit.is_ascii_hexdigit()))
        }
    }
}

#[test]
fn what_no_crash_leaves_behind_is_refused_and_left_alone() -> Result<()> {
    if qemu::is_missing() {
        return Ok(());
    }
    let bench = Bench::new()?;
    make(&bench, "cluster_size=64k", "16M", SNAPSHOTS)?;
    let image = bench.path("a.qcow2");
    let dirty = std::fs::read(&image)?;
    let places = places(&dirty);
    for (at, value, expected) in WRONG {
        let mut file = dirty.clone();
        put(&mut file, at(&places), value(&places));
        std::fs::write(&image, &file)?;
        match make_writable(&image) {
            Ok(_) => anyhow::bail!("accepted: {expected}"),
            Err(said) => ensure!(says(&said, expected), "{said}\ninstead of {expected}"),
        }
        ensure!(std::fs::read(&image)? == file, "it was changed: {expected}");
    }
    Ok(())
}

#[test]
fn a_refcount_that_cannot_say_how_many_references_there_are_is_refused() -> Result<()> {
    if qemu::is_missing() {
        return Ok(());
    }
    let bench = Bench::new()?;
    make(&bench, "cluster_size=64k,refcount_bits=1", "16M", &[])?;
    let image = bench.path("a.qcow2");
    let mut file = std::fs::read(&image)?;
    let l2 = word(&file, word(&file, 40)) & 0x00ff_ffff_ffff_fe00;
    let data = word(&file, l2 + 8 * 4);
    put(&mut file, l2 + 8 * 200, data);
    std::fs::write(&image, &file)?;
    let said = make_writable(&image).err().context("it is accepted")?;
    ensure!(said.ends_with("of the image has more than 1 references"), "{said}");
    ensure!(std::fs::read(&image)? == file, "it was changed");
    Ok(())
}

/// An image in a sparse file whose L1 table names tables all over it: much to do, if one let it.
fn sparse(bench: &Bench, cluster_bits: u32, size: u64, entries: u32) -> Result<String> {
    let options = format!("cluster_size={}", 1_u64 << cluster_bits);
    make(bench, &options, "64M", &[])?;
    let mut header = std::fs::read(bench.path("a.qcow2"))?;
    header.truncate(1 << cluster_bits);
    put(&mut header, 24, size);
    let l1 = 1_u64 << 30;
    header[36..40].copy_from_slice(&entries.to_be_bytes());
    put(&mut header, 40, l1);
    put(&mut header, 48, 2 << 30);
    let image = bench.path("sparse.qcow2");
    std::fs::write(&image, &header)?;
    let file = std::fs::OpenOptions::new().write(true).open(&image)?;
    file.set_len(15 << 40)?;
    let word = |entry: u64| ((4 << 30) + entry * (2 << 20)).to_be_bytes();
    let table: Vec<u8> = (0..entries.into()).flat_map(word).collect();
    std::os::unix::fs::FileExt::write_all_at(&file, &table, l1)?;
    make_writable(&image).err().context("it is accepted")
}

#[test]
fn an_image_that_would_take_all_memory_or_time_is_refused() -> Result<()> {
    if qemu::is_missing() {
        return Ok(());
    }
    let said = sparse(&Bench::new()?, 21, 2 << 40, 4 << 20)?;
    ensure!(said.ends_with("the tables of the image take more than 2147483648 bytes"), "{said}");
    let said = sparse(&Bench::new()?, 9, 2 << 30, 128 << 10)?;
    ensure!(
        said.ends_with("the counted clusters of the image take more than 268435456 bytes"),
        "{said}"
    );
    Ok(())
}

#[test]
fn damage_anywhere_in_the_tables_is_refused_or_harmless() -> Result<()> {
    if qemu::is_missing() {
        return Ok(());
    }
    let bench = Bench::new()?;
    make(&bench, "cluster_size=512", "2M", &SNAPSHOTS[1..2])?;
    let image = bench.path("a.qcow2");
    let dirty = std::fs::read(&image)?;
    let seed = 20_261_122;
    let mut random = Rng::new(seed);
    let (mut refused, mut repaired) = (0, 0);
    for round in 0..150 {
        let mut file = dirty.clone();
        damage(&mut file, &mut random);
        std::fs::write(&image, &file)?;
        match make_writable(&image) {
            Ok(_) => {
                let wrong = qemu::wrong(&bench.path(""), "a.qcow2")?;
                ensure!(wrong.is_empty(), "seed {seed}, round {round}: {wrong}");
                repaired += 1;
            }
            Err(_) => {
                ensure!(std::fs::read(&image)? == file, "seed {seed}, round {round}: changed");
                refused += 1;
            }
        }
    }
    ensure!(refused > 20 && repaired > 20, "{refused} refused, {repaired} repaired");
    Ok(())
}

/// Changes a word or two that lie in tables.
fn damage(file: &mut [u8], random: &mut Rng) {
    let clusters = file.len() / 512;
    for _ in 0..=random.below(2) {
        // Tables are what has words that look like entries.
        let place = loop {
            let at = 512 + random.index(file.len() - 1024) / 8 * 8;
            let value = word(file, at as u64);
            if value & !(3 << 62) < file.len() as u64 && value > 0 && value.is_multiple_of(512) {
                break at as u64;
            }
        };
        let value = match random.below(4) {
            0 => (512 * random.below(clusters as u64 + 2)) | (1 << 63),
            1 => word(file, place) ^ 1 << random.below(64),
            2 => 0,
            _ => 512 * random.below(clusters as u64 + 2),
        };
        put(file, place, value);
    }
}

#[test]
fn an_image_that_is_marked_corrupt_is_not_written() -> Result<()> {
    if qemu::is_missing() {
        return Ok(());
    }
    let bench = Bench::new()?;
    make(&bench, "cluster_size=64k", "16M", &[])?;
    let image = bench.path("a.qcow2");
    let mut file = std::fs::read(&image)?;
    file[79] |= 2;
    std::fs::write(&image, &file)?;
    let said = make_writable(&image).err().context("it is accepted")?;
    ensure!(said.contains("marked corrupt"), "{said}");
    ensure!(read(&image)? == file, "it was changed");
    Ok(())
}

fn read(path: &Path) -> Result<Vec<u8>> {
    Ok(std::fs::read(path)?)
}

#[test]
fn flags_that_say_what_is_ours_alone_are_made_anew() -> Result<()> {
    if qemu::is_missing() {
        return Ok(());
    }
    let bench = Bench::new()?;
    make(&bench, "cluster_size=64k", "16M", SNAPSHOTS)?;
    let image = bench.path("a.qcow2");
    let mut file = std::fs::read(&image)?;
    let places = places(&file);
    let mut turned = 0;
    for at in std::iter::once(places.l1).chain((0..200).map(|entry| places.l2 + entry * 8)) {
        let old = word(&file, at);
        if old & 0x00ff_ffff_ffff_fe00 != 0 && old & (1 << 62) == 0 {
            put(&mut file, at, old ^ (1 << 63));
            turned += 1;
        }
    }
    ensure!(turned > 20, "{turned} flags");
    std::fs::write(&image, &file)?;
    make_writable(&image).map_err(anyhow::Error::msg)?;
    let wrong = qemu::wrong(&bench.path(""), "a.qcow2")?;
    ensure!(wrong.is_empty(), "{wrong}");
    Ok(())
}
