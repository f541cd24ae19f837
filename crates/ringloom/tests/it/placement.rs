//! `iothread=auto`: rings that are placed while their guests run.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use testkit::client::RingLayout;
use testkit::image;
use testkit::process::{Bench, Program, Server};
use testkit::rawring::{Collected, Survivor};
use testkit::rng::Rng;

use crate::support::{ringloom, stop, with};

const QUEUES: u16 = 4;
const LIMIT: Duration = Duration::from_secs(30);
/// How long a guest is at work while its rings are placed.
const TIME: Duration = Duration::from_secs(3);

/// A line in the short form that serves the image of a bench.
fn line(bench: &Bench, more: &[&str]) -> Vec<String> {
    let (image, socket) = (bench.text("d.img"), bench.text("s"));
    let words = [&[&image, "--socket", &socket, "--num-queues", "4"], more].concat();
    words.into_iter().map(str::to_owned).collect()
}

fn serve(program: &Program, bench: &Bench, more: &[&str]) -> Result<Server> {
    image::create_sparse(&bench.path("d.img"), Survivor::disk_bytes(QUEUES))?;
    program.start(&line(bench, more), &[bench.path("s")])
}

/// Verified requests for so long.
fn work(client: &mut Survivor, rng: &mut Rng, time: Duration) -> Result<()> {
    let end = testkit::deadline::Deadline::after(time);
    while !end.has_passed() {
        client.submit(rng)?;
        ensure!(client.collect()? != Collected::Gone, "the server has hung up");
    }
    Ok(())
}

/// The image holds what was completed.
fn end(mut client: Survivor, server: Server, bench: &Bench) -> Result<String> {
    client.drain()?;
    let expected = client.expected();
    drop(client);
    let log = stop(server, &[&bench.path("s")])?;
    let found = std::fs::read(bench.path("d.img")).context("read the image")?;
    ensure!(found == expected, "the image does not hold the completed writes: {log}");
    Ok(log)
}

#[test]
fn rings_are_placed_while_a_guest_works_and_nobody_is_awake_when_it_rests() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let mut server = serve(program, &bench, &["--iothreads", "auto:3"])?;
        let layout = RingLayout::Split;
        let mut client = Survivor::connect(&bench.path("s"), layout, QUEUES)?;
        let mut rng = Rng::new(7);
        work(&mut client, &mut rng, TIME)?;
        client.drain()?;
        server.signal(Signal::USR1)?;
        server.wait_for_log("iothread auto-0: ", LIMIT)?;
        // The placer and all iothreads sleep.
        server.wait_while_running(Duration::from_millis(500))?;
        let before = server.cpu_time()?;
        server.wait_while_running(Duration::from_secs(1))?;
        let used = server.cpu_time()? - before;
        ensure!(used <= Duration::from_millis(10), "{used:?} of CPU time at rest");
        work(&mut client, &mut rng, Duration::from_millis(300))?;
        let log = end(client, server, &bench)?;
        ensure!(log.contains("pool auto: up to 3 iothreads"), "{log}");
        ensure!(log.contains("served by pool auto"), "{log}");
        ensure!(!log.contains("WARN") && !log.contains("ERROR"), "{log}");
        Ok(())
    });
}

#[test]
fn placed_rings_are_taken_over() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let mut old = serve(program, &bench, &["--iothreads", "auto:3"])?;
        let mut client = Survivor::connect(&bench.path("s"), RingLayout::Split, QUEUES)?;
        let mut rng = Rng::new(8);
        work(&mut client, &mut rng, Duration::from_millis(500))?;
        let new = program.spawn(&line(&bench, &["--iothreads", "auto:2", "--takeover"]))?;
        while !new.log().contains("has handed over") {
            work(&mut client, &mut rng, Duration::from_millis(10))?;
        }
        ensure!(old.wait(LIMIT)?.success(), "{}", old.log());
        work(&mut client, &mut rng, Duration::from_millis(500))?;
        end(client, new, &bench).map(drop)
    });
}

fn refuse(program: &Program, line: &[String], sentence: &str) -> Result<()> {
    let exit = program.refusal(line, LIMIT)?;
    ensure!(exit.status.code() == Some(1), "{line:?}: {exit:?}");
    ensure!(exit.stderr.contains(sentence), "{line:?}: {sentence:?} is not in {}", exit.stderr);
    ensure!(exit.stderr.lines().count() == 1, "{line:?}: not one sentence: {}", exit.stderr);
    Ok(())
}

#[test]
fn pools_that_cannot_be_are_refused_with_a_sentence() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        image::create_sparse(&bench.path("d.img"), 1 << 20)?;
        let short = |value: &str| line(&bench, &["--iothreads", value]);
        let expected = "a number from 1 to 64, 'none', 'auto' or 'auto:MAX'";
        for value in ["auto:", "auto:0", "auto:65", "auto:x", "4:auto", "many"] {
            refuse(program, &short(value), expected)?;
        }
        let export = |iothreads: &str| {
            format!("vhost-user-blk,id=e,node-name=n,addr.type=unix,addr.path=s,{iothreads}")
        };
        let null = "null-co,node-name=n,size=1048576".to_owned();
        let long = |objects: &[&str], iothreads: &str| -> Vec<String> {
            let objects = objects.iter().flat_map(|it| ["--object".to_owned(), (*it).to_owned()]);
            let rest = ["--blockdev".to_owned(), null.clone(), "--export".to_owned()];
            objects.chain(rest).chain([export(iothreads)]).collect()
        };
        for (objects, iothreads, sentence) in [
            (&["iothread-pool,id=p,max=65"][..], "iothread=p", "max=65: a pool has 1 to 64"),
            (&["iothread-pool,id=p,max=0"], "iothread=p", "max=0: a pool has 1 to 64"),
            (&["iothread-pool,id=p,min=9,max=8"], "iothread=p", "min=9 is above max=8"),
            (&["iothread-pool,id=p,prefer=speed"], "iothread=p", "prefer"),
            (
                &["iothread,id=t"],
                "iothread.0=auto,iothread.1=t",
                "iothread-pool 'auto' serves an export alone, without iothreads beside it",
            ),
        ] {
            refuse(program, &long(objects, iothreads), sentence)?;
        }
        Ok(())
    });
}
