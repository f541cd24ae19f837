//! Waiting without io_uring.
//!
//! Where it stands in the life of a request: [`crate::reactor::Reactor`] watches descriptors with
//! it where the host forbids io_uring. It does no I/O; Linux AIO and the workers do.
//!
//! Invariants: descriptors are watched for edges, since nobody reads a kick's counter: one that
//! stays readable is told once, and again with each write to it. After the end of a watch was
//! asked for, only its end is told.

#![expect(unsafe_code, reason = "a watched descriptor is known by its number")]

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use crate::in_flight::SlotIndex;
use crate::reactor::Completion;
use crate::{Alarm, Interest, StreamDirection, WaitMode};

/// Events taken with one call; the others come with the next.
const BATCH: usize = 128;

/// What the alarm is known by; slots are numbered by 32 bits.
const ALARM: u64 = u64::MAX;

/// What the sockets of transfers are known by, with their descriptor.
const STREAM: u64 = 1 << 32;

/// No waiting.
const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// An epoll instance.
pub(crate) struct Epoll {
    fd: OwnedFd,
    ready: Vec<epoll::Event>,
    /// Completions that were not yet worked off, in order.
    completed: VecDeque<Completion>,
    /// Transfers that wait for their sockets, by descriptor: a receive, and a send.
    streams: Vec<[Option<SlotIndex>; 2]>,
    /// Ends waits that have a limit, which epoll itself knows in milliseconds and ends late on purpose;
    /// made when it is first needed, and `None` if the host has none.
    alarm: Option<Option<Alarm>>,
}

impl std::fmt::Debug for Epoll {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Epoll").field("fd", &self.fd).finish_non_exhaustive()
    }
}

impl Epoll {
    pub(crate) fn new() -> io::Result<Self> {
        let fd = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let (ready, completed) = (Vec::with_capacity(BATCH), VecDeque::new());
        Ok(Self { fd, ready, completed, streams: Vec::new(), alarm: None })
    }

    /// Watches a descriptor, which stays open until the end of the watch has been told.
    pub(crate) fn watch(&mut self, index: SlotIndex, fd: RawFd, interest: Interest) {
        let data = epoll::EventData::new_u64(u64::from(index.0));
        let flags = match interest {
            Interest::Read => epoll::EventFlags::IN,
            Interest::ReadOrWrite => epoll::EventFlags::IN | epoll::EventFlags::OUT,
        };
        if let Err(errno) = epoll::add(&self.fd, borrow(fd), data, flags | epoll::EventFlags::ET) {
            let result = (-errno.raw_os_error()).into();
            self.completed.push_back(Completion { index, result, more: false });
        }
    }

    /// Ends a watch.
    pub(crate) fn unwatch(&mut self, index: SlotIndex, fd: RawFd) {
        self.completed.retain(|completion| completion.index != index);
        // What could not be watched is not there to be removed.
        if let Err(errno) = epoll::delete(&self.fd, borrow(fd)) {
            tracing::debug!("descriptor {fd} was not watched any more: {errno}");
        }
        self.completed.push_back(Completion { index, result: 0, more: false });
    }

    /// Watches the socket of a transfer until a call can do something: one completion follows.
    pub(crate) fn watch_stream(
        &mut self,
        index: SlotIndex,
        socket: RawFd,
        direction: StreamDirection,
    ) {
        let place = place_of(socket);
        if place >= self.streams.len() {
            self.streams.resize(place + 1, [None; 2]);
        }
        let waiting = &mut self.streams[place][direction as usize];
        assert!(waiting.is_none(), "two transfers of one direction on descriptor {socket}");
        *waiting = Some(index);
        self.arm_stream(socket);
    }

    /// Ends that, if it was not told yet: its completion follows.
    pub(crate) fn unwatch_stream(&mut self, socket: RawFd, direction: StreamDirection) {
        let waiting =
            self.streams.get_mut(place_of(socket)).map(|both| &mut both[direction as usize]);
        // What the socket is still watched for finds nobody then.
        if let Some(index) = waiting.and_then(Option::take) {
            self.completed.push_back(Completion { index, result: 0, more: false });
        }
    }

    /// Has the next thing told that one of a socket's transfers waits for.
    fn arm_stream(&mut self, socket: RawFd) {
        let mut flags = epoll::EventFlags::ONESHOT;
        let both = self.streams[place_of(socket)];
        for (waiting, wanted) in both.iter().zip([epoll::EventFlags::IN, epoll::EventFlags::OUT]) {
            flags.set(wanted, waiting.is_some());
        }
        let data = epoll::EventData::new_u64(STREAM | place_of(socket) as u64);
        // It stays known, and silent, from the first time on until it is closed.
        let armed = match epoll::modify(&self.fd, borrow(socket), data, flags) {
            Err(Errno::NOENT) => epoll::add(&self.fd, borrow(socket), data, flags),
            other => other,
        };
        if let Err(errno) = armed {
            let result = (-errno.raw_os_error()).into();
            for index in std::mem::take(&mut self.streams[place_of(socket)]).into_iter().flatten() {
                self.completed.push_back(Completion { index, result, more: false });
            }
        }
    }

    /// A socket is ready for transfers.
    fn stream_ready(&mut self, socket: RawFd, readiness: epoll::EventFlags) {
        let failed = epoll::EventFlags::HUP | epoll::EventFlags::ERR;
        let both = &mut self.streams[place_of(socket)];
        for (waiting, wanted) in
            both.iter_mut().zip([epoll::EventFlags::IN, epoll::EventFlags::OUT])
        {
            if readiness.intersects(wanted | failed)
                && let Some(index) = waiting.take()
            {
                self.completed.push_back(Completion { index, result: 1, more: false });
            }
        }
        if both.iter().any(Option::is_some) {
            self.arm_stream(socket);
        }
    }

    /// Waits for a completion, if told so and none is there.
    pub(crate) fn wait(&mut self, wait: WaitMode) -> io::Result<()> {
        let limit = match wait {
            WaitMode::Block | WaitMode::AtMost(_) if !self.completed.is_empty() => Some(AT_ONCE),
            WaitMode::Block => None,
            WaitMode::AtMost(limit) if self.set_alarm(limit) => None,
            WaitMode::AtMost(limit) => Timespec::try_from(limit).ok(),
            WaitMode::Poll => Some(AT_ONCE),
        };
        self.ready.clear();
        let room = rustix::buffer::spare_capacity(&mut self.ready);
        match epoll::wait(&self.fd, room, limit.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        // An alarm of before, which nobody waits for any more, ends a wait as well: that does no harm.
        let ready = std::mem::take(&mut self.ready);
        for event in ready.iter().filter(|event| event.data.u64() != ALARM) {
            if let Some(socket) = event.data.u64().checked_sub(STREAM) {
                let socket = RawFd::try_from(socket).expect("a descriptor");
                self.stream_ready(socket, event.flags);
                continue;
            }
            let index = u32::try_from(event.data.u64()).expect("the data is a slot's number");
            // The bits are those of poll(2), as io_uring has them.
            let readiness = event.flags;
            let result = readiness.bits().into();
            let completion = Completion { index: SlotIndex(index), result, more: true };
            self.completed.push_back(completion);
        }
        self.ready = ready;
        Ok(())
    }

    /// Has the wait end after this time; whether it will. Nobody has to read the alarm: it is watched for
    /// edges, and setting it starts it anew.
    fn set_alarm(&mut self, limit: Duration) -> bool {
        let alarm = self.alarm.get_or_insert_with(|| new_alarm(&self.fd));
        alarm.as_ref().is_some_and(|alarm| alarm.set(limit).is_ok())
    }

    /// The next completion, in order.
    pub(crate) fn next(&mut self) -> Option<Completion> {
        self.completed.pop_front()
    }
}

fn new_alarm(epoll: &OwnedFd) -> Option<Alarm> {
    let (data, flags) = (epoll::EventData::new_u64(ALARM), epoll::EventFlags::IN);
    let alarm = Alarm::new().and_then(|alarm| {
        epoll::add(epoll, alarm.as_fd(), data, flags | epoll::EventFlags::ET)?;
        Ok(alarm)
    });
    if let Err(error) = &alarm {
        tracing::warn!("no timer, so waits end up to a millisecond late: {error}");
    }
    alarm.ok()
}

/// Where a descriptor's transfers are.
fn place_of(socket: RawFd) -> usize {
    usize::try_from(socket).expect("an open descriptor")
}

fn borrow<'a>(fd: RawFd) -> BorrowedFd<'a> {
    // SAFETY: whoever has it watched keeps it open until the end of the watch has been told
    // (`Kernel::poll`, `Kernel::cancel_poll`); it is used for one call only.
    unsafe { BorrowedFd::borrow_raw(fd) }
}
