//! `locking=` and `force-share=`, on hosts that can lock and on one that cannot.

use std::time::Duration;

use anyhow::ensure;
use testkit::process::START_LIMIT;

use super::{Access, Place, with_tools, write_something};
use crate::support::{ringloom, stop, with};

const CANNOT: &str = "is not locked, because this host cannot";

#[test]
fn without_locking_the_image_is_everybodys() {
    with_tools(&ringloom(), |program| {
        let place = Place::new()?;
        let first = place.start(program, "first", Access::Write)?;
        let line = place.line("w", Access::Write, ",locking=off");
        let second = program.start(&line, &[place.socket("w")])?;
        place.finish("first", first)?;
        place.succeeds("qemu-io", &["-f", "raw", "-c", "write 0 4k", "IMAGE"])?;
        place.finish("w", second).map(drop)
    });
}

#[test]
fn a_host_that_cannot_lock_is_told_once_and_gone_without() {
    with(&ringloom().without_locks(), |program| {
        let place = Place::new()?;
        let mut line = place.line("w", Access::Write, ",locking=auto");
        let again = "vhost-user-blk,id=b,node-name=n,addr.type=unix,addr.path=SOCKET";
        line.extend(place.fill_in("b", &["--export", again]));
        let server = program.start(&line, &[place.socket("w"), place.socket("b")])?;
        write_something(&place, "w", 0x61)?;
        let log = stop(server, &[])?;
        ensure!(log.matches(CANNOT).count() == 1, "{log}");
        ensure!(!log.contains("Failed to unlock"), "{log}");
        Ok(())
    });
}

#[test]
fn a_host_that_cannot_lock_is_refused_where_locks_are_wanted() {
    with(&ringloom().without_locks(), |program| {
        let place = Place::new()?;
        let line = place.line("w", Access::Write, ",locking=on");
        // At once: waiting would not help.
        let exit = program.refusal(&line, Duration::from_secs(15))?;
        ensure!(exit.status.code() == Some(1), "{exit:?}");
        let sentence = "export w: node n: this host cannot lock the image [";
        ensure!(exit.stderr.contains(sentence), "{exit:?}");
        ensure!(exit.stderr.contains("Invalid argument"), "{exit:?}");
        Ok(())
    });
}

#[test]
fn locking_that_is_wanted_is_had_where_the_host_can() {
    with(&ringloom(), |program| {
        let place = Place::new()?;
        let line = place.line("w", Access::Write, ",locking=on");
        let server = program.start(&line, &[place.socket("w")])?;
        let second = program.spawn(&place.line("second", Access::Write, ""))?;
        second.wait_for_log("trying for up to 30 s", START_LIMIT)?;
        ensure!(!server.log().contains(CANNOT), "{}", server.log());
        place.finish("w", server)?;
        second.wait_for_log("listening", START_LIMIT)?;
        ensure!(second.log().contains("has the lock after"), "{}", second.log());
        place.finish("second", second).map(drop)
    });
}

#[test]
fn a_reader_with_force_share_denies_nothing() {
    with_tools(&ringloom(), |program| {
        let place = Place::new()?;
        let line = place.line("r", Access::Read, ",force-share=on");
        let server = program.start(&line, &[place.socket("r")])?;
        place.succeeds("qemu-io", &["-f", "raw", "-c", "write 0 4k", "IMAGE"])?;
        place.finish("r", server)?;
        // The peer says the same to who would write.
        for program in [&testkit::process::Program::qemu_storage_daemon(), program] {
            let line = place.line("w", Access::Write, ",force-share=on");
            let exit = program.refusal(&line, START_LIMIT)?;
            let sentence = "force-share=on can only be used with read-only images";
            ensure!(!exit.status.success() && exit.stderr.contains(sentence), "{exit:?}");
        }
        Ok(())
    });
}
