//! A front end that has very many wait on its interrupts takes its neighbours no more than a part of the iothread.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use block::{Clock, SystemClock};
use kernel_io::FileTable;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use crate::fairness::{Player, play};
use crate::guest::{Ask, Guest, SLOTS};
use crate::holding::null;
use crate::setup::{iothreads, on_both, place, ring};

/// Entries of so many sets for so many descriptors each: one ring costs some hundred microseconds.
const SETS: usize = 10;
const DESCRIPTORS: usize = 200;

/// Has everybody told of each write to the eventfd, until all of that is dropped.
fn crowd(of: &OwnedFd) -> (Vec<OwnedFd>, Vec<OwnedFd>) {
    let copies: Vec<_> = (0..DESCRIPTORS).map(|_| of.try_clone().unwrap()).collect();
    let sets = (0..SETS).map(|_| epoll::create(CreateFlags::CLOEXEC).unwrap());
    let sets: Vec<_> = sets
        .inspect(|set| {
            for copy in &copies {
                let (data, flags) = (EventData::new_u64(0), EventFlags::IN | EventFlags::ET);
                epoll::add(set, copy, data, flags).unwrap();
            }
        })
        .collect();
    (copies, sets)
}

/// Has always as much in flight as its ring can hold.
#[derive(Debug)]
struct Greedy {
    guest: Guest,
    turns: Arc<AtomicU64>,
}

impl Player for Greedy {
    fn after_turn(&mut self) -> bool {
        let done = self.guest.poll();
        done.iter().for_each(|&slot| self.guest.submit(slot, Ask::Read, 0));
        self.turns.fetch_add(1, Ordering::Relaxed);
        !done.is_empty()
    }
}

/// What the kernel takes for a ring of that eventfd, at the least.
fn cost(call: &OwnedFd) -> Duration {
    let once = || {
        let start = SystemClock.now();
        rustix::io::write(call, &1_u64.to_ne_bytes()).unwrap();
        SystemClock.now() - start
    };
    (0..20).map(|_| once()).min().unwrap()
}

fn counted(call: &OwnedFd) -> u64 {
    let mut count = [0; 8];
    match rustix::io::read(call, &mut count) {
        Ok(_) => u64::from_ne_bytes(count),
        Err(_none) => 0,
    }
}

#[test]
fn interrupts_with_many_waiters_take_a_part_of_the_iothread() {
    on_both(|reactors| {
        let [iothread] = iothreads::<1>(&Arc::new(FileTable::default()), reactors);
        let mut guest = Guest::new();
        let call = guest.call_fd();
        let all = crowd(&call);
        let cost = cost(&call);
        assert!(cost > Duration::from_micros(40), "{cost:?} with all that wait");
        let node = null();
        let ring = ring(&guest, &node);
        (0..SLOTS).for_each(|slot| guest.submit(slot, Ask::Read, 0));
        let turns = Arc::new(AtomicU64::new(0));
        let player = Greedy { guest, turns: Arc::clone(&turns) };
        let greedy = play(ring, player, &node, &iothread);
        // After those that show what they cost.
        let mut bystander = Guest::new();
        let placed = place(&bystander, &null(), &iothread);
        let mut ask = || {
            bystander.submit(0, Ask::Read, 0);
            assert_eq!(bystander.completions(), [0]);
        };
        (0..200).for_each(|_| ask());
        counted(&call);
        let (start, before) = (SystemClock.now(), turns.load(Ordering::Relaxed));
        let mut rung = 0;
        while rung < 50 {
            ask();
            rung += u32::try_from(counted(&call)).unwrap();
        }
        let (took, turns) = (SystemClock.now() - start, turns.load(Ordering::Relaxed) - before);
        assert!(turns > 2 * u64::from(rung), "{rung} interrupts in {turns} turns");
        assert!(cost * rung < took / 3, "{rung} interrupts of {cost:?} in {took:?}");
        placed.stop();
        greedy.stop();
        drop(all);
    });
}

#[test]
fn an_interrupt_that_is_put_off_comes() {
    on_both(|reactors| {
        let [iothread] = iothreads::<1>(&Arc::new(FileTable::default()), reactors);
        let mut guest = Guest::new();
        let call = guest.call_fd();
        let all = crowd(&call);
        let placed = place(&guest, &null(), &iothread);
        for _ in 0..50 {
            counted(&call);
            guest.submit(0, Ask::Read, 0);
            // Whether it has seen the answer or not, it is told.
            assert!(guest.wait(60), "no interrupt for a minute");
            assert_eq!(guest.completions(), [0]);
        }
        placed.stop();
        drop(all);
    });
}
