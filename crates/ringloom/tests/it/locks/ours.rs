//! A ringloom that has the image: who may come beside it.

use anyhow::{Result, ensure};
use testkit::process::{Program, Server};

use super::{
    Access, DENIES_WRITE, NO_SHARED_WRITE, NO_WRITE, Place, TOOL_LIMIT, with_tools, write_something,
};
use crate::support::{self, ringloom, stop, with};

/// A QEMU whose guest has the image as its disk and is never started.
const GUEST: [&str; 8] =
    ["-accel", "tcg", "-S", "-nodefaults", "-display", "none", "-drive", "DRIVE"];

pub(super) fn guest(place: &Place, drive: &str) -> Vec<String> {
    let words = GUEST.map(|word| word.replace("DRIVE", drive));
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    place.fill_in("guest", &words)
}

pub(super) const WRITING_GUEST: &str = "file=IMAGE,format=raw,if=virtio";
pub(super) const READING_GUEST: &str = "file=IMAGE,format=raw,if=virtio,readonly=on";

pub(super) fn qemu() -> Program {
    Program::named("qemu-system-x86_64", "qemu-system-x86_64", &[])
}

/// What opens the image, and what it says if that cannot be.
fn writers() -> Vec<(&'static str, Vec<&'static str>, &'static str)> {
    vec![
        ("qemu-io", vec!["-f", "raw", "-c", "write 0 4k", "IMAGE"], NO_WRITE),
        ("qemu-io", vec!["-f", "raw", "-c", "truncate 512k", "IMAGE"], NO_WRITE),
        ("qemu-img", vec!["resize", "-f", "raw", "IMAGE", "2M"], NO_WRITE),
        ("qemu-img", vec!["convert", "-n", "-f", "raw", "-O", "raw", "OTHER", "IMAGE"], NO_WRITE),
        // A source must not change while it is copied.
        (
            "qemu-img",
            vec!["convert", "-f", "raw", "-O", "raw", "IMAGE", "OTHER.copy"],
            NO_SHARED_WRITE,
        ),
    ]
}

fn check_tools_of_readers(place: &Place) -> Result<()> {
    place.succeeds("qemu-img", &["info", "-f", "raw", "IMAGE"])?;
    place.succeeds("qemu-img", &["map", "-f", "raw", "IMAGE"])?;
    place.succeeds("qemu-io", &["-r", "-f", "raw", "-c", "read 0 4k", "IMAGE"])?;
    // The format has no check; what matters is that it says so, and not that it is locked.
    let exit = place.run("qemu-img", &["check", "-f", "raw", "IMAGE"])?;
    ensure!(exit.status.code() == Some(63), "qemu-img check: {exit:?}");
    Ok(())
}

/// A QEMU or daemon that must not come up, and says why.
fn check_refused(program: &Program, line: &[String], sentence: &str) -> Result<()> {
    let exit = program.refusal(line, TOOL_LIMIT)?;
    ensure!(!exit.status.success(), "{} got the image", program.name());
    ensure!(exit.stderr.contains(sentence), "{}: {}", program.name(), exit.stderr);
    Ok(())
}

#[test]
fn beside_a_writable_export_nobody_writes() {
    with_tools(&ringloom(), |program| {
        let place = Place::new()?;
        let server = place.start(program, "w", Access::Write)?;
        write_something(&place, "w", 0x11)?;
        check_tools_of_readers(&place)?;
        for (tool, words, sentence) in writers() {
            place.fails(tool, &words, sentence)?;
        }
        check_refused(&qemu(), &guest(&place, WRITING_GUEST), NO_WRITE)?;
        check_refused(&qemu(), &guest(&place, READING_GUEST), NO_SHARED_WRITE)?;
        let peer = Program::qemu_storage_daemon();
        check_refused(&peer, &place.line("peer", Access::Write, ""), NO_WRITE)?;
        let reader = place.start(&peer, "reader", Access::Read)?;
        place.finish("reader", reader)?;
        write_something(&place, "w", 0x12)?;
        place.finish("w", server)?;
        // The lock goes with the daemon.
        for (tool, words, _) in writers() {
            place.succeeds(tool, &words)?;
        }
        Ok(())
    });
}

#[test]
fn beside_a_read_only_export_others_may_read_and_write_as_beside_qemus() {
    with_tools(&ringloom(), |program| {
        for program in [&Program::qemu_storage_daemon(), program] {
            let place = Place::new()?;
            let server = place.start(program, "r", Access::Read)?;
            check_tools_of_readers(&place)?;
            for (tool, words, _) in writers() {
                place.succeeds(tool, &words)?;
            }
            for drive in [WRITING_GUEST, READING_GUEST] {
                let mut guest = qemu().spawn(&guest(&place, drive))?;
                wait_for_lock(&place, DENIES_WRITE)?;
                ensure!(guest.is_alive()?, "{drive}: {}", guest.log());
                guest.kill()?;
            }
            place.finish("r", server)?;
        }
        Ok(())
    });
}

/// Waits until somebody has locked this byte of the image.
pub(super) fn wait_for_lock(place: &Place, byte: u64) -> Result<()> {
    support::wait_for_lock(&place.bench.path("disk.img"), byte, TOOL_LIMIT)
}

#[test]
fn exports_of_one_node_share_its_lock() {
    with(&ringloom(), |program| {
        let place = Place::new()?;
        let mut line = place.line("a", Access::Write, "");
        let second = "vhost-user-blk,id=b,node-name=n,addr.type=unix,addr.path=SOCKET,writable=on";
        line.extend(place.fill_in("b", &["--export", second]));
        let server = program.start(&line, &[place.socket("a"), place.socket("b")])?;
        write_something(&place, "a", 0x21)?;
        write_something(&place, "b", 0x22)?;
        stop(server, &[&place.socket("a"), &place.socket("b")]).map(drop)
    });
}

/// Starts a daemon with two nodes on the image, one export each.
fn two_nodes(program: &Program, place: &Place, access: [Access; 2]) -> Result<Server> {
    let mut line = place.line("a", access[0], "");
    let second = place.line("b", access[1], "");
    line.extend(second.iter().map(|word| word.replace("node-name=n,", "node-name=m,")));
    program.spawn(&line)
}

#[test]
fn two_nodes_of_one_daemon_do_not_both_write() {
    with(&ringloom(), |program| {
        let place = Place::new()?;
        let mut server = two_nodes(program, &place, [Access::Write; 2])?;
        // There is nobody to wait for.
        let status = server.wait(std::time::Duration::from_secs(15))?;
        let log = server.log();
        ensure!(status.code() == Some(1), "{status}: {log}");
        ensure!(log.contains("export b: node m: the image [") && !log.contains("trying"), "{log}");
        ensure!(!place.socket("a").exists(), "a socket is left behind");
        for access in [[Access::Write, Access::Read], [Access::Read, Access::Write]] {
            let server = two_nodes(program, &place, access)?;
            let what = "both exports to listen";
            testkit::deadline::poll_until(what, TOOL_LIMIT, || {
                let listens = testkit::process::is_listening(&place.socket("b"))?;
                Ok(listens.then_some(()))
            })?;
            place.finish("b", server)?;
        }
        Ok(())
    });
}

#[test]
fn a_node_without_export_locks_nothing_as_in_qemu() {
    with_tools(&ringloom(), |program| {
        for program in [&Program::qemu_storage_daemon(), program] {
            let place = Place::new()?;
            let null = "null-co,node-name=null";
            let export = "vhost-user-blk,id=e,node-name=null,addr.type=unix,addr.path=SOCKET";
            let node = "file,node-name=n,filename=IMAGE";
            let line = ["--blockdev", node, "--blockdev", null, "--export", export];
            let server = program.start(&place.fill_in("e", &line), &[place.socket("e")])?;
            for (tool, words, _) in writers() {
                place.succeeds(tool, &words)?;
            }
            place.finish("e", server)?;
        }
        Ok(())
    });
}
