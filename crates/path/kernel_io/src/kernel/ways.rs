//! Which engine does the I/O of a file on this iothread; engines are made when one first needs them.
//!
//! Where it stands in the life of a request: `Kernel` asks for the way of an operation's file when it submits it.
//!
//! Invariants: a file keeps its way, and stays open until it was taken out of the table and no operation of it is left.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use block::FileId;

use super::Kernel;
use crate::native::Native;
use crate::parked::PollOwner;
use crate::reactor::Reactor;
use crate::uring::{FilePlace, Transfers};
use crate::{Aio, Caching, OpenFile, Residence};

/// Who makes the calls that may wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Calls {
    /// The engines of the files: the thread serves rings.
    BesideThread,
    /// The thread itself.
    ByThread,
}

/// How this iothread does I/O on a file.
#[derive(Debug, Clone, Copy)]
pub(super) enum Way {
    /// What needs no worker of the kernel ([`Transfer`](crate::uring::Transfer)); the rest is for the workers.
    Uring(FilePlace, Transfers),
    Native,
    Workers,
    /// The thread itself, whether it waits or not.
    ByThread,
}

/// A file as this iothread uses it.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) file: Arc<OpenFile>,
    pub(super) way: Way,
    /// Whether what is short is done at once instead.
    pub(super) inline: bool,
}

impl Kernel {
    pub(super) fn opened(&mut self, id: FileId) -> &Opened {
        let number = id.0 as usize;
        if number >= self.files.len() {
            self.files.resize_with(number + 1, || None);
        }
        if self.files[number].is_none() {
            let file = self.table.get(id);
            let way = self.way(&file);
            let inline = self.calls == Calls::BesideThread
                && file.residence() == Residence::Memory
                && file.aio() != Aio::Threads;
            self.files[number] = Some(Opened { file, way, inline });
        }
        self.files[number].as_ref().expect("just opened")
    }

    /// Closes the files that were taken out of the table, as far as this thread has them open and nothing of them is in
    /// flight any more. Call it when the table rang.
    pub fn forget_files(&mut self) {
        let removed = self.table.removed();
        if removed == self.removed {
            return;
        }
        let mut is_all = true;
        for number in 0..self.files.len() {
            let id = FileId(u32::try_from(number).expect("files are numbered by u32"));
            if self.files[number].is_none() || self.table.has(id) {
                continue;
            }
            if self.in_flight.works_on(id) {
                // Nobody takes a file out that is in use. If somebody does, it is closed later.
                is_all = false;
                continue;
            }
            if let Some(Opened { way: Way::Uring(place, _), .. }) = self.files[number].take()
                && let Reactor::Uring(uring) = &mut *self.reactor
            {
                uring.give_up(place);
            }
        }
        if is_all {
            self.removed = removed;
        }
    }

    fn way(&mut self, file: &OpenFile) -> Way {
        if self.calls == Calls::ByThread {
            return Way::ByThread;
        }
        let engine = match file.aio() {
            Aio::Threads => return Way::Workers,
            Aio::Native => return self.native_or_workers(),
            Aio::Automatic | Aio::IoUring => &mut *self.reactor,
        };
        match (file.residence(), engine, file.caching()) {
            // Every call may wait: in a worker of the kernel, which others need, or in this thread.
            (Residence::Memory | Residence::Elsewhere, _, _) => Way::Workers,
            (Residence::Device, Reactor::Uring(uring), _) => {
                Way::Uring(uring.place(file.as_fd()), Transfers::of(file))
            }
            (Residence::Device, Reactor::Epoll(_), Caching::Direct) => self.native_or_workers(),
            (Residence::Device, Reactor::Epoll(_), Caching::Buffered) => Way::Workers,
        }
    }

    fn native_or_workers(&mut self) -> Way {
        if self.native.is_some() {
            return Way::Native;
        }
        match Native::new() {
            Ok(native) => {
                let bell = native.bell().as_raw_fd();
                self.watch(bell, PollOwner::Native);
                self.native = Some(native);
                Way::Native
            }
            Err(error) => {
                tracing::warn!("no Linux AIO (see fs.aio-max-nr), so threads are used: {error}");
                Way::Workers
            }
        }
    }
}
