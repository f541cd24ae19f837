//! What a restart serves: the state file, and where the line differs.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, ensure};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use serde_json::json;
use testkit::client::{Client, Shape};
use testkit::image;
use testkit::process::{Bench, Program, Server};
use testkit::qmp::QmpClient;

use super::{monitor, monitor_socket, start, state};
use crate::support::{qemu_img, ringloom, stop, with};

const BYTES: usize = 1 << 20;

const LIMIT: Duration = Duration::from_secs(30);

/// The line that is used for every start.
fn line(bench: &Bench) -> Vec<String> {
    let disk = bench.text("disk");
    let socket = bench.text("e.sock");
    let more = [
        "--blockdev".to_owned(),
        format!("file,node-name=disk,filename={disk}"),
        "--export".to_owned(),
        format!("vhost-user-blk,id=e,node-name=disk,writable=on,addr.type=unix,addr.path={socket}"),
    ];
    [state(bench).as_slice(), &more].concat()
}

fn the_old_line_serves_the_new_graph(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    let socket = bench.path("e.sock");
    let base = image::create_filled(&bench.path("disk"), BYTES, 0x41)?;
    let sockets = std::slice::from_ref(&socket);
    let (mut server, mut qmp) = start(program, &bench, &line(&bench), sockets)?;
    let mut client = Client::connect(&socket, Shape::small())?;
    qmp.execute(
        "blockdev-snapshot-sync",
        &json!({"node-name": "disk", "snapshot-file": bench.text("snap")}),
    )?;
    client.write(0, &[0x61; 4096], 0)?;
    drop(client);
    server.kill()?;

    let (server, mut qmp) = start(program, &bench, &line(&bench), sockets)?;
    let shown = qmp.execute("query-block-exports", &json!({}))?;
    ensure!(shown[0]["node-name"] == "disk-overlay1", "{shown}");
    let mut client = Client::connect(&socket, Shape::small())?;
    ensure!(client.read(0, 4096, 0)? == [0x61; 4096], "what was completed is lost");
    client.write(4096, &[0x62; 4096], 0)?;
    drop(client);
    let log = stop(server, &[&socket, &monitor_socket(&bench)])?;
    let expected =
        "node 'disk-overlay1' is in the state only; the state counts (see --state-reset)";
    ensure!(log.contains(expected), "not said where the line differs: {log}");
    ensure!(std::fs::read(bench.path("disk"))? == base, "the base was written");
    // A killed daemon leaks clusters at worst.
    qemu_img(&bench, "check -q -f qcow2 -r leaks snap")?;
    qemu_img(&bench, "check -q -f qcow2 snap")?;

    // Two at once would each keep something else.
    let (server, _qmp) = start(program, &bench, &line(&bench), sockets)?;
    let second = program.refusal(&line(&bench), LIMIT)?;
    ensure!(second.stderr.contains("another process uses it"), "{}", second.stderr);
    stop(server, &[&socket])?;

    let reset = [line(&bench).as_slice(), &["--state-reset".to_owned()]].concat();
    let (server, mut qmp) = start(program, &bench, &reset, sockets)?;
    let shown = qmp.execute("query-block-exports", &json!({}))?;
    ensure!(shown[0]["node-name"] == "disk", "{shown}");
    stop(server, &[&socket]).map(drop)
}

#[test]
fn the_old_line_serves_what_commands_have_made() {
    with(&ringloom(), the_old_line_serves_the_new_graph);
}

/// A disk that is full, or a state that cannot be written: the command is refused and nothing has changed.
fn what_cannot_be_kept_is_not_done(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    let socket = bench.path("e.sock");
    image::create_filled(&bench.path("disk"), BYTES, 0x41)?;
    let mut arguments = line(&bench);
    // Reads as an empty file, and takes nothing.
    arguments[1] = "/dev/full".to_owned();
    let refused = program.refusal(&arguments, LIMIT)?;
    ensure!(refused.stderr.contains("it is no regular file"), "{}", refused.stderr);
    let (server, mut qmp) = start(program, &bench, &line(&bench), std::slice::from_ref(&socket))?;
    let mut client = Client::connect(&socket, Shape::small())?;
    // Nothing can be written behind the first bytes of a file.
    let pid = i32::try_from(server.pid()).ok().and_then(Pid::from_raw);
    let limited = |bytes| Rlimit { current: bytes, maximum: None };
    prlimit(pid, Resource::Fsize, limited(Some(100)))?;
    let object = json!({"qom-type": "iothread", "id": "t9"});
    let (_, desc) = qmp.refused("object-add", &object)?;
    ensure!(desc.contains("state file") && desc.contains("cannot write it"), "{desc}");
    let listed = qmp.execute("qom-list", &json!({"path": "/objects"}))?;
    ensure!(!listed.to_string().contains("t9"), "{listed}");
    let sync = json!({"node-name": "disk", "snapshot-file": bench.text("snap")});
    qmp.refused("blockdev-snapshot-sync", &sync)?;
    ensure!(!bench.path("snap").exists(), "what was refused is left behind");
    let shown = qmp.execute("query-block-exports", &json!({}))?;
    ensure!(shown[0]["node-name"] == "disk", "{shown}");
    prlimit(pid, Resource::Fsize, limited(None))?;
    client.write(0, &[0x71; 4096], 0)?;
    qmp.execute("object-add", &object)?;
    drop(client);
    stop(server, &[&socket]).map(drop)
}

#[test]
fn a_change_that_cannot_be_kept_is_not_made() {
    with(&ringloom(), what_cannot_be_kept_is_not_done);
}

/// The same of changes that are made before they are kept: they are taken back.
fn what_cannot_be_kept_is_taken_back(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    let sockets = [bench.path("e.sock"), bench.path("f.sock")];
    let late = "delay,node-name=late,latency-ns=0,file.driver=null-co,file.size=1048576";
    let export = |id: &str| {
        let socket = bench.text(&format!("{id}.sock"));
        format!(
            "vhost-user-blk,id={id},node-name=late,writable=on,iothread=t0,addr.type=unix,addr.path={socket}"
        )
    };
    let words = ["--object", "iothread,id=t0", "--object", "iothread,id=t1", "--blockdev", late];
    let mut line = [state(&bench), words.map(str::to_owned).to_vec()].concat();
    for id in ["e", "f"] {
        line.extend(["--export".to_owned(), export(id)]);
    }
    let (server, mut qmp) = start(program, &bench, &line, &sockets)?;
    let mut clients = sockets.iter().map(|socket| Client::connect(socket, Shape::small()));
    let mut clients = clients.by_ref().collect::<Result<Vec<_>>>()?;
    clients.iter_mut().try_for_each(|client| client.write(0, &[1; 4096], 0))?;
    let pid = i32::try_from(server.pid()).ok().and_then(Pid::from_raw);
    let limited = |bytes| Rlimit { current: bytes, maximum: None };
    prlimit(pid, Resource::Fsize, limited(Some(100)))?;
    let moved = json!({"node-name": "late", "iothread": "t1", "force": true});
    let slow = json!({"node-name": "late", "latency-ns": 100_000_000_000_u64});
    let inactive = json!({"node-name": "late/file", "active": false});
    for (command, arguments) in [("x-blockdev-set-iothread", &moved), ("ringloom-delay-set", &slow)]
    {
        let (_, desc) = qmp.refused(command, arguments)?;
        ensure!(desc.contains("state file") && desc.contains("cannot write it"), "{desc}");
    }
    qmp.refused("blockdev-set-active", &inactive)?;
    let queues = qmp.execute("query-ringloom-queues", &json!({}))?;
    let is_first = |queue: &serde_json::Value| queue["iothread"] == "t0";
    ensure!(queues.as_array().is_some_and(|all| all.iter().all(is_first)), "{queues}");
    clients.iter_mut().try_for_each(|client| client.write(4096, &[2; 4096], 0))?;
    let (_, desc) = qmp.refused("object-del", &json!({"id": "t0"}))?;
    ensure!(desc.contains("in use"), "{desc}");
    prlimit(pid, Resource::Fsize, limited(None))?;
    qmp.execute("x-blockdev-set-iothread", &moved)?;
    drop(clients);
    let sockets: Vec<&Path> = sockets.iter().map(PathBuf::as_path).collect();
    stop(server, &sockets).map(drop)
}

#[test]
fn a_change_that_is_made_and_cannot_be_kept_is_taken_back() {
    with(&ringloom(), what_cannot_be_kept_is_taken_back);
}

/// A successor with the old line goes on with what commands have made, with and without a state file.
fn a_successor_has_it_too(program: &Program, keeps: bool) -> Result<()> {
    let bench = Bench::new()?;
    let socket = bench.path("e.sock");
    image::create_filled(&bench.path("disk"), BYTES, 0x41)?;
    let mut arguments = line(&bench);
    if !keeps {
        arguments.drain(..2);
    }
    let (mut old, mut qmp) = start(program, &bench, &arguments, std::slice::from_ref(&socket))?;
    let mut client = Client::connect(&socket, Shape::small())?;
    let sync = json!({
        "node-name": "disk", "snapshot-file": bench.text("snap"), "ringloom-volatile": !keeps,
    });
    qmp.execute("blockdev-snapshot-sync", &sync)?;
    qmp.execute("object-add", &json!({"qom-type": "iothread", "id": "t9"}))?;
    client.write(0, &[0x61; 4096], 0)?;
    let successor = |line: &[String]| -> Result<Server> {
        let all = [monitor(&bench).as_slice(), line, &["--takeover".to_owned()]].concat();
        program.spawn(&all)
    };
    let contradicting: Vec<String> =
        arguments.iter().map(|word| word.replace("writable=on", "writable=off")).collect();
    let mut refused = successor(&contradicting)?;
    ensure!(!refused.wait(LIMIT)?.success(), "it took over: {}", refused.log());
    ensure!(
        refused.log().contains("export 'e' has writable false on the command line"),
        "{}",
        refused.log()
    );
    let new = successor(&arguments)?;
    ensure!(old.wait(LIMIT)?.success(), "{}", old.log());
    new.wait_for_log("sandbox: ", LIMIT)?;
    client.write(4096, &[0x62; 4096], 0)?;
    let mut qmp = QmpClient::connect(&monitor_socket(&bench))?;
    let shown = qmp.execute("query-block-exports", &json!({}))?;
    ensure!(shown[0]["node-name"] == "disk-overlay1", "{shown}");
    ensure!(client.read(0, 4096, 0)? == [0x61; 4096], "what was completed is lost");
    drop(client);
    let log = stop(new, &[&socket, &monitor_socket(&bench)])?;
    ensure!(log.contains("object 't9' is in the state only"), "{log}");
    qemu_img(&bench, "check -q -f qcow2 snap").map(drop)
}

#[test]
fn a_successor_goes_on_with_what_commands_have_made() {
    with(&ringloom(), |program| a_successor_has_it_too(program, true));
    with(&ringloom(), |program| a_successor_has_it_too(program, false));
}

/// Whoever has taken a daemon over can write its state: the next start opens nothing that its line does not allow.
fn a_forged_state_opens_nothing(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    let socket = bench.path("e.sock");
    image::create_filled(&bench.path("disk"), BYTES, 0x41)?;
    let outside = Bench::new()?;
    image::create_filled(&outside.path("secret"), BYTES, 0x42)?;
    let arguments =
        [monitor(&bench).as_slice(), &["--sandbox".to_owned(), "off".to_owned()], &line(&bench)]
            .concat();
    let server = program.start(&arguments, &[socket.clone(), monitor_socket(&bench)])?;
    let mut qmp = QmpClient::connect(&monitor_socket(&bench))?;
    let node = json!({"driver": "file", "node-name": "x", "filename": outside.text("secret"),
                      "read-only": true});
    qmp.execute("blockdev-add", &node)?;
    drop(qmp);
    stop(server, &[&socket])?;
    let fenced = [monitor(&bench), line(&bench)].concat();
    let refused = program.refusal(&fenced, LIMIT)?;
    let expected = format!("{} is neither on the command line nor below", outside.text("secret"));
    ensure!(refused.stderr.contains(&expected), "{}", refused.stderr);
    let more = ["--allow-below".to_owned(), format!("{},ro", outside.path("").display())];
    let allowed = [fenced.as_slice(), &more].concat();
    let server = program.start(&allowed, std::slice::from_ref(&socket))?;
    stop(server, &[&socket]).map(drop)
}

#[test]
fn a_state_opens_only_what_the_line_allows() {
    with(&ringloom(), a_forged_state_opens_nothing);
}
