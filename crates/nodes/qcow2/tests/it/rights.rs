//! What an image's claims are good for: an image that only shines through another one lets its file go to readers that bear no
//! writer, and a lane whose image is closed reads nobody else's bytes.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, ensure};
use block::{
    Access, Answer, BatchPieces, ByteCount, ByteOffset, Claim, FailKind, LaneContext, Mapping,
    Node, Operation, Rights, Token,
};
use kernel_io::FileTable;

use crate::nested::image;
use crate::node::{engines, file};
use crate::player::Player;
use crate::qemu;

const MIB: usize = 1 << 20;
const WRITER: Rights = Rights::of_user(Access::ReadWrite);
const BACKING: Rights = Rights::unchanged_by_others(Access::ReadOnly);

/// What another process gets that bears no writer.
fn other(path: &Path) -> Result<Option<Claim>> {
    let table = Arc::new(FileTable::default());
    Ok(file(path, &table)?.claim(BACKING).ok())
}

#[test]
fn a_backing_file_gives_its_write_claim_back_and_gets_it_again() -> Result<()> {
    if qemu::is_missing() {
        return Ok(());
    }
    let directory = tempfile::tempdir()?;
    let at = |name: &str| directory.path().join(name);
    let create = ["qemu-img", "create", "-q", "-f", "qcow2"];
    qemu::succeeds(directory.path(), &[&create[..], &["base.qcow2", "2M"]].concat())?;
    let on_base = ["-b", "base.qcow2", "-F", "qcow2", "top.qcow2", "2M"];
    qemu::succeeds(directory.path(), &[&create[..], &on_base].concat())?;
    let table = Arc::new(FileTable::default());
    let engines = engines(&table);
    let base = image("base", file(&at("base.qcow2"), &table)?, None, &engines)?;
    let below = Some(Arc::clone(&base));
    let top = image("top", file(&at("top.qcow2"), &table)?, below, &engines)?;
    let player = |node: &Arc<dyn Node>, model, seed| {
        Player::new(Arc::clone(node), Arc::clone(&engines), model, seed)
    };

    // Twice: a snapshot, and the way back.
    let mut model = vec![0; 2 * MIB];
    for seed in 0..2 {
        let mut writer = player(&base, model, seed)?;
        writer.play(60, 8, 20)?;
        ensure!(other(&at("base.qcow2"))?.is_none(), "somebody writes to it");
        let mut reader = player(&top, std::mem::take(&mut writer.model), seed)?;
        drop(writer);
        ensure!(other(&at("base.qcow2"))?.is_some(), "nobody writes to it any more");
        let wrong = qemu::wrong(directory.path(), "base.qcow2")?;
        ensure!(wrong.is_empty(), "it was not closed for writing: {wrong}");
        reader.read_all()?;
        // Who commits claims it while the reader still does.
        let again = base.claim(WRITER)?;
        ensure!(other(&at("base.qcow2"))?.is_none(), "somebody may write to it");
        reader.read_all()?;
        model = std::mem::take(&mut reader.model);
        drop((reader, again));
    }
    ensure!(other(&at("base.qcow2"))?.is_some(), "nobody uses it");
    let wrong = qemu::wrong(directory.path(), "base.qcow2")?;
    ensure!(wrong.is_empty(), "{wrong}");
    Ok(())
}

#[test]
fn a_lane_whose_image_is_closed_answers_with_errors() -> Result<()> {
    if qemu::is_missing() {
        return Ok(());
    }
    let directory = tempfile::tempdir()?;
    let create = ["qemu-img", "create", "-q", "-f", "qcow2", "a.qcow2", "2M"];
    qemu::succeeds(directory.path(), &create)?;
    let table = Arc::new(FileTable::default());
    let engines = engines(&table);
    let node = image("a", file(&directory.path().join("a.qcow2"), &table)?, None, &engines)?;
    let claim = node.claim(WRITER)?;
    let mut lane = node.open_lane(&LaneContext::idle())?;
    let extent = node.size().check(ByteOffset(0), ByteCount(4096))?;
    drop(claim);
    let _again = node.claim(WRITER)?;
    let write = Operation::Write(extent, block::Durability::Cached);
    for operation in [Operation::Read(extent), write, Operation::Flush] {
        let mut batch = [Mapping::new(Token(0), operation)];
        lane.map(&mut batch, &mut BatchPieces::default());
        let answer = batch[0].answer;
        ensure!(answer == Answer::Refused(FailKind::Io), "{operation:?}: {answer:?}");
    }
    Ok(())
}
