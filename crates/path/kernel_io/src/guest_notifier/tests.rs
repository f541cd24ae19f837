//! Interrupts arrive, and nobody who shares their descriptors keeps the thread.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, OFlags};

use super::*;

/// Beyond what a hold takes: the machine is busy with other tests.
const SLACK: Duration = Duration::from_millis(200);

fn count(fd: &OwnedFd) -> u64 {
    let mut count = [0; 8];
    rustix::io::read(fd, &mut count).expect("the bell was rung");
    u64::from_ne_bytes(count)
}

fn new_eventfd() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd")
}

/// A counter that is full, and holds up whoever writes to it.
fn full_eventfd() -> OwnedFd {
    let fd = eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
    rustix::io::write(&fd, &(u64::MAX - 1).to_ne_bytes()).expect("not full yet");
    fd
}

fn bounded(notifier: &mut GuestNotifier) -> &mut BoundedNotifier {
    match &mut notifier.way {
        NotifyMethod::Bounded(bounded) => bounded,
        NotifyMethod::Write => panic!("it may sleep"),
    }
}

fn without_aio() -> GuestNotifier {
    GuestNotifier { way: NotifyMethod::Bounded(BoundedNotifier::with(None)) }
}

/// Rings until interrupts are written; the watchdog stays awake for a look at least.
fn make_busy(notifier: &mut GuestNotifier) {
    let fd = new_eventfd();
    while bounded(notifier).writes.write(fd.as_fd()).expect("rung") != WatchedWrite::Done {
        (0..BUSY_RINGS).for_each(|_| notifier.ring(fd.as_fd()).expect("rung"));
    }
}

fn time_of(call: impl FnOnce()) -> Duration {
    let start = SystemClock.now();
    call();
    SystemClock.now() - start
}

#[test]
fn every_ring_is_counted_however_it_is_sent() {
    let mut notifier = GuestNotifier::of_host();
    assert!(bounded(&mut notifier).completions.is_some(), "this host has Linux AIO");
    for mut notifier in [notifier, without_aio(), GuestNotifier::that_may_sleep()] {
        let fd = new_eventfd();
        // With pauses for which the watchdog sleeps.
        for rings in [1, 5, 1000, 20_000, 64_u64] {
            (0..rings).for_each(|_| notifier.ring(fd.as_fd()).expect("rung"));
            assert_eq!(count(&fd), rings);
            std::thread::park_timeout(Duration::from_millis(30));
        }
    }
}

#[test]
fn a_busy_thread_writes_and_a_quiet_one_does_not() {
    let mut notifier = GuestNotifier::of_host();
    let fd = new_eventfd();
    for _ in 0..BUSY_RINGS {
        let notifier = bounded(&mut notifier);
        notifier.busy_since -= BUSY_TIME;
        notifier.ring_by_completion(fd.as_fd()).expect("rung");
    }
    // Another test may have woken the watchdog, so this is about what a quiet thread asks for.
    let rings = bounded(&mut notifier).rings;
    assert_eq!(rings, 0, "asked after {BUSY_RINGS}");
    make_busy(&mut notifier);
}

#[test]
fn a_full_counter_that_blocks_writers_holds_up_once() {
    let mut notifier = GuestNotifier::of_host();
    make_busy(&mut notifier);
    let fd = full_eventfd();
    let took = time_of(|| (0..200).for_each(|_| notifier.ring(fd.as_fd()).expect("rung")));
    assert!(took < HELD_MAX + SLACK, "{took:?}");
    assert!(bounded(&mut notifier).writes_again_at.is_some(), "it was written to");
    // Those after the first one are the kernel's.
    assert_eq!(count(&fd), u64::MAX);
}

#[test]
fn a_thread_that_was_held_up_writes_again_later() {
    let mut notifier = GuestNotifier::of_host();
    make_busy(&mut notifier);
    notifier.ring(full_eventfd().as_fd()).expect("rung");
    let fd = new_eventfd();
    (0..BUSY_RINGS).for_each(|_| notifier.ring(fd.as_fd()).expect("rung"));
    assert!(bounded(&mut notifier).writes_again_at.is_some(), "a minute is not over");
    bounded(&mut notifier).writes_again_at = Some(SystemClock.now());
    (0..BUSY_RINGS).for_each(|_| notifier.ring(fd.as_fd()).expect("rung"));
    assert_eq!(bounded(&mut notifier).writes_again_at, None);
    make_busy(&mut notifier);
    assert!(count(&fd) >= 2 * u64::from(BUSY_RINGS));
}

#[test]
fn without_linux_aio_each_ring_is_held_up_for_a_moment_at_most() {
    let mut notifier = without_aio();
    let fd = full_eventfd();
    for _ in 0..10 {
        let took = time_of(|| notifier.ring(fd.as_fd()).expect("rung"));
        assert!(took < HELD_MAX + SLACK, "{took:?}");
    }
    assert_eq!(count(&fd), u64::MAX - 1);
}

/// The mode changes, the counter is filled and emptied, at every moment of a write; on a host without Linux AIO, where
/// nothing but the watchdog helps.
#[test]
fn nobody_can_time_it_so_that_a_write_stays() {
    let mut notifier = without_aio();
    let fd = Arc::new(full_eventfd());
    let over = Arc::new(AtomicBool::new(false));
    let hostile = {
        let (fd, over) = (Arc::clone(&fd), Arc::clone(&over));
        std::thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                for mode in [OFlags::NONBLOCK, OFlags::empty()] {
                    rustix::fs::fcntl_setfl(&*fd, mode).expect("a mode");
                    if mode == OFlags::NONBLOCK {
                        let mut count = [0; 8];
                        let _empty_or_not = rustix::io::read(&*fd, &mut count);
                        let _full_or_not = rustix::io::write(&*fd, &(u64::MAX - 1).to_ne_bytes());
                    }
                }
            }
        })
    };
    let mut longest = Duration::ZERO;
    let start = SystemClock.now();
    let mut rings = 0;
    while rings < 100_000 && SystemClock.now() - start < Duration::from_secs(5) {
        longest = longest.max(time_of(|| notifier.ring(fd.as_fd()).expect("rung")));
        rings += 1;
    }
    over.store(true, Ordering::Relaxed);
    hostile.join().expect("it did its worst");
    assert!(longest < HELD_MAX + SLACK, "{longest:?} in {rings} rings");
}

#[test]
fn what_is_no_eventfd_is_an_error_and_the_next_one_is_rung() {
    let mut notifier = AioSignaller::new().expect("this host has Linux AIO");
    let file = rustix::fs::memfd_create("no-bell", MemfdFlags::CLOEXEC).expect("a file");
    let error = notifier.ring(file.as_fd()).expect_err("not an eventfd");
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    let fd = new_eventfd();
    notifier.ring(fd.as_fd()).expect("rung");
    assert_eq!(count(&fd), 1);
}

#[test]
fn a_plain_write_remains() {
    let mut notifier = GuestNotifier::that_may_sleep();
    let fd = new_eventfd();
    rustix::io::write(&fd, &(u64::MAX - 2).to_ne_bytes()).expect("not full yet");
    for _ in 0..3 {
        notifier.ring(fd.as_fd()).expect("rung");
    }
    assert_eq!(count(&fd), u64::MAX - 1);
}
