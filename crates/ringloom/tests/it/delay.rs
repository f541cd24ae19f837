//! The driver `delay` and the latency of `null-co`, served.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, ensure};
use testkit::client::{Client, Request, Segment, Shape};
use testkit::deadline::poll_until;
use testkit::model::{self, DiskModel, Plan};
use testkit::process::{Bench, Program, Server};
use testkit::rawring::{RawDevice, RawShape, flag, kind};

use crate::support::{Disk, ringloom, ringloom_without_io_uring, stop, with};

const US: Duration = Duration::from_micros(1);

/// Starts a server for a disk that is the last of these nodes, named `disk`.
fn serve(program: &Program, bench: &Bench, blockdevs: &[&str]) -> Result<(Server, PathBuf)> {
    let socket = bench.path("disk.sock");
    let mut arguments = vec!["--object".to_owned(), "iothread,id=t0".to_owned()];
    for blockdev in blockdevs {
        arguments.extend(["--blockdev".to_owned(), (*blockdev).to_owned()]);
    }
    arguments.extend([
        "--export".to_owned(),
        format!(
            "vhost-user-blk,id=disk,node-name=disk,addr.type=unix,addr.path={},writable=on,\
             num-queues=1,iothread=t0",
            socket.display()
        ),
    ]);
    let server = program.start(&arguments, std::slice::from_ref(&socket))?;
    Ok((server, socket))
}

fn read() -> Request {
    Request::Read { offset: 0, segments: vec![Segment { offset: 0, length: 4096 }] }
}

/// Times of requests, shortest first.
fn times(client: &mut Client, request: &Request, count: usize) -> Result<Vec<Duration>> {
    let mut times: Vec<_> = (0..count).map(|_| client.time(0, request)).collect::<Result<_>>()?;
    times.sort_unstable();
    Ok(times)
}

/// Checks that requests of a disk take a fixed time: never less, and not much more.
fn check_fixed(program: &Program, blockdevs: &[&str], delay: Duration) -> Result<()> {
    let bench = Bench::new()?;
    let (server, socket) = serve(program, &bench, blockdevs)?;
    let mut client = Client::connect(&socket, Shape::small())?;
    let count = usize::try_from(1_000_000 / delay.as_micros()).unwrap_or(1).clamp(50, 500);
    let times = times(&mut client, &read(), count)?;
    ensure!(times[0] >= delay, "{:?} instead of {delay:?}", times[0]);
    check_late(&format!("{delay:?}"), times.iter().map(|time| *time - delay).collect())?;
    drop(client);
    stop(server, &[&socket]).map(drop)
}

/// Prints by how much requests were late, which is the measurement, and checks it with a bound that a busy
/// machine keeps too.
#[expect(clippy::print_stdout, reason = "what is measured is for whoever reads the output")]
fn check_late(what: &str, mut late: Vec<Duration>) -> Result<()> {
    late.sort_unstable();
    let at = |percent: usize| late[late.len() * percent / 100];
    let [least, median, p90, p99] = [0, 50, 90, 99].map(at);
    let count = late.len();
    println!(
        "{what}: late by {least:?}, {median:?}, {p90:?}, {p99:?} (min, p50, p90, p99 of {count})"
    );
    ensure!(least < US * 1000, "late by {least:?} at least");
    Ok(())
}

fn null_and_delay(program: &Program) -> Result<()> {
    for us in [100, 500, 2000, 10_000] {
        let ns = us * 1000;
        let null = format!("null-co,node-name=disk,latency-ns={ns}");
        check_fixed(program, &[&null], US * us)?;
        let delay = format!("delay,node-name=disk,file=n,latency-ns={ns}");
        check_fixed(program, &["null-co,node-name=n", &delay], US * us)?;
    }
    Ok(())
}

#[test]
fn requests_take_their_time_and_hardly_more() {
    with(&ringloom(), null_and_delay);
}

#[test]
fn requests_take_their_time_without_io_uring() {
    with(&ringloom_without_io_uring(), null_and_delay);
}

/// Random delays on two queues, over a file whose every byte is compared.
#[test]
fn no_byte_is_lost_or_misplaced_by_random_delays() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let disk = Disk::new(&bench, "file", 2);
        let mut model = DiskModel::new(disk.create(8 << 20, 0xde1a)?);
        let socket = bench.path("disk.sock");
        let file = disk.image();
        let arguments = [
            "--object=iothread,id=t0",
            "--object=iothread,id=t1",
            &format!("--blockdev=file,node-name=file,filename={},discard=unmap", file.display()),
            "--blockdev=delay,node-name=disk,file=file,discard=unmap,seed=7,\
             read.distribution=exponential,read.mean-ns=200000,\
             write.distribution=uniform,write.min-ns=0,write.max-ns=1000000,flush.latency-ns=2000000",
            &format!(
                "--export=vhost-user-blk,id=disk,node-name=disk,addr.type=unix,addr.path={},\
                 writable=on,num-queues=2,iothread.0=t0,iothread.1=t1",
                socket.display()
            ),
        ];
        let arguments = arguments.map(str::to_owned);
        let server = program.start(&arguments, std::slice::from_ref(&socket))?;
        let plan = Plan { seed: 0xde1b, operations: 3_000, depth: 16, block_bytes: 512 };
        let shape = Shape { queues: 2, memory_bytes: plan.memory_bytes(2), ..Shape::small() };
        let mut client = Client::connect(&socket, shape)?;
        model::run(&mut client, &mut model, &plan)?;
        model::verify_through(&mut client, &model)?;
        client.flush()?;
        drop(client);
        stop(server, &[&socket])?;
        model.check_image(&file)
    });
}

/// Two delays of an hour, one above the other: the lower one holds again what the upper one lets go.
const HOURS: [&str; 3] = [
    "null-co,node-name=n,latency-ns=9223372036854775807",
    "delay,node-name=hour,file=n,latency-ns=3600000000000",
    "delay,node-name=disk,file=hour,latency-ns=3600000000000,ordered=on",
];

/// The heads of the requests that are held: reads, and a flush.
const HELD: [u16; 9] = [0, 3, 6, 9, 12, 15, 18, 21, 24];

/// A client whose requests the server has taken from the ring.
fn waiting_client(socket: &Path) -> Result<RawDevice> {
    let mut device = RawDevice::connect(socket, RawShape::default())?;
    let (header, status) = device.frame(kind::IN, 0);
    let data = device.data(0, 4096, flag::WRITE);
    device.put(4096, &kind::FLUSH.to_le_bytes());
    let flush = device.data(4096, 16, 0);
    let [reads @ .., last] = HELD;
    for head in reads {
        device.ring(0).set_chain(head, &[header, data, status]);
    }
    device.ring(0).set_chain(last, &[flush, status]);
    HELD.iter().try_for_each(|head| device.offer(0, *head))?;
    poll_until("the requests to be taken", Duration::from_secs(20), || {
        // The device wants to hear of the next one.
        Ok((usize::from(device.ring(0).available_event()) == HELD.len()).then_some(()))
    })?;
    Ok(device)
}

fn ends_promptly(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    let (server, socket) = serve(program, &bench, &HOURS)?;
    // A client that leaves; its successor is served only when it is gone.
    drop(waiting_client(&socket)?);
    let mut client = waiting_client(&socket)?;
    ensure!(client.ring_mut(0).take_used().is_none(), "an hour is over");
    // A stop, while a client is there. What was held is answered.
    stop(server, &[&socket])?;
    let used = std::iter::from_fn(|| client.ring_mut(0).take_used());
    let mut answered: Vec<u32> = used.map(|used| used.head).collect();
    answered.sort_unstable();
    ensure!(answered.iter().copied().eq(HELD.map(u32::from)), "answered: {answered:?}");
    Ok(())
}

#[test]
fn nobody_waits_for_a_delay_that_somebody_ends() {
    with(&ringloom(), ends_promptly);
    with(&ringloom_without_io_uring(), ends_promptly);
}

#[test]
fn a_histogram_is_read_before_the_fences_are_up() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let histogram = bench.path("latencies");
        std::fs::write(&histogram, "# two of three\n300000 2\n30000000 1\n")?;
        let delay = format!(
            "delay,node-name=disk,file=n,read.distribution=histogram,read.filename={}",
            histogram.display()
        );
        let (server, socket) = serve(program, &bench, &["null-co,node-name=n", &delay])?;
        // Nobody needs it any more.
        std::fs::remove_file(&histogram)?;
        let mut client = Client::connect(&socket, Shape::small())?;
        let times = times(&mut client, &read(), 90)?;
        // Also on a busy machine few short ones take as long as the long ones.
        let short = times.iter().filter(|time| **time < US * 30_000).count();
        ensure!(times[0] >= US * 300, "{:?}", times[0]);
        ensure!((30..=75).contains(&short), "{short} of 90 were short: {times:?}");
        let drawn = |time: Duration| if time < US * 30_000 { US * 300 } else { US * 30_000 };
        let late = times.iter().map(|time| *time - drawn(*time));
        check_late("random, 300us or 30ms", late.collect())?;
        drop(client);
        stop(server, &[&socket]).map(drop)
    });
}
