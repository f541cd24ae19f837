//! A client whose interrupt descriptors block whoever writes to them, again and again, on iothreads that it keeps busy: each of
//! those is held up for a moment in a minute (`kernel_io::guest_notifier`), and its neighbours go on.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::OFlags;
use testkit::deadline::{Deadline, poll_until};
use testkit::rawring::{BlockRequest, Form, RawDevice, RawShape, flag, kind, request};
use testkit::report::note;

use super::{Target, attacks, shape};

/// How long the attack lasts at least; until the first write is held up, a busy machine may take longer.
const ATTACK: Duration = Duration::from_secs(3);
const ATTACK_MAX: Duration = Duration::from_secs(60);
/// The longest that a neighbour's request may take: 20 ms, and what a machine needs that is busy with other tests.
const LONGEST: Duration = Duration::from_secs(1);
/// How long a request of the attacker may take.
const REQUEST_LIMIT: Duration = Duration::from_secs(10);
/// Rings that are interrupted together, however slow the machine is: half of them by each of two iothreads.
const RINGS: u32 = 256;
/// Rounds of good interrupts before the bad ones.
const GOOD: u32 = 4;
const BAD: u32 = 10;

fn read(device: &RawDevice) -> BlockRequest {
    let data = vec![device.data(0, 512, flag::WRITE)];
    BlockRequest { kind: kind::IN, sector: 0, data, form: Form::Indirect }
}

/// One request after the other, until it is over; how long the longest took.
fn neighbour(target: &Target<'_>, over: &AtomicBool) -> Result<Duration> {
    let mut device = RawDevice::connect(target.read_only, shape())?;
    let mut longest = Duration::ZERO;
    while !over.load(Ordering::Relaxed) {
        for queue in 0..2 {
            let (read, clock) = (read(&device), Deadline::after(REQUEST_LIMIT));
            let outcome = device.request(queue, &read)?;
            ensure!(outcome.is_ok(), "a neighbour's read: {outcome:?}");
            longest = longest.max(clock.elapsed());
        }
    }
    Ok(longest)
}

/// A request of each of these rings.
fn ask(device: &mut RawDevice, rings: std::ops::Range<u32>) -> Result<()> {
    let (header, status) = device.frame(kind::GET_ID, 0);
    let id = device.data(0, 20, flag::WRITE);
    for queue in rings.clone() {
        device.ring(queue).set_chain(0, &[header, id, status]);
        device.offer(queue, 0)?;
    }
    for queue in rings {
        poll_until("a request", REQUEST_LIMIT, || Ok(device.ring_mut(queue).take_used()))?;
    }
    Ok(())
}

/// Interrupts that are as they should be, so that the iothreads are busy, and then interrupts that block.
fn round(device: &mut RawDevice) -> Result<()> {
    for queue in 0..2 {
        device.send_ring_fd(request::SET_VRING_CALL, queue, device.ring(queue).call_fd())?;
    }
    for _ in 0..GOOD {
        ask(device, 0..RINGS)?;
    }
    let full = eventfd(0, EventfdFlags::CLOEXEC)?;
    rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes())?;
    for queue in 0..2 {
        device.send_ring_fd(request::SET_VRING_CALL, queue, full.as_fd())?;
    }
    rustix::fs::fcntl_setfl(&full, OFlags::empty())?;
    for _ in 0..BAD {
        ask(device, 0..RINGS)?;
    }
    Ok(())
}

fn attack(target: &Target<'_>) -> Result<()> {
    let shape = RawShape { queues: RINGS, queue_size: 8, ..RawShape::default() };
    let mut device = RawDevice::connect(target.wide, shape)?;
    let clock = Deadline::after(ATTACK_MAX);
    let is_told = || target.server.log().contains("made it block");
    while clock.elapsed() < ATTACK || !is_told() {
        ensure!(!clock.has_passed(), "nothing was held up: {}", target.server.log());
        round(&mut device)?;
    }
    let told = target.server.log().matches("made it block").count();
    ensure!(told <= 2, "{told} times of 2 iothreads in {:?}", clock.elapsed());
    Ok(())
}

fn interrupts_that_keep_blocking(target: &Target<'_>) -> Result<()> {
    let over = AtomicBool::new(false);
    let longest = std::thread::scope(|scope| {
        let neighbour = scope.spawn(|| neighbour(target, &over));
        let attacked = attack(target);
        over.store(true, Ordering::Relaxed);
        let longest = neighbour.join().map_err(|panic| anyhow!("it panicked: {panic:?}"))?;
        attacked.and(longest)
    })?;
    note(&format!("a neighbour's longest request: {longest:?}"));
    ensure!(longest < LONGEST, "a neighbour's request took {longest:?}");
    target.others_go_on()
}

attacks! {
    both {}
    ringloom {
        interrupts_that_keep_blocking,
    }
}
