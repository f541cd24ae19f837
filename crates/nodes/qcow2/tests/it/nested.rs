//! Images that stand on images: as the file that another one is in, and as a backing file that may be written itself.
//! Every byte is held against a plain copy while many requests are under way, and judged by QEMU's tools afterwards.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use block::{Access, ByteCount, Child, EngineFactory, Node};
use kernel_io::FileTable;
use qcow2::{Children, FreedClusterDiscards, OverlapCheck, Qcow2Node, Qcow2Settings};

use crate::node::{engines, file, sentence};
use crate::player::Player;
use crate::qemu;

const MIB: u64 = 1 << 20;

pub(crate) fn image(
    name: &str,
    file: Arc<dyn Node>,
    backing: Option<Arc<dyn Node>>,
    engines: &Arc<dyn EngineFactory>,
) -> Result<Arc<dyn Node>> {
    let settings = Qcow2Settings {
        access: Access::ReadWrite,
        discards: FreedClusterDiscards::Passed,
        // So little that tables come and go.
        l2_cache: ByteCount(0),
        refcount_cache: ByteCount(0),
        clean_after: None,
        overlap_check: OverlapCheck::Cached,
    };
    let (file, backing) = (Child::new(file), backing.map(Child::new));
    let children = Children { file, backing, data_file: None };
    let node = Qcow2Node::open(name, children, settings, Arc::clone(engines));
    Ok(Arc::new(node.map_err(|error| anyhow::anyhow!("{}", sentence(&error)))?))
}

/// Has a guest use the image in an image whose clusters are so large.
#[track_caller]
fn check_inside(seed: u64, inner: u32, outer: u32) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let at = |name: &str| directory.path().join(name);
    let run = |line: &str| {
        qemu::succeeds(directory.path(), &line.split(' ').collect::<Vec<_>>())
            .with_context(|| line.to_owned())
    };
    run(&format!("qemu-img create -f qcow2 -o cluster_size={inner} inner.qcow2 4M"))?;
    let write = ["qemu-io", "-f", "qcow2", "inner.qcow2", "-c", "write -P 7 64k 1M"];
    qemu::succeeds(directory.path(), &write)?;
    run(&format!("qemu-img create -f qcow2 -o cluster_size={outer} outer.qcow2 16M"))?;
    run("qemu-img convert -n -f raw -O qcow2 inner.qcow2 outer.qcow2")?;
    let mut model = vec![0; usize::try_from(4 * MIB)?];
    model[64 << 10..(64 << 10) + usize::try_from(MIB)?].fill(7);

    let table = Arc::new(FileTable::default());
    let engines = engines(&table);
    let outer_node = image("outer", file(&at("outer.qcow2"), &table)?, None, &engines)?;
    let node = image("inner", outer_node, None, &engines)?;
    let mut player = Player::new(node, engines, model, seed)?;
    player.play(250, 24, 40).with_context(|| format!("seed {seed}, {inner} in {outer}"))?;
    let model = std::mem::take(&mut player.model);
    drop(player);

    let wrong = qemu::wrong(directory.path(), "outer.qcow2")?;
    ensure!(wrong.is_empty(), "{wrong}");
    let inner =
        "driver=qcow2,file.driver=qcow2,file.file.driver=file,file.file.filename=outer.qcow2";
    run(&format!("qemu-img check --image-opts {inner}"))?;
    run(&format!("qemu-img convert --image-opts -O raw {inner} out.raw"))?;
    ensure!(fs::read(at("out.raw"))? == model, "QEMU reads something else");
    Ok(())
}

#[test]
fn an_image_is_served_inside_an_image() -> Result<()> {
    if qemu::is_missing() {
        return Ok(());
    }
    for (seed, inner, outer) in
        [(1, 512, 65536), (2, 4096, 65536), (3, 65536, 512), (4, 4096, 4096)]
    {
        check_inside(seed, inner, outer)?;
    }
    Ok(())
}

#[test]
fn what_a_writable_image_has_shines_through() -> Result<()> {
    if qemu::is_missing() {
        return Ok(());
    }
    let directory = tempfile::tempdir()?;
    let at = |name: &str| directory.path().join(name);
    let run = |line: &[&str]| qemu::succeeds(directory.path(), line);
    run(&["qemu-img", "create", "-f", "qcow2", "-o", "cluster_size=4k", "base.qcow2", "3M"])?;
    run(&["qemu-io", "-f", "qcow2", "base.qcow2", "-c", "write -P 5 4k 2M"])?;
    run(&[
        "qemu-img",
        "create",
        "-q",
        "-f",
        "qcow2",
        "-b",
        "base.qcow2",
        "-F",
        "qcow2",
        "top.qcow2",
        "4M",
    ])?;
    let mut model = vec![0; usize::try_from(4 * MIB)?];
    model[4096..4096 + usize::try_from(2 * MIB)?].fill(5);

    let table = Arc::new(FileTable::default());
    let engines = engines(&table);
    let base = image("base", file(&at("base.qcow2"), &table)?, None, &engines)?;
    let top = image("top", file(&at("top.qcow2"), &table)?, Some(Arc::clone(&base)), &engines)?;
    // Whoever writes to the base does so no more, but has it still.
    let writes = base.claim(block::Rights::of_user(Access::ReadWrite))?;
    let mut player = Player::new(top, engines, model, 1)?;
    player.play(250, 24, 40)?;
    // What is discarded shows nothing of the base, as with QEMU.
    player.discard(MIB, MIB)?;
    player.read_all()?;
    let model = std::mem::take(&mut player.model);
    drop((player, writes));

    for name in ["base.qcow2", "top.qcow2"] {
        let wrong = qemu::wrong(directory.path(), name)?;
        ensure!(wrong.is_empty(), "{name}: {wrong}");
    }
    check_raw(directory.path(), "top.qcow2", &model)
}

/// The lowest image is shorter than those above it, each of which has every fifth cluster.
#[test]
fn a_chain_of_images_is_read_as_one_disk() -> Result<()> {
    if qemu::is_missing() {
        return Ok(());
    }
    let directory = tempfile::tempdir()?;
    let run = |line: &[&str]| qemu::succeeds(directory.path(), line);
    let (table, cluster) = (Arc::new(FileTable::default()), 4096);
    let engines = engines(&table);
    let mut model = vec![0; usize::try_from(4 * MIB)?];
    let mut chain: Option<Arc<dyn Node>> = None;
    for place in 0..4_u8 {
        let name = format!("{place}.qcow2");
        let (backing, size) = (format!("{}.qcow2", place.wrapping_sub(1)), ["3M", "4M"]);
        let mut create = vec!["qemu-img", "create", "-q", "-f", "qcow2", "-o", "cluster_size=4k"];
        if place > 0 {
            create.extend(["-b", &backing, "-F", "qcow2"]);
        }
        create.extend([&*name, size[usize::from(place > 0)]]);
        run(&create)?;
        let mut write =
            vec!["qemu-io".to_owned(), "-f".to_owned(), "qcow2".to_owned(), name.clone()];
        let mut add = |at: usize, count: usize| {
            model[at..at + count].fill(place + 1);
            write.extend(["-c".to_owned(), format!("write -q -P {} {at} {count}", place + 1)]);
        };
        match place {
            0 => add(0, 3 << 20),
            _ => (usize::from(place)..1024).step_by(5).for_each(|at| add(at * cluster, cluster)),
        }
        run(&write.iter().map(String::as_str).collect::<Vec<_>>())?;
        chain = Some(image(&name, file(&directory.path().join(&name), &table)?, chain, &engines)?);
    }
    let top = chain.context("there are four")?;
    for seed in 1..4 {
        let mut player = Player::new(Arc::clone(&top), Arc::clone(&engines), model, seed)?;
        player.read_all()?;
        player.play(400, 24, 8).with_context(|| format!("seed {seed}"))?;
        model = std::mem::take(&mut player.model);
    }
    drop(top);
    check_raw(directory.path(), "3.qcow2", &model)
}

fn check_raw(directory: &Path, image: &str, model: &[u8]) -> Result<()> {
    qemu::succeeds(
        directory,
        &["qemu-img", "convert", "-f", "qcow2", "-O", "raw", image, "out.raw"],
    )?;
    ensure!(fs::read(directory.join("out.raw"))? == model, "QEMU reads something else");
    Ok(())
}
