//! `--takeover`: a new process takes the place of a running one, and its clients notice nothing.

mod ends;
mod guest;
mod halves;
mod hangs;
mod images;
mod loads;
mod refusals;
mod starts;

use std::time::Duration;

use anyhow::{Result, ensure};
use testkit::process::{Bench, Program, Server};
use testkit::rawring::{Collected, Survivor};
use testkit::rng::Rng;

use crate::support::{Disk, Iothreads};

/// How long a takeover may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(30);

/// The words of the new process when the old one has handed over.
const HANDED_OVER: &str = "has handed over";

fn disk<'a>(bench: &'a Bench, queues: u16) -> Disk<'a> {
    Disk { iothreads: Iothreads::Two, ..Disk::new(bench, "e0", queues.into()) }
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
