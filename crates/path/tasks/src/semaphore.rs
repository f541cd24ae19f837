//! What the tasks of one lane share so that many of them take no more memory, or time, than a few.
//!
//! Where it stands: a task takes a part of a [`Semaphore`] before it needs it, in turn, and gives it back by dropping
//! it; it pauses ([`YieldQueue`]) when it has worked for a while, and goes on when its iothread has looked at everybody
//! else.
//!
//! Threads: belongs to one lane.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// A fair semaphore for the tasks of one lane: an amount that is handed out in the order of asking.
#[derive(Debug)]
pub struct Semaphore {
    all: usize,
    state: RefCell<State>,
}

/// What is free, and which tasks wait, in order.
#[derive(Debug)]
struct State {
    free: usize,
    waiting: VecDeque<(u64, Waker)>,
    /// The next one's number.
    next: u64,
}

/// A part of a [`Semaphore`], given back when dropped.
#[derive(Debug)]
#[must_use = "dropped, it is given back"]
pub struct SemaphorePermit<'a> {
    room: &'a Semaphore,
    amount: usize,
}

/// A task's place in the queue of a [`Semaphore`], left when dropped.
struct SemaphoreWaiter<'a> {
    room: &'a Semaphore,
    number: Option<u64>,
}

impl Semaphore {
    /// So much, all of it free.
    pub fn new(all: usize) -> Self {
        Self { all, state: RefCell::new(State { free: all, waiting: VecDeque::new(), next: 0 }) }
    }

    /// Whether whoever asks now waits.
    pub fn is_full(&self) -> bool {
        let state = self.state.borrow();
        state.free == 0 || !state.waiting.is_empty()
    }

    /// Waits for so much of it; all of it if it is less.
    pub async fn take(&self, amount: usize) -> SemaphorePermit<'_> {
        let amount = amount.min(self.all);
        let mut queued = SemaphoreWaiter { room: self, number: None };
        poll_fn(|context| {
            let state = &mut *self.state.borrow_mut();
            let first = state.waiting.front().map(|(number, _)| *number);
            if first == queued.number && state.free >= amount {
                state.free -= amount;
                if queued.number.take().is_some() {
                    state.waiting.pop_front();
                    state.wake_first();
                }
                return Poll::Ready(());
            }
            match queued.number {
                None => {
                    queued.number = Some(state.next);
                    state.waiting.push_back((state.next, context.waker().clone()));
                    state.next += 1;
                }
                Some(number) => {
                    let place = state.waiting.iter_mut().find(|(other, _)| *other == number);
                    place.expect("it is in the queue").1.clone_from(context.waker());
                }
            }
            Poll::Pending
        })
        .await;
        SemaphorePermit { room: self, amount }
    }
}

impl State {
    fn wake_first(&self) {
        if let Some((_, waker)) = self.waiting.front() {
            waker.wake_by_ref();
        }
    }
}

impl Drop for SemaphorePermit<'_> {
    fn drop(&mut self) {
        let state = &mut *self.room.state.borrow_mut();
        state.free += self.amount;
        state.wake_first();
    }
}

impl Drop for SemaphoreWaiter<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            let state = &mut *self.room.state.borrow_mut();
            state.waiting.retain(|(other, _)| *other != number);
            state.wake_first();
        }
    }
}

/// Tasks that have yielded to the iothread after long work, in the order in which they go on.
#[derive(Debug, Default)]
pub struct YieldQueue {
    /// The task that is at work.
    current: Cell<usize>,
    waiting: RefCell<VecDeque<(u64, usize)>>,
    next: Cell<u64>,
}

impl YieldQueue {
    /// That task is at work now.
    pub fn begin(&self, task: usize) {
        self.current.set(task);
    }

    /// Lets everybody else on the iothread come first. For a task.
    pub async fn pause(&self) {
        let number = self.next.replace(self.next.get() + 1);
        self.waiting.borrow_mut().push_back((number, self.current.get()));
        poll_fn(|_| {
            let is_waiting = self.waiting.borrow().iter().any(|(other, _)| *other == number);
            if is_waiting { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
    }

    /// The task that goes on.
    pub fn next(&self) -> Option<usize> {
        self.waiting.borrow_mut().pop_front().map(|(_, task)| task)
    }

    /// Whether nobody pauses.
    pub fn is_empty(&self) -> bool {
        self.waiting.borrow().is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::Context;

    #[test]
    fn a_room_is_handed_out_in_turn() {
        let room = Semaphore::new(3);
        let context = &mut Context::from_waker(Waker::noop());
        let Poll::Ready(two) = pin!(room.take(2)).poll(context) else { panic!("it is free") };
        let mut all = pin!(room.take(9));
        let mut one = pin!(room.take(1));
        assert!(all.as_mut().poll(context).is_pending(), "all of it is not there");
        assert!(one.as_mut().poll(context).is_pending(), "somebody came before");
        drop(two);
        assert!(one.as_mut().poll(context).is_pending());
        let Poll::Ready(all) = all.as_mut().poll(context) else { panic!("it is first") };
        assert!(room.is_full());
        drop(all);
        assert!(one.as_mut().poll(context).is_ready());
        assert!(!room.is_full());
    }

    #[test]
    fn who_stops_waiting_keeps_nobody_back() {
        let room = Semaphore::new(1);
        let context = &mut Context::from_waker(Waker::noop());
        let Poll::Ready(taken) = pin!(room.take(1)).poll(context) else { panic!("it is free") };
        let mut second = pin!(room.take(1));
        {
            let mut first = pin!(room.take(1));
            assert!(first.as_mut().poll(context).is_pending());
            assert!(second.as_mut().poll(context).is_pending());
        }
        drop(taken);
        assert!(second.as_mut().poll(context).is_ready());
    }
}
