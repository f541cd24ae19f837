//! Zeroes that are wanted only if they are fast (FAST_ZERO): made, passed on to a server that says it can, and refused
//! without a byte written.

use std::time::Duration;

use anyhow::{Result, ensure};
use testkit::deadline::poll_until;
use testkit::image;
use testkit::process::{Bench, Program};

use super::last_flush::noting;
use super::{line, nbdkit, node};
use crate::nbd::{disk, outcome, server, socket, start, tool, uri};
use crate::support::{qemu_img, ringloom, stop, with};

/// What becomes of these commands of qemu-io on the export; `write -z -n` is FAST_ZERO.
fn qemu_io(bench: &Bench, export: &str, commands: &[&str]) -> Result<String> {
    let uri = uri(bench, export);
    let mut words = vec!["-f", "raw"];
    commands.iter().for_each(|command| words.extend(["-c", command]));
    words.push(&uri);
    let output = outcome("qemu-io", &words)?;
    Ok(String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

#[track_caller]
fn good(said: &str) -> Result<()> {
    ensure!(!said.contains("fail") && !said.contains("rror"), "{said}");
    Ok(())
}

/// A file of this host, and an image on one.
fn files_and_images(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    image::create_filled(&bench.path("a.img"), 64 << 20, 3)?;
    qemu_img(&bench, "create -q -f qcow2 i.qcow2 64M")?;
    let mut words = [server(&bench, &[]), disk(&bench, "a", "").to_vec()].concat();
    let image = bench.text("i.qcow2");
    words.extend([
        "--blockdev".to_owned(),
        format!("qcow2,node-name=i,file.driver=file,file.filename={image}"),
        "--export".to_owned(),
        "nbd,id=i,node-name=i,name=i,writable=on".to_owned(),
    ]);
    let ours = start(program, &bench, &words)?;
    for export in ["a", "i"] {
        let info = tool("nbdinfo", &["--can", "fast-zero", &uri(&bench, export)]);
        ensure!(info.is_ok(), "{info:?}");
        good(&qemu_io(
            &bench,
            export,
            &[
                "write -P 5 0 4M",
                "write -z -n 1M 1M",
                "write -z -n -u 2M 1M",
                "read -P 5 0 1M",
                "read -P 0 1M 2M",
                "read -P 5 3M 1M",
            ],
        )?)?;
    }
    // A part of a cluster would have to be written.
    let said =
        qemu_io(&bench, "i", &["write -P 6 8M 64k", "write -z -n 8M 4k", "read -P 6 8M 64k"])?;
    ensure!(said.contains("write failed: Operation not supported"), "{said}");
    ensure!(!said.contains("verification failed"), "{said}");
    good(&qemu_io(&bench, "i", &["write -z 8M 4k", "read -P 0 8M 4k", "read -P 6 8200k 8k"])?)?;
    let said = stop(ours, &[&socket(&bench)])?;
    ensure!(!said.contains("WARN"), "a refusal that was asked for is no failure: {said}");
    Ok(())
}

/// A server that can is asked to.
fn a_server_that_can(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    let mut kit = noting(&bench, &["memory", "64M"])?;
    let ours = start(program, &bench, &line(&bench, &node(&bench, ""), ""))?;
    let log = || std::fs::read_to_string(bench.path("kit.log"));
    good(&qemu_io(&bench, "x", &["write -P 5 0 4M", "write -z -n 1M 1M", "read -P 0 1M 1M"])?)?;
    ensure!(log()?.contains(" fast=1"), "{}", log()?);
    stop(ours, &[&socket(&bench)])?;
    kit.kill()
}

/// A server that cannot is not asked, and nothing is written in its place.
fn a_server_that_cannot(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    let mut kit = nbdkit(
        &bench,
        &[
            "--filter=nozero",
            "--filter=log",
            "memory",
            "64M",
            &format!("logfile={}", bench.text("kit.log")),
        ],
    )?;
    let ours = start(program, &bench, &line(&bench, &node(&bench, ""), ""))?;
    let writes = || -> Result<usize> {
        Ok(std::fs::read_to_string(bench.path("kit.log"))?.matches(" Write id=").count())
    };
    good(&qemu_io(&bench, "x", &["write -P 5 0 64k"])?)?;
    let before = writes()?;
    let said = qemu_io(&bench, "x", &["write -z -n 0 64k", "read -P 5 0 64k"])?;
    ensure!(said.contains("write failed: Operation not supported"), "{said}");
    ensure!(!said.contains("verification failed") && writes()? == before, "{said}");
    good(&qemu_io(&bench, "x", &["write -z 0 64k", "read -P 0 0 64k"])?)?;
    poll_until("the zeroes to be written", Duration::from_secs(10), || {
        Ok((writes()? > before).then_some(()))
    })?;
    stop(ours, &[&socket(&bench)])?;
    kit.kill()
}

#[test]
fn files_and_images_make_zeroes_fast_or_say_no() {
    with(&ringloom(), files_and_images);
}

#[test]
fn a_server_that_makes_zeroes_fast_is_asked_to() {
    with(&ringloom(), a_server_that_can);
}

#[test]
fn nothing_is_written_for_a_server_that_cannot() {
    with(&ringloom(), a_server_that_cannot);
}
