//! Headers: of every kind of image that qemu-img makes, and damaged ones.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use qcow2::{Header, HeaderError};
use testkit::process::Bench;
use testkit::rng::Rng;

use crate::qemu;

fn header_of(path: &Path) -> Result<Result<Header, HeaderError>> {
    let bytes = std::fs::read(path).with_context(|| format!("read {}", path.display()))?;
    Ok(parse(&bytes))
}

fn parse(file: &[u8]) -> Result<Header, HeaderError> {
    let needed = Header::bytes_needed(&file[..file.len().min(512)])?;
    let needed = usize::try_from(needed).expect("a cluster fits into memory");
    Header::parse(&file[..file.len().min(needed)])
}

/// What is asked of qemu-img, and what the header then says.
#[derive(Debug)]
struct Made {
    options: String,
    version: u32,
    cluster_bits: u32,
    refcount_order: u32,
}

/// Every combination that qemu-img takes.
fn combinations() -> Vec<Made> {
    let mut all = Vec::new();
    for cluster_bits in [9_u32, 12, 14, 16, 21] {
        all.push(Made {
            options: format!("compat=0.10,cluster_size={}", 1_u32 << cluster_bits),
            version: 2,
            cluster_bits,
            refcount_order: 4,
        });
        for refcount_order in 0..=6 {
            for extra in ["", ",lazy_refcounts=on", ",compression_type=zstd", ",extended_l2=on"] {
                if extra.contains("extended") && cluster_bits < 14 {
                    continue;
                }
                let (cluster, bits) = (1_u32 << cluster_bits, 1_u32 << refcount_order);
                let options =
                    format!("compat=1.1,cluster_size={cluster},refcount_bits={bits}{extra}");
                all.push(Made { options, version: 3, cluster_bits, refcount_order });
            }
        }
    }
    all
}

#[test]
fn every_kind_of_image_that_qemu_img_makes_is_understood() -> Result<()> {
    if qemu::is_missing() {
        return Ok(());
    }
    let bench = Bench::new()?;
    let directory = bench.path("");
    for made in combinations() {
        let line =
            ["qemu-img", "create", "-q", "-f", "qcow2", "-o", &made.options, "a.qcow2", "3M"];
        qemu::succeeds(&directory, &line)?;
        let header = header_of(&bench.path("a.qcow2"))?.with_context(|| format!("{made:?}"))?;
        let extended_l2 = made.options.contains("extended_l2");
        let entry_bytes = if extended_l2 { 16 } else { 8 };
        let per_table = (1_u64 << made.cluster_bits) / entry_bytes * (1 << made.cluster_bits);
        let is = (header.version, header.cluster_bits, header.refcount_order, header.size);
        ensure!(is == (made.version, made.cluster_bits, made.refcount_order, 3 << 20), "{made:?}");
        ensure!(u64::from(header.l1_entries) == (3_u64 << 20).div_ceil(per_table), "{made:?}");
        let features = header.features;
        ensure!(features.extended_l2 == extended_l2, "{made:?}");
        ensure!(features.zstd == made.options.contains("zstd"), "{made:?}");
        ensure!(features.lazy_refcounts == made.options.contains("lazy"), "{made:?}");
        ensure!(!features.dirty && !features.corrupt && !features.external_data, "{made:?}");
        ensure!(header.backing.is_none() && header.data_file.is_none(), "{made:?}");
    }
    Ok(())
}

#[test]
fn names_of_other_files_are_found() -> Result<()> {
    if qemu::is_missing() {
        return Ok(());
    }
    let bench = Bench::new()?;
    let directory = bench.path("");
    let create = ["qemu-img", "create", "-q", "-f"];
    qemu::succeeds(&directory, &[&create[..], &["raw", "base", "1M"]].concat())?;
    for compat in ["0.10", "1.1"] {
        let options = format!("compat={compat},backing_file=base,backing_fmt=raw");
        let line = [&create[..], &["qcow2", "-o", &options, "a.qcow2", "3M"]].concat();
        qemu::succeeds(&directory, &line)?;
        let header = header_of(&bench.path("a.qcow2"))??;
        ensure!(header.backing.as_deref() == Some("base"), "{header:?}");
        ensure!(header.backing_format.as_deref() == Some("raw"), "{header:?}");
    }
    for (raw, name) in [("off", "data"), ("on", "data with spaces")] {
        let options = format!("data_file={name},data_file_raw={raw}");
        let line = [&create[..], &["qcow2", "-o", &options, "b.qcow2", "3M"]].concat();
        qemu::succeeds(&directory, &line)?;
        let header = header_of(&bench.path("b.qcow2"))??;
        ensure!(header.features.external_data, "{header:?}");
        ensure!(header.features.raw_external == (raw == "on"), "{header:?}");
        ensure!(header.data_file.as_deref() == Some(name), "{header:?}");
    }
    Ok(())
}

#[test]
fn snapshots_bitmaps_and_encryption_are_seen() -> Result<()> {
    if qemu::is_missing() {
        return Ok(());
    }
    let bench = Bench::new()?;
    let directory = bench.path("");
    for line in [
        &["qemu-img", "create", "-q", "-f", "qcow2", "a.qcow2", "3M"][..],
        &["qemu-img", "snapshot", "-c", "one", "a.qcow2"],
        &["qemu-img", "snapshot", "-c", "two", "a.qcow2"],
        &["qemu-img", "bitmap", "--add", "a.qcow2", "b0"],
        &[
            "qemu-img",
            "create",
            "-q",
            "-f",
            "qcow2",
            "--object",
            "secret,id=s,data=abc",
            "-o",
            "encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10",
            "l.qcow2",
            "3M",
        ],
    ] {
        qemu::succeeds(&directory, line)?;
    }
    let header = header_of(&bench.path("a.qcow2"))??;
    ensure!(header.snapshots == 2 && header.snapshots_offset > 0, "{header:?}");
    ensure!(header.features.bitmaps, "{header:?}");
    let refusal = header_of(&bench.path("l.qcow2"))?.expect_err("it is encrypted");
    ensure!(refusal.to_string() == "it is encrypted (LUKS), which is not supported", "{refusal}");
    Ok(())
}

/// What stands somewhere in the file.
#[derive(Debug, Clone, Copy)]
struct Change(usize, u64, usize);

impl Change {
    fn apply(self, file: &mut [u8]) {
        let Self(at, value, bytes) = self;
        file[at..at + bytes].copy_from_slice(&value.to_be_bytes()[8 - bytes..]);
    }
}

/// The size of the disks below.
const DISK: u64 = 64 << 20;

/// A small image of version 3 with clusters of 64 KiB and without anything else.
fn plain(bench: &Bench) -> Result<Vec<u8>> {
    let line = ["qemu-img", "create", "-q", "-f", "qcow2", "plain.qcow2", "64M"];
    qemu::succeeds(&bench.path(""), &line)?;
    Ok(std::fs::read(bench.path("plain.qcow2"))?)
}

/// What is wrong, and what is said about it.
const WRONG: &[(Change, &str)] = &[
    (Change(0, 0, 4), "it is not a qcow2 image"),
    (Change(4, 1, 4), "qcow version 1 is not supported; 2 and 3 are"),
    (Change(4, 4, 4), "qcow version 4 is not supported; 2 and 3 are"),
    (Change(20, 8, 4), "cluster_bits is 8, but it is 9 to 21"),
    (Change(20, 22, 4), "cluster_bits is 22, but it is 9 to 21"),
    (Change(32, 1, 4), "it is encrypted (AES), which is not supported"),
    (Change(32, 9, 4), "crypt_method is 9, but 0, 1 or 2 are known"),
    (Change(24, u64::MAX, 8), "size is 18446744073709551615, but a disk has less than 2^63 bytes"),
    (Change(24, 1 << 40, 8), "l1_size is 1, but it is too small for the size of the disk"),
    (Change(36, 0, 4), "l1_size is 0, but it is too small for the size of the disk"),
    (Change(36, 0xffff_ffff, 4), "l1_size is 4294967295, but an L1 table has at most 32 MiB"),
    (Change(40, 0, 8), "l1_table_offset is 0, but the header is there"),
    (
        Change(40, 512, 8),
        "l1_table_offset is 512, but it is a multiple of the cluster size below 2^56",
    ),
    (
        Change(48, 1 << 56, 8),
        "refcount_table_offset is 72057594037927936, but it is a multiple of the cluster size below 2^56",
    ),
    (Change(56, 0, 4), "refcount_table_clusters is 0, but a refcount table has 1 cluster to 8 MiB"),
    (
        Change(56, 129, 4),
        "refcount_table_clusters is 129, but a refcount table has 1 cluster to 8 MiB",
    ),
    (Change(60, 65537, 4), "nb_snapshots is 65537, but an image has at most 65536 snapshots"),
    (
        Change(64, 1, 8),
        "snapshots_offset is 1, but it is a multiple of the cluster size below 2^56",
    ),
    (
        Change(72, 1 << 3, 8),
        "compression_type is 0, but 0 (zlib) and 1 (zstd, with its incompatible bit) are known",
    ),
    (Change(72, 1 << 5, 8), "it has unknown incompatible features: bit 5"),
    (Change(72, 1 << 63 | 1 << 7, 8), "it has unknown incompatible features: bit 7, bit 63"),
    (
        Change(88, 2, 8),
        "autoclear_features is 2, but raw external data (bit 1) needs an external data file",
    ),
    (Change(96, 7, 4), "refcount_order is 7, but it is at most 6"),
    (
        Change(100, 96, 4),
        "header_length is 96, but it is 104 at least, a multiple of 8, and inside the first cluster",
    ),
    (
        Change(100, 1 << 17, 4),
        "header_length is 131072, but it is 104 at least, a multiple of 8, and inside the first cluster",
    ),
    (
        Change(104, 1, 1),
        "compression_type is 1, but 0 (zlib) and 1 (zstd, with its incompatible bit) are known",
    ),
    (Change(8, 1 << 20, 8), "backing_file_offset is 1048576, but the name is in the first cluster"),
    (
        Change(116, 0xffff_ffff, 4),
        "header extension length is 4294967295, but a header extension ends before the backing file's name and the first cluster",
    ),
];

#[test]
fn what_is_wrong_with_a_header_is_said() -> Result<()> {
    if qemu::is_missing() {
        return Ok(());
    }
    let good = plain(&Bench::new()?)?;
    for (change, expected) in WRONG {
        let mut file = good.clone();
        change.apply(&mut file);
        match parse(&file) {
            Err(error) => ensure!(error.to_string() == *expected, "{change:?}: {error}"),
            Ok(header) => anyhow::bail!("{change:?} is accepted: {header:?}"),
        }
    }
    for bytes in [0, 3, 20, 71, 103] {
        let error = parse(&good[..bytes]).expect_err("it is cut off");
        ensure!(matches!(error, HeaderError::Short { .. }), "{bytes} bytes: {error}");
    }
    Ok(())
}

/// What ringloom refuses and QEMU opens, on purpose.
fn is_stricter(error: &HeaderError) -> bool {
    // QEMU takes any bytes as a name.
    if matches!(error, HeaderError::Text { .. }) {
        return true;
    }
    // A table in the header, or where no cluster can be; a header whose end is not aligned.
    let HeaderError::Field { field, value, .. } = error else { return false };
    match *field {
        "l1_table_offset" | "refcount_table_offset" | "snapshots_offset" => {
            *value == 0 || *value >= 1 << 56
        }
        "header_length" => !value.is_multiple_of(8),
        _ => false,
    }
}

/// Values that are near an edge somewhere.
fn value(random: &mut Rng) -> u64 {
    match random.below(5) {
        0 => random.below(16),
        1 => 1 << random.below(64),
        2 => (1 << random.below(64)) - 1,
        3 => (1 << (9 + random.below(14))) * random.below(300),
        _ => random.next_u64(),
    }
}

#[test]
fn verdicts_on_damaged_headers_are_those_of_qemu() -> Result<()> {
    if qemu::is_missing() {
        return Ok(());
    }
    let bench = Bench::new()?;
    let seeds = [plain(&bench)?, with_names(&bench)?];
    let seed = 20_261_122;
    let mut random = Rng::new(seed);
    let fields = [4, 8, 16, 20, 24, 32, 36, 40, 48, 56, 64, 72, 80, 88, 96, 100, 104];
    let mut images = Vec::new();
    let mut ours = Vec::new();
    for number in 0..400 {
        let mut file = seeds[random.index(seeds.len())].clone();
        let mut changes = Vec::new();
        for _ in 0..=random.below(2) {
            let (at, bytes) = match random.below(3) {
                0 => (104 + random.index(200), 1),
                _ => {
                    let at = fields[random.index(fields.len())];
                    (at, if matches!(at, 8 | 24 | 40 | 48 | 64 | 72 | 80 | 88) { 8 } else { 4 })
                }
            };
            changes.push(Change(at, value(&mut random), bytes));
        }
        changes.iter().for_each(|change| change.apply(&mut file));
        // A data file is named by the user, or must be there; that is not the header's affair.
        let verdict = parse(&file);
        let other = verdict.as_ref().is_ok_and(|header| header.features.external_data);
        // QEMU opens what is encrypted, or asks for its key.
        if other || matches!(verdict, Err(HeaderError::Encrypted { .. })) {
            continue;
        }
        let name = format!("{number}.qcow2");
        std::fs::write(bench.path(&name), &file)?;
        images.push(name);
        ours.push((changes, verdict));
    }
    let theirs = qemu::opens(&bench.path(""), &images)?;
    let agreed = ours.iter().zip(&theirs).filter(|((_, ours), theirs)| ours.is_ok() == **theirs);
    let agreed = agreed.count();
    let mut differences = Vec::new();
    for ((changes, ours), opens) in ours.iter().zip(&theirs) {
        match (ours, opens) {
            (Err(error), true) if !is_stricter(error) => {
                differences.push(format!("{changes:?}: QEMU opens it, {error}"));
            }
            // QEMU loads bitmaps, and those are of the size that the disk had.
            (Ok(header), false) if header.features.bitmaps && header.size != DISK => {}
            (Ok(_), false) => differences.push(format!("{changes:?}: QEMU refuses it")),
            _ => {}
        }
    }
    ensure!(differences.is_empty(), "seed {seed}: {}", differences.join("\n"));
    let opened = theirs.iter().filter(|opens| **opens).count();
    ensure!(agreed > 300 && opened > 50 && opened < agreed - 50, "{agreed}, {opened}");
    Ok(())
}

/// With a backing file, its format, and a bitmap.
fn with_names(bench: &Bench) -> Result<Vec<u8>> {
    let directory = bench.path("");
    for line in [
        &["qemu-img", "create", "-q", "-f", "raw", "base", "64M"][..],
        &["qemu-img", "create", "-q", "-f", "qcow2", "-b", "base", "-F", "raw", "names.qcow2"],
        &["qemu-img", "bitmap", "--add", "names.qcow2", "b0"],
    ] {
        qemu::succeeds(&directory, line)?;
    }
    Ok(std::fs::read(bench.path("names.qcow2"))?)
}

#[test]
fn what_is_wrong_with_the_bitmaps_extension_is_said() -> Result<()> {
    if qemu::is_missing() {
        return Ok(());
    }
    let bench = Bench::new()?;
    let good = with_names(&bench)?;
    let magic = 0x2385_2875_u32.to_be_bytes();
    let data = 8 + good.windows(4).position(|bytes| bytes == magic).context("it has bitmaps")?;
    let mut images = Vec::new();
    for (change, field) in [
        (Change(data, 0, 4), "nb_bitmaps"),
        (Change(data, 65536, 4), "nb_bitmaps"),
        (Change(data + 4, 1, 4), "bitmaps extension's reserved field"),
        (Change(data + 8, 1 << 30, 8), "bitmap_directory_size"),
        (Change(data + 16, 512, 8), "bitmap_directory_offset"),
        (Change(data - 4, 16, 4), "header extension length"),
    ] {
        let mut file = good.clone();
        change.apply(&mut file);
        let error = parse(&file).err().with_context(|| format!("{change:?} is accepted"))?;
        ensure!(error.to_string().starts_with(field), "{change:?}: {error}");
        // Of bitmaps that are not consistent nothing is asked but the length.
        Change(88, 0, 8).apply(&mut file);
        ensure!(parse(&file).is_ok() == (field != "header extension length"), "{change:?}");
        Change(88, 1, 8).apply(&mut file);
        let name = format!("bitmaps-{}.qcow2", images.len());
        std::fs::write(bench.path(&name), &file)?;
        images.push(name);
    }
    let opened = qemu::opens(&bench.path(""), &images)?;
    ensure!(opened.iter().all(|is_open| !is_open), "QEMU opens some: {opened:?}");
    Ok(())
}
