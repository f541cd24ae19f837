//! Threads that compute for lanes, such as compressing clusters.
//!
//! Where it stands: a task hands work over ([`block::compute()`]), so that nobody else on its iothread waits for it. What a
//! guest waits for is handed over to [`ComputePool::first`].
//!
//! Threads: those that it starts, all at once, by whoever makes it: they are behind its fences, and on its CPUs. They end when it
//! is dropped and what was handed over is done; nobody waits for that. Limits: as many threads as its maker says; how much
//! waits is bounded by those who hand it over.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;

use block::{ComputeThreads, ComputeWork};

/// Threads that take work from one queue.
pub struct ComputePool(Arc<Shared>);

/// The same threads for those who come first: their work is taken before all that waits.
#[derive(Debug)]
pub struct ComputeFirst(Arc<ComputePool>);

struct Shared {
    queue: Mutex<Queue>,
    called: Condvar,
}

#[derive(Default)]
struct Queue {
    /// What comes before the rest.
    first: VecDeque<ComputeWork>,
    work: VecDeque<ComputeWork>,
    is_over: bool,
}

impl ComputePool {
    /// Starts so many threads of that name. Fails if not all of them can be had.
    pub fn start(name: &str, threads: usize) -> io::Result<Self> {
        let pool = Self(Arc::new(Shared { queue: Mutex::default(), called: Condvar::new() }));
        for _ in 0..threads {
            let shared = Arc::clone(&pool.0);
            thread::Builder::new().name(name.to_owned()).spawn(move || shared.work())?;
        }
        Ok(pool)
    }

    /// The threads of a pool for those who come first: whoever waits for a guest's request, beside others who have much to do.
    pub fn first(pool: &Arc<Self>) -> ComputeFirst {
        ComputeFirst(Arc::clone(pool))
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().expect("nobody panics here")
    }

    fn work(&self) {
        while let Some(work) = self.next() {
            work();
        }
    }

    /// Waits for work; `None` when there will be no more.
    fn next(&self) -> Option<ComputeWork> {
        let mut queue = self.queue();
        loop {
            let Queue { first, work, .. } = &mut *queue;
            if let Some(next) = first.pop_front().or_else(|| work.pop_front()) {
                return Some(next);
            }
            if queue.is_over {
                return None;
            }
            queue = self.called.wait(queue).expect("nobody panics here");
        }
    }
}

impl ComputeThreads for ComputePool {
    fn run(&self, work: ComputeWork) {
        self.0.queue().work.push_back(work);
        self.0.called.notify_one();
    }
}

impl ComputeThreads for ComputeFirst {
    fn run(&self, work: ComputeWork) {
        let Self(pool) = self;
        pool.0.queue().first.push_back(work);
        pool.0.called.notify_one();
    }
}

impl Drop for ComputePool {
    fn drop(&mut self) {
        self.0.queue().is_over = true;
        self.0.called.notify_all();
    }
}

impl fmt::Debug for ComputePool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let queue = self.0.queue();
        write!(f, "ComputePool({} waiting)", queue.first.len() + queue.work.len())
    }
}

#[cfg(test)]
mod tests {
    use block::compute;

    use super::*;
    use crate::block_on;

    #[test]
    fn all_work_is_done_and_each_result_reaches_who_waits() {
        let pool = ComputePool::start("squares", 3).unwrap();
        let all: Vec<_> = (0..100_u64).map(|it| compute(&pool, move || it * it)).collect();
        for (number, square) in (0..).zip(all) {
            assert_eq!(block_on(square), number * number);
        }
    }

    #[test]
    fn those_who_come_first_wait_for_nothing_but_what_has_begun() {
        let pool = Arc::new(ComputePool::start("first", 1).unwrap());
        let (go_on, held) = std::sync::mpsc::channel::<()>();
        let (told, heard) = std::sync::mpsc::channel();
        let begun = compute(&*pool, move || held.recv().unwrap());
        for number in [2, 3, 4] {
            let told = told.clone();
            drop(compute(&*pool, move || told.send(number).unwrap()));
        }
        for number in [0, 1] {
            let told = told.clone();
            drop(compute(&ComputePool::first(&pool), move || told.send(number).unwrap()));
        }
        go_on.send(()).unwrap();
        block_on(begun);
        drop((pool, told));
        assert!(heard.iter().eq(0..5));
    }

    #[test]
    fn what_was_handed_over_is_done_though_nobody_hands_over_more() {
        let pool = ComputePool::start("last", 1).unwrap();
        let (told, heard) = std::sync::mpsc::channel();
        for number in 0..10 {
            let told = told.clone();
            drop(compute(&pool, move || told.send(number).unwrap()));
        }
        drop((pool, told));
        assert!(heard.iter().eq(0..10));
    }
}
