//! Images that change hands: locks that never lapse, no wait for a sync, and only the same disk.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testkit::client::{Client, RingLayout, Shape};
use testkit::image;
use testkit::process::{Bench, Program};

use super::{Busy, LIMIT, line, replace, work};
use crate::support::{Disk, Format, Iothreads, qemu_img, ringloom, stop, with};

/// The byte that somebody else would write.
const FOREIGN: u8 = 0xcd;

/// Tries to write to an image as a third process, again and again, until told to stop; how often it was refused.
fn try_to_write(image: &Path, format: &str, done: &AtomicBool) -> Result<u32> {
    let mut refused = 0;
    while !done.load(Ordering::Acquire) {
        let write = format!("write -P {FOREIGN:#x} 0 4k");
        let output = Command::new("qemu-io").args(["-f", format, "-c", &write]).arg(image).output();
        let output = output.context("run qemu-io")?;
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        ensure!(!output.status.success(), "somebody else got the image: {said}");
        ensure!(said.contains("lock"), "it was refused for another reason: {said}");
        refused += 1;
    }
    Ok(refused)
}

/// The image stays locked through takeovers, under a load that verifies.
fn stays_locked(program: &Program, form: Format) -> Result<()> {
    let bench = Bench::new()?;
    let disk = Disk { format: form, ..super::disk(&bench, 2) };
    let Busy { disk, mut server, mut client, mut rng } =
        Busy::begin(program, disk, RingLayout::Split)?;
    let format = match form {
        Format::Raw => "raw",
        Format::Overlay => "qcow2",
    };
    let (done, image) = (AtomicBool::new(false), disk.image());
    std::thread::scope(|scope| -> Result<()> {
        let other = scope.spawn(|| try_to_write(&image, format, &done));
        let result = (|| {
            for _ in 0..5 {
                work(&mut client, &mut rng, 5)?;
                let new = program.spawn(&line(&disk))?;
                super::work_until(&mut client, &mut rng, &new, super::HANDED_OVER)?;
                server.wait(LIMIT)?;
                server = new;
            }
            Ok(())
        })();
        done.store(true, Ordering::Release);
        let refused = other.join().expect("it does not panic")?;
        ensure!(refused > 5, "somebody else has tried {refused} times only");
        result
    })?;
    Busy { disk, server, client, rng }.end().map(drop)
}

#[test]
fn nobody_else_gets_a_raw_image_while_it_changes_hands() {
    with(&ringloom(), |program| stays_locked(program, Format::Raw));
}

#[test]
fn nobody_else_gets_a_qcow2_image_while_it_changes_hands() {
    with(&ringloom(), |program| stays_locked(program, Format::Overlay));
}

/// A storage whose syncs take three seconds makes nobody wait.
#[test]
fn no_guest_waits_for_a_sync_of_a_slow_image() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let raw = Disk { iothreads: Iothreads::Two, ..Disk::new(&bench, "e0", 1) };
        raw.create_sparse(1 << 20)?;
        qemu_img(&bench, "create -q -f qcow2 slow.qcow2 64M")?;
        let (image, socket) = (bench.text("slow.qcow2"), bench.path("slow.sock"));
        let slow = [
            "--blockdev".to_owned(),
            format!(
                "driver=qcow2,node-name=slow,file.driver=delay,file.flush.distribution=fixed,\
                 file.flush.latency-ns=3000000000,file.file.driver=file,file.file.filename={image}"
            ),
            "--export".to_owned(),
            format!(
                "type=vhost-user-blk,id=slow,node-name=slow,addr.type=unix,addr.path={},\
                 writable=on,iothread=t0",
                socket.display()
            ),
        ];
        let all = [line(&raw), slow.to_vec()].concat();
        let sockets = [raw.socket(), socket];
        let mut server = program.start(&all, &sockets)?;
        let mut clients = Vec::new();
        for socket in &sockets {
            clients.push(Client::connect(socket, Shape::small())?);
        }
        for (round, byte) in [5_u8, 6].into_iter().enumerate() {
            for client in &mut clients {
                client.write(round as u64 * 65536, &[byte; 4096], 0)?;
            }
            server = replace(program, &all, server)?;
            let log = server.log();
            for id in ["e0", "slow"] {
                let told = log.split(&format!("export {id}: served again ")).nth(1);
                let told = told.and_then(|rest| rest.split(' ').next()).context(log.clone())?;
                let ms: f64 = told.parse()?;
                ensure!(ms < 1500.0, "export {id} stood still for {ms} ms");
            }
            for client in &mut clients {
                let found = client.read(round as u64 * 65536, 4096, 0)?;
                ensure!(found == [byte; 4096], "other bytes than were written");
            }
        }
        drop(clients);
        stop(server, &sockets.each_ref().map(PathBuf::as_path))?;
        qemu_img(&bench, "check -q -f qcow2 slow.qcow2").map(drop)
    });
}

/// Four disks whose lines can be wrong in ways that the images do not show.
fn disks(bench: &Bench) -> Result<Vec<String>> {
    for name in ["a", "b", "c"] {
        image::create_sparse(&bench.path(name), 4 << 20)?;
    }
    qemu_img(bench, "create -q -f qcow2 -o preallocation=full p.qcow2 4M")?;
    image::create_sparse(&bench.path("base"), 4 << 20)?;
    image::create_sparse(&bench.path("base2"), 4 << 20)?;
    qemu_img(bench, "create -q -f qcow2 -b base -F raw o.qcow2")?;
    let at = |name: &str| bench.text(name);
    let nodes = [
        format!(
            "stripe,node-name=n0,chunk=65536,children.0.driver=file,children.0.filename={},\
             children.1.driver=file,children.1.filename={}",
            at("a"),
            at("b")
        ),
        format!("qcow2,node-name=n1,file.driver=file,file.filename={}", at("p.qcow2")),
        format!(
            "qcow2,node-name=n2,file.driver=file,file.filename={},backing.driver=raw,\
             backing.file.driver=file,backing.file.filename={}",
            at("o.qcow2"),
            at("base")
        ),
        format!(
            "throttle,node-name=n3,throttle-group=g,file.driver=raw,file.offset=1048576,\
             file.size=1048576,file.file.driver=file,file.file.filename={}",
            at("c")
        ),
    ];
    let mut line = vec!["--object".to_owned(), "throttle-group,id=g,x-iops-total=1000".to_owned()];
    for (number, node) in nodes.into_iter().enumerate() {
        let socket = at(&format!("{number}.sock"));
        line.extend(["--blockdev".to_owned(), node, "--export".to_owned()]);
        line.push(format!(
            "vhost-user-blk,id=e{number},node-name=n{number},addr.type=unix,addr.path={socket},\
             writable=on"
        ));
    }
    Ok(line)
}

/// A guest would find other bytes, or other limits, than it has: the first difference is named.
#[test]
fn another_view_of_the_same_files_is_refused_by_name() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let right = disks(&bench)?;
        let sockets: Vec<PathBuf> =
            (0..4).map(|number| bench.path(&format!("{number}.sock"))).collect();
        let mut server = program.start(&right, &sockets)?;
        let mut client = Client::connect(&sockets[0], Shape::small())?;
        client.write(0, &[7; 4096], 0)?;
        let second = bench.text("base2");
        let cases = [
            ("chunk=65536", "chunk=131072", "chunk (131072 here, 65536 there)"),
            ("qcow2,node-name=n1", "raw,node-name=n1", "driver (raw here, qcow2 there)"),
            ("offset=1048576", "offset=2097152", "file.offset (2097152 here, 1048576 there)"),
            ("x-iops-total=1000", "x-iops-total=2000", "limits.iops-total (2000 here, 1000 there)"),
            (&bench.text("base"), &second, "its backing.file.image ("),
            ("qcow2,node-name=n2", "qcow2,node-name=n2,cache.direct=on", "cache.direct (on here"),
            ("stripe,node-name=n0", "stripe,node-name=n0,discard=unmap", "discard (unmap here"),
        ];
        for (from, to, named) in cases {
            let mut wrong: Vec<String> = right.iter().map(|word| word.replace(from, to)).collect();
            assert_ne!(wrong, right, "{from} is in the line");
            wrong.push("--takeover".to_owned());
            let exit = program.refusal(&wrong, LIMIT)?;
            ensure!(exit.stderr.contains(named), "{named:?} is not in {}", exit.stderr);
            ensure!(exit.stderr.contains("which goes on serving"), "{}", exit.stderr);
            ensure!(server.is_alive()?, "the old process has ended: {}", server.log());
        }
        // How nodes are called, and what does not concern a guest's disk, may change.
        let other: Vec<String> = right
            .iter()
            .map(|word| word.replace("=n", "=other"))
            .chain(["--takeover", "--object", "iothread,id=t0"].map(str::to_owned))
            .collect();
        let server = replace(program, &other, server)?;
        ensure!(client.read(0, 4096, 0)? == [7; 4096], "other bytes than were written");
        drop(client);
        stop(server, &sockets.iter().map(PathBuf::as_path).collect::<Vec<_>>()).map(drop)
    });
}

/// A node that is active only while it serves stays so: nothing is written back and claimed again.
#[test]
fn a_node_that_is_active_on_demand_changes_hands_as_it_is() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let disk = super::disk(&bench, 1);
        disk.create_sparse(1 << 20)?;
        let active: Vec<String> = line(&disk)
            .iter()
            .map(|word| word.replace("node-name=file-e0,f", "node-name=file-e0,active=off,f"))
            .collect();
        assert_ne!(active, line(&disk));
        let mut server = program.start(&active, &[disk.socket()])?;
        let mut client = Client::connect(&disk.socket(), Shape::small())?;
        client.write(0, &[3; 4096], 0)?;
        for _ in 0..2 {
            server = replace(program, &active, server)?;
            ensure!(client.read(0, 4096, 0)? == [3; 4096], "other bytes than were written");
            let done = AtomicBool::new(false);
            let image = disk.image();
            std::thread::scope(|scope| -> Result<()> {
                let other = scope.spawn(|| try_to_write(&image, "raw", &done));
                std::thread::scope(|_| client.write(4096, &[4; 4096], 0))?;
                while !other.is_finished() && !done.load(Ordering::Acquire) {
                    done.store(true, Ordering::Release);
                }
                other.join().expect("it does not panic").map(drop)
            })?;
        }
        drop(client);
        // Without a client it is inactive: somebody else may have it.
        testkit::deadline::poll_until("the image to be free", Duration::from_secs(10), || {
            let free =
                crate::support::qemu_io(&bench, &["-f", "raw", "-c", "write 0 4k", "e0.img"]);
            Ok(free.is_ok().then_some(()))
        })?;
        stop(server, &[&disk.socket()]).map(drop)
    });
}

/// How an image below sixty others is used takes more words than one packet has room for.
#[test]
fn a_long_chain_of_images_changes_hands() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        image::create_sparse(&bench.path("0"), 1 << 20)?;
        for number in 1..=60 {
            let (below, format) = (number - 1, if number == 1 { "raw" } else { "qcow2" });
            qemu_img(&bench, &format!("create -q -u -f qcow2 -b {below} -F {format} {number} 1M"))?;
        }
        let (top, socket) = (bench.text("60"), bench.path("s"));
        let line: Vec<String> = [
            "--takeover",
            "--named-files",
            "on",
            "--blockdev",
            &format!("qcow2,node-name=n,file.driver=file,file.filename={top}"),
            "--export",
            &format!(
                "vhost-user-blk,id=e,node-name=n,addr.type=unix,addr.path={},writable=on",
                socket.display()
            ),
        ]
        .map(str::to_owned)
        .into();
        let old = program.start(&line, std::slice::from_ref(&socket))?;
        let mut client = Client::connect(&socket, Shape::small())?;
        client.write(65536, &[6; 4096], 0)?;
        let new = replace(program, &line, old)?;
        ensure!(client.read(65536, 4096, 0)? == [6; 4096], "other bytes than were written");
        drop(client);
        stop(new, &[&socket]).map(drop)
    });
}
