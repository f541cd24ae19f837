//! Writes to two disks, whose client changes its memory while they are under way.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use block::{BufferCopyPolicy, CancellationSupport, Child, DurableWriteMethod, Node};
use iothread::Iothread;
use kernel_io::{FileTable, ReactorChoice};
use testkit::channel::{Habits, Hears, Mischief, Remote, RemoteNode};
use testkit::rng::Rng;
use testkit::twice::TwiceNode;

use crate::guest::{Ask, BLOCK, Guest, SLOTS, WIDE};
use crate::setup::{iothreads, on_both, place};

const BLOCKS: u64 = 64;

/// A client on a socket whose server reads the memory when it comes to that.
const LATE: Habits = Habits { mischief: Mischief::KeepsMemory, ..Habits::PLAIN };

/// An iothread, and two disks that are one.
struct Rig {
    iothread: Arc<Iothread>,
    remotes: [Arc<Remote>; 2],
    node: Arc<dyn Node>,
}

impl Rig {
    fn new(memory: BufferCopyPolicy, habits: [Habits; 2], reactors: ReactorChoice) -> Self {
        let [iothread] = iothreads::<1>(&Arc::new(FileTable::default()), reactors);
        let bytes = BLOCKS * BLOCK as u64;
        let remotes = habits.map(|habits| {
            let file = tempfile::tempfile().unwrap();
            file.set_len(bytes).unwrap();
            Remote::new("remote", file, bytes, habits, 3)
        });
        let below = Child::new(Arc::new(RemoteNode::new("below", &remotes[0])));
        let node = Arc::new(TwiceNode::new("twice", &below, &remotes[1], memory));
        Self { iothread, remotes, node }
    }

    fn are_equal(&self) -> bool {
        let [one, other] = [0, 1].map(|place: usize| self.remotes[place].content().unwrap());
        one == other
    }
}

/// Whether both disks hold the same after a write that one of them has carried out late, when the memory was another.
fn are_equal_after_a_change(memory: BufferCopyPolicy, reactors: ReactorChoice) -> bool {
    let rig = Rig::new(memory, [LATE; 2], reactors);
    let mut guest = Guest::new();
    let placed = place(&guest, &rig.node, &rig.iothread);
    guest.fill(0, &[1; BLOCK]);
    rig.remotes[1].stand_still();
    guest.submit(0, Ask::Write, 5);
    rig.remotes[1].wait_for(1);
    rig.remotes[0].wait_until_idle();
    while rig.remotes[0].content().unwrap()[5 * BLOCK] != 1 {
        std::thread::yield_now();
    }
    guest.fill(0, &[2; BLOCK]);
    rig.remotes[1].go_on();
    assert_eq!(guest.completions(), [0]);
    assert_eq!(guest.status(0), 0);
    placed.stop();
    rig.are_equal()
}

#[test]
fn two_copies_of_a_write_are_equal_whatever_its_client_does_meanwhile() {
    on_both(|reactors| {
        assert!(are_equal_after_a_change(BufferCopyPolicy::Copied, reactors));
        // The test would see it.
        assert!(!are_equal_after_a_change(BufferCopyPolicy::Live, reactors));
    });
}

#[test]
fn all_copies_of_many_writes_are_equal_while_their_client_changes_its_memory_all_the_time() {
    let slow = Habits { delay_max: Duration::from_micros(30), room: 5, ..LATE };
    let library = Habits {
        cancel: CancellationSupport::Impossible,
        hears: Hears::Waker,
        alignment: 4096,
        transfer_max: 8192,
        stable_writes: DurableWriteMethod::BySync,
        zeroes: false,
        ..slow
    };
    on_both(|reactors| {
        let rig = Rig::new(BufferCopyPolicy::Copied, [slow, library], reactors);
        let mut guest = Guest::new();
        let placed = place(&guest, &rig.node, &rig.iothread);
        let (rng, is_over) = (&mut Rng::new(1), &AtomicBool::new(false));
        std::thread::scope(|scope| {
            let memory = guest.scribbler();
            scope.spawn(move || {
                let mut byte = 0_u8;
                while !is_over.load(Ordering::Relaxed) {
                    byte = byte.wrapping_add(1);
                    memory.fill(byte);
                }
            });
            for _ in 0..200 {
                // No two that meet: nobody knows which of them is the last.
                let mut blocks: Vec<u64> = (0..BLOCKS / WIDE as u64).collect();
                for _ in 0..rng.index(usize::from(SLOTS).min(blocks.len())) + 1 {
                    let slot = guest.free_slot().unwrap();
                    let block = blocks.swap_remove(rng.index(blocks.len())) * WIDE as u64;
                    guest.submit(slot, Ask::WideWrite, block);
                }
                while guest.in_flight() > 0 {
                    for slot in guest.completions() {
                        assert_eq!(guest.status(slot), 0);
                    }
                }
            }
            is_over.store(true, Ordering::Relaxed);
        });
        placed.stop();
        assert!(rig.are_equal());
        assert!(rig.remotes[0].content().unwrap().iter().any(|byte| *byte != 0));
    });
}
