//! What stands below an image is changed while it is used: `blockdev-reopen`, `change-backing-file`.

use anyhow::{Result, ensure};
use serde_json::json;
use testkit::client::{Client, Shape};
use testkit::image;
use testkit::process::{Bench, Program};

use super::{export, start, state};
use crate::support::{qemu_img, ringloom, stop, with};

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
    let over = |backing: serde_json::Value| {
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
    let reopen = |options: serde_json::Value| json!({"options": [options]});
    qmp.execute("blockdev-reopen", &reopen(over("two".into())))?;
    ensure!(client.read(BEHIND, 4096, 0)? == part(&two), "not what is below now");
    ensure!(client.read(0, 4096, 0)? == [0x77; 4096], "what was written is lost");
    qmp.execute("blockdev-reopen", &reopen(over(serde_json::Value::Null)))?;
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
