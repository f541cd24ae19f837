//! `ringloom ctl move-disk --to`: a new file, a block device, a disk of qemu-nbd; what each of them takes the place of.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use testkit::client::{Client, Shape};
use testkit::image;
use testkit::loop_device::LoopDevice;
use testkit::process::{Bench, Program, Server};
use testkit::report::skipped;

use super::{check_refused, json, said};
use crate::control::{monitor, monitor_socket, state};
use crate::support::{qemu_img, ringloom, stop};

const SIZE: usize = 4 << 20;

/// A daemon whose disk is past the page cache, and which may open devices and UNIX sockets at run time.
fn serve(bench: &Bench) -> Result<Server> {
    let node = format!("file,node-name=disk,filename={},cache.direct=on", bench.text("disk"));
    let export = format!(
        "vhost-user-blk,id=vm1,node-name=disk,writable=on,num-queues=2,addr.type=unix,addr.path={}",
        bench.text("s")
    );
    let line = ["--allow-below", "/dev", "--allow-connect", "localhost:1", "--blockdev", &node];
    let mut line: Vec<String> = line.iter().map(|it| (*it).to_owned()).collect();
    line.extend(["--export".to_owned(), export]);
    let arguments = [monitor(bench), state(bench), line].concat();
    ringloom().start(&arguments, &[bench.path("s"), monitor_socket(bench)])
}

/// The node that the export has now.
fn node(bench: &Bench) -> Result<Value> {
    let monitor = monitor_socket(bench);
    let exports = json(bench, &monitor, "list exports")?;
    let name = exports[0]["node-name"].as_str().with_context(|| exports.to_string())?.to_owned();
    let nodes = json(bench, &monitor, "list nodes")?;
    let mut nodes = nodes.as_array().into_iter().flatten();
    nodes.find(|it| it["node"] == *name).cloned().context("it is listed")
}

fn moves(bench: &Bench, qemu_nbd: &Program) -> Result<()> {
    let mut content = image::create_filled(&bench.path("disk"), SIZE, 0x21)?;
    let monitor = monitor_socket(bench);
    // Larger than the disk: its guest sees another size then.
    image::create_filled(&bench.path("below"), 2 * SIZE, 0xee)?;
    let device = LoopDevice::attach(&bench.path("below"), 512)?;
    let remote = image::create_filled(&bench.path("remote"), 2 * SIZE, 0xdd)?;
    let socket = bench.text("nbd");
    let words = ["-f", "raw", "-t", "-k", &socket, "--discard=unmap", &bench.text("remote")];
    let words: Vec<String> = words.iter().map(|it| (*it).to_owned()).collect();
    let mut kit = qemu_nbd.start(&words, &[bench.path("nbd")])?;
    let server = serve(bench)?;
    let mut client = Client::connect(&bench.path("s"), Shape::small())?;

    let device_path = device.path().display().to_string();
    let uri = format!("nbd+unix:///?socket={socket}");
    for (line, expected) in [
        ("move-disk vm1 --to new".to_owned(), "new: say --format raw or --format qcow2"),
        (format!("move-disk vm1 --to {device_path}"), "say --overwrite if that may go"),
        (format!("move-disk vm1 --to {uri}"), "say --overwrite if that may go"),
        (format!("move-disk vm1 --to {uri} --overwrite --format qcow2"), "only a raw disk goes"),
        ("move-disk vm1 --to nbd://localhost:2/x --overwrite".to_owned(), "--allow-connect"),
        (
            "move-disk vm1 --to /usr/new.img".to_owned(),
            "commands open files and make sockets only below --allow-below DIRECTORY",
        ),
    ] {
        check_refused(bench, &monitor, &line, 1, expected)?;
    }
    ensure!(node(bench)?["node"] == "disk", "it stays where it is");

    let mut number = 0_u8;
    let mut write = |client: &mut Client, content: &mut [u8]| -> Result<()> {
        number += 1;
        let at = usize::from(number) * 65536;
        client.write(at as u64, &[number; 4096], 0)?;
        content[at..at + 4096].fill(number);
        Ok(())
    };
    write(&mut client, &mut content)?;
    let text = said(bench, &monitor, "move-disk vm1 --to new.qcow2 --verify")?;
    ensure!(text.ends_with("4 MiB were compared before the switch: equal\n"), "{text}");
    let found = node(bench)?;
    ensure!(found["driver"] == "qcow2" && found["direct"] == true, "{found}");

    write(&mut client, &mut content)?;
    let line = format!("move-disk vm1 --to {device_path} --overwrite --node loop");
    let text = said(bench, &monitor, &line)?;
    ensure!(text.starts_with(&format!("vm1: node loop, {device_path}, is what")), "{text}");
    let found = node(bench)?;
    ensure!(found["driver"] == "host_device" && found["direct"] == true, "{found}");
    qemu_img(bench, "check -q -f qcow2 new.qcow2")?;
    ensure!(found["size"] == 2 * SIZE, "{found}");

    write(&mut client, &mut content)?;
    // All of the device is copied by now, with what is behind the old end.
    content.resize(2 * SIZE, 0);
    let below = std::fs::read(bench.path("below"))?;
    content[SIZE..].copy_from_slice(&below[SIZE..]);
    said(bench, &monitor, &format!("move-disk vm1 --to {uri} --overwrite --node far"))?;
    ensure!(node(bench)?["driver"] == "nbd", "{}", node(bench)?);
    write(&mut client, &mut content)?;
    drop(client);
    stop(server, &[&bench.path("s")])?;
    kit.terminate()?;
    let found = std::fs::read(bench.path("remote"))?;
    ensure!(found != remote && found == content, "something is lost");
    Ok(())
}

#[test]
fn a_disk_moves_to_an_image_a_device_and_a_server_while_it_is_written() {
    let qemu_nbd = Program::named("qemu-nbd", "qemu-nbd", &[]);
    let missing = qemu_nbd.missing();
    if let Some(reason) = missing.as_deref().or_else(|| LoopDevice::missing()) {
        skipped(reason);
        return;
    }
    let bench = Bench::new().unwrap();
    moves(&bench, &qemu_nbd).unwrap_or_else(|error| panic!("{error:#}"));
}
