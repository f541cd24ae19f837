//! `ringloom ctl move-disk --verify`: what is compared before the switch, and what of it differs; who interrupts it, and daemons
//! that die meanwhile.

use std::os::unix::fs::FileExt;
use std::process::Child;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use testkit::client::{Client, Shape};
use testkit::deadline::poll_until;
use testkit::image;
use testkit::process::{Bench, Server};
use testkit::qmp::QmpClient;

use super::{check, command, json, said};
use crate::control::{monitor, monitor_socket, state};
use crate::support::{qemu_img, ringloom, stop};

const SIZE: usize = 4 << 20;
const LIMIT: Duration = Duration::from_secs(30);

/// A disk of which the second half is a hole, and a monitor that looks on.
fn serve(bench: &Bench) -> Result<(Server, Vec<u8>)> {
    let mut content = image::create_filled(&bench.path("disk"), SIZE / 2, 0x77)?;
    std::fs::File::options().write(true).open(bench.path("disk"))?.set_len(SIZE as u64)?;
    content.resize(SIZE, 0);
    Ok((serve_again(bench)?, content))
}

/// A daemon with the same line, which goes on with what was kept.
fn serve_again(bench: &Bench) -> Result<Server> {
    let second = format!("socket,id=qmp2,path={},server=on,wait=off", bench.text("qmp2.sock"));
    let export = format!(
        "vhost-user-blk,id=vm1,node-name=disk,writable=on,num-queues=2,addr.type=unix,addr.path={}",
        bench.text("s")
    );
    let node = format!("file,node-name=disk,filename={},discard=unmap", bench.text("disk"));
    let line = ["--chardev", &second, "--monitor", "chardev=qmp2", "--blockdev", &node];
    let line: Vec<String> = line.iter().map(|it| (*it).to_owned()).collect();
    let export = vec!["--export".to_owned(), export];
    let arguments = [monitor(bench), state(bench), line, export].concat();
    let sockets = [bench.path("s"), bench.path("qmp2.sock"), monitor_socket(bench)];
    ringloom().start(&arguments, &sockets)
}

/// The job that moves the disk, as the second monitor sees it, once something is so.
fn wait_for(bench: &Bench, what: &str, is_so: impl Fn(&Value) -> bool) -> Result<()> {
    let mut qmp = QmpClient::connect(&bench.path("qmp2.sock"))?;
    poll_until(what, LIMIT, || {
        let jobs = qmp.execute("query-block-jobs", &json!({}))?;
        Ok(jobs.get(0).is_some_and(&is_so).then_some(()))
    })
}

fn under_a_writer(bench: &Bench) -> Result<()> {
    let (server, mut content) = serve(bench)?;
    let socket = &monitor_socket(bench);
    let mut client = Client::connect(&bench.path("s"), Shape::small())?;
    let line = "move-disk vm1 --to new.qcow2 --format qcow2 --verify --speed 8M";
    let mut child = command(bench, socket, line).spawn()?;
    let mut number = 0_u8;
    while child.try_wait()?.is_none() {
        number = number.wrapping_add(1);
        let at = usize::from(number) * 16384 % SIZE;
        client.write(at as u64, &[number; 4096], usize::from(number % 2))?;
        content[at..at + 4096].fill(number);
    }
    let output = child.wait_with_output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    ensure!(text.ends_with("; 4 MiB were compared before the switch: equal\n"), "{text}");
    drop(client);
    stop(server, &[&bench.path("s")])?;
    qemu_img(bench, "check -q -f qcow2 new.qcow2")?;
    qemu_img(bench, "convert -f qcow2 -O raw new.qcow2 flat")?;
    ensure!(std::fs::read(bench.path("flat"))? == content, "something is lost");
    Ok(())
}

#[test]
fn a_disk_is_compared_while_it_is_written() {
    let bench = Bench::new().unwrap();
    under_a_writer(&bench).unwrap_or_else(|error| panic!("{error:#}"));
}

fn spoilt(bench: &Bench) -> Result<()> {
    let (server, content) = serve(bench)?;
    let line = "move-disk vm1 --to new.img --format raw --verify --speed 2M";
    let child = command(bench, &monitor_socket(bench), line).spawn()?;
    wait_for(bench, "a comparison", |job| job["ringloom-compared"].as_u64() > Some(0))?;
    // Data, and what has to be a hole.
    let target = std::fs::File::options().write(true).open(bench.path("new.img"))?;
    for at in [SIZE / 2 - 4096, SIZE - 65536] {
        target.write_all_at(&[0xee; 512], at as u64)?;
    }
    let output = child.wait_with_output()?;
    let (text, errors) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.code() == Some(3), "{:?}: {text}{errors}", output.status);
    ensure!(
        text.contains("; 4 MiB were compared before the switch, and 128 KiB of that"),
        "{text}"
    );
    ensure!(errors.contains("differed from what was copied there"), "{errors}");
    stop(server, &[&bench.path("s")])?;
    ensure!(std::fs::read(bench.path("new.img"))? == content, "it was not copied again");
    Ok(())
}

#[test]
fn what_differs_is_copied_again_and_said() {
    let bench = Bench::new().unwrap();
    spoilt(&bench).unwrap_or_else(|error| panic!("{error:#}"));
}

fn interrupt(child: Child) -> Result<String> {
    let pid = Pid::from_raw(i32::try_from(child.id())?).context("a process")?;
    kill_process(pid, Signal::INT)?;
    let output = child.wait_with_output()?;
    ensure!(output.status.code() == Some(1), "{}", output.status);
    Ok(String::from_utf8_lossy(&output.stderr).into_owned())
}

fn interrupted(bench: &Bench) -> Result<()> {
    let (server, content) = serve(bench)?;
    let socket = &monitor_socket(bench);
    let line = "move-disk vm1 --to new.img --format raw --speed 64k";
    let child = command(bench, socket, line).spawn()?;
    wait_for(bench, "a job", |job| job["offset"].as_u64() > Some(0))?;
    let text = interrupt(child)?;
    let goes_on = "node disk stays where it is, and job move-disk goes on: 'ringloom ctl job wait";
    ensure!(text.contains(goes_on) && text.ends_with(": interrupted\n"), "{text}");
    // At once: the job has not come to its end meanwhile.
    wait_for(bench, "the job", |job| job["offset"].as_u64() < job["len"].as_u64())?;
    // What it says is what can be done.
    check(bench, socket, "job cancel move-disk", "job move-disk is cancelled\n")?;
    check(bench, socket, "job dismiss move-disk", "job move-disk is forgotten\n")?;
    check(bench, socket, "disk del disk-moved", "node disk-moved is gone\n")?;
    let list = json(bench, socket, "list exports")?;
    ensure!(list[0]["node-name"] == "disk", "{list}");
    // A target that cannot be had leaves no file.
    let again = "move-disk vm1 --to other.img --format raw --node disk-moved";
    let busy = json!({
        "job-id": "busy", "device": "disk", "target": "other", "sync": "none", "speed": 65536,
    });
    image::create_sparse(&bench.path("other"), SIZE as u64)?;
    said(bench, socket, "disk add other other --format raw --cached")?;
    let busy = busy.to_string().replace(' ', "");
    said(bench, socket, &format!("qmp blockdev-backup {busy}"))?;
    let output = command(bench, socket, again).output()?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.code() == Some(1), "{text}");
    ensure!(text.contains("other.img is gone") && !bench.path("other.img").exists(), "{text}");
    stop(server, &[&bench.path("s")])?;
    ensure!(std::fs::read(bench.path("disk"))? == content, "the disk has changed");
    Ok(())
}

#[test]
fn a_move_that_is_interrupted_says_what_is_left() {
    let bench = Bench::new().unwrap();
    interrupted(&bench).unwrap_or_else(|error| panic!("{error:#}"));
}

/// The daemon is killed before the switch, and what was to be the new disk vanishes: it serves the old one again. After the switch
/// it serves the new one.
fn killed(bench: &Bench) -> Result<()> {
    for format in ["raw", "qcow2"] {
        let (mut server, content) = serve(bench)?;
        let line = format!("move-disk vm1 --to new.img --format {format} --speed 64k");
        let child = command(bench, &monitor_socket(bench), &line).spawn()?;
        wait_for(bench, "a job", |job| job["offset"].as_u64() > Some(0))?;
        server.kill()?;
        let output = child.wait_with_output()?;
        ensure!(output.status.code() == Some(1), "{}", output.status);
        drop(server);
        std::fs::remove_file(bench.path("new.img"))?;
        let server = serve_again(bench)?;
        ensure!(
            server.log().contains("mirrors node 'disk' to node 'disk-moved'"),
            "it is not said"
        );
        let list = json(bench, &monitor_socket(bench), "list exports")?;
        ensure!(list[0]["node-name"] == "disk", "{list}");
        stop(server, &[&bench.path("s")])?;
        ensure!(std::fs::read(bench.path("disk"))? == content, "the disk has changed");
        for file in ["state", "disk"] {
            std::fs::remove_file(bench.path(file))?;
        }
    }
    let (mut server, content) = serve(bench)?;
    said(bench, &monitor_socket(bench), "move-disk vm1 --to new.img --format raw")?;
    server.kill()?;
    drop(server);
    let server = serve_again(bench)?;
    let list = json(bench, &monitor_socket(bench), "list exports")?;
    ensure!(list[0]["node-name"] == "disk-moved", "{list}");
    stop(server, &[&bench.path("s")])?;
    ensure!(std::fs::read(bench.path("new.img"))? == content, "the disk has changed");
    Ok(())
}

#[test]
fn a_daemon_that_is_killed_before_the_switch_does_not_need_the_target() {
    let bench = Bench::new().unwrap();
    killed(&bench).unwrap_or_else(|error| panic!("{error:#}"));
}
