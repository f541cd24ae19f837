//! Rings the eventfds of other processes, none of which can keep the iothread for long.
//!
//! Where it stands in the life of a request: at its end, when the guest is interrupted
//! ([`crate::EngineKernel::ring`]).
//!
//! Invariants: a write to an eventfd sleeps when its counter is full and its O_NONBLOCK is off, and
//! whoever shares the descriptor can bring about both at any time. So an iothread writes only while a watchdog looks on
//! (`write_watchdog`), and otherwise has the kernel add to the counter (`aio_signaller`), which never sleeps. The watchdog runs
//! while there are busy iothreads. An iothread that it had to free writes nothing for [`DISTRUST`].
//! Only eventfds come here: sessions take nothing else. Cost of an interrupt (a virtual machine at rest, nobody sleeping on the
//! counter): 0.15 µs written, 1.07 of a bare write, and 0.36 µs by Linux AIO.
//! Threads: belongs to one iothread.
//! Limits: held up for at most 20 ms in a minute. Where the host has no Linux AIO, 20 ms for each interrupt; the reason is said
//! once.

#![expect(unsafe_code, reason = "Linux AIO and signals for threads have no safe form")]

mod aio_signaller;
mod write_watchdog;

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use block::{Clock, SystemClock};

use self::aio_signaller::AioSignaller;
use self::write_watchdog::{HELD_MAX, WatchedWrite, WatchedWrites, add_one};

/// For how long an iothread writes nothing after it was held up.
const DISTRUST: Duration = Duration::from_secs(60);

/// An iothread is busy if it sends so many interrupts within [`BUSY_TIME`]: the watchdog is worth its looks.
const BUSY_RINGS: u32 = 64;

/// See [`BUSY_RINGS`].
const BUSY_TIME: Duration = Duration::from_millis(20);

/// Signals eventfds that other processes share (interrupts to guests).
#[derive(Debug)]
pub(crate) struct GuestNotifier {
    way: NotifyMethod,
}

/// Whether a client can keep the thread from going on.
#[derive(Debug)]
enum NotifyMethod {
    /// Not for long.
    Bounded(BoundedNotifier),
    /// A system call that the owner of the counter can keep from returning.
    Write,
}

/// Signals eventfds by writes that a watchdog sees, or by completions of Linux AIO.
#[derive(Debug)]
struct BoundedNotifier {
    writes: WatchedWrites,
    /// `None` if the host has no Linux AIO.
    completions: Option<AioSignaller>,
    /// A write was held up, and the next one is made after this time of the clock.
    writes_again_at: Option<Instant>,
    /// By Linux AIO since `busy_since`.
    rings: u32,
    busy_since: Instant,
}

impl GuestNotifier {
    /// A ringer for a thread that serves clients; the log says if the host lets them hold it up. Call it on that thread.
    pub(crate) fn of_host() -> Self {
        Self { way: NotifyMethod::Bounded(BoundedNotifier::of_host()) }
    }

    /// A ringer that may sleep: for a thread that serves no client. Costs nothing to make and to end, unlike Linux AIO.
    pub(crate) fn that_may_sleep() -> Self {
        Self { way: NotifyMethod::Write }
    }

    /// Adds one to the counter of an eventfd that another process shares, and does not sleep for long,
    /// whatever that process has done to it. A full counter is no error: its owner has been told.
    /// An error says that the descriptor is no eventfd, or cannot be written.
    pub(crate) fn ring(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        match &mut self.way {
            NotifyMethod::Bounded(bounded) => bounded.ring(fd),
            NotifyMethod::Write => add_one(fd).map(drop),
        }
    }
}

impl BoundedNotifier {
    fn of_host() -> Self {
        let completions = AioSignaller::new().inspect_err(|error| {
            tracing::warn!(
                "no Linux AIO (see fs.aio-max-nr), so a client that keeps its interrupts from \
                 being written can hold up others on its iothread, {} ms each time: {error}",
                HELD_MAX.as_millis()
            );
        });
        Self::with(completions.ok())
    }

    fn with(completions: Option<AioSignaller>) -> Self {
        let (writes, busy_since) = (WatchedWrites::of_this_thread(), SystemClock.now());
        Self { writes, completions, writes_again_at: None, rings: 0, busy_since }
    }

    fn ring(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        if self.writes_again_at.is_none() && self.write_watched(fd)? {
            return Ok(());
        }
        self.ring_by_completion(fd)
    }

    /// Writes if the watchdog is awake; whether it was.
    #[inline]
    fn write_watched(&mut self, fd: BorrowedFd<'_>) -> io::Result<bool> {
        match self.writes.write(fd)? {
            WatchedWrite::Done => Ok(true),
            WatchedWrite::HeldUp => {
                self.note_held_up();
                Ok(true)
            }
            WatchedWrite::Unwatched => Ok(false),
        }
    }

    fn ring_by_completion(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        match self.completions.as_mut().map(|completions| completions.ring(fd)) {
            Some(Ok(())) => {
                self.note_ring();
                Ok(())
            }
            // What was handed over is no eventfd.
            Some(Err(error)) if error.kind() == io::ErrorKind::InvalidInput => Err(error),
            // An interrupt that is lost would stop the guest; one that is held up is only late.
            Some(Err(_)) | None => self.wake_and_write(fd),
        }
    }

    fn wake_and_write(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        while !self.write_watched(fd)? {
            if !self.writes.wake_watchdog() {
                return add_one(fd).map(drop);
            }
        }
        Ok(())
    }

    /// Linux AIO has sent an interrupt. Whether to write the next ones is asked now and then.
    fn note_ring(&mut self) {
        self.rings += 1;
        if self.rings < BUSY_RINGS {
            return;
        }
        let now = SystemClock.now();
        let is_busy = now.saturating_duration_since(self.busy_since) < BUSY_TIME;
        (self.rings, self.busy_since) = (0, now);
        self.writes_again_at.take_if(|at| now >= *at);
        if is_busy && self.writes_again_at.is_none() {
            self.writes.wake_watchdog();
        }
    }

    fn note_held_up(&mut self) {
        let now = SystemClock.now();
        if self.writes_again_at.is_some_and(|at| now < at) {
            return;
        }
        self.writes_again_at = Some(now + DISTRUST);
        let thread = std::thread::current();
        tracing::warn!(
            "{}: a client has filled its interrupt descriptor and made it block, which held up the thread for up to {} ms; \
             it sends interrupts by Linux AIO for the next {} s",
            thread.name().unwrap_or("a thread"),
            HELD_MAX.as_millis(),
            DISTRUST.as_secs()
        );
    }
}

#[cfg(test)]
mod tests;
