//! Threads that do blocking calls for one iothread: for `aio=threads`, and for whatever another engine could only do by
//! waiting in a thread that all files share, the iothread or a worker of the kernel.
//!
//! Where it stands in the life of a request: [`crate::Kernel`] hands a parked operation to the
//! workers, polls their notifier, and takes completions out when it is signalled.
//!
//! Threads: the list of tasks and the list of completions are each behind a lock that is never
//! held across a call. Workers are started when there is more work than idle workers, and end
//! after [`IDLE_MAX`] without work, or with their [`Workers`].
//! Limits: as many workers as calls may be made at once ([`CALLS`]): a file that hangs keeps some, and leaves each other
//! file one at least. Tasks beyond that wait, in order.

#![expect(unsafe_code, reason = "a task names memory that its slot keeps")]

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use block::{ByteOffset, FileId};

use crate::blocking_calls::{Iovecs, perform};
use crate::in_flight::{IoKind, SlotIndex};
use crate::reactor::Completion;
use crate::{FairShareLimit, Notifier, OpenFile, PartyQueues};

/// What the workers of one iothread do at once: for one file 16 calls, if it is alone.
const CALLS: FairShareLimit = FairShareLimit::new(16, 1);

/// How long a worker waits for work before it ends, as in QEMU.
const IDLE_MAX: Duration = Duration::from_secs(10);

/// One iothread's pool of threads for blocking calls. Dropped, they end; all calls must be over by then.
#[derive(Debug)]
pub(crate) struct Workers {
    shared: Arc<Shared>,
}

/// What the iothread and its workers share.
#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Rings when a worker has ended.
    ended: Condvar,
    done: Mutex<Vec<Completion>>,
    notifier: Notifier,
}

/// What the mutex protects: calls that wait, and which workers are idle.
#[derive(Debug)]
struct State {
    /// Those for which their files have no room.
    waiting: PartyQueues<BlockingCall>,
    /// Those that workers take next.
    tasks: VecDeque<BlockingCall>,
    /// Those that sleep, each with what wakes it. The last one is taken first, so that those that are not needed end.
    idle: Vec<Arc<Condvar>>,
    /// Those that were woken or started and have not come for a task yet.
    coming: usize,
    workers: usize,
    over: bool,
}

/// A blocking system call for one in-flight operation.
#[derive(Debug)]
struct BlockingCall {
    index: SlotIndex,
    work: IoKind,
    id: FileId,
    file: Arc<OpenFile>,
    offset: ByteOffset,
    memory: Iovecs,
}

// SAFETY: what the pointer names belongs to the task's slot, which nobody touches before the
// task's completion has been taken (`Workers::push`).
unsafe impl Send for BlockingCall {}

impl Workers {
    /// No workers yet.
    pub(crate) fn new() -> io::Result<Self> {
        let (waiting, tasks) = (PartyQueues::new(CALLS), VecDeque::new());
        let (idle, coming) = (Vec::new(), 0);
        let state = State { waiting, tasks, idle, coming, workers: 0, over: false };
        let shared = Shared {
            state: Mutex::new(state),
            ended: Condvar::new(),
            done: Mutex::default(),
            notifier: Notifier::new()?,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Rings when [`Workers::take_done`] has something; each time anew, never cleared.
    pub(crate) fn notifier(&self) -> BorrowedFd<'_> {
        self.shared.notifier.as_fd()
    }

    /// Has an operation done by a worker.
    ///
    /// # Safety
    /// The iovecs, and the memory they name, must stay as they are until the completion of this
    /// slot has been taken; a read writes to that memory.
    pub(crate) unsafe fn push(
        &self,
        index: SlotIndex,
        work: IoKind,
        (id, file): (FileId, Arc<OpenFile>),
        offset: ByteOffset,
        memory: Iovecs,
    ) {
        let mut state = self.shared.lock();
        state.waiting.push(id.0 as usize, BlockingCall { index, work, id, file, offset, memory });
        self.shared.start_workers(&mut state, 0);
        // Nobody hangs there if nobody is.
        let stranded = if state.workers == 0 { state.tasks.pop_front() } else { None };
        drop(state);
        if let Some(task) = stranded {
            tracing::warn!("no thread for a call that may wait, so the iothread waits");
            self.shared.carry_out(task);
            self.shared.lock().waiting.done(id.0 as usize);
        }
    }

    /// Takes back an operation that no worker has begun; whether there was one.
    pub(crate) fn withdraw(&self, index: SlotIndex, file: FileId) -> bool {
        let mut state = self.shared.lock();
        let is_it = |call: &BlockingCall| call.index == index;
        if !state.waiting.withdraw(file.0 as usize, is_it).is_empty() {
            return true;
        }
        let Some(place) = state.tasks.iter().position(is_it) else { return false };
        let _never_begun = state.tasks.remove(place);
        state.waiting.done(file.0 as usize);
        self.shared.start_workers(&mut state, 0);
        true
    }

    /// Takes the completions there are, in the order in which they came.
    pub(crate) fn take_done(&self) -> Vec<Completion> {
        std::mem::take(&mut *self.shared.done())
    }
}

impl State {
    /// Where a worker is among those that sleep.
    fn place(&self, waker: &Arc<Condvar>) -> Option<usize> {
        self.idle.iter().position(|idle| Arc::ptr_eq(idle, waker))
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder of this lock panics")
    }

    fn done(&self) -> MutexGuard<'_, Vec<Completion>> {
        self.done.lock().expect("no holder of this lock panics")
    }

    /// Sees to it that there is a worker for each task that its file has room for; so many, which are not idle, will take
    /// one next.
    fn start_workers(self: &Arc<Self>, state: &mut State, takers: usize) {
        while let Some((_, task)) = state.waiting.take() {
            state.tasks.push_back(task);
        }
        while state.tasks.len() > state.coming + takers {
            match state.idle.pop() {
                Some(worker) => worker.notify_one(),
                None => match self.spawn() {
                    Ok(()) => state.workers += 1,
                    // Those that run will come to it, or the next one that looks here will get a thread.
                    Err(error) => {
                        return tracing::debug!("no thread for a call that may wait: {error}");
                    }
                },
            }
            state.coming += 1;
        }
    }

    fn spawn(self: &Arc<Self>) -> io::Result<()> {
        let shared = Arc::clone(self);
        // Nobody joins it: `drop` waits until it has given up its share.
        let worker = std::thread::Builder::new().name("IO worker".to_owned());
        worker.spawn(move || shared.serve()).map(drop)
    }

    /// A worker's life.
    fn serve(self: &Arc<Self>) {
        let waker = Arc::new(Condvar::new());
        let mut state = self.lock();
        state.coming -= 1;
        loop {
            if let Some(task) = state.tasks.pop_front() {
                drop(state);
                let file = task.id.0 as usize;
                self.carry_out(task);
                state = self.lock();
                state.waiting.done(file);
                self.start_workers(&mut state, 1);
            } else if state.over {
                break;
            } else {
                state.idle.push(Arc::clone(&waker));
                let sleeps = |state: &mut State| !state.over && state.place(&waker).is_some();
                let woken = waker.wait_timeout_while(state, IDLE_MAX, sleeps);
                (state, _) = woken.expect("no holder of this lock panics");
                match state.place(&waker) {
                    Some(place) => {
                        state.idle.remove(place);
                        if state.tasks.is_empty() {
                            break;
                        }
                    }
                    None => state.coming -= 1,
                }
            }
        }
        state.workers -= 1;
        self.ended.notify_all();
    }

    fn carry_out(&self, task: BlockingCall) {
        let BlockingCall { index, work, file, offset, memory, .. } = task;
        // SAFETY: whoever pushed the task keeps its memory until the completion has been taken.
        let result = unsafe { perform(work, file.as_fd(), offset, memory) };
        drop(file);
        let mut done = self.done();
        done.push(Completion { index, result, more: false });
        // If there were others, the notifier was signalled and nobody has looked since.
        if done.len() == 1 {
            self.notifier.wake();
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.over = true;
        state.idle.iter().for_each(|worker| worker.notify_one());
        while state.workers > 0 {
            state = self.shared.ended.wait(state).expect("no holder of this lock panics");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;
    use crate::Aio;

    /// The end of a pipe, in which nothing is yet.
    fn pipe() -> (Arc<OpenFile>, OwnedFd) {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        (Arc::new(OpenFile::adopt(reader, "pipe".into(), 1, Aio::Threads)), writer)
    }

    /// Has a worker read a byte of that file, into memory that is never freed.
    fn read(workers: &Workers, file: &Arc<OpenFile>) {
        let memory = Box::leak(Box::new([0_u8; 1]));
        let iovec = libc::iovec { iov_base: memory.as_mut_ptr().cast(), iov_len: 1 };
        let iovecs = (std::ptr::from_ref(Box::leak(Box::new(iovec))), 1);
        let file = (FileId(0), Arc::clone(file));
        // SAFETY: both are leaked, and nobody else looks at them.
        unsafe { workers.push(SlotIndex(0), IoKind::Read, file, ByteOffset(0), iovecs) };
    }

    /// Waits until so many calls are over, and all workers sleep.
    fn wait(workers: &Workers, mut calls: usize) {
        while calls > 0 {
            workers.shared.notifier.wait().unwrap();
            calls -= workers.take_done().len();
        }
        while {
            let state = workers.shared.lock();
            state.idle.len() < state.workers
        } {
            std::thread::yield_now();
        }
    }

    #[test]
    fn there_are_as_many_workers_as_calls_and_the_last_one_is_taken_first() {
        let workers = Workers::new().unwrap();
        let (file, writer) = pipe();
        (0..8).for_each(|_| read(&workers, &file));
        assert_eq!(workers.shared.lock().workers, 8);
        rustix::io::write(&writer, &[1; 8]).unwrap();
        wait(&workers, 8);
        let sleeping = || workers.shared.lock().idle.clone();
        let before = sleeping();
        for _ in 0..16 {
            rustix::io::write(&writer, &[1]).unwrap();
            read(&workers, &file);
            wait(&workers, 1);
            let same = before.iter().zip(sleeping()).all(|(old, new)| Arc::ptr_eq(old, &new));
            assert!(same, "another one was woken, and none of them is ever idle for long");
        }
    }
}
