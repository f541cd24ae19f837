//! No request fails silently, and none fills the log: what a guest asks for in vain, again and again, is said a few times
//! with the file, the request and the reason.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testkit::process::{Bench, Server};
use testkit::rawring::{BlockRequest, Form, RawDevice, RawShape, flag, kind};

use crate::support::{qemu_img, qemu_io, ringloom, stop, with};

const LIMIT: Duration = Duration::from_secs(20);
const MIB: u64 = 1 << 20;
const REQUESTS: u32 = 1000;

fn serve(bench: &Bench, node: &str) -> Result<Server> {
    let export = format!(
        "vhost-user-blk,id=e,node-name=n,writable=on,addr.type=unix,addr.path={}",
        bench.text("s")
    );
    let node = format!("{node},node-name=n");
    let words = ["--blockdev".to_owned(), node, "--export".to_owned(), export];
    let program = ringloom().in_directory(bench.path(""));
    program.start(&words, &[PathBuf::from(bench.text("s"))])
}

/// Asks for the same again and again, in vain, and for something that works in the end; the log afterwards.
fn ask_in_vain(
    bench: &Bench,
    node: &str,
    kind: u32,
    sector: u64,
    sentences: &[&str],
) -> Result<()> {
    let server = serve(bench, node)?;
    let mut device = RawDevice::connect(&bench.path("s"), RawShape::default())?;
    for _ in 0..REQUESTS {
        let data = vec![device.data(0, 4096, flag::WRITE)];
        let request = BlockRequest { kind, sector, data, form: Form::Direct };
        let outcome = device.request(0, &request)?;
        ensure!(!outcome.is_ok(), "{node}: {outcome:?}");
    }
    for sentence in sentences {
        server.wait_for_log(sentence, LIMIT)?;
        let said = server.log().lines().filter(|line| line.contains(sentence)).count();
        ensure!((1..=10).contains(&said), "'{sentence}' is said {said} times");
    }
    let data = vec![device.data(0, 4096, flag::WRITE)];
    let good = BlockRequest { kind: kind::IN, sector: MIB / 512, data, form: Form::Direct };
    ensure!(device.request(0, &good)?.is_ok(), "a good request");
    drop(device);
    let log = server.log();
    stop(server, &[&bench.path("s")])?;
    ensure!(log.lines().count() < 60, "{} lines: {log}", log.lines().count());
    Ok(())
}

#[test]
fn what_a_guest_asks_for_in_vain_is_said_a_few_times() {
    with(&ringloom(), |_| {
        let bench = Bench::new()?;
        let file = fs::File::create(bench.path("disk.img")).context("make a disk")?;
        file.set_len(4 * MIB)?;
        let node = "driver=file,filename=disk.img";
        let at = |what: &str| format!("disk disk.img: node n: a guest's request of {what}");
        let behind = at("type 0 at sector 8192 failed: it reaches behind the end");
        ask_in_vain(&bench, node, kind::IN, 8192, &[&behind])?;
        let unknown = at("type 99 at sector 7 failed: it is not supported");
        ask_in_vain(&bench, node, 99, 7, &[&unknown])
    });
}

#[test]
fn what_an_image_cannot_give_is_said_a_few_times() {
    with(&ringloom(), |_| {
        let bench = Bench::new()?;
        qemu_img(&bench, "create -q -f qcow2 d.qcow2 4M")?;
        qemu_io(&bench, &["-f", "qcow2", "-c", "write 0 64k", "d.qcow2"])?;
        // The first entry of its first L2 table names no cluster.
        let image = fs::OpenOptions::new().read(true).write(true).open(bench.path("d.qcow2"))?;
        let mut word = [0; 8];
        image.read_exact_at(&mut word, 40)?;
        let l1 = u64::from_be_bytes(word);
        image.read_exact_at(&mut word, l1)?;
        let table = u64::from_be_bytes(word) & 0x00ff_ffff_ffff_fe00;
        image.write_all_at(&0x8000_0000_0005_0200_u64.to_be_bytes(), table)?;
        let request =
            "disk d.qcow2: node n: read of 4096 bytes at byte 0 failed: input/output error";
        let reason = "d.qcow2: cluster 0 of the disk";
        let node = "driver=qcow2,file.driver=file,file.filename=d.qcow2";
        ask_in_vain(&bench, node, kind::IN, 0, &[reason, request])
    });
}
