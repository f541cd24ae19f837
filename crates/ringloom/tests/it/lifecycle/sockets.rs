//! The sockets of exports: whom they are taken from, whose they are, how long their names may be.

use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use testkit::client::{Client, Shape};
use testkit::image;
use testkit::process::{Bench, Program, Server};
use testkit::report::skipped;

use super::{REFUSAL_LIMIT, ensure_gone, use_disk};
use crate::support::{Disk, is_root, ringloom, stop, with};

/// Serves a disk without content on this socket, with more options before.
fn line(socket: &Path, more: &[&str]) -> Vec<String> {
    let mut line: Vec<String> = more.iter().map(|word| (*word).to_owned()).collect();
    line.extend(
        ["--blockdev", "driver=null-co,node-name=n,size=1048576", "--export"].map(Into::into),
    );
    line.push(export("e0", socket));
    line
}

fn export(id: &str, socket: &Path) -> String {
    let socket = socket.display();
    format!("type=vhost-user-blk,id={id},node-name=n,addr.type=unix,addr.path={socket}")
}

fn start(program: &Program, socket: &Path, more: &[&str]) -> Result<Server> {
    program.start(&line(socket, more), &[socket.to_path_buf()])
}

/// A line that must be refused with a sentence that names all of this.
fn refuse(program: &Program, line: &[String], named: &[&str]) -> Result<()> {
    let exit = program.refusal(line, REFUSAL_LIMIT)?;
    ensure!(exit.status.code() == Some(1), "{line:?}: {exit:?}");
    for name in named {
        ensure!(exit.stderr.contains(name), "{line:?}: {name:?} is not in {}", exit.stderr);
    }
    Ok(())
}

fn read_once(socket: &Path) -> Result<()> {
    Client::connect(socket, Shape::small())?.read(0, 4096, 0).map(drop)
}

#[test]
fn a_stale_socket_of_anybody_is_replaced() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let socket = bench.path("e0.sock");
        drop(UnixListener::bind(&socket).context("make a stale socket")?);
        ensure!(socket.exists(), "the stale socket is there");
        let server = start(program, &socket, &[])?;
        server.wait_for_log("stale", REFUSAL_LIMIT)?;
        read_once(&socket)?;
        stop(server, &[&socket]).map(drop)
    });
}

/// Whoever asks whether the socket is live must not disturb the client that is served there.
#[test]
fn a_live_socket_is_refused_and_its_client_notices_nothing() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let disk = Disk::new(&bench, "e0", 1);
        let content = disk.create(1 << 20, 0xa1)?;
        let server = disk.serve(program)?;
        let mut client = Client::connect(&disk.socket(), Shape::small())?;
        for _ in 0..3 {
            refuse(program, &line(&disk.socket(), &[]), &["e0.sock", "live process"])?;
            ensure!(client.read(4096, 4096, 0)? == content[4096..8192], "other bytes came back");
        }
        drop(client);
        use_disk(&disk.socket(), 0x12)?;
        stop(server, &[&disk.socket()]).map(drop)
    });
}

#[test]
fn what_is_no_socket_is_refused_and_left_alone() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let file = bench.path("precious");
        std::fs::write(&file, "data").context("a regular file")?;
        let link = bench.path("link");
        std::os::unix::fs::symlink(&file, &link).context("a symbolic link")?;
        for path in [&file, &link, &bench.path("")] {
            refuse(program, &line(path, &[]), &["not a socket"])?;
        }
        ensure!(std::fs::read(&link).context("read it")? == b"data", "its content has changed");
        Ok(())
    });
}

#[test]
fn a_path_of_107_bytes_works_and_one_of_108_is_refused() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let stem = bench.text("");
        let socket = bench.path(&"s".repeat(107 - stem.len()));
        ensure!(socket.as_os_str().len() == 107, "{}", socket.display());
        let server = start(program, &socket, &[])?;
        read_once(&socket)?;
        stop(server, &[&socket])?;
        let longer = bench.path(&"s".repeat(108 - stem.len()));
        refuse(program, &line(&longer, &[]), &["108 bytes", "107"])?;
        ensure_gone(&[&longer])
    });
}

#[test]
fn the_mode_asked_for_is_the_sockets_mode() {
    with(&ringloom(), |program| {
        for (asked, expected) in [("0600", 0o600), ("0660", 0o660), ("777", 0o777)] {
            let bench = Bench::new()?;
            let socket = bench.path("e0.sock");
            let server = start(program, &socket, &["--socket-mode", asked])?;
            let metadata = socket.metadata().context("look at the socket")?;
            let mode = metadata.permissions().mode() & 0o7777;
            ensure!(metadata.file_type().is_socket() && mode == expected, "{asked}: {mode:o}");
            read_once(&socket)?;
            stop(server, &[&socket])?;
        }
        let bench = Bench::new()?;
        for wrong in ["0888", "rw", "01777", "-1", ""] {
            let socket = bench.path("e0.sock");
            refuse(program, &line(&socket, &["--socket-mode", wrong]), &["--socket-mode"])?;
            ensure_gone(&[&socket])?;
        }
        Ok(())
    });
}

#[test]
fn the_group_asked_for_is_the_sockets_group() {
    if !is_root() {
        skipped("giving a socket to another group needs root");
        return;
    }
    with(&ringloom(), |program| {
        // Group 1 is `daemon` on every Debian.
        for (asked, expected) in [("daemon", 1), ("1", 1), ("54321", 54_321)] {
            let bench = Bench::new()?;
            let socket = bench.path("e0.sock");
            let more = ["--socket-group", asked, "--socket-mode", "0660"];
            let server = start(program, &socket, &more)?;
            let metadata = socket.metadata().context("look at the socket")?;
            ensure!(metadata.gid() == expected, "{asked}: group {}", metadata.gid());
            let mode = metadata.permissions().mode() & 0o777;
            ensure!(mode == 0o660, "{asked}: mode {mode:o}");
            stop(server, &[&socket])?;
        }
        Ok(())
    });
}

#[test]
fn an_unknown_group_is_refused_and_leaves_no_socket() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let socket = bench.path("e0.sock");
        let line = line(&socket, &["--socket-group", "no-such-group"]);
        refuse(program, &line, &["no-such-group", "e0.sock"])?;
        ensure_gone(&[&socket])
    });
}

#[test]
fn a_later_step_that_fails_takes_earlier_sockets_down() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let (first, second, third) = (bench.path("a"), bench.path("b"), bench.path("c"));
        image::create_sparse(&third, 512)?;
        let mut line = line(&first, &[]);
        for (id, socket) in [("e1", &second), ("e2", &third)] {
            line.extend(["--export".to_owned(), export(id, socket)]);
        }
        refuse(program, &line, &["e2", "not a socket"])?;
        ensure_gone(&[&first, &second])?;
        ensure!(third.exists(), "what is not a socket was removed");
        Ok(())
    });
}

/// Whoever asks whether the socket is live must not wait for room in its backlog.
#[test]
fn a_live_socket_with_a_full_backlog_is_refused_too() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let socket = bench.path("e0.sock");
        let server = start(program, &socket, &[])?;
        // Keeps the export busy, so that nobody else is accepted.
        let served = Client::connect(&socket, Shape::small())?;
        // One more than `listen` was told (64) fits.
        let crowd: Vec<UnixStream> = (0..65)
            .map(|_| UnixStream::connect(&socket).context("wait in the backlog"))
            .collect::<Result<_>>()?;
        refuse(program, &line(&socket, &[]), &["e0.sock", "live process"])?;
        drop((served, crowd));
        read_once(&socket)?;
        stop(server, &[&socket]).map(drop)
    });
}

/// A server that ends removes its own socket, not one that has taken its place.
#[test]
fn the_socket_of_a_successor_stays() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let socket = bench.path("e0.sock");
        let mut old = start(program, &socket, &[])?;
        std::fs::remove_file(&socket).context("take the socket away")?;
        let new = program.spawn(&line(&socket, &[]))?;
        new.wait_for_log("listening", REFUSAL_LIMIT)?;
        ensure!(old.terminate()?.success(), "the old server: {}", old.log());
        read_once(&socket)?;
        stop(new, &[&socket]).map(drop)
    });
}
