//! Servers that keep their connection and answer nothing: whoever has to end does not wait for them.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use testkit::deadline::Deadline;
use testkit::image;
use testkit::process::{Bench, Program, Server};
use testkit::qmp::QmpClient;

use super::{MIB, line, nbdkit, node};
use crate::control::{monitor, monitor_socket};
use crate::nbd::{start, tool, uri};
use crate::support::{qemu_img, ringloom, with};

/// How long an end, or a change, waits for storage that answers nothing.
const LIMIT: Duration = Duration::from_secs(30);

/// How much later it may be on a machine that does other things, too.
const SLACK: Duration = Duration::from_secs(10);

/// How long after it has come a client's request has come, too.
const FOLLOWS: Duration = Duration::from_secs(1);

/// Nobody has to wait for so long.
const LONG: Duration = Duration::from_secs(120);

/// Stops the server, and begins a write to the export that waits for it.
fn silence(bench: &Bench, kit: &Server, ours: &mut Server) -> Result<Child> {
    kit.freeze()?;
    let uri = uri(bench, "x");
    let mut client = Command::new("qemu-io");
    client.args(["-f", "raw", "-c", "write -P 1 0 1M", &uri]);
    let client = client.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let come = format!("NBD client process {} has come", client.id());
    ours.wait_for_log(&come, Duration::from_secs(20))?;
    // Its write follows; nothing says when.
    ours.wait_while_running(FOLLOWS)?;
    Ok(client)
}

/// The guest hears that its request has failed.
fn has_failed(client: Child) -> Result<()> {
    let output = client.wait_with_output().context("wait for the client")?;
    let said = String::from_utf8_lossy(&[output.stderr.clone(), output.stdout.clone()].concat())
        .into_owned();
    ensure!(said.contains("write failed: Input/output error"), "{output:?}");
    Ok(())
}

/// Something that waits as long as it may, and no longer.
fn takes_its_limit<T>(what: &str, does: impl FnOnce() -> Result<T>) -> Result<T> {
    let begun = Deadline::after(LONG);
    let done = does().with_context(|| what.to_owned())?;
    let took = begun.elapsed();
    ensure!((LIMIT..LIMIT + SLACK).contains(&took), "{what} took {took:?}");
    Ok(done)
}

/// A daemon below whose disk a server is silent.
fn ends(program: &Program, is_image: bool) -> Result<()> {
    let bench = Bench::new()?;
    qemu_img(&bench, "create -q -f qcow2 a.qcow2 64M")?;
    // The file cannot grow there.
    std::fs::File::options().write(true).open(bench.path("a.qcow2"))?.set_len(80 * MIB)?;
    let mut kit = nbdkit(&bench, &["file", &bench.text("a.qcow2")])?;
    let path = bench.text("kit.sock");
    let below = format!("file.driver=nbd,file.server.type=unix,file.server.path={path}");
    let node = match is_image {
        true => ["--blockdev".to_owned(), format!("qcow2,node-name=n,{below}")],
        false => node(&bench, ",reconnect-delay=600"),
    };
    let mut ours = start(program, &bench, &line(&bench, &node, ""))?;
    tool("qemu-io", &["-f", "raw", "-c", "write -P 1 0 64k", &uri(&bench, "x")])?;
    let client = silence(&bench, &kit, &mut ours)?;
    let status = takes_its_limit("the end", || {
        ours.signal(rustix::process::Signal::TERM)?;
        ours.wait(LONG)
    });
    let status = status.with_context(|| ours.log())?;
    ensure!(status.success(), "{status}: {}", ours.log());
    has_failed(client).with_context(|| ours.log())?;
    kit.kill()
}

/// Commands on the silent disk fail or end; another disk of the same daemon hears nothing of it.
fn commands_end(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    qemu_img(&bench, "create -q -f qcow2 o.qcow2 64M")?;
    image::create_sparse(&bench.path("b.img"), 64 * MIB)?;
    let mut kit = nbdkit(&bench, &["memory", "64M"])?;
    let (image, overlay) = (bench.text("b.img"), bench.text("o.qcow2"));
    let mut words = line(&bench, &node(&bench, ",reconnect-delay=600"), ",iothread=t0");
    words.splice(0..0, ["--object", "iothread,id=t0"].map(str::to_owned));
    words.extend([
        "--blockdev".to_owned(),
        format!("file,node-name=b,filename={image}"),
        "--export".to_owned(),
        "nbd,id=b,node-name=b,name=b,writable=on,iothread=t0".to_owned(),
        "--blockdev".to_owned(),
        format!("qcow2,node-name=o,backing=null,file.driver=file,file.filename={overlay}"),
    ]);
    words.extend(monitor(&bench));
    let mut ours = start(program, &bench, &words)?;
    let mut commands = QmpClient::connect(&monitor_socket(&bench))?;
    let client = silence(&bench, &kit, &mut ours)?;
    let other = |command: &str| {
        let begun = Deadline::after(LONG);
        tool("qemu-io", &["-f", "raw", "-c", command, &uri(&bench, "b")])?;
        ensure!(begun.elapsed() < Duration::from_secs(5), "{command}: {:?}", begun.elapsed());
        Ok(())
    };
    std::thread::scope(|scope| {
        let used = scope.spawn(|| other("write -P 3 0 1M"));
        let arguments = json!({"node": "n", "overlay": "o", "ringloom-volatile": true});
        let (_, sentence) =
            takes_its_limit("the snapshot", || commands.refused("blockdev-snapshot", &arguments))?;
        ensure!(sentence.contains("still in flight after 30 s"), "{sentence}");
        used.join().expect("it does not panic")
    })?;
    takes_its_limit("the end of the export", || {
        commands.execute("block-export-del", &json!({"id": "e", "mode": "hard"}))
    })
    .with_context(|| ours.log())?;
    has_failed(client)?;
    commands.execute("blockdev-del", &json!({"node-name": "n"}))?;
    other("read -P 3 0 1M")?;
    ours.stop()?;
    kit.kill()
}

#[test]
fn a_silent_server_holds_up_an_end_no_longer_than_its_limit() {
    with(&ringloom(), |program| {
        std::thread::scope(|scope| {
            let image = scope.spawn(|| ends(program, true));
            ends(program, false)?;
            image.join().expect("it does not panic")
        })
    });
}

#[test]
fn a_silent_server_holds_up_commands_no_longer_than_their_limit() {
    with(&ringloom(), commands_end);
}
