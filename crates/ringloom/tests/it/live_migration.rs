//! Live migration: a guest that writes, reads and checks its disk goes from one QEMU and daemon to another, and
//! back, on one raw image. `guest::witness` says what the guest is made to see.
//!
//! `cargo xtask migrate --rounds N` sets the number of rounds; the short form is what `cargo xtask test` runs.
//! `courses` has migrations that do not go as planned.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use testkit::client::RingLayout;
use testkit::deadline::Deadline;
use testkit::guest::{Course, Half, Origin, witness};
use testkit::process::{Bench, Program, START_LIMIT, Server};
use testkit::report::{note, skipped};
use testkit::slow_disk::{Delays, SlowDisk};

use crate::support::{is_root, qemu_img, ringloom, stop, with};

mod courses;
mod rounds_with_copied_disks;

/// How often the guest goes from one daemon to the other, if nobody says.
const ROUNDS: u32 = 3;
/// Set by `cargo xtask migrate`; a skip is then a failure.
const ROUNDS_VARIABLE: &str = "RINGLOOM_MIGRATION_ROUNDS";
const QUEUES: usize = 3;
/// Every so many rounds the daemon that the guest goes to is a fresh one.
const FRESH_EVERY: u32 = 3;

/// An image, and the daemons that serve it.
struct Place {
    bench: Bench,
    /// Options of the node.
    node: &'static str,
    /// Whether that is a qcow2 image of the disk.
    is_qcow2: bool,
    /// What stands on the image, if the image is not served itself.
    slow: Option<SlowDisk>,
}

/// One daemon.
struct Site {
    server: Server,
    socket: PathBuf,
}

impl Place {
    fn new(node: &'static str) -> Result<Self> {
        let place = Self { bench: Bench::new()?, node, is_qcow2: false, slow: None };
        witness::create_image(&place.image())?;
        Ok(place)
    }

    /// On a disk whose requests take up to 300 ms, so that some are always in flight.
    fn slow() -> Result<Self> {
        let mut place = Self::new(",cache.direct=on")?;
        let mount = place.bench.path("slow");
        place.slow = Some(SlowDisk::new(&place.image(), &mount, Delays::default())?);
        Ok(place)
    }

    /// In an image whose tables the guest's writes change.
    fn qcow2() -> Result<Self> {
        let mut place = Self::new(",cache.direct=on")?;
        qemu_img(&place.bench, "convert -f raw -O qcow2 disk.img disk.qcow2")?;
        place.is_qcow2 = true;
        Ok(place)
    }

    fn image(&self) -> PathBuf {
        self.bench.path("disk.img")
    }

    /// What the administrators of both hosts write.
    fn line(&self, socket: &str, active: &str) -> Vec<String> {
        let (driver, file) = match &self.slow {
            Some(disk) => ("host_device,node-name=n,", disk.device()),
            None if self.is_qcow2 => {
                ("qcow2,node-name=n,file.driver=file,file.", self.bench.path("disk.qcow2"))
            }
            None => ("file,node-name=n,", self.image()),
        };
        let (node, file) = (self.node, file.display());
        let objects = ["t0", "t1"].map(|id| format!("--object=iothread,id={id}"));
        let rest = [
            format!("--blockdev={driver}filename={file},discard=unmap,active={active}{node}"),
            format!(
                "--export=vhost-user-blk,id=disk,node-name=n,addr.type=unix,addr.path={socket},writable=on,\
                 num-queues={QUEUES},iothread.0=t0,iothread.1=t1"
            ),
        ];
        objects.into_iter().chain(rest).collect()
    }

    fn serve(&self, program: &Program, name: &str, active: &str) -> Result<Site> {
        let socket = self.bench.path(&format!("{name}.sock"));
        let line = self.line(&socket.display().to_string(), active);
        let server = program.start(&line, std::slice::from_ref(&socket))?;
        Ok(Site { server, socket })
    }

    /// Has the guest end, stops the daemons, and compares the image with what the guest knows.
    fn finish(&self, half: Half, sites: impl IntoIterator<Item = Site>) -> Result<()> {
        let expected = half.finish()?;
        for site in sites {
            site.stop()?;
        }
        if self.is_qcow2 {
            qemu_img(&self.bench, "check -q -f qcow2 disk.qcow2")?;
            qemu_img(&self.bench, "convert -f qcow2 -O raw disk.qcow2 disk.img")?;
        }
        let found = witness::digest_of_image(&self.image())?;
        ensure!(found == expected, "the image has {found}, the guest wrote {expected}");
        Ok(())
    }
}

impl Site {
    fn stop(self) -> Result<String> {
        stop(self.server, &[&self.socket])
    }

    fn says(&self, what: &str) -> Result<()> {
        self.server.wait_for_log(what, START_LIMIT).with_context(|| self.server.log())
    }
}

/// Migrates a guest so many times, back and forth.
fn campaign(program: &Program, layout: RingLayout, place: &Place) -> Result<()> {
    let rounds = rounds()?;
    let origin = Origin::new(QUEUES, layout)?;
    let mut here = place.serve(program, "a", "off")?;
    let mut there = place.serve(program, "b", "off")?;
    let mut half = origin.boot("q0", &here.socket)?;
    half.works().with_context(|| here.server.log())?;
    for round in 1..=rounds {
        let clock = Deadline::after(START_LIMIT);
        if round % FRESH_EVERY == 0 {
            let name = format!("r{round}");
            there.stop()?;
            there = place.serve(program, &name, "off")?;
        }
        let mut next = origin.expect(&format!("q{round}"), &there.socket)?;
        half.begin(&next, Course::Whole)?;
        let progress = half.comes_to("completed")?;
        next.works().with_context(|| {
            format!("round {round}: {}\n{}", here.server.log(), there.server.log())
        })?;
        // It has gone; whatever it still wanted it would want from its daemon.
        half.quit()?;
        let [downtime, total, syncs] = ["downtime", "total-time", "dirty-sync-count"]
            .map(|key| progress.number(key).unwrap_or_default());
        let took = clock.elapsed();
        note(&format!(
            "{layout:?} round {round}: {total} ms, {syncs} looks for dirty pages, guest stopped for {downtime} ms; all in {took:?}"
        ));
        half = next;
        std::mem::swap(&mut here, &mut there);
    }
    place.finish(half, [here, there])
}

#[track_caller]
fn with_guests(behaviour: impl FnOnce(&Program) -> Result<()>) {
    match Origin::missing() {
        Some(reason) if std::env::var_os(ROUNDS_VARIABLE).is_some() => panic!("{reason}"),
        Some(reason) => skipped(&reason),
        None => with(&ringloom(), behaviour),
    }
}

fn rounds() -> Result<u32> {
    let Ok(number) = std::env::var(ROUNDS_VARIABLE) else { return Ok(ROUNDS) };
    number.parse().with_context(|| format!("{ROUNDS_VARIABLE} is {number}"))
}

#[test]
fn rounds_with_split_rings() {
    with_guests(|program| campaign(program, RingLayout::Split, &Place::new(",cache.direct=on")?));
}

#[test]
fn rounds_with_packed_rings() {
    with_guests(|program| campaign(program, RingLayout::Packed, &Place::new(",cache.direct=on")?));
}

/// The guest is stopped while requests are in flight: its daemon waits for them, and what they write to the
/// guest's memory is marked after its processors have stopped.
#[test]
fn rounds_on_a_slow_disk() {
    if !is_root() {
        skipped("the slow disk needs root");
        return;
    }
    with_guests(|program| campaign(program, RingLayout::Split, &Place::slow()?));
}

/// Each daemon reads the tables anew that the other one has written.
#[test]
fn rounds_on_a_qcow2_image() {
    with_guests(|program| campaign(program, RingLayout::Split, &Place::qcow2()?));
}

/// On one host both have the same page cache.
#[test]
fn rounds_through_the_page_cache() {
    with_guests(|program| campaign(program, RingLayout::Packed, &Place::new("")?));
}
