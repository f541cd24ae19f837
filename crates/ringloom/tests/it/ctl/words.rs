//! What the words do and print.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;
use testkit::client::{Client, Shape};
use testkit::deadline::Deadline;
use testkit::image;
use testkit::process::{Bench, Program, Server, Signal};

use super::{check, check_refused, command, json, said};
use crate::control::{monitor, monitor_socket, state};
use crate::support::{qemu_img, ringloom, stop, with};

/// A throttled qcow2 image on a raw one, served by an export on one of two iothreads, named as in the directory.
fn serve(program: &Program, bench: &Bench, more: &[String]) -> Result<Server> {
    image::create_sparse(&bench.path("base.img"), 64 << 20)?;
    qemu_img(bench, "create -q -f qcow2 -b base.img -F raw disk.qcow2")?;
    let words = [
        "--object",
        "iothread,id=t0",
        "--object",
        "iothread,id=t1",
        "--object",
        "throttle-group,id=tg,x-iops-total=2000",
        "--blockdev",
        "file,node-name=base,filename=base.img,read-only=on",
        "--blockdev",
        "qcow2,node-name=disk,backing=base,file.driver=file,file.filename=disk.qcow2",
        "--blockdev",
        "throttle,node-name=slow,throttle-group=tg,file=disk",
        "--export",
        "vhost-user-blk,id=vm1,node-name=slow,writable=on,num-queues=2,iothread=t0,addr.type=unix,addr.path=vm1.sock",
    ];
    let line = [monitor(bench), words.map(str::to_owned).to_vec(), more.to_vec()].concat();
    let program = program.clone().in_directory(bench.path(""));
    program.start(&line, &[bench.path("vm1.sock"), monitor_socket(bench)])
}

fn what_is_there_is_listed_and_shown(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    let server = serve(program, &bench, &[])?;
    let socket = monitor_socket(&bench);
    let exports = "\
EXPORT  NODE    SIZE  STATE  QUEUES  IOTHREADS  IMAGE
vm1     slow  64 MiB  rw          0  -          disk.qcow2
";
    check(&bench, &socket, "list", exports)?;
    check(&bench, &socket, "ls exports", exports)?;
    let group = "GROUP  LIMITS\ntg     iops-total=2000\n";
    check(&bench, &socket, "list throttle-groups", group)?;
    check(&bench, &socket, "throttle", group)?;
    check(&bench, &socket, "list queues", "no queues that are served\n")?;
    // How much of a file is allocated is the file system's.
    let nodes = said(&bench, &socket, "list nodes")?;
    let names: Vec<&str> = nodes.lines().filter_map(|line| line.split(' ').next()).collect();
    ensure!(names == ["NODE", "base", "disk", "disk/file", "slow"], "{nodes}");
    let shown = said(&bench, &socket, "show vm1")?;
    let head = "\
export vm1
  type:      vhost-user-blk
  node:      slow
  state:     rw
  size:      64 MiB (67108864 bytes)
  queues:    0
  iothreads: -

  NODE      DRIVER    STATE    SIZE ";
    ensure!(shown.starts_with(head), "{shown}");
    for line in [
        "\n  slow      throttle  rw ",
        "\n    disk    qcow2     rw ",
        "\n      base  file      ro ",
    ] {
        ensure!(shown.contains(line), "{shown}");
    }
    ensure!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
    check(
        &bench,
        &socket,
        "show t0",
        "iothread t0\n  poll-grow:   0\n  poll-max-ns: 32768\n  poll-shrink: 0\n",
    )?;
    check(&bench, &socket, "show tg", "throttle-group tg\n  limits: iops-total=2000\n")?;
    let all = said(&bench, &socket, "show")?;
    ensure!(all.starts_with("ringloom ") && all.contains(exports) && all.contains(group), "{all}");
    let found = json(&bench, &socket, "list")?;
    ensure!(found[0]["size"] == 64 << 20 && found[0]["node-name"] == "slow", "{found}");
    let found = json(&bench, &socket, "show node:disk")?;
    ensure!(found["node"]["chain"][1]["node"] == "base", "{found}");
    ensure!(found["node"]["users"] == json!(["slow"]), "{found}");
    let wrong = "there is no export, node or object 'vm2'; did you mean 'vm1'?";
    check_refused(&bench, &socket, "show vm2", 1, wrong)?;
    check_refused(&bench, &socket, "show node:vm1", 1, "there is no")?;
    check_refused(&bench, &socket, "list export", 2, "'exports'")?;
    stop(server, &[&socket]).map(drop)
}

fn limits_polling_and_sizes_change(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    let server = serve(program, &bench, &[])?;
    let socket = monitor_socket(&bench);
    let check = |line: &str, expected: &str| check(&bench, &socket, line, expected);
    let refused =
        |line: &str, code, expected: &str| check_refused(&bench, &socket, line, code, expected);
    check(
        "throttle tg bps-read=1M bps-read-max=4M",
        "throttle group tg: iops-total=2000 bps-read=1MiB bps-read-max=4MiB bps-read-max-length=1\n",
    )?;
    check("throttle tg iops-total=0 bps-read=0 bps-read-max=0", "throttle group tg: none\n")?;
    refused("throttle tg iops-totl=1", 2, "did you mean 'iops-total'?")?;
    refused("throttle tg iops-total", 2, "say LIMIT=VALUE")?;
    refused("throttle tg2", 1, "there is no throttle-group 'tg2'; did you mean 'tg'?")?;
    check("polling t0 0", "iothread t0: looks for work for up to 0 ns\n")?;
    check("polling t0", "iothread t0: looks for work for up to 0 ns\n")?;
    refused("polling t7 0", 1, "there is no iothread 't7'")?;
    refused("polling t0 1us", 2, "1us")?;

    check("resize vm1 +64M", "node disk: 64 MiB -> 128 MiB\n")?;
    check("resize disk 192M", "node disk: 128 MiB -> 192 MiB\n")?;
    refused("resize disk 1G1", 2, "'1G1' is no size")?;
    refused("resize disk 64M", 1, "what lies behind 64 MiB would be lost")?;
    refused("resize disk 64M --shrink", 1, "can only grow")?;
    refused("resize dsk 1G", 1, "there is no export or node 'dsk'; did you mean 'disk'?")?;
    let listed = json(&bench, &socket, "list")?;
    ensure!(listed[0]["size"] == 192 << 20, "{listed}");
    check("qmp block_resize {\"node-name\":\"disk\",\"size\":268435456}", "{}\n")?;
    refused("qmp block_resize {\"node-name\":\"disk\"", 2, "are a JSON object")?;
    refused("qmp query-block-exprots", 1, "did you mean 'query-block-exports'?")?;
    stop(server, &[&socket]).map(drop)
}

fn snapshots_stay_below_limits(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    let server = serve(program, &bench, &[])?;
    let socket = monitor_socket(&bench);
    check_refused(&bench, &socket, "snapshot vm1 new.qcow2", 1, "--state FILE")?;
    ensure!(!bench.path("new.qcow2").exists(), "what was refused is left behind");
    let said =
        format!("node disk stays as it is; {} takes what is written\n", bench.text("new.qcow2"));
    check(&bench, &socket, "snapshot vm1 new.qcow2 --node new --volatile", &said)?;
    let found = json(&bench, &socket, "show vm1")?;
    let chain: Vec<_> = (0..4).map(|it| &found["export"]["chain"][it]["node"]).collect();
    ensure!(chain == ["slow", "new", "disk", "base"], "{found}");
    check_refused(&bench, &socket, "snapshot new new.qcow2", 1, "exists already")?;
    stop(server, &[&socket])?;
    // With a state it needs no leave.
    let bench = Bench::new()?;
    let server = serve(program, &bench, &state(&bench))?;
    let socket = monitor_socket(&bench);
    super::said(&bench, &socket, "snapshot export:vm1 new.qcow2")?;
    stop(server, &[&socket]).map(drop)
}

fn things_come_and_go(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    let server = serve(program, &bench, &state(&bench))?;
    let socket = monitor_socket(&bench);
    let check = |line: &str, expected: &str| check(&bench, &socket, line, expected);
    let refused =
        |line: &str, code, expected: &str| check_refused(&bench, &socket, line, code, expected);
    image::create_sparse(&bench.path("more.img"), 1 << 20)?;
    qemu_img(&bench, "create -q -f qcow2 -b base.img -F raw more.qcow2")?;
    check("iothread add t2 --polling 1000", "iothread t2 has started\n")?;
    refused("iothread add t2", 1, "t2")?;
    refused("iothread del tg", 1, "there is no iothread 'tg'")?;
    refused("disk add more more.img", 2, "--format <FORMAT>")?;
    let more = bench.text("more.img");
    check("disk add more more.img --format raw", &format!("node more: {more}\n"))?;
    refused("disk add more more.img --format raw", 1, "more")?;
    refused("disk add gone gone.img --format raw --cached", 1, "gone.img")?;
    let image = bench.text("more.qcow2");
    let line = "disk add q more.qcow2 --format qcow2 --backing base --read-only";
    check(line, &format!("node q: {image}\n"))?;
    check("disk del q", "node q is gone\n")?;
    let late = r#"{"driver":"delay","node-name":"late","file":"more"}"#;
    said(&bench, &socket, &format!("qmp blockdev-add {late}"))?;
    refused("filter insert base late", 1, "'late' is no filter that has node 'base'")?;
    let inserted = "filter late is between node more and all who use it\n";
    check("filter insert more late --volatile", inserted)?;
    check("filter remove late", "nobody uses filter late any more\n")?;
    refused("filter remove more", 1, "'more' is no filter")?;
    check("disk del late", "node late is gone\n")?;
    let path = bench.text("vm2.sock");
    let line =
        "export add vm2 more vm2.sock --iothread t1 --iothread t2 --num-queues 2 --read-only";
    check(line, &format!("export vm2: node more is served at {path}\n"))?;
    check(
        "list",
        &format!(
            "\
EXPORT  NODE    SIZE  STATE  QUEUES  IOTHREADS  IMAGE
vm1     slow  64 MiB  rw          0  -          disk.qcow2
vm2     more   1 MiB  ro          0  -          {more}
"
        ),
    )?;
    let client = Client::connect(&bench.path("vm2.sock"), Shape::small())?;
    let listed = json(&bench, &socket, "list")?;
    ensure!(listed[1]["queues"] == 1 && listed[1]["iothreads"] == json!(["t1"]), "{listed}");
    refused("disk del more", 1, "in use")?;
    refused("export del vm2", 1, "mode='hard'")?;
    check("export del vm2 --force", "export vm2 is gone\n")?;
    drop(client);
    refused("export del vm2", 1, "vm2")?;
    refused("export add n more --nbd", 1, "NBD server")?;
    refused("export add n more", 2, "<PATH|--nbd>")?;
    check("nbd start nbd.sock", "the NBD server listens on nbd.sock\n")?;
    refused("nbd start nbd.sock", 1, "already")?;
    refused("nbd start 127.0.0.1:1", 1, "already")?;
    let line = "export add n more --nbd --name copy --read-only --iothread t1";
    check(line, "export n: node more is served over NBD as 'copy'\n")?;
    let uri = format!("nbd+unix:///copy?socket={}", bench.text("nbd.sock"));
    let size = Command::new("nbdinfo").args(["--size", &uri]).output()?;
    ensure!(size.stdout == b"1048576\n", "{size:?}");
    check("nbd stop", "the NBD server has stopped\n")?;
    refused("export del n", 1, "'n'")?;
    refused("nbd stop", 1, "NBD server")?;
    check("disk del more", "node more is gone\n")?;
    check("iothread del t2", "iothread t2 has ended\n")?;
    check("quit", "the daemon finishes what is open and leaves\n")?;
    stop(server, &[&socket]).map(drop)
}

fn queues_move(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    let server = serve(program, &bench, &[])?;
    let socket = monitor_socket(&bench);
    let mut client =
        Client::connect(&bench.path("vm1.sock"), Shape { queues: 2, ..Shape::small() })?;
    client.write(0, &[0x11; 4096], 0)?;
    check(&bench, &socket, "move vm1:1 t1", "export vm1: queue 1 is served by t1\n")?;
    let listed = json(&bench, &socket, "list")?;
    ensure!(listed[0]["iothreads"] == json!(["t0", "t1"]), "{listed}");
    let queues = said(&bench, &socket, "list queues")?;
    let served: Vec<Vec<&str>> =
        queues.lines().skip(1).map(|line| line.split_whitespace().take(5).collect()).collect();
    ensure!(served == [["vm1", "0", "t0", "0", "1"], ["vm1", "1", "t1", "0", "0"]], "{queues}");
    ensure!(queues.lines().all(|line| line.chars().count() <= 80), "{queues}");
    let shown = said(&bench, &socket, "show t1")?;
    ensure!(shown.contains("\n  vm1         1  t1 "), "{shown}");
    let iothreads = said(&bench, &socket, "polling")?;
    ensure!(iothreads.contains("\nt0             1    32768 "), "{iothreads}");
    let all = "export vm1 and all else above node slow: served by iothread t1\n";
    check(&bench, &socket, "move vm1 t1", all)?;
    check_refused(&bench, &socket, "move vm1:9 t1", 1, "no queue 9")?;
    check_refused(&bench, &socket, "move vm1:x t1", 2, "queue 'x'")?;
    check_refused(&bench, &socket, "move vm2 t1", 1, "there is no export 'vm2'")?;
    check_refused(&bench, &socket, "move vm1 t9", 1, "t9")?;
    check_refused(&bench, &socket, "pin vm1:0 1", 1, "served by no pool")?;
    check_refused(&bench, &socket, "pin vm1 1", 1, "which queue?")?;
    let pool = "object-add {\"qom-type\":\"iothread-pool\",\"id\":\"p\",\"max\":2}";
    said(&bench, &socket, &format!("qmp {pool}"))?;
    said(&bench, &socket, "move vm1 p")?;
    let stays = "export vm1: queue 0 stays on iothread 1 of its pool\n";
    check(&bench, &socket, "pin vm1:0 1", stays)?;
    check_refused(&bench, &socket, "pin vm1:0 2", 1, "there is no iothread of pool 'p' 2")?;
    check_refused(&bench, &socket, "pin vm1:0 x", 1, "'x' is no number of an iothread")?;
    check(&bench, &socket, "pin vm1:0 none", "export vm1: queue 0 is placed by its pool\n")?;
    let frozen = "pool p: queues stay where they are\n";
    check(&bench, &socket, "placement p frozen", frozen)?;
    let none = "PART  LEVEL\nall   info\n";
    check(&bench, &socket, "log", none)?;
    check(&bench, &socket, "log exports=debug", "exports logs debug\n")?;
    check(&bench, &socket, "log", "PART     LEVEL\nall      info\nexports  debug\n")?;
    check(&bench, &socket, "log exports=", "exports logs what all do\n")?;
    check(&bench, &socket, "log warn", "all parts without a level of their own log warn\n")?;
    check(&bench, &socket, "log info", "all parts without a level of their own log info\n")?;
    check(&bench, &socket, "log", none)?;
    let wrong = "parameter 'level' does not accept value 'lots'";
    check_refused(&bench, &socket, "log lots", 1, wrong)?;
    let wrong = "'export'; did you mean 'exports'?";
    check_refused(&bench, &socket, "log export=debug", 1, wrong)?;
    let placed = "pool p: queues are placed as the load asks\n";
    check(&bench, &socket, "placement p auto", placed)?;
    check_refused(&bench, &socket, "placement t0 auto", 1, "there is no iothread-pool 't0'")?;
    check_refused(&bench, &socket, "placement p still", 2, "still")?;
    said(&bench, &socket, "move vm1 none")?;
    client.write(4096, &[0x12; 4096], 0)?;
    drop(client);
    stop(server, &[&socket]).map(drop)
}

/// Events come while they happen; a signal ends that, and leaves nothing behind. Not SIGINT, which may be ignored here: a
/// shell starts so what it starts in the background.
fn events_are_followed(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    let second = bench.path("second.sock");
    let more = [
        "--chardev".to_owned(),
        format!("socket,id=second,path={},server=on,wait=off", second.display()),
        "--monitor".to_owned(),
        "chardev=second".to_owned(),
    ];
    let server = serve(program, &bench, &more)?;
    let socket = monitor_socket(&bench);
    for (form, expected) in [("", "  BLOCK_EXPORT_DELETED  id=vm2\n"), ("--json", "\"id\":\"vm2\"")]
    {
        let mut events = command(&bench, &second, &format!("events {form}")).spawn()?;
        let line = first_event(&bench, &socket, &mut events);
        let process = rustix::process::Pid::from_child(&events);
        rustix::process::kill_process(process, Signal::TERM)?;
        events.wait()?;
        let line = line?;
        ensure!(line.contains(expected), "{line}");
        // The monitor is free again.
        said(&bench, &second, "list")?;
    }
    stop(server, &[&socket, &second]).map(drop)
}

/// Makes events until one is read: nobody says when a client has negotiated.
fn first_event(bench: &Bench, socket: &Path, events: &mut Child) -> Result<String> {
    let mut lines = BufReader::new(events.stdout.take().context("its stdout")?);
    let limit = Deadline::after(Duration::from_secs(30));
    std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            let mut line = String::new();
            lines.read_line(&mut line).map(|_| line)
        });
        let mut made = Ok(String::new());
        while made.is_ok() && !reader.is_finished() {
            made = said(bench, socket, "export add vm2 base vm2.sock --read-only")
                .and_then(|_| said(bench, socket, "export del vm2"));
            if limit.has_passed() {
                made = made.and_then(|_| bail!("no event has come"));
            }
        }
        if made.is_err() {
            // The reader would wait for it.
            events.kill()?;
        }
        let line = reader.join().expect("it does not panic").context("read an event")?;
        made.map(|_| line)
    })
}

#[test]
fn ringloom_lists_and_shows_what_is_there() {
    with(&ringloom(), what_is_there_is_listed_and_shown);
}

#[test]
fn ringloom_changes_limits_polling_and_sizes() {
    with(&ringloom(), limits_polling_and_sizes_change);
}

#[test]
fn ringloom_puts_snapshots_below_limits() {
    with(&ringloom(), snapshots_stay_below_limits);
}

#[test]
fn ringloom_adds_and_deletes_what_is_served() {
    with(&ringloom(), things_come_and_go);
}

#[test]
fn ringloom_moves_queues() {
    with(&ringloom(), queues_move);
}

#[test]
fn ringloom_events_are_followed() {
    with(&ringloom(), events_are_followed);
}
