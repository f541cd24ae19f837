//! Adds to eventfds of other processes without sleeping, by a completion of Linux AIO.
//!
//! Where it stands in the life of a request: at its end, under [`super::GuestNotifier`].
//!
//! Invariants: the kernel itself adds to a counter without sleeping, however full it is. What completes is a read of no bytes
//! from an empty file of our own, which is complete when it is submitted. Threads: belongs to one iothread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::MemfdFlags;

use crate::linux_aio::{AioContext, ControlBlock, IoEvent};

/// How many completions the kernel notes before they are taken away.
const EVENTS_MAX: usize = 64;

/// Signals an eventfd by an empty Linux AIO read: the kernel adds to the counter on completion and never sleeps.
#[derive(Debug)]
pub(super) struct AioSignaller {
    context: AioContext,
    /// Always empty.
    file: OwnedFd,
    /// Reads since the events were last taken.
    noted: usize,
    events: Box<[IoEvent; EVENTS_MAX]>,
}

impl AioSignaller {
    pub(super) fn new() -> io::Result<Self> {
        let context = AioContext::new(u32::try_from(EVENTS_MAX).expect("small"))?;
        let file = rustix::fs::memfd_create("ringloom-ringer", MemfdFlags::CLOEXEC)?;
        Ok(Self { context, file, noted: 0, events: Box::new([IoEvent::default(); EVENTS_MAX]) })
    }

    /// Adds one to the counter of an eventfd. [`io::ErrorKind::InvalidInput`] if it is none; with every other error the kernel
    /// had no room.
    pub(super) fn ring(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        if self.noted == EVENTS_MAX {
            self.forget()?;
        }
        match self.submit(fd) {
            Err(error) if error.kind() != io::ErrorKind::InvalidInput => {
                self.forget()?;
                self.submit(fd)
            }
            result => result,
        }
    }

    fn submit(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let mut block = ControlBlock::read_nothing(self.file.as_fd());
        block.ring(fd);
        // SAFETY: the kernel copies the block, which lives during the call and names no memory;
        // the file is closed after the context.
        let taken = unsafe { self.context.submit(&mut [&raw mut block]) }?;
        self.noted += taken;
        Ok(())
    }

    /// Takes the events away; each is of a read that was complete when it was submitted.
    fn forget(&mut self) -> io::Result<()> {
        while self.noted > 0 {
            match self.context.take(&mut self.events[..])? {
                0 => return Err(io::ErrorKind::WouldBlock.into()),
                taken => self.noted -= taken,
            }
        }
        Ok(())
    }
}
