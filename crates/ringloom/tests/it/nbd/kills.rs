//! Servers that are killed under clients that write: what was flushed is there, and what was answered, too, since the
//! host goes on; nothing else is but what was written.

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use testkit::deadline::poll_until;
use testkit::image;
use testkit::process::{Bench, Program};
use testkit::rng::Rng;

use super::client::{Client, Command};
use super::{disk, server, socket, start, tool, uri};
use crate::support::{ringloom, stop, with};

const BLOCK: u32 = 4096;
const BLOCKS: u64 = 256;
const DEPTH: usize = 16;
/// How often the server is killed.
const KILLS: u32 = 12;

/// What a block may have: the number that was answered last, and those that were asked for since.
#[derive(Default)]
struct Block {
    sure: u64,
    open: Vec<u64>,
}

/// A block that is filled with a number.
fn filled(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(usize::try_from(BLOCK / 8).expect("few"))
}

/// Writes until the server is gone, and notes what was answered. Each block has one write at a time.
fn write_until_killed(
    socket: &Path,
    rng: &mut Rng,
    blocks: &mut BTreeMap<u64, Block>,
    next: &mut u64,
) -> Result<u64> {
    let mut client = Client::connect(socket, "a")?;
    let mut open: BTreeMap<u64, Option<u64>> = BTreeMap::new();
    let mut answered = 0;
    loop {
        while open.len() < DEPTH {
            *next += 1;
            let cookie = *next;
            if cookie.is_multiple_of(31) {
                if client.send(Command::Flush, cookie, (0, 0), &[]).is_err() {
                    return Ok(answered);
                }
                open.insert(cookie, None);
                continue;
            }
            let place = rng.below(BLOCKS);
            if open.values().any(|busy| *busy == Some(place)) {
                continue;
            }
            blocks.entry(place).or_default().open.push(cookie);
            let range = (place * u64::from(BLOCK), BLOCK);
            open.insert(cookie, Some(place));
            if client.send(Command::Write, cookie, range, &filled(cookie)).is_err() {
                return Ok(answered);
            }
        }
        let Ok(cookie) = client.reply() else { return Ok(answered) };
        answered += 1;
        if let Some(Some(place)) = open.remove(&cookie) {
            *blocks.entry(place).or_default() = Block { sure: cookie, open: Vec::new() };
        }
    }
}

/// Every block is what was answered last, or something that was asked for after that, as a whole.
fn check(socket: &Path, blocks: &mut BTreeMap<u64, Block>) -> Result<()> {
    let mut client = Client::connect(socket, "a")?;
    for (place, block) in blocks {
        client.send(Command::Read, *place, (place * u64::from(BLOCK), BLOCK), &[])?;
        client.reply()?;
        let data = client.data(usize::try_from(BLOCK)?)?;
        let number = u64::from_le_bytes(data[..8].try_into()?);
        ensure!(data == filled(number), "block {place} is torn");
        let is_known = number == block.sure || block.open.contains(&number);
        ensure!(is_known, "block {place} has {number}, not {} or {:?}", block.sure, block.open);
        *block = Block { sure: number, open: Vec::new() };
    }
    Ok(())
}

fn nothing_is_lost(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    image::create_sparse(&bench.path("a.img"), BLOCKS * u64::from(BLOCK))?;
    let mut line = server(&bench, &["--object", "iothread,id=t0", "--object", "iothread,id=t1"]);
    line.extend(disk(&bench, "a", ",iothread.0=t0,iothread.1=t1"));
    let mut rng = Rng::new(0x0006_e6bd);
    let (mut blocks, mut next, mut answered) = (BTreeMap::new(), 0, 0);
    for kill in 0..KILLS {
        let server = start(program, &bench, &line)?;
        check(&socket(&bench), &mut blocks)?;
        let killer = server.kill_after(Duration::from_millis(20 + rng.below(120)));
        answered += write_until_killed(&socket(&bench), &mut rng, &mut blocks, &mut next)?;
        killer.wait()?;
        drop(server);
        ensure!(next > 0, "nothing was written before kill {kill}");
    }
    let server = start(program, &bench, &line)?;
    check(&socket(&bench), &mut blocks)?;
    ensure!(answered > 100, "only {answered} writes were answered");
    stop(server, &[&socket(&bench)]).map(drop)
}

/// nbdkit's retry filter, as the client of a server that is killed twice while a disk is copied into it.
fn retries_find_it_again(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    let bytes = image::create_filled(&bench.path("source"), 24 << 20, 5)?;
    image::create_sparse(&bench.path("a.img"), bytes.len() as u64)?;
    let mut line = server(&bench, &[]);
    line.extend(disk(&bench, "a", ""));
    let mut ours = start(program, &bench, &line)?;
    let kit = bench.text("kit.sock");
    let options = ["-f", "--exit-with-parent", "-U", &kit];
    let uri = format!("uri={}", uri(&bench, "a"));
    // About four seconds for the copy, without the retries.
    let words = ["--filter=retry", "--filter=rate", "nbd", &uri, "rate=50M"];
    let retries = ["retries=20", "retry-delay=1", "retry-exponential=no"];
    let words: Vec<String> = words.iter().chain(&retries).map(|word| (*word).to_owned()).collect();
    let mut between =
        Program::named("nbdkit", "nbdkit", &options).start(&words, &[bench.path("kit.sock")])?;
    let target = format!("nbd+unix:///?socket={kit}");
    let source = bench.text("source");
    let copy = std::thread::spawn(move || tool("nbdcopy", &["--flush", &source, &target]));
    for kill in 0..2 {
        let has_some = |part: usize| -> Result<bool> {
            let mut found = [0; 8];
            let file = std::fs::File::open(bench.path("a.img"))?;
            file.read_exact_at(&mut found, part as u64)?;
            Ok(found == bytes[part..part + 8])
        };
        let part = (kill + 1) * bytes.len() / 4;
        poll_until("a part of the copy", Duration::from_secs(30), || {
            Ok((has_some(part)? || copy.is_finished()).then_some(()))
        })?;
        ensure!(!copy.is_finished(), "the copy was over before kill {kill}");
        ours.kill()?;
        std::fs::remove_file(socket(&bench))?;
        ours = start(program, &bench, &line)?;
    }
    copy.join().expect("it does not panic")?;
    ensure!(std::fs::read(bench.path("a.img"))? == bytes, "another copy");
    between.kill()?;
    stop(ours, &[&socket(&bench)]).map(drop)
}

#[test]
fn a_client_that_retries_finds_a_server_again_that_was_killed() {
    with(&ringloom(), retries_find_it_again);
}

#[test]
fn servers_that_are_killed_lose_nothing_that_was_answered() {
    with(&ringloom(), nothing_is_lost);
}
