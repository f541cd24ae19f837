//! `--takeover`: a new process takes the place of a running one, and its clients notice nothing.

mod bitmaps;
mod ends;
mod guest;
mod halves;
mod hangs;
mod images;
mod loads;
mod refusals;
mod sentences;
mod starts;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testkit::client::RingLayout;
use testkit::process::{Bench, Program, Server};
use testkit::rawring::{Collected, Survivor};
use testkit::rng::Rng;

use crate::support::{After, Disk, Iothreads, stop};

/// How long a takeover may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(30);

/// The words of the new process when the old one has handed over.
const HANDED_OVER: &str = "has handed over";

fn disk<'a>(bench: &'a Bench, queues: u16) -> Disk<'a> {
    Disk { iothreads: Iothreads::Two, ..Disk::new(bench, "e0", queues.into()) }
}

/// A served disk with a client at work.
struct Busy<'a> {
    disk: Disk<'a>,
    server: Server,
    client: Survivor,
    rng: Rng,
}

impl<'a> Busy<'a> {
    fn begin(program: &Program, disk: Disk<'a>, layout: RingLayout) -> Result<Self> {
        let queues = disk.queues.try_into()?;
        disk.create_sparse(Survivor::disk_bytes(queues))?;
        let server = disk.serve(program)?;
        let (mut client, mut rng) =
            (Survivor::connect(&disk.socket(), layout, queues)?, Rng::new(3));
        work(&mut client, &mut rng, 3)?;
        Ok(Self { disk, server, client, rng })
    }

    /// Ends both in good order. The image holds what was completed.
    fn end(self) -> Result<String> {
        let Self { disk, server, mut client, rng: _ } = self;
        client.drain()?;
        let expected = client.expected();
        drop(client);
        let log = stop(server, &[&disk.socket()])?;
        let found = std::fs::read(disk.flatten(After::Order)?).context("read the image")?;
        ensure!(found == expected, "the image does not hold the completed writes: {log}");
        Ok(log)
    }
}

/// The command line of a server that takes over the disk.
fn line(disk: &Disk<'_>) -> Vec<String> {
    let objects = ["--object", "iothread,id=t0", "--object", "iothread,id=t1", "--takeover"];
    objects.iter().map(|word| (*word).to_owned()).chain(disk.arguments()).collect()
}

/// Replaces a server; the old one must leave in good order.
fn replace(program: &Program, line: &[String], mut old: Server) -> Result<Server> {
    let new = program.spawn(line)?;
    new.wait_for_log(HANDED_OVER, LIMIT)
        .map_err(|error| error.context(format!("new: {}\nold: {}", new.log(), old.log())))?;
    let status = old.wait(LIMIT)?;
    ensure!(status.code() == Some(0), "the old process ended with {status}: {}", old.log());
    ensure!(old.log().contains("has taken over"), "the old process says: {}", old.log());
    Ok(new)
}

/// Works until the log of a server holds some words.
fn work_until(client: &mut Survivor, rng: &mut Rng, server: &Server, words: &str) -> Result<()> {
    let deadline = testkit::deadline::Deadline::after(LIMIT);
    while !server.log().contains(words) {
        ensure!(!deadline.has_passed(), "waited for {words:?} in {}", server.log());
        work(client, rng, 1)?;
    }
    Ok(())
}

/// So many rounds of requests, none of which may fail.
fn work(client: &mut Survivor, rng: &mut Rng, rounds: usize) -> Result<()> {
    for _ in 0..rounds {
        client.submit(rng)?;
        ensure!(client.collect()? != Collected::Gone, "the server has hung up");
    }
    Ok(())
}
