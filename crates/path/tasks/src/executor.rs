//! The slow path's executor: what a lane cannot answer at once is a task, a future of that lane.
//!
//! Where it stands in the life of a request: the lane polls what can go on whenever its iothread calls
//! it; a task that waits for an internal I/O or for another thread costs nothing.
//!
//! Threads: tasks belong to the lane's iothread. Their wakers may be used by any thread, and also after
//! the task is over: then they wake nobody, or somebody for nothing.

use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Wake, Waker};

use block::{RangeGuard, RangeLock};

use crate::semaphore::YieldQueue;

/// An async task of a lane: the future that serves one request.
type Task = Pin<Box<dyn Future<Output = ()>>>;

/// The executor of one lane's async tasks: polls those that were woken.
pub struct TaskExecutor {
    slots: Vec<TaskSlot>,
    free: Vec<usize>,
    ready: Arc<ReadyQueue>,
    /// Those that let others come first.
    pauses: Rc<YieldQueue>,
    /// An empty list, kept for its room.
    next: Vec<usize>,
}

/// A task and its waker; used again when the task is over.
struct TaskSlot {
    task: Option<Task>,
    woken: Arc<TaskWaker>,
    waker: Waker,
}

/// The tasks that were woken, and how to have the lane called.
struct ReadyQueue {
    tasks: Mutex<Vec<usize>>,
    /// Has the iothread call the lane.
    lane: Waker,
}

/// The waker of one task: puts it into the ready queue once.
struct TaskWaker {
    task: usize,
    is_ready: AtomicBool,
    ready: Arc<ReadyQueue>,
}

impl TaskExecutor {
    /// None yet; `lane` has the lane called.
    pub fn new(lane: Waker) -> Self {
        let ready = ReadyQueue { tasks: Mutex::default(), lane };
        let (slots, free, next) = (Vec::new(), Vec::new(), Vec::new());
        Self { slots, free, ready: Arc::new(ready), pauses: Rc::default(), next }
    }

    /// Where its tasks pause.
    pub fn pauses(&self) -> &Rc<YieldQueue> {
        &self.pauses
    }

    /// Goes on with one task that has paused.
    pub fn step(&mut self) {
        if let Some(place) = self.pauses.next() {
            self.poll(place);
        }
    }

    /// Begins a task, and goes on with it as far as it gets.
    pub fn spawn(&mut self, task: impl Future<Output = ()> + 'static) {
        let place = self.free.pop().unwrap_or_else(|| {
            let (task, ready) = (self.slots.len(), Arc::clone(&self.ready));
            let woken = Arc::new(TaskWaker { task, is_ready: AtomicBool::new(false), ready });
            let waker = Waker::from(Arc::clone(&woken));
            self.slots.push(TaskSlot { task: None, woken, waker });
            task
        });
        self.slots[place].task = Some(Box::pin(task));
        self.poll(place);
    }

    /// Goes on with all that can.
    pub fn go_on(&mut self) {
        loop {
            let mut next = std::mem::take(&mut self.next);
            std::mem::swap(&mut next, &mut self.ready.tasks.lock().expect("nobody panics here"));
            if next.is_empty() {
                self.next = next;
                return;
            }
            for place in next.drain(..) {
                self.slots[place].woken.is_ready.store(false, Ordering::Release);
                self.poll(place);
            }
            self.next = next;
        }
    }

    fn poll(&mut self, place: usize) {
        let slot = &mut self.slots[place];
        let Some(task) = &mut slot.task else { return };
        self.pauses.begin(place);
        if let Poll::Ready(()) = task.as_mut().poll(&mut Context::from_waker(&slot.waker)) {
            slot.task = None;
            self.free.push(place);
        }
    }
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Whoever finds it set comes before the poll that takes it.
        if !self.is_ready.swap(true, Ordering::AcqRel) {
            self.ready.tasks.lock().expect("nobody panics here").push(self.task);
            self.ready.lane.wake_by_ref();
        }
    }
}

impl fmt::Debug for TaskExecutor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tasks({} of {})", self.slots.len() - self.free.len(), self.slots.len())
    }
}

/// An async mutex for tasks of any thread: one of them at a time has the value; the others are woken in no particular
/// order.
#[derive(Debug)]
pub struct AsyncMutex<T> {
    turns: RangeLock,
    /// Locked by whoever has the turn, so nobody ever waits for it.
    value: Mutex<T>,
}

impl<T> AsyncMutex<T> {
    /// Nobody has it yet.
    pub fn new(value: T) -> Self {
        Self { turns: RangeLock::default(), value: Mutex::new(value) }
    }

    /// Waits for it.
    pub async fn take(&self) -> AsyncMutexGuard<'_, T> {
        let turn = self.turns.lock(0..1).await;
        let value = self.value.lock().expect("nobody panics here");
        AsyncMutexGuard { value, _turn: turn }
    }
}

/// The value of an [`AsyncMutex`], given back when dropped: first the value, then the turn.
#[derive(Debug)]
pub struct AsyncMutexGuard<'a, T> {
    value: MutexGuard<'a, T>,
    _turn: RangeGuard,
}

impl<T> std::ops::Deref for AsyncMutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> std::ops::DerefMut for AsyncMutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

/// Runs a future to its end that waits for other threads alone. For threads that own no ring.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    let waker = Waker::from(Arc::new(ThreadWaker(std::thread::current())));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park(),
        }
    }
}

/// Wakes a thread that waits in `block_on`.
struct ThreadWaker(std::thread::Thread);

impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
