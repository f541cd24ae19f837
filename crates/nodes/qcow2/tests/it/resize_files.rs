//! Images in files that get another size, beside what qemu-img makes of them.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use block::{Access, ByteCount, Child, Claim, DiskSize, Node, Rights};
use kernel_io::{FileTable, OpenOptions};
use qcow2::{Children, FreedClusterDiscards, OverlapCheck, Qcow2Node, Qcow2Settings};
use testkit::process::Bench;
use testkit::rng::Rng;

use crate::node::{self, Guest, sentence};
use crate::qemu;

/// Opens an image in a directory, with its data file if there is one.
fn open(directory: &Path, access: Access) -> Result<Qcow2Node> {
    let table = Arc::new(FileTable::default());
    let file = |name: &str| -> Result<Arc<Child>> {
        let options = OpenOptions::regular(directory.join(name), access);
        let file = disk::FileNode::open(name, &options, block::DiscardPolicy::Unmap, &table)?;
        Ok(Child::new(Arc::new(file)))
    };
    let settings = Qcow2Settings {
        access,
        discards: FreedClusterDiscards::Passed,
        l2_cache: ByteCount(1 << 20),
        refcount_cache: ByteCount(1 << 20),
        clean_after: None,
        overlap_check: OverlapCheck::Cached,
    };
    let data_file = directory.join("a.data").exists().then(|| file("a.data")).transpose()?;
    let children = Children { file: file("a.qcow2")?, backing: None, data_file };
    Ok(Qcow2Node::open("image", children, settings, node::engines(&table))?)
}

fn claim(node: &Qcow2Node) -> Result<Claim> {
    Ok(node.claim(Rights::of_user(Access::ReadWrite))?)
}

/// Makes the image in use as large; what is said if it is refused.
fn resize(directory: &Path, size: u64) -> Result<(), String> {
    let node = open(directory, Access::ReadWrite).map_err(|error| error.to_string())?;
    let _claim = claim(&node).map_err(|error| format!("{error:#}"))?;
    node.resize(DiskSize(ByteCount(size))).map_err(|error| sentence(&error))?;
    if node.size().0.0 == size { Ok(()) } else { Err("it has another size".to_owned()) }
}

fn make(bench: &Bench, options: &str, size: &str) -> Result<()> {
    let line = ["qemu-img", "create", "-q", "-f", "qcow2", "-o", options, "a.qcow2", size];
    qemu::succeeds(&bench.path(""), &line).map(drop)
}

fn write(bench: &Bench, commands: &[&str]) -> Result<()> {
    let commands = commands.iter().flat_map(|command| ["-c", command]);
    let line: Vec<&str> =
        ["qemu-io", "-f", "qcow2"].into_iter().chain(commands).chain(["a.qcow2"]).collect();
    qemu::succeeds(&bench.path(""), &line).map(drop)
}

fn check(options: &str, first: &str, sizes: &[u64]) -> Result<()> {
    let bench = Bench::new()?;
    let directory = bench.path("");
    make(&bench, options, first)?;
    write(&bench, &["write -P 1 0 100k", "write -P 2 3M 1M", "write -P 3 5000k 10k"])?;
    for size in sizes {
        // The larger one has room for all.
        std::fs::copy(bench.path("a.qcow2"), bench.path("theirs.qcow2"))?;
        resize(&directory, *size).map_err(anyhow::Error::msg)?;
        let wrong = qemu::wrong(&directory, "a.qcow2")?;
        ensure!(wrong.is_empty(), "{size}: {wrong}");
        let bytes = size.to_string();
        let line = ["qemu-img", "resize", "-q", "-f", "qcow2", "--shrink", "theirs.qcow2", &bytes];
        qemu::succeeds(&directory, &line)?;
        let same = ["qemu-img", "compare", "a.qcow2", "theirs.qcow2"];
        let said = qemu::run(&directory, &same)?;
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        ensure!(said == "Images are identical.\n", "{size} bytes: {said}");
        if !options.contains("data_file") {
            let mut guest = Guest::open(&bench.path("a.qcow2"))?;
            guest.write(size - 512, &[7; 512])?;
            guest.flush()?;
        }
    }
    Ok(())
}

#[test]
fn images_are_as_qemu_img_resizes_them() -> Result<()> {
    if qemu::is_missing() {
        return Ok(());
    }
    let (mega, giga) = (1 << 20, 1 << 30);
    for (options, sizes) in [
        ("cluster_size=64k", &[600 * mega, 4 * mega, 100 * giga][..]),
        // L1 tables of many clusters, and a refcount table that moves.
        ("cluster_size=512", &[130 * mega, 6 * mega, 512]),
        ("cluster_size=512,refcount_bits=64", &[60 * mega, 6 * mega]),
        ("cluster_size=2M", &[20 * mega, 4 << 40, 6 * mega]),
        ("cluster_size=64k,extended_l2=on", &[20 * mega, 5 * giga, 4 * mega + 512, 2 * giga]),
        ("compat=0.10,cluster_size=4k", &[20 * mega, 3 * giga, 4 * mega]),
    ] {
        check(options, "8M", sizes).with_context(|| options.to_owned())?;
    }
    Ok(())
}

#[test]
fn a_data_file_has_the_size_of_the_disk() -> Result<()> {
    if qemu::is_missing() {
        return Ok(());
    }
    for raw in ["off", "on"] {
        let bench = Bench::new()?;
        let directory = bench.path("");
        make(&bench, &format!("data_file=a.data,data_file_raw={raw}"), "8M")?;
        write(&bench, &["write -P 1 0 100k", "write -P 2 6M 2M"])?;
        for size in [20_u64 << 20, (7 << 20) + 512, 600 << 20, 2 << 20] {
            resize(&directory, size).map_err(anyhow::Error::msg)?;
            let wrong = qemu::wrong(&directory, "a.qcow2")?;
            ensure!(wrong.is_empty(), "{size}: {wrong}");
            ensure!(std::fs::metadata(bench.path("a.data"))?.len() == size, "{size}, raw={raw}");
            if raw == "on" {
                let map = ["qemu-img", "map", "--output=json", "a.qcow2"];
                let map = qemu::succeeds(&directory, &map)?;
                ensure!(!map.contains("\"present\": false"), "{size}: {map}");
            }
            let same = ["qemu-img", "compare", "-F", "raw", "-f", "qcow2", "a.qcow2", "a.data"];
            qemu::succeeds(&directory, &same)?;
        }
    }
    Ok(())
}

#[test]
fn snapshots_keep_their_size_and_what_they_hold() -> Result<()> {
    if qemu::is_missing() {
        return Ok(());
    }
    for options in ["cluster_size=64k", "cluster_size=512", "cluster_size=16k,extended_l2=on"] {
        let bench = Bench::new()?;
        let directory = bench.path("");
        let run = |line: &[&str]| qemu::succeeds(&directory, line);
        make(&bench, options, "8M")?;
        write(&bench, &["write -P 1 0 8M", "write -P 2 3M 100k"])?;
        run(&["qemu-img", "snapshot", "-c", "first", "a.qcow2"])?;
        run(&["qemu-img", "convert", "-f", "qcow2", "-O", "raw", "a.qcow2", "first.raw"])?;
        write(&bench, &["write -P 3 1M 6M"])?;
        for size in [(5 << 20) + 512, 30 << 20, 1 << 20] {
            resize(&directory, size).map_err(anyhow::Error::msg)?;
            let wrong = qemu::wrong(&directory, "a.qcow2")?;
            ensure!(wrong.is_empty(), "{options}, {size}: {wrong}");
            let mut guest = Guest::open(&bench.path("a.qcow2"))?;
            let mut bytes = vec![0; 100_352];
            Rng::new(size).fill(&mut bytes);
            guest.write(size - bytes.len() as u64, &bytes)?;
            guest.flush()?;
        }
        run(&["qemu-img", "snapshot", "-a", "first", "a.qcow2"])?;
        run(&["qemu-img", "compare", "-f", "qcow2", "-F", "raw", "a.qcow2", "first.raw"])?;
        let wrong = qemu::wrong(&directory, "a.qcow2")?;
        ensure!(wrong.is_empty(), "{options}: {wrong}");
    }
    Ok(())
}

#[test]
fn what_cannot_be_resized_is_refused_in_the_words_of_qemu() -> Result<()> {
    if qemu::is_missing() {
        return Ok(());
    }
    let bench = Bench::new()?;
    let directory = bench.path("");
    let run = |line: &[&str]| qemu::succeeds(&directory, line);
    let refused = |size: u64, why: &str| -> Result<()> {
        let before = std::fs::read(bench.path("a.qcow2"))?;
        let said = resize(&directory, size).err().context("it is resized")?;
        ensure!(said == format!("node image: {why}"), "{said}");
        ensure!(std::fs::read(bench.path("a.qcow2"))?[..64] == before[..64], "it was changed");
        Ok(())
    };
    make(&bench, "cluster_size=512", "8M")?;
    refused(1000, "The new size must be a multiple of 512")?;
    refused(1 << 50, "Failed to grow the L1 table: File too large")?;
    let node = open(&directory, Access::ReadOnly)?;
    let said = node.resize(DiskSize(ByteCount(512))).err().context("it is resized")?;
    ensure!(said.to_string() == "node image: Image is read-only", "{said}");
    let node = open(&directory, Access::ReadWrite)?;
    let said = node.resize(DiskSize(ByteCount(512))).err().context("it is resized")?;
    ensure!(said.to_string().ends_with("the image is not in use for writing here"), "{said}");
    run(&["qemu-img", "bitmap", "--add", "a.qcow2", "records"])?;
    refused(512, "Cannot resize qcow2 with persistent bitmaps that were not loaded into memory")?;
    make(&bench, "compat=0.10", "8M")?;
    run(&["qemu-img", "snapshot", "-c", "first", "a.qcow2"])?;
    refused(512, "Can't resize a v2 image which has snapshots")
}
