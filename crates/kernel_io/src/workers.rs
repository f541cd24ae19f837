//! Threads that do blocking calls for one iothread (`aio=threads`), and what no other engine can.
//!
//! Where it stands in the life of a request: [`crate::Kernel`] hands a parked operation to the
//! workers, polls their bell, and takes completions out when it rings.
//!
//! Threads: the list of tasks and the list of completions are each behind a lock that is never
//! held across a call. Workers are started when there is more work than idle workers, and end
//! after [`IDLE_MAX`] without work, or with their [`Workers`].
//! Limits: [`WORKERS_MAX`] workers per iothread; tasks beyond that wait, in order.

#![expect(unsafe_code, reason = "a task names memory that its slot keeps")]

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use block::ByteOffset;

use crate::calls::{Iovecs, perform};
use crate::parked::{SlotIndex, Work};
use crate::reactor::Completion;
use crate::{Notifier, OpenFile};

/// The most workers of one iothread.
const WORKERS_MAX: usize = 16;

/// How long a worker waits for work before it ends, as in QEMU.
const IDLE_MAX: Duration = Duration::from_secs(10);

/// The workers of one iothread. Dropped, they end; all tasks must be over by then.
#[derive(Debug)]
pub(crate) struct Workers {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Rings when there is a task, or nothing more to come.
    work: Condvar,
    /// Rings when a worker has ended.
    ended: Condvar,
    done: Mutex<Vec<Completion>>,
    bell: Notifier,
}

#[derive(Debug, Default)]
struct State {
    tasks: VecDeque<Task>,
    idle: usize,
    workers: usize,
    over: bool,
}

/// A call to be made.
#[derive(Debug)]
struct Task {
    index: SlotIndex,
    work: Work,
    file: Arc<OpenFile>,
    offset: ByteOffset,
    memory: Iovecs,
}

// SAFETY: what the pointer names belongs to the task's slot, which nobody touches before the
// task's completion has been taken (`Workers::push`).
unsafe impl Send for Task {}

impl Workers {
    /// No workers yet.
    pub(crate) fn new() -> io::Result<Self> {
        let shared = Shared {
            state: Mutex::default(),
            work: Condvar::new(),
            ended: Condvar::new(),
            done: Mutex::default(),
            bell: Notifier::new()?,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Rings when [`Workers::take_done`] has something; each time anew, never cleared.
    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.shared.bell.as_fd()
    }

    /// Has an operation done by a worker.
    ///
    /// # Safety
    /// The iovecs, and the memory they name, must stay as they are until the completion of this
    /// slot has been taken; a read writes to that memory.
    pub(crate) unsafe fn push(
        &self,
        index: SlotIndex,
        work: Work,
        file: Arc<OpenFile>,
        offset: ByteOffset,
        memory: Iovecs,
    ) {
        let mut state = self.shared.lock();
        state.tasks.push_back(Task { index, work, file, offset, memory });
        if state.tasks.len() > state.idle && state.workers < WORKERS_MAX {
            match self.spawn() {
                Ok(()) => state.workers += 1,
                Err(error) if state.workers == 0 => {
                    tracing::warn!("no thread for aio=threads, so the iothread waits: {error}");
                    let task = state.tasks.pop_back().expect("the task just pushed");
                    drop(state);
                    return self.shared.carry_out(task);
                }
                // Those that run will come to it.
                Err(error) => tracing::debug!("no further thread for aio=threads: {error}"),
            }
        }
        drop(state);
        self.shared.work.notify_one();
    }

    /// Takes the completions there are, in the order in which they came.
    pub(crate) fn take_done(&self) -> Vec<Completion> {
        std::mem::take(&mut *self.shared.done())
    }

    fn spawn(&self) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        // Nobody joins it: `drop` waits until it has given up its share.
        let worker = std::thread::Builder::new().name("IO worker".to_owned());
        worker.spawn(move || shared.serve()).map(drop)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder of this lock panics")
    }

    fn done(&self) -> MutexGuard<'_, Vec<Completion>> {
        self.done.lock().expect("no holder of this lock panics")
    }

    /// A worker's life.
    fn serve(&self) {
        let mut state = self.lock();
        loop {
            if let Some(task) = state.tasks.pop_front() {
                drop(state);
                self.carry_out(task);
                state = self.lock();
            } else if state.over {
                break;
            } else {
                state.idle += 1;
                let woken = self.work.wait_timeout(state, IDLE_MAX);
                let (mut now, waited) = woken.expect("no holder of this lock panics");
                now.idle -= 1;
                state = now;
                // A task that came meanwhile counted on this worker.
                if waited.timed_out() && state.tasks.is_empty() {
                    break;
                }
            }
        }
        state.workers -= 1;
        self.ended.notify_all();
    }

    fn carry_out(&self, task: Task) {
        let Task { index, work, file, offset, memory } = task;
        // SAFETY: whoever pushed the task keeps its memory until the completion has been taken.
        let result = unsafe { perform(work, file.as_fd(), offset, memory) };
        drop(file);
        let mut done = self.done();
        done.push(Completion { index, result, more: false });
        // If there were others, the bell has rung and nobody has looked since.
        if done.len() == 1 {
            self.bell.wake();
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.over = true;
        self.shared.work.notify_all();
        while state.workers > 0 {
            state = self.shared.ended.wait(state).expect("no holder of this lock panics");
        }
    }
}
