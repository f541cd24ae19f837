//! `iothread=auto`: rings that are placed while their guests run.

mod many;
#[cfg(feature = "fault-points")]
mod moved;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use testkit::client::RingLayout;
use testkit::deadline::poll_until;
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

/// Which iothread serves each queue that had requests, by the table of SIGUSR1.
fn places(log: &str) -> Vec<(String, String)> {
    let queue = |line: &str| {
        let (_, rest) = line.split_once(": queue ")?;
        let (queue, rest) = rest.split_once(" on ")?;
        let (iothread, _) = rest.split_once(": ")?;
        Some((queue.to_owned(), iothread.to_owned()))
    };
    log.lines().filter_map(queue).collect()
}

#[test]
fn pinned_queues_go_where_they_belong_and_all_others_stay_in_a_frozen_pool() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        image::create_sparse(&bench.path("d.img"), Survivor::disk_bytes(QUEUES))?;
        let socket = bench.path("s");
        let line = [
            "--object".to_owned(),
            "iothread-pool,id=p,max=3,mode=frozen".to_owned(),
            "--blockdev".to_owned(),
            format!("file,node-name=n,filename={}", bench.text("d.img")),
            "--export".to_owned(),
            format!(
                "vhost-user-blk,id=e,node-name=n,writable=on,num-queues=4,addr.type=unix,\
                 addr.path={},iothread=p,pin.0=1:2,pin.1=3:1",
                socket.display()
            ),
        ];
        let server = program.start(&line, std::slice::from_ref(&socket))?;
        let mut client = Survivor::connect(&socket, RingLayout::Split, QUEUES)?;
        let mut rng = Rng::new(9);
        // Of those that start late the kernel tells no times in files.
        let mut has_times = false;
        for table in 1..=10 {
            work(&mut client, &mut rng, Duration::from_millis(500))?;
            server.signal(Signal::USR1)?;
            let tables = || server.log().matches("pool p: 3 of 3 iothreads run").count();
            poll_until("a table", LIMIT, || Ok((tables() >= table).then_some(())))?;
            let log = server.log();
            let late = log.lines().rfind(|it| it.contains("iothread p-2: ")).context("p-2")?;
            has_times = !late.contains(" 0.00 s of CPU time");
            if has_times {
                break;
            }
        }
        ensure!(has_times, "no CPU time: {}", server.log());
        let expected = [("0", "p-0"), ("1", "p-2"), ("2", "p-0"), ("3", "p-1")];
        let found = places(&server.log());
        let is_expected = |it: &(String, String)| expected.contains(&(&*it.0, &*it.1));
        ensure!(found.len() >= 4 && found.iter().all(is_expected), "{found:?}");
        end(client, server, &bench).map(drop)
    });
}

/// The same on the first CPU that the tests have.
fn ringloom_on_one_cpu() -> Result<(Program, usize)> {
    let set = rustix::thread::sched_getaffinity(None)?;
    let cpu = (0..rustix::thread::CpuSet::MAX_CPU).find(|cpu| set.is_set(*cpu));
    let cpu = cpu.context("a CPU")?;
    let words = ["-c", &cpu.to_string(), env!("CARGO_BIN_EXE_ringloom"), "serve"];
    Ok((Program::named("ringloom", "taskset", &words), cpu))
}

/// A field of a thread's status.
fn field(status: &std::path::Path, key: &str) -> Result<String> {
    let text = std::fs::read_to_string(status)?;
    let found = text.lines().find_map(|it| it.strip_prefix(key));
    Ok(found.with_context(|| format!("{key} in {text}"))?.trim().to_owned())
}

/// The CPUs that each thread may use whose name begins so.
fn cpus_of(server: &Server, name: &str) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for thread in std::fs::read_dir(format!("/proc/{}/task", server.pid()))? {
        let status = thread?.path().join("status");
        if field(&status, "Name:")?.starts_with(name) {
            found.push(field(&status, "Cpus_allowed_list:")?);
        }
    }
    Ok(found)
}

#[test]
fn a_pool_runs_on_its_cpus_and_what_it_does_not_name_runs_on_all() {
    with(&ringloom(), |program| {
        let (_, cpu) = ringloom_on_one_cpu()?;
        let bench = Bench::new()?;
        let socket = bench.path("s");
        let cpu = cpu.to_string();
        let line = [
            "--object".to_owned(),
            format!("iothread-pool,id=p,min=2,max=2,cpus={cpu},node=0,budget=1"),
            "--object".to_owned(),
            "iothread,id=t".to_owned(),
            "--blockdev".to_owned(),
            "null-co,node-name=n,size=1048576".to_owned(),
            "--export".to_owned(),
            format!(
                "vhost-user-blk,id=e,node-name=n,addr.type=unix,addr.path={},iothread=p",
                socket.display()
            ),
        ];
        let server = program.start(&line, std::slice::from_ref(&socket))?;
        // A thread takes its name once it runs, which may be after the socket is there.
        for (name, expected) in [("IO p-", vec![&*cpu; 2]), ("placer", vec![&*cpu])] {
            poll_until(&format!("{name} on {expected:?}"), LIMIT, || {
                Ok((cpus_of(&server, name)? == expected).then_some(()))
            })?;
        }
        let process = format!("/proc/{}/status", server.pid());
        let all = field(process.as_ref(), "Cpus_allowed_list:")?;
        poll_until("another iothread on all CPUs", LIMIT, || {
            Ok((cpus_of(&server, "IO t")? == [&*all]).then_some(()))
        })?;
        let log = stop(server, &[&socket])?;
        ensure!(log.contains(&format!("pool p: up to 2 iothreads on CPUs {cpu}")), "{log}");
        Ok(())
    });
}

#[test]
fn pools_that_cannot_be_are_refused_with_a_sentence() {
    let (program, cpu) = ringloom_on_one_cpu().expect("a CPU");
    with(&program, |program| {
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
            (&["iothread-pool,id=p,mode=off"], "iothread=p", "mode"),
            (&["iothread-pool,id=p,max=2"], "iothread=p,pin=0", "expects QUEUE:IOTHREAD, as 0:2"),
            (
                &["iothread-pool,id=p,max=2"],
                "iothread=p,num-queues=2,pin=2:0",
                "there is no queue 2; there are 2, the first is 0",
            ),
            (
                &["iothread-pool,id=p,max=2"],
                "iothread=p,pin.0=0:1,pin.1=0:0",
                "parameter pin: queue 0 is there twice",
            ),
            (
                &["iothread-pool,id=p,max=2"],
                "iothread=p,pin=0:2",
                "iothread-pool 'p' has no iothread 2; it has 2, the first is 0",
            ),
            (&["iothread,id=t"], "iothread=t,pin=0:0", "parameter pin needs a pool of iothreads"),
            (&["iothread-pool,id=p,budget=0"], "iothread=p", "budget: must be above 0 CPUs"),
            (&["iothread-pool,id=p,cpus=3-1"], "iothread=p", "expects a list of CPUs, as 0-3,8"),
            (
                &["iothread-pool,id=p,cpus=0,,1023"],
                "iothread=p",
                "cpus=0,1023: this process may not use 1023, only 0",
            ),
            (
                &["iothread-pool,id=p,node=4095"],
                "iothread=p",
                "node=4095: this host has no such NUMA node, only ",
            ),
            (
                &["iothread,id=t"],
                "iothread.0=auto,iothread.1=t",
                "iothread-pool 'auto' serves an export alone, without iothreads beside it",
            ),
        ] {
            let sentence = sentence.replace("only 0", &format!("only {cpu}"));
            refuse(program, &long(objects, iothreads), &sentence)?;
        }
        Ok(())
    });
}
