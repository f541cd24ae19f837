//! Jobs from a shell: a disk that moves while a client has it, and one that is cancelled.

use anyhow::{Context, Result, ensure};
use serde_json::json;
use testkit::client::{Client, Shape};
use testkit::image;
use testkit::process::{Bench, Server};

use super::{check, check_refused, json, said};
use crate::control::{monitor, monitor_socket, state};
use crate::support::{qemu_img, ringloom, stop};

const SIZE: usize = 4 << 20;

fn serve(bench: &Bench) -> Result<(Server, Vec<u8>)> {
    let content = image::create_filled(&bench.path("disk"), SIZE, 0x77)?;
    let line = [
        "--blockdev".to_owned(),
        format!("file,node-name=disk,filename={}", bench.text("disk")),
        "--export".to_owned(),
        format!(
            "vhost-user-blk,id=vm1,node-name=disk,writable=on,addr.type=unix,addr.path={}",
            bench.text("s")
        ),
    ];
    let arguments = [monitor(bench), state(bench), line.to_vec()].concat();
    let server = ringloom().start(&arguments, &[bench.path("s"), monitor_socket(bench)])?;
    Ok((server, content))
}

fn moved(bench: &Bench) -> Result<()> {
    let (server, mut content) = serve(bench)?;
    let socket = &monitor_socket(bench);
    let mut client = Client::connect(&bench.path("s"), Shape::small())?;
    client.write(8192, &[7; 4096], 0)?;
    content[8192..12288].fill(7);
    check(bench, socket, "list jobs", "no jobs\n")?;
    let text = said(bench, socket, "move-disk vm1 --to new.qcow2 --format qcow2")?;
    ensure!(
        text.starts_with("vm1: node disk-moved, ") && text.contains("node disk is closed"),
        "{text}"
    );
    let list = json(bench, socket, "list exports")?;
    ensure!(list[0]["node-name"] == "disk-moved", "{list}");
    ensure!(client.read(8192, 4096, 0)? == [7; 4096], "another disk");
    client.write(0, &[9; 512], 0)?;
    content[..512].fill(9);
    // And back into a plain file.
    said(bench, socket, "move-disk disk-moved --to back.img --format raw --node back --speed 1G")?;
    client.write(512, &[8; 512], 0)?;
    content[512..1024].fill(8);
    drop(client);
    stop(server, &[&bench.path("s")])?;
    ensure!(std::fs::read(bench.path("back.img"))? == content, "something is lost");
    qemu_img(bench, "check -q -f qcow2 new.qcow2").map(drop)
}

#[test]
fn a_disk_moves_by_one_word() {
    let bench = Bench::new().unwrap();
    moved(&bench).unwrap_or_else(|error| panic!("{error:#}"));
}

fn words(bench: &Bench) -> Result<()> {
    let (server, _content) = serve(bench)?;
    let socket = &monitor_socket(bench);
    image::create_sparse(&bench.path("other"), SIZE as u64)?;
    said(bench, socket, "disk add other other --format raw --cached")?;
    let mirror = json!({
        "job-id": "j", "device": "disk", "target": "other", "sync": "full", "speed": 65536,
        "auto-dismiss": false,
    });
    said(bench, socket, &format!("qmp blockdev-mirror {}", mirror.to_string().replace(' ', "")))?;
    let jobs = json(bench, socket, "list jobs")?;
    let job = jobs.get(0).context("a job")?;
    ensure!(job["type"] == "mirror" && job["status"] == "running", "{jobs}");
    check_refused(bench, socket, "job pause k", 1, "there is no job 'k'; did you mean 'j'?")?;
    check(bench, socket, "job pause j", "job j rests\n")?;
    check_refused(bench, socket, "job pause j", 1, "Job is already paused")?;
    check_refused(bench, socket, "job wait j", 1, "job j rests: ringloom ctl job resume j")?;
    check(bench, socket, "job resume j", "job j goes on\n")?;
    check_refused(bench, socket, "job complete j", 1, "in state 'running' cannot accept")?;
    check(bench, socket, "job speed j 0", "job j: as fast as it can\n")?;
    let text = said(bench, socket, "job wait j")?;
    ensure!(text == "job j can be completed: ringloom ctl job complete j\n", "{text}");
    check(bench, socket, "job cancel j --keep", "job j: its target keeps what the disk has now\n")?;
    check(bench, socket, "job wait j", "job j is over\n")?;
    check(bench, socket, "job dismiss j", "job j is forgotten\n")?;
    ensure!(std::fs::read(bench.path("other"))? == std::fs::read(bench.path("disk"))?, "no copy");
    check_refused(
        bench,
        socket,
        "move-disk vm1 --to other --format raw",
        1,
        "other exists already",
    )?;
    stop(server, &[&bench.path("s")]).map(drop)
}

#[test]
fn jobs_are_asked_and_told() {
    let bench = Bench::new().unwrap();
    words(&bench).unwrap_or_else(|error| panic!("{error:#}"));
}
