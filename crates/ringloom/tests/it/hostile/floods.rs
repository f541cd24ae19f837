//! Attacks by number: connections, queues, descriptors and messages without end. What the daemon holds must not grow
//! with them, and the others must go on meanwhile.

use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::event::{EventfdFlags, eventfd};
use testkit::deadline::{Deadline, poll_until};
use testkit::holdings::{Holdings, anonymous_kib};
use testkit::rawring::{
    BlockRequest, DirtyLog, Form, FrontEnd, RawDevice, RawShape, feature, flag, kind, request,
};
use testkit::report::note;

use super::{Target, attacks};

/// How long a flood of connections lasts, and the one before it that warms up.
const FLOOD: Duration = Duration::from_secs(1);
const WARM_UP: Duration = Duration::from_millis(300);
/// The connections in that time at least; a quiet machine has forty times as many.
const CONNECTIONS_MIN: u32 = 1000;
/// How much more memory of its own the daemon may have after all of it; a leak of a page for each round would be more.
/// Without a leak it has some 50 KiB more, at most 300. Beside other tests a thread may first come to its work then, and need
/// more (780 KiB have been seen); what leaks does so each time.
const GROWTH_KIB_MAX: u64 = 682;
const TIMES_MAX: usize = 3;
/// How long the daemon may take to let go of what its clients left.
const RELEASE_LIMIT: Duration = Duration::from_secs(10);
/// Rounds with all 256 queues: what is held is noted after some, and must be the same after all. Of each queue, 180 bytes
/// that stay would be too much growth.
const ROUNDS_FIRST: u32 = 5;
const ROUNDS: u32 = 20;

/// Does something again and again; the daemon must hold nothing of it and not grow.
fn leaves_nothing(
    target: &Target<'_>,
    warm_up: impl FnOnce() -> Result<()>,
    work: impl Fn() -> Result<()>,
) -> Result<()> {
    let before = at_rest(target.pid)?;
    warm_up()?;
    back_to(target, &before)?;
    let mut sizes = vec![anonymous_kib(target.pid)?];
    let mut has_grown = true;
    while has_grown && sizes.len() <= TIMES_MAX {
        work()?;
        back_to(target, &before)?;
        let (early, late) = (sizes[sizes.len() - 1], anonymous_kib(target.pid)?);
        has_grown = late > early + GROWTH_KIB_MAX;
        sizes.push(late);
    }
    note(&format!("the daemon's own memory, in KiB: {sizes:?}"));
    ensure!(!has_grown, "the daemon grew each time: {sizes:?} KiB");
    target.others_go_on()
}

/// The least of some looks: a worker of the kernel bears the name of its iothread until it first runs.
pub(super) fn at_rest(pid: u32) -> Result<Holdings> {
    let mut least = Holdings::of(pid)?;
    for _ in 0..20 {
        let now = Holdings::of(pid)?;
        if now.is_within(&least) {
            least = now;
        }
    }
    Ok(least)
}

fn back_to(target: &Target<'_>, before: &Holdings) -> Result<()> {
    let mut last = None;
    let back = poll_until("the daemon to give back what it held", RELEASE_LIMIT, || {
        let now = Holdings::of(target.pid)?;
        let given_back = now.is_within(before);
        last = Some(now);
        Ok(given_back.then_some(()))
    });
    back.with_context(|| format!("before: {before:?}, now: {last:?}"))
}

/// Connects as often as it can for a while, and does that with each connection.
fn connect_for(
    time: Duration,
    socket: &Path,
    with: impl Fn(UnixStream) -> Result<()>,
) -> Result<u32> {
    let clock = Deadline::after(time);
    let mut count = 0;
    while !clock.has_passed() {
        with(UnixStream::connect(socket).context("connect")?)?;
        count += 1;
    }
    Ok(count)
}

fn flood(target: &Target<'_>, with: impl Fn(UnixStream) -> Result<()>) -> Result<()> {
    let warm_up = || connect_for(WARM_UP, target.socket, &with).map(drop);
    leaves_nothing(target, warm_up, || {
        let count = connect_for(FLOOD, target.socket, &with)?;
        note(&format!("{count} connections in {FLOOD:?}"));
        ensure!(count >= CONNECTIONS_MIN, "only {count} connections in {FLOOD:?}");
        target.others_go_on()
    })
}

/// Whoever has written to a session that is over hears of it; that is no failure of the attack.
fn write_if_heard(mut stream: &UnixStream, bytes: &[u8]) -> Result<()> {
    match stream.write(bytes) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(error).context("write"),
    }
}

fn a_thousand_connects_per_second(target: &Target<'_>) -> Result<()> {
    flood(target, |_stream| Ok(()))
}

fn a_thousand_half_messages_per_second(target: &Target<'_>) -> Result<()> {
    let mut half = [request::SET_FEATURES, 1, 8].map(u32::to_le_bytes).concat();
    half.extend([0; 3]);
    flood(target, |stream| write_if_heard(&stream, &half))
}

/// Sixteen descriptors with each connection, twice as many as a message takes, and no more than a header.
fn a_thousand_bags_of_descriptors_per_second(target: &Target<'_>) -> Result<()> {
    let bells = eventfds(16)?;
    let fds: Vec<BorrowedFd<'_>> = bells.iter().map(AsFd::as_fd).collect();
    let table = [request::SET_MEM_TABLE, 1, 72].map(u32::to_le_bytes).concat();
    flood(target, |stream| {
        drop(stream);
        FrontEnd::connect(target.socket)?.send_bytes(&table, &fds)
    })
}

fn eventfds(count: usize) -> Result<Vec<OwnedFd>> {
    (0..count)
        .map(|_| eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).context("eventfd"))
        .collect()
}

/// Sends until nothing more goes in, because the server waits for its answers to be read.
fn send_until_full(stream: &UnixStream, messages: &[u8]) -> Result<usize> {
    let mut sent = 0;
    stream.set_nonblocking(true).context("do not wait")?;
    let deadline = Deadline::after(RELEASE_LIMIT);
    let mut full_since = None::<Deadline>;
    while !deadline.has_passed() {
        match (&*stream).write(messages) {
            Ok(count) => {
                sent += count;
                full_since = None;
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                // Full for so long means that the server does not read any more.
                let since = full_since.get_or_insert(Deadline::after(Duration::from_millis(300)));
                if since.has_passed() {
                    break;
                }
                std::thread::yield_now();
            }
            Err(error) => return Err(error).context("send"),
        }
    }
    Ok(sent)
}

/// Asks and asks and never reads an answer, while its rings are served.
fn answers_are_never_read(target: &Target<'_>) -> Result<()> {
    let attack = || -> Result<()> {
        let stream = UnixStream::connect(target.socket).context("connect")?;
        let question = [request::GET_FEATURES, 1, 0].map(u32::to_le_bytes).concat();
        let sent = send_until_full(&stream, &question.repeat(64))?;
        ensure!(sent > 1000 * question.len(), "only {sent} bytes went in");
        target.others_go_on()
    };
    leaves_nothing(target, attack, attack)
}

/// The same, and the operator stops the daemon while the session waits for this client.
fn answers_that_are_not_read_do_not_keep_the_daemon(target: &Target<'_>) -> Result<()> {
    let stream = UnixStream::connect(target.read_only).context("connect")?;
    let question = [request::GET_FEATURES, 1, 0].map(u32::to_le_bytes).concat();
    send_until_full(&stream, &question.repeat(64))?;
    // The process that checks ends the daemon and waits for it; the connection stays until this one ends.
    let _stays = std::mem::ManuallyDrop::new(stream);
    Ok(())
}

/// Thousands of messages in one go, of which each is right.
fn messages_without_a_pause(target: &Target<'_>) -> Result<()> {
    let attack = || -> Result<()> {
        let device = target.device()?;
        let state = |queue: u32, value: u32| [queue, value].map(u32::to_le_bytes).concat();
        let mut bytes = Vec::new();
        for index in 0..2000_u32 {
            let payload = state(index % 2, index / 2 % 2);
            bytes.extend([request::SET_VRING_ENABLE, 1, 8].map(u32::to_le_bytes).concat());
            bytes.extend(payload);
        }
        for chunk in bytes.chunks(16 << 10) {
            device.front_end.send_bytes(chunk, &[])?;
        }
        // Answered when all of them are done.
        device.stop_ring(0).map(drop)
    };
    leaves_nothing(target, attack, attack)
}

/// New bells for the rings all the time, while requests come and go.
fn bells_changed_while_served(target: &Target<'_>) -> Result<()> {
    let attack = || -> Result<()> {
        let mut device = target.device()?;
        for round in 0..500 {
            for (message, queue) in [
                (request::SET_VRING_CALL, 0),
                (request::SET_VRING_CALL, 1),
                (request::SET_VRING_KICK, 1),
                (request::SET_VRING_ERR, 1),
            ] {
                let bell = &eventfds(1)?[0];
                device.send_ring_fd(message, queue, bell.as_fd())?;
            }
            // Ring 0 has a call that nobody hears; its own one again.
            if round % 50 == 0 {
                device.send_ring_fd(request::SET_VRING_CALL, 0, device.ring(0).call_fd())?;
                read(&mut device, 0).with_context(|| format!("round {round}"))?;
            }
        }
        Ok(())
    };
    leaves_nothing(target, attack, attack)
}

fn read(device: &mut RawDevice, queue: u32) -> Result<()> {
    let data = vec![device.data(0, 4096, flag::WRITE)];
    let read = BlockRequest { kind: kind::IN, sector: 0, data, form: Form::Direct };
    let outcome = device.request(queue, &read)?;
    ensure!(outcome.is_ok(), "{outcome:?}");
    Ok(())
}

/// Beside the rings of a client.
#[derive(Clone, Copy)]
enum With {
    Nothing,
    RegionAndLog,
}

/// All queues are set up, used and left: every second time by going away, otherwise one by one.
fn all_queues(target: &Target<'_>, round: u32, with: With) -> Result<()> {
    let shape = RawShape { queues: 256, queue_size: 8, ..RawShape::default() };
    let mut device = RawDevice::negotiated(target.wide, shape)?;
    let region = match with {
        With::Nothing => None,
        With::RegionAndLog => {
            let shape = [0_u64, 0].map(u64::to_le_bytes).concat();
            let count = [256_u16, 8, 0, 0].map(u16::to_le_bytes).concat();
            let payload = [shape, count].concat();
            Some(device.front_end.ask_fd(request::GET_INFLIGHT_FD, &payload)?)
        }
    };
    device.share_and_start()?;
    if let With::RegionAndLog = with {
        device.start_log(&DirtyLog::new(RawDevice::guest_end())?)?;
    }
    for queue in [0, 255] {
        read(&mut device, queue)?;
    }
    if round.is_multiple_of(2) {
        for queue in 0..256 {
            device.stop_ring(queue)?;
        }
    }
    drop(region);
    Ok(())
}

fn rounds_of_all_queues(target: &Target<'_>, with: With) -> Result<()> {
    let run = |rounds: std::ops::Range<u32>| -> Result<()> {
        for round in rounds {
            all_queues(target, round, with).with_context(|| format!("round {round}"))?;
        }
        Ok(())
    };
    leaves_nothing(target, || run(0..ROUNDS_FIRST), || run(ROUNDS_FIRST..ROUNDS))
}

fn all_queues_again_and_again(target: &Target<'_>) -> Result<()> {
    rounds_of_all_queues(target, With::Nothing)
}

fn all_queues_with_region_and_log(target: &Target<'_>) -> Result<()> {
    rounds_of_all_queues(target, With::RegionAndLog)
}

/// Regions, logs and memory tables are replaced without end in one session.
fn regions_and_logs_replaced(target: &Target<'_>) -> Result<()> {
    let attack = || -> Result<()> {
        let mut device = target.device()?;
        let count = [2_u16, 64, 0, 0].map(u16::to_le_bytes).concat();
        let payload = [vec![0; 16], count].concat();
        for round in 0..200 {
            let (_, fd) = device.front_end.ask_fd(request::GET_INFLIGHT_FD, &payload)?;
            drop(fd);
            device.start_log(&DirtyLog::new(RawDevice::guest_end())?)?;
            let table = testkit::rawring::Region::table(&device.regions());
            let fds = [device.memory.file(), device.memory.file()];
            device.front_end.must(request::SET_MEM_TABLE, &table, &fds)?;
            if round % 20 == 0 {
                read(&mut device, 0).with_context(|| format!("round {round}"))?;
            }
        }
        Ok(())
    };
    leaves_nothing(target, attack, attack)
}

/// The same features again and again while rings are served, which nothing speaks against, and then others.
fn negotiated_again_and_again(target: &Target<'_>) -> Result<()> {
    let attack = || -> Result<()> {
        let device = target.device()?;
        for _ in 0..500 {
            let features = device.features.to_le_bytes();
            device.front_end.must(request::SET_FEATURES, &features, &[])?;
            device.front_end.ask_word(request::GET_PROTOCOL_FEATURES)?;
        }
        let others = feature::VERSION_1.to_le_bytes();
        device.front_end.tell(request::SET_FEATURES, &others, &[])?;
        device.front_end.wait_for_end()
    };
    leaves_nothing(target, attack, attack)
}

attacks! {
    both {
    }
    ringloom {
        a_thousand_bags_of_descriptors_per_second,
        a_thousand_connects_per_second,
        a_thousand_half_messages_per_second,
        all_queues_again_and_again,
        all_queues_with_region_and_log,
        answers_are_never_read,
        answers_that_are_not_read_do_not_keep_the_daemon,
        bells_changed_while_served,
        messages_without_a_pause,
        negotiated_again_and_again,
        regions_and_logs_replaced,
    }
}
