//! `active=off`: an export has its image only while it serves rings.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testkit::client::{Client, Shape};
use testkit::deadline::{Deadline, poll_until};
use testkit::image;
use testkit::process::{Program, START_LIMIT, STOP_LIMIT, Server};
use testkit::rawring::{BlockRequest, Form, RawDevice, RawShape, kind};

use super::ours::wait_for_lock;
use super::{Access, DENIES_WRITE, IMAGE_BYTES, NO_WRITE, Place, with_tools};
use crate::support::{ringloom, stop, with};

const WRITE: [&str; 5] = ["-f", "raw", "-c", "write 0 4k", "IMAGE"];
const WAITS: &str = "trying for up to 30 s";
const SECTOR: u64 = 64;

fn start(place: &Place, program: &Program, name: &str, options: &str) -> Result<Server> {
    let line = place.line(name, Access::Write, &format!(",active=off{options}"));
    program.start(&line, &[place.socket(name)])
}

fn connect(socket: &Path) -> Result<RawDevice> {
    RawDevice::connect(socket, RawShape { queues: 2, ..RawShape::default() })
}

/// Writes a sector of this byte.
fn write(device: &mut RawDevice, stamp: u8) -> Result<()> {
    device.put(8192, &[stamp; 512]);
    let data = vec![device.data(8192, 512, 0)];
    let request = BlockRequest { kind: kind::OUT, sector: SECTOR, data, form: Form::Direct };
    let outcome = device.request(0, &request)?;
    ensure!(outcome.is_ok(), "the write ended with {outcome:?}");
    Ok(())
}

/// What a client reads there.
fn read(socket: &Path) -> Result<Vec<u8>> {
    Client::connect(socket, Shape::small())?.read(SECTOR * 512, 512, 0)
}

#[test]
fn an_inactive_node_is_everybodys_until_a_ring_is_started_and_after_the_last_is_stopped() {
    with_tools(&ringloom(), |program| {
        for options in ["", ",cache.direct=on"] {
            let place = Place::new()?;
            let server = start(&place, program, "w", options)?;
            place.succeeds("qemu-io", &WRITE)?;
            for index in [0, 1] {
                let mut device = connect(&place.socket("w"))?;
                wait_for_lock(&place, DENIES_WRITE)?;
                place.fails("qemu-io", &WRITE, NO_WRITE)?;
                write(&mut device, index)?;
                device.stop_ring(1)?;
                place.fails("qemu-io", &WRITE, NO_WRITE)?;
                // It is answered when the lock has been given back.
                let base = device.stop_ring(0)?;
                place.succeeds("qemu-io", &WRITE)?;
                // The session goes on, as that of a migration that was cancelled.
                device.start_ring(0, base)?;
                place.fails("qemu-io", &WRITE, NO_WRITE)?;
                write(&mut device, index + 2)?;
                drop(device);
                poll_until("the session's end", STOP_LIMIT, || {
                    let exit = place.run("qemu-io", &WRITE)?;
                    Ok(exit.status.success().then_some(()))
                })?;
            }
            stop(server, &[&place.socket("w")])?;
        }
        Ok(())
    });
}

#[test]
fn the_second_half_of_a_migration_gets_the_image_with_all_that_the_first_half_wrote() {
    with(&ringloom(), |program| {
        let place = Place::new()?;
        let source = start(&place, program, "source", ",cache.direct=on")?;
        let target = start(&place, program, "target", ",cache.direct=on")?;
        let mut device = connect(&place.socket("source"))?;
        write(&mut device, 0x77)?;
        let socket = place.socket("target");
        let reading = std::thread::spawn(move || read(&socket));
        // Too early: the first half still runs.
        target.wait_for_log(WAITS, START_LIMIT)?;
        write(&mut device, 0x78)?;
        ensure!(!reading.is_finished(), "two have the image: {}", target.log());
        device.stop_ring(0)?;
        device.stop_ring(1)?;
        let found = reading.join().expect("the reader does not panic")?;
        ensure!(found == [0x78; 512], "the last write is lost");
        target.wait_for_log("has the lock after", START_LIMIT)?;
        drop(device);
        stop(source, &[&place.socket("source")])?;
        stop(target, &[&place.socket("target")]).map(drop)
    });
}

#[test]
fn an_export_that_waits_for_its_node_stops_at_once() {
    with(&ringloom(), |program| {
        let place = Place::new()?;
        let first = place.start(program, "first", Access::Write)?;
        let mut second = start(&place, program, "w", "")?;
        let socket = place.socket("w");
        let client = std::thread::spawn(move || read(&socket));
        second.wait_for_log(WAITS, START_LIMIT)?;
        let clock = Deadline::after(STOP_LIMIT);
        let status = second.terminate()?;
        let took = clock.elapsed();
        ensure!(status.code() == Some(0), "{status}: {}", second.log());
        ensure!(took < Duration::from_secs(5), "it took {took:?}");
        let read = client.join().expect("the reader does not panic");
        ensure!(read.is_err(), "a request of an inactive node was served: {read:?}");
        place.finish("first", first).map(drop)
    });
}

#[test]
fn an_image_that_has_shrunk_meanwhile_is_refused() {
    with(&ringloom(), |program| {
        let place = Place::new()?;
        let server = start(&place, program, "w", "")?;
        image::create_sparse(&place.bench.path("disk.img"), 1 << 19)?;
        let failed = connect(&place.socket("w"));
        ensure!(failed.is_err(), "the rings were started");
        let sentence =
            format!("had {IMAGE_BYTES} bytes when it was looked at last, and has 524288 now");
        server.wait_for_log(&sentence, STOP_LIMIT).with_context(|| server.log())?;
        // Nothing is kept for a node that was not activated.
        let first = place.start(program, "first", Access::Write)?;
        place.finish("first", first)?;
        stop(server, &[&place.socket("w")]).map(drop)
    });
}

#[test]
fn an_image_that_has_grown_meanwhile_is_served() {
    with(&ringloom(), |program| {
        let place = Place::new()?;
        let server = start(&place, program, "w", "")?;
        image::create_sparse(&place.bench.path("disk.img"), 2 * IMAGE_BYTES as u64)?;
        drop(connect(&place.socket("w"))?);
        stop(server, &[&place.socket("w")]).map(drop)
    });
}

/// The peer takes the option, and a vhost-user-blk export of it activates the node for good.
#[test]
fn the_peer_takes_the_option_too() {
    with_tools(&Program::qemu_storage_daemon(), |program| {
        let place = Place::new()?;
        let server = start(&place, program, "w", "")?;
        wait_for_lock(&place, super::WRITES)?;
        place.finish("w", server).map(drop)
    });
}
