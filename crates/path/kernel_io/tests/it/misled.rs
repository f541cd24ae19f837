//! The kernel's flag for deferred work, under wake-ups from another thread at every moment: it may
//! stay up with nothing behind it, but then the kernel is said to mislead, and a notifier ends it.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kernel_io::{
    EngineKernel, Event, FileTable, Interest, Kernel, Notifier, ReactorChoice, Tag, WaitMode,
};

const ROUNDS: u64 = 30_000;
const ENTERS_MAX: u32 = 100;

/// Collects events until there is no news, signalling the notifier as an iothread does; returns whether
/// the flag was up without reason.
fn settle(kernel: &mut Kernel, notifier: &Notifier) -> bool {
    let mut misled = false;
    for _ in 0..ENTERS_MAX {
        kernel.wait(WaitMode::Poll).unwrap();
        if kernel.has_stale_flag() {
            misled = true;
            notifier.wake();
        }
        let mut quiet = !kernel.has_pending();
        while let Some(event) = kernel.next_event() {
            assert!(matches!(event, Event::Ready { tag: Tag(1) }), "{event:?}");
            quiet = !kernel.has_pending();
        }
        if quiet && !kernel.has_stale_flag() {
            return misled;
        }
    }
    panic!("news without end, after {ENTERS_MAX} enters");
}

#[test]
fn a_flag_with_nothing_behind_it_is_noticed_and_taken_down() {
    let mut kernel = Kernel::new(Arc::new(FileTable::default()), ReactorChoice::Any).unwrap();
    let notifier = Arc::new(Notifier::new().unwrap());
    kernel.poll(notifier.as_fd(), Interest::Read, Tag(1));
    let round = Arc::new(AtomicU64::new(0));
    let ringer = {
        let (notifier, round) = (Arc::clone(&notifier), Arc::clone(&round));
        std::thread::spawn(move || {
            let mut last = 0;
            while last < ROUNDS {
                let now = round.load(Ordering::Acquire);
                if now != last {
                    notifier.wake();
                    last = now;
                }
            }
        })
    };
    for number in 1..=ROUNDS {
        round.store(number, Ordering::Release);
        // Meets the other thread in the middle of adding work, now and then.
        for _ in 0..number % 64 {
            kernel.wait(WaitMode::Poll).unwrap();
        }
        settle(&mut kernel, &notifier);
    }
    ringer.join().unwrap();
    settle(&mut kernel, &notifier);
    assert!(!kernel.has_pending());
}
