//! What stands below an image is changed while it is used: `blockdev-reopen`, `change-backing-file`; images are merged into
//! others that are only read: `block-commit`.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use testkit::client::{Client, Shape};
use testkit::image;
use testkit::process::{Bench, Program};
use testkit::qmp::QmpClient;

use super::{export, start, state};
use crate::support::{qemu_img, qemu_io, ringloom, stop, with};

const BYTES: usize = 1 << 20;

/// Behind the cluster that is written, which has a copy of what was below.
const BEHIND: u64 = 128 << 10;

fn part(disk: &[u8]) -> &[u8] {
    let start = usize::try_from(BEHIND).expect("small");
    &disk[start..start + 4096]
}

fn chains_are_cut_and_joined(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    let socket = bench.path("e.sock");
    let one = image::create_filled(&bench.path("one"), BYTES, 1)?;
    let two = image::create_filled(&bench.path("two"), BYTES, 2)?;
    qemu_img(&bench, &format!("create -q -f qcow2 over {BYTES}"))?;
    let (server, mut qmp) = start(program, &bench, &state(&bench), &[])?;
    for name in ["one", "two"] {
        let node = json!({"driver": "file", "node-name": name, "filename": bench.text(name)});
        qmp.execute("blockdev-add", &node)?;
    }
    let over = |backing: Value| {
        json!({
            "driver": "qcow2", "node-name": "over", "file": "over-file", "backing": backing,
        })
    };
    let file = json!({"driver": "file", "node-name": "over-file", "filename": bench.text("over")});
    qmp.execute("blockdev-add", &file)?;
    qmp.execute("blockdev-add", &over("one".into()))?;
    qmp.execute("block-export-add", &export(&bench, "e", "over"))?;
    let mut client = Client::connect(&socket, Shape::small())?;
    ensure!(client.read(BEHIND, 4096, 0)? == part(&one), "not what is below");
    client.write(0, &[0x77; 4096], 0)?;
    let reopen = |options: Value| json!({"options": [options]});
    qmp.execute("blockdev-reopen", &reopen(over("two".into())))?;
    ensure!(client.read(BEHIND, 4096, 0)? == part(&two), "not what is below now");
    ensure!(client.read(0, 4096, 0)? == [0x77; 4096], "what was written is lost");
    qmp.execute("blockdev-reopen", &reopen(over(Value::Null)))?;
    ensure!(client.read(BEHIND, 4096, 0)? == [0; 4096], "something is below");
    qmp.execute("blockdev-reopen", &reopen(over("one".into())))?;
    // What would take the disk away, and what nobody can change.
    for (options, expected) in [
        (
            json!({"driver": "qcow2", "node-name": "over", "file": "over-file"}),
            "backing is missing",
        ),
        (json!({"driver": "raw", "node-name": "over", "file": "one"}), "Cannot change the option"),
        (
            json!({"driver": "qcow2", "node-name": "over", "file": "over-file", "backing": "one",
                   "read-only": true}),
            "Cannot change the option 'read-only'",
        ),
        (json!({"driver": "file", "node-name": "none", "filename": bench.text("one")}), "'none'"),
    ] {
        let (class, desc) = qmp.refused("blockdev-reopen", &reopen(options))?;
        ensure!(class == "GenericError" && desc.contains(expected), "{desc}");
    }
    ensure!(client.read(BEHIND, 4096, 0)? == part(&one), "what was refused has changed something");
    let named = |image: &str, backing: &str| json!({"device": "over", "image-node-name": image, "backing-file": backing});
    qmp.execute("change-backing-file", &named("over", &bench.text("one")))?;
    let (_, desc) = qmp.refused("change-backing-file", &named("two", "x"))?;
    ensure!(desc.contains("not in the same chain"), "{desc}");
    let (_, desc) = qmp.refused("change-backing-file", &named("one", "x"))?;
    ensure!(desc.contains("no backing file to name"), "{desc}");
    let expected = client.read(0, 8192, 0)?;
    drop(client);
    stop(server, &[&socket])?;
    qemu_img(&bench, "check -q -f qcow2 over")?;
    qemu_img(&bench, "convert -f qcow2 -O raw over flat")?;
    ensure!(std::fs::read(bench.path("flat"))?[..8192] == expected[..], "the chain differs");
    Ok(())
}

#[test]
fn what_stands_below_an_image_is_changed_under_a_client() {
    with(&ringloom(), chains_are_cut_and_joined);
}

/// Images with a bitmap in the lowest are merged into it, which is only read but for that time.
fn bitmaps_in_a_base_that_is_only_read(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    let socket = bench.path("e.sock");
    qemu_img(&bench, &format!("create -q -f qcow2 base {BYTES}"))?;
    qemu_img(&bench, "bitmap --add -f qcow2 base b0")?;
    qemu_img(&bench, "create -q -f qcow2 -b base -F qcow2 middle")?;
    qemu_io(&bench, &["-f", "qcow2", "-c", "write -P 5 128k 4k", "middle"])?;
    qemu_img(&bench, "create -q -f qcow2 -b middle -F qcow2 top")?;
    let (server, mut qmp) = start(program, &bench, &state(&bench), &[])?;
    let (mut below, mut is_read_only) = (json!(null), true);
    for name in ["base", "middle", "top"] {
        is_read_only = is_read_only && name != "top";
        let node = json!({
            "driver": "qcow2", "node-name": name, "backing": below, "read-only": is_read_only,
            "file": {"driver": "file", "filename": bench.text(name)},
        });
        qmp.execute("blockdev-add", &node)?;
        below = name.into();
    }
    qmp.execute("block-export-add", &export(&bench, "e", "top"))?;
    let mut client = Client::connect(&socket, Shape::small())?;
    client.write(0, &[0x77; 4096], 0)?;
    let bitmaps = |qmp: &mut QmpClient| -> Result<(Value, Value)> {
        let all = qmp.execute("query-named-block-nodes", &json!({"flat": true}))?;
        let mut all = all.as_array().cloned().unwrap_or_default().into_iter();
        let base = all.find(|node| node["node-name"] == "base").context("no base")?;
        Ok((base["ro"].clone(), base["dirty-bitmaps"].clone()))
    };
    let commit = |more: &[(&str, &str)]| {
        let mut all = json!({"job-id": "j", "device": "top", "base-node": "base"});
        more.iter().for_each(|(key, value)| all[*key] = (*value).into());
        all
    };
    for _ in 0..2 {
        let both = bitmaps(&mut qmp)?;
        ensure!(both == (json!(true), json!(null)), "{both:?}");
        qmp.execute("block-commit", &commit(&[]))?;
        qmp.event("BLOCK_JOB_READY")?;
        qmp.execute("job-cancel", &json!({"id": "j"}))?;
        qmp.event("BLOCK_JOB_CANCELLED")?;
    }
    qmp.execute("block-commit", &commit(&[("top-node", "middle")]))?;
    let end = qmp.event("BLOCK_JOB_COMPLETED")?;
    ensure!(end["data"]["error"].is_null(), "{end}");
    let both = bitmaps(&mut qmp)?;
    ensure!(both == (json!(true), json!(null)), "{both:?}");
    qmp.execute("blockdev-del", &json!({"node-name": "middle"}))?;
    qmp.execute("block-commit", &commit(&[]))?;
    qmp.event("BLOCK_JOB_READY")?;
    qmp.execute("job-complete", &json!({"id": "j"}))?;
    let end = qmp.event("BLOCK_JOB_COMPLETED")?;
    ensure!(end["data"]["error"].is_null(), "{end}");
    let (ro, known) = bitmaps(&mut qmp)?;
    // What the client wrote, and what was in the middle.
    ensure!(ro == false && known[0]["name"] == "b0" && known[0]["count"] == 128 << 10, "{known}");
    ensure!(client.read(0, 4096, 0)? == [0x77; 4096], "what was written is lost");
    ensure!(client.read(BEHIND, 4096, 0)? == [5; 4096], "what was below is lost");
    drop((client, qmp));
    stop(server, &[&socket])?;
    qemu_img(&bench, "check -q -f qcow2 base")?;
    let info: Value = serde_json::from_str(&qemu_img(&bench, "info --output=json -f qcow2 base")?)?;
    let stored = &info["format-specific"]["data"]["bitmaps"];
    ensure!(stored[0]["name"] == "b0" && stored[0]["flags"] == json!(["auto"]), "{stored}");
    Ok(())
}

#[test]
fn images_are_merged_into_one_with_bitmaps_that_is_only_read() {
    with(&ringloom(), bitmaps_in_a_base_that_is_only_read);
}
