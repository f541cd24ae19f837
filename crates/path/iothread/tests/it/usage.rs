//! What an iothread says of its time, beside what the clock and the kernel say.

use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use block::{Access, ByteCount, Clock, DiskSize, Node, SystemClock};
use disk::{NullNode, ReadContent};
use iothread::{Iothread, LoopGauges, PollSettings};
use kernel_io::FileTable;
use rustix::time::{ClockId, Timespec, clock_gettime};

use crate::fairness::saturated;
use crate::guest::{Ask, BLOCK, Guest, SLOTS};
use crate::setup::{file_node, iothreads, iothreads_with, on_both, place};

/// How long each part takes.
const PART: Duration = Duration::from_millis(60);
/// By how much a part may be wrong: what was not counted yet, and what the machine does meanwhile.
const SLACK: Duration = Duration::from_millis(25);

/// Work, looks and sleep up to now.
fn times(of: &LoopGauges) -> [Duration; 3] {
    [&of.work_ns, &of.poll_ns, &of.sleep_ns].map(|it| Duration::from_nanos(it.get()))
}

fn null_disk() -> Arc<dyn Node> {
    let size = DiskSize(ByteCount(1 << 20));
    Arc::new(NullNode::new("null", size, Access::ReadWrite, ReadContent::Zeroes))
}

/// A guest that always has one request in flight, for so long.
fn keep_busy(guest: &mut Guest, time: Duration) {
    let start = SystemClock.now();
    guest.submit(0, Ask::Read, 0);
    while SystemClock.now() < start + time {
        for slot in guest.poll() {
            guest.submit(slot, Ask::Read, 0);
        }
    }
    while guest.in_flight() > 0 {
        guest.poll();
    }
}

/// Lets so much time pass.
fn pause(time: Duration) {
    let (_sender, receiver) = mpsc::channel::<()>();
    receiver.recv_timeout(time).unwrap_err();
}

#[test]
fn work_looks_and_sleep_are_all_of_the_time() {
    on_both(|reactors| {
        let files = Arc::new(FileTable::default());
        let [iothread]: [Arc<Iothread>; 1] = iothreads(&files, reactors);
        let gauges = iothread.usage().gauges();
        let mut guest = Guest::new();
        let placed = place(&guest, &null_disk(), &iothread);
        // It sleeps, and says so when it wakes up.
        let asleep = SystemClock.now();
        pause(PART);
        let (before, start) = (times(gauges), SystemClock.now());
        let thread = iothread.usage().thread_times().unwrap();
        keep_busy(&mut guest, PART);
        // What is open at the end of a sleep is counted when it ends.
        pause(PART);
        keep_busy(&mut guest, Duration::ZERO);
        let (passed, longest) = (start.elapsed(), asleep.elapsed());
        let [work, look, sleep]: [Duration; 3] =
            std::array::from_fn(|place| times(gauges)[place] - before[place]);
        let sum = work + look + sleep;
        assert!(
            sum <= longest + SLACK && sum + SLACK >= passed,
            "{sum:?}: {passed:?}, {longest:?}"
        );
        assert!(sleep + SLACK >= PART, "asleep for {sleep:?}");
        let ran = iothread.usage().thread_times().unwrap().cpu - thread.cpu;
        assert!(ran <= work + look + SLACK, "on a CPU for {ran:?}, {work:?} and {look:?}");
        assert!(gauges.rounds.get() > 0 && gauges.sleeps.get() > 0);
        drop(placed.stop());
    });
}

#[test]
fn what_a_source_does_is_seen_while_it_is_served_and_moved() {
    const READS: u64 = 300;
    on_both(|reactors| {
        let files = Arc::new(FileTable::default());
        let [first, second]: [Arc<Iothread>; 2] = iothreads(&files, reactors);
        let (node, _image) = file_node(&files, 64 * BLOCK as u64);
        let start = SystemClock.now();
        let mut guest = Guest::new();
        let placed = place(&guest, &node, &first);
        let gauges = placed.gauges().clone();
        for read in 0..READS {
            if read == READS / 2 {
                placed.move_to(&second).unwrap();
            }
            guest.submit(0, Ask::Read, read % 64);
            guest.completions();
            assert!(gauges.reads.get() <= read + 1);
        }
        // A stop shows what the last turns have done.
        drop(placed.stop());
        assert_eq!((gauges.reads.get(), gauges.read_bytes.get()), (READS, READS * BLOCK as u64));
        assert_eq!((gauges.errors.get(), gauges.in_flight.get()), (0, 0));
        assert!(gauges.turns.get() >= READS && gauges.turn_ns.get() > 0);
        // All of them left for the disk.
        let counts = gauges.latency.buckets().map(|(_, _, count)| count);
        assert_eq!(counts.sum::<u64>(), READS);
        let (open, passed) = (gauges.open_ns.get(), start.elapsed().as_nanos());
        assert!(open > 0 && u128::from(open) <= passed, "one at a time: {open} ns in {passed} ns");
    });
}

/// Stands still while the thread that asks is not on a CPU: a busy host changes nothing.
#[derive(Debug)]
struct OwnCpuTime(Instant);

impl Clock for OwnCpuTime {
    fn now(&self) -> Instant {
        let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::ThreadCPUTime);
        self.0 + Duration::new(tv_sec.cast_unsigned(), u32::try_from(tv_nsec).unwrap())
    }
}

#[test]
fn requests_of_saturated_rings_wait_as_long_as_others_have_their_turns() {
    on_both(|reactors| {
        for (rings, time) in [(1, PART), (3, 10 * PART)] {
            let clock: Arc<dyn Clock> = Arc::new(OwnCpuTime(SystemClock.now()));
            let [iothread] = iothreads_with(&Arc::new(FileTable::default()), reactors, &clock);
            let placed = saturated(rings, &iothread);
            pause(time);
            let waits = |gauges: &request_path::SourceGauges| {
                gauges.take_wait_ns.get() + gauges.answer_wait_ns.get()
            };
            let waited: u64 = placed.iter().map(|placed| waits(placed.gauges())).sum();
            let worked = iothread.usage().gauges().work_ns.get();
            for placed in placed {
                drop(placed.stop());
            }
            // Each of them waits while the others have the iothread.
            let expected = worked * u64::from(SLOTS) * (rings as u64 - 1);
            // One round in 64 is seen.
            let (least, most) = (expected / 10 * 8, expected / 10 * 12);
            assert!((least..=most).contains(&waited), "{rings} rings: {waited}, not {expected} ns");
        }
    });
}

#[test]
fn an_iothread_that_is_told_so_looks_no_more() {
    on_both(|reactors| {
        let [iothread] = iothreads::<1>(&Arc::new(FileTable::default()), reactors);
        let mut guest = Guest::new();
        let placed = place(&guest, &null_disk(), &iothread);
        let gauges = iothread.usage().gauges();
        // Not while others want all CPUs.
        let look = |guest: &mut Guest| {
            let (before, start) = (gauges.polls.get(), SystemClock.now());
            while gauges.polls.get() == before {
                assert!(start.elapsed() < Duration::from_secs(60), "it does not look");
                keep_busy(guest, PART);
            }
        };
        look(&mut guest);
        iothread.set_polling(PollSettings::OFF);
        // Comes after it.
        placed.visit(|_, _| ()).unwrap();
        let polls = gauges.polls.get();
        keep_busy(&mut guest, PART);
        assert_eq!(gauges.polls.get(), polls);
        iothread.set_polling(PollSettings::default());
        look(&mut guest);
        drop(placed.stop());
    });
}
