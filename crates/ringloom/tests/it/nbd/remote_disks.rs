//! Disks of NBD servers that nobody here wrote (`driver=nbd`): nbdkit, qemu-nbd, and ringloom's own.

mod connections;
mod fast_zero;
mod given;
mod last_flush;
mod lost;
mod rights;
mod silent;
mod tls;

use std::time::Duration;

use anyhow::{Result, ensure};
use testkit::image;
use testkit::process::{Bench, Program, Server};

pub(crate) use connections::verify;

use super::{disk, outcome, server, socket, start, tool, uri};
use crate::support::{qemu_img, qemu_io, ringloom, stop, with};

const MIB: u64 = 1 << 20;

/// Starts nbdkit on the socket `kit.sock` of a bench, with these arguments.
fn nbdkit(bench: &Bench, arguments: &[&str]) -> Result<Server> {
    let socket = bench.path("kit.sock");
    // One that was killed has left it.
    if socket.exists() {
        std::fs::remove_file(&socket)?;
    }
    let arguments: Vec<String> = arguments.iter().map(|word| (*word).to_owned()).collect();
    let options = ["-f", "--exit-with-parent", "-U", &bench.text("kit.sock")];
    Program::named("nbdkit", "nbdkit", &options).start(&arguments, &[socket])
}

/// A node for the export of that server, with more keys.
fn node(bench: &Bench, more: &str) -> [String; 2] {
    let path = bench.text("kit.sock");
    let keys = "discard=unmap,server.type=unix";
    ["--blockdev".to_owned(), format!("nbd,node-name=n,{keys},server.path={path}{more}")]
}

/// A line that offers the node to NBD clients as `x`.
fn line(bench: &Bench, node: &[String], more: &str) -> Vec<String> {
    let mut line = server(bench, &[]);
    line.extend_from_slice(node);
    line.extend(["--export".to_owned(), format!("nbd,id=e,node-name=n,name=x,writable=on{more}")]);
    line
}

/// Writes, zeroes, discards and reads through an export; all of it has to be found.
fn use_it(bench: &Bench) -> Result<()> {
    let commands = [
        "write -P 5 0 1M",
        "write -P 6 2048K 9M",
        "write -f -P 7 512 512",
        "read -P 5 0 512",
        "read -P 7 512 512",
        "read -P 5 1024 1047552",
        "read -P 6 2048K 9M",
        "write -z 64k 64k",
        "read -P 0 64k 64k",
        "discard 3M 1M",
        "flush",
    ];
    let uri = uri(bench, "x");
    let mut words = vec!["-f", "raw"];
    commands.iter().for_each(|command| words.extend(["-c", command]));
    words.push(&uri);
    let said = tool("qemu-io", &words)?;
    ensure!(!said.contains("fail") && !said.contains("rror"), "{said}");
    Ok(())
}

/// Everything through every kind of server: those with compact headers and those with extended ones, those that lack what
/// others have.
fn all_servers_do(program: &Program) -> Result<()> {
    let kinds: [&[&str]; 6] = [
        &["memory", "64M"],
        &["--filter=noextents", "--filter=nozero", "memory", "64M"],
        &["--filter=fua", "memory", "64M", "fuamode=force"],
        &["--no-sr", "memory", "64M"],
        &["--mask-handshake=0", "memory", "64M"],
        &[
            "--filter=blocksize-policy",
            "memory",
            "64M",
            "blocksize-minimum=4096",
            "blocksize-preferred=4096",
            "blocksize-maximum=65536",
        ],
    ];
    for kind in kinds {
        let bench = Bench::new()?;
        let mut kit = nbdkit(&bench, kind)?;
        let ours = start(program, &bench, &line(&bench, &node(&bench, ""), ""))?;
        use_it(&bench).map_err(|error| error.context(format!("{kind:?}: {}", ours.log())))?;
        stop(ours, &[&socket(&bench)])?;
        kit.kill()?;
    }
    Ok(())
}

/// QEMU's server, and ringloom's own, which has extended headers.
fn qemus_and_our_own(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    image::create_sparse(&bench.path("a.img"), 64 * MIB)?;
    let (path, image) = (bench.text("kit.sock"), bench.text("a.img"));
    let qemu = ["-f", "raw", "-t", "-x", "a", "-k", &path, &image].map(str::to_owned);
    let qemu_nbd = Program::named("qemu-nbd", "qemu-nbd", &[]);
    let mut theirs = qemu_nbd.start(&qemu, &[bench.path("kit.sock")])?;
    let ours = start(program, &bench, &line(&bench, &node(&bench, ",export=a"), ""))?;
    use_it(&bench)?;
    stop(ours, &[&socket(&bench)])?;
    theirs.kill()?;
    std::fs::remove_file(bench.path("kit.sock"))?;
    // A chain of our own.
    let addr = format!("addr.type=unix,addr.path={path}");
    let mut below = vec!["--nbd-server".to_owned(), addr];
    below.extend(disk(&bench, "a", ""));
    let below = program.start(&below, &[bench.path("kit.sock")])?;
    let ours = start(program, &bench, &line(&bench, &node(&bench, ",export=a"), ""))?;
    use_it(&bench)?;
    let map = tool("nbdinfo", &["--map", &uri(&bench, "x")])?;
    ensure!(map.contains("hole,zero") && map.contains("data"), "{map}");
    let said = below.log();
    ensure!(said.contains("extended headers"), "{said}");
    stop(ours, &[&socket(&bench)])?;
    stop(below, &[&bench.path("kit.sock")]).map(drop)
}

/// An image whose file is behind a server; QEMU finds it sound.
fn an_image_lives_on_a_server(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    qemu_img(&bench, "create -q -f qcow2 a.qcow2 64M")?;
    // The file cannot grow there.
    std::fs::File::options().write(true).open(bench.path("a.qcow2"))?.set_len(80 * MIB)?;
    let mut kit = nbdkit(&bench, &["file", &bench.text("a.qcow2")])?;
    let path = bench.text("kit.sock");
    let node = [
        "--blockdev".to_owned(),
        format!(
            "qcow2,node-name=n,discard=unmap,file.driver=nbd,file.server.type=unix,file.server.path={path}"
        ),
    ];
    let ours = start(program, &bench, &line(&bench, &node, ""))?;
    use_it(&bench)?;
    stop(ours, &[&socket(&bench)])?;
    kit.stop()?;
    let checked = qemu_img(&bench, "check -f qcow2 a.qcow2")?;
    ensure!(checked.contains("No errors"), "{checked}");
    let image = bench.text("a.qcow2");
    let read = ["-f", "qcow2", "-c", "read -P 5 0 512", "-c", "read -P 6 4M 7M", &image];
    let said = qemu_io(&bench, &read)?;
    ensure!(!said.contains("verification failed"), "{said}");
    Ok(())
}

/// What a server says is what the guest hears, and the operator hears which server it was.
fn errors_are_passed_on(program: &Program) -> Result<()> {
    for (error, hears) in [("ENOSPC", "No space left"), ("EIO", "Input/output error")] {
        let bench = Bench::new()?;
        let filter = format!("error-pwrite={error}");
        let rate = "error-pwrite-rate=100%";
        let mut kit = nbdkit(&bench, &["--filter=error", "memory", "64M", &filter, rate])?;
        let ours = start(program, &bench, &line(&bench, &node(&bench, ""), ""))?;
        let uri = uri(&bench, "x");
        let heard = outcome("qemu-io", &["-f", "raw", "-c", "write 4096 4096", &uri])?;
        let heard = String::from_utf8_lossy(&heard.stderr).into_owned()
            + &String::from_utf8_lossy(&heard.stdout);
        ensure!(heard.contains(hears), "{error}: {heard}");
        let said = format!("nbd+unix:///?socket={}", bench.text("kit.sock"));
        ours.wait_for_log(&said, Duration::from_secs(10))?;
        stop(ours, &[&socket(&bench)])?;
        kit.kill()?;
    }
    Ok(())
}

/// What cannot be made is said, and the daemon does not start.
fn refusals_have_a_sentence(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    let check = |more: &str, sentence: &str| -> Result<()> {
        let line = line(&bench, &node(&bench, more), "");
        let exit = program.refusal(&line, Duration::from_secs(30))?;
        ensure!(!exit.status.success() && exit.stderr.contains(sentence), "{}", exit.stderr);
        Ok(())
    };
    check("", "cannot connect: No such file or directory")?;
    let mut kit = nbdkit(&bench, &["-r", "memory", "1M"])?;
    check("", "request for write access denied")?;
    check(",x-dirty-bitmap=b", "x-dirty-bitmap")?;
    check(",tls-hostname=a", "tls-hostname is only used with tls-creds")?;
    kit.kill()?;
    let mut kit = nbdkit(
        &bench,
        &[
            "--filter=exportname",
            "memory",
            "1M",
            "exportname-list=explicit",
            "exportname=a",
            "exportname-strict=true",
        ],
    )?;
    check(",export=b", "'b'")?;
    kit.kill()
}

#[test]
fn all_kinds_of_servers_hold_what_guests_write() {
    with(&ringloom(), all_servers_do);
}

#[test]
fn qemu_nbd_and_ringloom_are_servers_too() {
    with(&ringloom(), qemus_and_our_own);
}

#[test]
fn a_qcow2_image_lives_on_an_nbd_server() {
    with(&ringloom(), an_image_lives_on_a_server);
}

#[test]
fn errors_of_a_server_reach_guest_and_operator() {
    with(&ringloom(), errors_are_passed_on);
}

#[test]
fn a_server_that_cannot_be_used_is_refused_with_a_sentence() {
    with(&ringloom(), refusals_have_a_sentence);
}
