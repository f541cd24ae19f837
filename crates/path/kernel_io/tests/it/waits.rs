//! Waits that have a limit: they end after it and not much later.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use block::{Clock, SystemClock};
use kernel_io::{
    EngineKernel, Event, FileTable, Interest, Kernel, Notifier, ReactorChoice, Tag, WaitMode,
};
use rustix::thread::nanosleep;
use rustix::time::Timespec;

pub(crate) fn on_both(test: impl Fn(Kernel)) {
    for reactors in [ReactorChoice::Any, ReactorChoice::EpollOnly] {
        test(Kernel::new(Arc::new(FileTable::default()), reactors).unwrap());
    }
}

fn took(kernel: &mut Kernel, wait: WaitMode) -> Duration {
    let start = SystemClock.now();
    kernel.wait(wait).unwrap();
    SystemClock.now().saturating_duration_since(start)
}

#[test]
fn a_wait_ends_after_its_limit_to_a_fraction_of_a_millisecond() {
    on_both(|mut kernel| {
        let limit = Duration::from_micros(200);
        let all: Vec<_> = (0..50).map(|_| took(&mut kernel, WaitMode::AtMost(limit))).collect();
        // A timer in milliseconds would take a whole one at least. On a busy machine most are late, and the
        // kernel may end a wait for nothing.
        let shortest = all.iter().filter(|took| **took >= limit).min().unwrap();
        assert!(*shortest < Duration::from_micros(900), "{all:?}");
    });
}

#[test]
fn what_happens_ends_a_wait_before_its_limit_and_later_ones_are_as_long_as_they_should() {
    on_both(|mut kernel| {
        let notifier = Notifier::new().unwrap();
        kernel.poll(notifier.as_fd(), Interest::Read, Tag(1));
        let mut shortened = 0;
        for _ in 0..20 {
            notifier.wake();
            let long = Duration::from_secs(3600);
            assert!(took(&mut kernel, WaitMode::AtMost(long)) < Duration::from_secs(60));
            assert!(matches!(kernel.next_event(), Some(Event::Ready { tag: Tag(1) })));
            notifier.clear();
            let start = SystemClock.now();
            kernel.wait(WaitMode::AtMost(Duration::from_millis(2))).unwrap();
            let took = SystemClock.now().saturating_duration_since(start);
            shortened += u32::from(took < Duration::from_millis(2));
            assert!(kernel.next_event().is_none());
        }
        assert!(shortened < 10, "{shortened} of 20 waits were too short");
        // What no timer can hold is no error, and waits.
        for long in [Duration::MAX, Duration::from_nanos(u64::MAX / 2)] {
            std::thread::scope(|scope| {
                // There is no event that says that the other thread sleeps.
                scope.spawn(|| {
                    let _left = nanosleep(&Timespec { tv_sec: 0, tv_nsec: 50_000_000 });
                    notifier.wake();
                });
                // The kernel may end a wait for nothing, but not again and again.
                let mut waits = 0;
                while kernel.next_event().is_none() {
                    kernel.wait(WaitMode::AtMost(long)).unwrap();
                    waits += 1;
                }
                assert!(waits < 50, "{waits} waits for {long:?}");
            });
            notifier.clear();
        }
    });
}
