//! Which engine does the I/O of a file on this iothread; engines are made when one first needs them.
//!
//! Where it stands in the life of a request: `Kernel` asks for the way of an operation's file when it submits it.
//!
//! Invariants: a file keeps its way, and stays open until it was taken out of the table and no operation of it is left.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use block::FileId;

use super::Kernel;
use crate::in_flight::PollOwner;
use crate::linux_aio::LinuxAio;
use crate::reactor::Reactor;
use crate::uring::{NowaitTransferSupport, UringFd};
use crate::{Aio, Caching, Interest, OpenFile, StorageBlockingKind};

/// Which threads make system calls that may block: workers, or the thread itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BlockingCallPolicy {
    /// The engines of the files: the thread serves rings.
    OnWorkers,
    /// The thread itself.
    OnThisThread,
}

/// Which engine does the I/O of a file on this iothread: io_uring, Linux AIO, or worker threads.
#[derive(Debug, Clone, Copy)]
pub(super) enum IoEngine {
    /// What needs no worker of the kernel ([`UringTransfer`](crate::uring::UringTransfer)); the rest is for the workers.
    Uring(UringFd, NowaitTransferSupport),
    Native,
    Workers,
    /// The thread itself, whether it waits or not.
    ByThread,
}

/// A file as one iothread uses it: its engine, and whether short I/O is done inline.
#[derive(Debug)]
pub(super) struct IothreadFile {
    pub(super) file: Arc<OpenFile>,
    pub(super) way: IoEngine,
    /// Whether what is short is done at once instead.
    pub(super) inline: bool,
}

impl Kernel {
    pub(super) fn iothread_file(&mut self, id: FileId) -> &IothreadFile {
        let number = id.0 as usize;
        if number >= self.files.len() {
            self.files.resize_with(number + 1, || None);
        }
        if self.files[number].is_none() {
            let file = self.table.get(id);
            let way = self.engine(&file);
            let inline = self.calls == BlockingCallPolicy::OnWorkers
                && file.residence() == StorageBlockingKind::Memory
                && file.aio() != Aio::Threads;
            self.files[number] = Some(IothreadFile { file, way, inline });
        }
        self.files[number].as_ref().expect("just opened")
    }

    /// Closes the files that were taken out of the table, as far as nothing of them is in flight any more.
    pub(super) fn close_removed_files(&mut self) {
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
            if let Some(IothreadFile { way: IoEngine::Uring(place, _), .. }) =
                self.files[number].take()
                && let Reactor::Uring(uring) = &mut *self.reactor
            {
                uring.unregister_file(place);
            }
        }
        if is_all {
            self.removed = removed;
        }
    }

    fn engine(&mut self, file: &OpenFile) -> IoEngine {
        if self.calls == BlockingCallPolicy::OnThisThread {
            return IoEngine::ByThread;
        }
        let engine = match file.aio() {
            Aio::Threads => return IoEngine::Workers,
            Aio::Native => return self.native_or_workers(),
            Aio::Automatic | Aio::IoUring => &mut *self.reactor,
        };
        match (file.residence(), engine, file.caching()) {
            // Every call may wait: in a worker of the kernel, which others need, or in this thread.
            (StorageBlockingKind::Memory | StorageBlockingKind::Elsewhere, _, _) => {
                IoEngine::Workers
            }
            (StorageBlockingKind::Device, Reactor::Uring(uring), _) => {
                IoEngine::Uring(uring.place(file.as_fd()), NowaitTransferSupport::of(file))
            }
            (StorageBlockingKind::Device, Reactor::Epoll(_), Caching::Direct) => {
                self.native_or_workers()
            }
            (StorageBlockingKind::Device, Reactor::Epoll(_), Caching::Buffered) => {
                IoEngine::Workers
            }
        }
    }

    fn native_or_workers(&mut self) -> IoEngine {
        if self.native.is_some() {
            return IoEngine::Native;
        }
        match LinuxAio::new() {
            Ok(native) => {
                let notifier = native.notifier().as_raw_fd();
                self.watch(notifier, Interest::Read, PollOwner::Native);
                self.native = Some(native);
                IoEngine::Native
            }
            Err(error) => {
                tracing::warn!("no Linux AIO (see fs.aio-max-nr), so threads are used: {error}");
                IoEngine::Workers
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Weak;

    use super::*;
    use crate::{EngineKernel, FileTable, ReactorChoice, ReactorKind};

    /// More than the ring's table has room for.
    const FILES: usize = 1000;

    #[test]
    fn of_many_files_that_come_and_go_none_stays_open_and_the_last_one_is_registered() {
        let table = Arc::new(FileTable::default());
        let mut kernel = Kernel::new(Arc::clone(&table), ReactorChoice::Any).unwrap();
        let mut before: Option<(FileId, Weak<OpenFile>)> = None;
        for number in 0..FILES {
            // As far as the kernel's NOWAIT goes a pipe is like a disk.
            let (reader, _writer) = rustix::pipe::pipe().unwrap();
            let file = Arc::new(OpenFile::adopt(reader, "pipe".into(), 0, Aio::Automatic));
            let weak = Arc::downgrade(&file);
            let id = table.insert(file);
            // Two at a time, as when a file takes the place of another one.
            let way = kernel.iothread_file(id).way;
            let is_registered = matches!(way, IoEngine::Uring(UringFd::Registered(_), _));
            let has_ring = matches!(kernel.waits_with(), ReactorKind::IoUring);
            assert_eq!(is_registered, has_ring, "file {number}: {way:?}");
            if let Some((id, closed)) = before.replace((id, weak)) {
                table.remove(id);
                kernel.forget_files();
                assert!(closed.upgrade().is_none(), "file {number} is open");
            }
        }
    }
}
