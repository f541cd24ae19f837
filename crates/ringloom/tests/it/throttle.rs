//! Throttle groups of a running daemon: how much passes in real time, who gets it, and what ends a wait.
//!
//! Limits: each rate is measured for three seconds; `RINGLOOM_THROTTLE_SECONDS` makes that longer, and the bounds
//! those that users are promised. Those of the short form are for machines on which other tests run; what is exact
//! is shown in `layers`, on a clock that cannot be late.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testkit::client::{Client, Completion, Request, Segment, Shape, Status};
use testkit::deadline::Deadline;
use testkit::process::{Bench, Program, Server};
use testkit::report::note;

use crate::support::{ringloom, ringloom_without_io_uring, stop, with};

const SECONDS_VARIABLE: &str = "RINGLOOM_THROTTLE_SECONDS";
const SECONDS: u64 = 3;
const BLOCK: usize = 4096;
/// So many requests of a queue are held.
const HELD: usize = 64;
/// For anything that must not take as long as what is held.
const PROMPT: Duration = Duration::from_millis(500);

/// Null disks, each with a throttle node of one group before it, and its iothreads.
struct Disks<'a> {
    limits: &'a str,
    /// How many iothreads each disk has.
    iothreads: &'a [usize],
}

impl Disks<'_> {
    fn sockets(&self, bench: &Bench) -> Vec<PathBuf> {
        (0..self.iothreads.len()).map(|disk| bench.path(&format!("{disk}.sock"))).collect()
    }

    fn serve(&self, program: &Program, bench: &Bench) -> Result<(Server, Vec<PathBuf>)> {
        let mut arguments =
            vec!["--object".to_owned(), format!("throttle-group,id=g,{}", self.limits)];
        let sockets = self.sockets(bench);
        for (disk, (socket, count)) in sockets.iter().zip(self.iothreads).enumerate() {
            let mut threads = String::new();
            for thread in 0..*count {
                arguments.extend(["--object".to_owned(), format!("iothread,id=t{disk}{thread}")]);
                threads += &match count {
                    1 => format!(",iothread=t{disk}{thread}"),
                    _ => format!(",iothread.{thread}=t{disk}{thread}"),
                };
            }
            arguments.extend([
                "--blockdev".to_owned(),
                format!("throttle,node-name=d{disk},throttle-group=g,file.driver=null-co"),
                "--export".to_owned(),
                format!(
                    "vhost-user-blk,id=e{disk},node-name=d{disk},addr.type=unix,addr.path={},\
                     writable=on,num-queues={}{threads}",
                    socket.display(),
                    (*count).max(1)
                ),
            ]);
        }
        let server = program.start(&arguments, &sockets)?;
        Ok((server, sockets))
    }
}

/// A guest that keeps a number of reads in flight in each of its queues.
struct Guest {
    client: Client,
    depth: usize,
    request: Request,
}

impl Guest {
    fn new(socket: &Path, queues: usize, depth: usize) -> Result<Self> {
        let client = Client::connect(socket, Shape { queues, queue_size: 512, ..Shape::small() })?;
        let segments = vec![Segment { offset: 0, length: BLOCK }];
        Ok(Self { client, depth, request: Request::Read { offset: 0, segments } })
    }

    /// Fills the queues.
    fn start(&mut self) -> Result<()> {
        for queue in 0..self.client.queue_count() {
            for _ in 0..self.depth {
                self.client.submit(queue, &self.request, 0)?;
            }
            self.client.kick(queue)?;
        }
        Ok(())
    }

    /// Replaces what comes back for that long, and says how many came back.
    fn run(&mut self, time: Duration) -> Result<u64> {
        let end = Deadline::after(time);
        let mut passed = 0;
        while !end.has_passed() {
            for (queue, done) in self.client.wait_any(Deadline::after(Duration::from_secs(5)))? {
                check(done)?;
                passed += 1;
                self.client.submit(queue, &self.request, 0)?;
            }
            (0..self.client.queue_count()).try_for_each(|queue| self.client.kick(queue))?;
        }
        Ok(passed)
    }
}

fn check(done: Completion) -> Result<()> {
    ensure!(done.status == Status::Ok, "{done:?}");
    Ok(())
}

/// How long to measure, and whether that is long enough for the bounds that users are promised.
fn seconds() -> Result<(u64, bool)> {
    let Ok(text) = std::env::var(SECONDS_VARIABLE) else { return Ok((SECONDS, false)) };
    let seconds = text.parse().with_context(|| format!("{SECONDS_VARIABLE}={text}"))?;
    Ok((seconds, seconds >= 20))
}

/// Measures operations per second, beside what the same disk does without limits.
fn check_rate(program: &Program, rate: u64) -> Result<()> {
    let (seconds, is_long) = seconds()?;
    let bench = Bench::new()?;
    let limits = format!("x-iops-total={rate}");
    let (server, sockets) = Disks { limits: &limits, iothreads: &[1] }.serve(program, &bench)?;
    let mut guest = Guest::new(&sockets[0], 1, 64)?;
    guest.start()?;
    // What was saved up at first.
    guest.run(Duration::from_millis(500))?;
    let passed = guest.run(Duration::from_secs(seconds))?;
    drop(guest);
    stop(server, &[&sockets[0]])?;
    let got = passed as f64 / seconds as f64;
    let off = (got / rate as f64 - 1.0) * 100.0;
    note(&format!("{rate} IOPS, {seconds} s: {got:.1}, {off:+.2} %"));
    // A busy machine may not ask for all it is allowed, and makes up for the last 120 ms of the time before.
    let allowed = if is_long { -5.0..5.0 } else { -20.0..8.0 };
    ensure!(allowed.contains(&off), "{got:.1} instead of {rate}, {off:+.2} %");
    Ok(())
}

fn rates(program: &Program) -> Result<()> {
    [100, 5_000, 20_000].iter().try_for_each(|rate| check_rate(program, *rate))?;
    // As much as a busy machine without optimised code may not be able to.
    if seconds()?.1 { check_rate(program, 100_000) } else { Ok(()) }
}

#[test]
fn as_many_operations_pass_as_allowed() {
    with(&ringloom(), rates);
}

#[test]
fn as_many_operations_pass_without_io_uring() {
    with(&ringloom_without_io_uring(), |program| check_rate(program, 2_000));
}

#[test]
fn qemu_storage_daemon_lets_as_many_pass() {
    with(&Program::qemu_storage_daemon(), |program| check_rate(program, 2_000));
}

/// Two guests at once for that long; each one's requests.
fn together(disks: &Disks<'_>, depths: [usize; 2], seconds: u64) -> Result<[u64; 2]> {
    let bench = Bench::new()?;
    let (server, sockets) = disks.serve(&ringloom(), &bench)?;
    let guest = |disk: usize| Guest::new(&sockets[disk], disks.iothreads[disk], depths[disk]);
    let guests = [guest(0)?, guest(1)?];
    let run = |mut guest: Guest| {
        guest.start()?;
        guest.run(Duration::from_millis(500))?;
        guest.run(Duration::from_secs(seconds))
    };
    let passed = std::thread::scope(|scope| {
        let threads = guests.map(|guest| scope.spawn(move || run(guest)));
        threads.map(|thread| thread.join().expect("the guest does not panic"))
    });
    let [first, second] = passed;
    stop(server, &[&sockets[0], &sockets[1]])?;
    Ok([first?, second?])
}

/// Two disks that may do 2000 requests a second together. On a busy machine the smaller share may be that small.
#[track_caller]
fn check_shares(disks: &Disks<'_>, depths: [usize; 2], busy: f64) {
    with(&ringloom(), |_| {
        let (seconds, is_long) = seconds()?;
        let [first, second] = together(disks, depths, seconds)?;
        let ratio = first.min(second) as f64 / first.max(second) as f64;
        note(&format!("depths {depths:?}, iothreads {:?}: {first} and {second}", disks.iothreads));
        ensure!(ratio > if is_long { 0.95 } else { busy }, "{first} and {second}");
        let used = (first + second) as f64 / (seconds * 2_000) as f64;
        let allowed = if is_long { 0.95..1.05 } else { 0.8..1.08 };
        ensure!(allowed.contains(&used), "{first} and {second} in {seconds} s");
        Ok(())
    });
}

#[test]
fn disks_of_a_group_share_evenly_whatever_their_depth() {
    let disks = Disks { limits: "limits.iops-total=2000", iothreads: &[1, 1] };
    // A share by depth would be 0.02.
    check_shares(&disks, [1, 64], 0.4);
}

#[test]
fn disks_of_a_group_share_evenly_whatever_their_iothreads() {
    let disks = Disks { limits: "limits.bps-total=8192000", iothreads: &[2, 1] };
    // A share by iothread would be 0.5.
    check_shares(&disks, [32, 32], 0.6);
}

/// A guest with many requests in a daemon that lets ten a second pass; its depth is what is left of them.
fn stuck(
    program: &Program,
    bench: &Bench,
    iothreads: &[usize],
) -> Result<(Server, Guest, PathBuf)> {
    let disks = Disks { limits: "x-iops-total=10", iothreads };
    let (server, mut sockets) = disks.serve(program, bench)?;
    let mut guest = Guest::new(&sockets[0], iothreads[0].max(1), HELD)?;
    guest.start()?;
    // The first ones pass at once, and what comes a tenth of a second later shows that the rest was seen too.
    let mut passed = 0;
    while passed < 3 {
        let done = guest.client.wait_any(Deadline::after(Duration::from_secs(5)))?;
        passed += done.len();
        done.into_iter().try_for_each(|(_, done)| check(done))?;
    }
    guest.depth -= passed;
    Ok((server, guest, sockets.remove(0)))
}

fn leave(program: &Program, iothreads: &[usize]) -> Result<()> {
    let bench = Bench::new()?;
    let (server, guest, socket) = stuck(program, &bench, iothreads)?;
    let clock = Deadline::after(Duration::from_secs(60));
    drop(guest);
    // The next session begins when the one before it has ended.
    let mut next = Guest::new(&socket, 1, 1)?;
    let begun = clock.elapsed();
    // What was let go is paid for, but the guest goes on within a second and the tenth that it waits anyway.
    check_completed(next.client.execute(0, &next.request)?)?;
    let served = clock.elapsed();
    note(&format!("{iothreads:?}: a new session after {begun:?}, served after {served:?}"));
    ensure!(begun < PROMPT, "the next session began after {begun:?}");
    ensure!(served < Duration::from_millis(1_100) + PROMPT, "it was served after {served:?}");
    drop(next);
    stop(server, &[&socket]).map(drop)
}

fn check_completed(status: Status) -> Result<()> {
    ensure!(status == Status::Ok, "{status:?}");
    Ok(())
}

#[test]
fn a_guest_that_leaves_waits_for_nothing_that_is_held() {
    with(&ringloom(), |program| leave(program, &[1]));
    with(&ringloom(), |program| leave(program, &[2]));
    with(&ringloom(), |program| leave(program, &[0]));
    with(&ringloom_without_io_uring(), |program| leave(program, &[1]));
}

fn terminate(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    let (server, mut guest, socket) = stuck(program, &bench, &[1])?;
    let clock = Deadline::after(Duration::from_secs(60));
    stop(server, &[&socket])?;
    let stopped = clock.elapsed();
    note(&format!("stopped after {stopped:?}"));
    ensure!(stopped < PROMPT, "{stopped:?}");
    let left = guest.client.completions(0);
    ensure!(left.len() == guest.depth, "{} of {} were answered", left.len(), guest.depth);
    left.into_iter().try_for_each(check)
}

#[test]
fn a_daemon_that_stops_answers_what_is_held_at_once() {
    with(&ringloom(), terminate);
    with(&ringloom_without_io_uring(), terminate);
}

/// The limits of reads, and nothing else.
#[test]
fn a_limit_of_reads_leaves_writes_and_flushes_alone() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let disks = Disks { limits: "limits.bps-read=40960", iothreads: &[1] };
        let (server, sockets) = disks.serve(program, &bench)?;
        let mut guest = Guest::new(&sockets[0], 1, 64)?;
        guest.start()?;
        guest.run(Duration::from_millis(200))?;
        let segments = vec![Segment { offset: 0, length: BLOCK }];
        let writes = [Request::Write { offset: 0, segments }, Request::Flush];
        for count in 0..50 {
            guest.client.submit(0, &writes[count % 2], 1)?;
        }
        guest.client.kick(0)?;
        let clock = Deadline::after(PROMPT);
        let mut missing = 50;
        while missing > 0 {
            for (_, done) in guest.client.wait_any(clock)? {
                check(done)?;
                missing -= done.token;
            }
        }
        drop(guest);
        stop(server, &[&sockets[0]]).map(drop)
    });
}
