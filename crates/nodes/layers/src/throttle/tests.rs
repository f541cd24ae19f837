//! What passes a throttle, on a clock that the tests own.
//!
//! What could go wrong, and has a test here: rates that are off, by rounding or by late threads; budget
//! saved up while idle; disks that get more than others by depth, size or number of iothreads; a request
//! that is lost, answered twice, or held without a time to look at it; requests that still wait after a release,
//! or a debt of it that a rebooted guest waits for; a wait by old limits under new ones; traces of a
//! lane that has gone.

mod fair;
mod simulation;

use std::collections::HashSet;
use std::sync::Arc;

use block::{
    Access, Answer, BatchPieces, BlockLimits, Child, Claim, ClaimError, DiskSize, Durability, Lane,
    LaneCompletionDecision, LaneContext, LaneError, Mapping, Node, Operation, Outcome, Rights,
    Token, WakeTime, ZeroTerms,
};
use simulation::{
    EmptyNode, FakeClock, Load, MICROSECOND, MILLISECOND, Passed, SECOND, Simulation, disk, extent,
    group, limits, read, write,
};

use super::ThrottleNode;

/// How late threads usually wake up.
const LATE: u64 = 150 * MICROSECOND;

#[track_caller]
fn close(what: &str, got: u64, expected: u64, percent: f64) {
    let difference = (got as f64 / expected as f64 - 1.0) * 100.0;
    assert!(difference.abs() <= percent, "{what}: {got} for {expected}, {difference:.3} %");
}

fn sum(passed: &[Passed]) -> Passed {
    let add = |sum: Passed, one: &Passed| Passed {
        operations: sum.operations + one.operations,
        writes: sum.writes + one.writes,
        bytes: sum.bytes + one.bytes,
    };
    passed.iter().fold(Passed::default(), add)
}

fn on(disk: usize, load: Load) -> Load {
    Load { disk, ..load }
}

/// So many operations pass in a second.
#[track_caller]
fn check_iops(rate: u64, seconds: u64, late: u64, loads: &[Load]) {
    let mut simulation = Simulation::new(&format!("iops-total={rate}"), late, loads);
    simulation.run_until(SECOND / 2);
    let passed = sum(&simulation.run_until(SECOND / 2 + seconds * SECOND));
    close(&format!("{rate} IOPS, {loads:?}"), passed.operations, rate * seconds, 0.5);
}

#[test]
fn operations_are_exact_from_100_to_100_000_a_second() {
    let deep = Load::reads(0, 64, 4096);
    for (rate, seconds) in [(100, 20), (1_000, 10), (5_000, 4), (20_000, 2), (100_000, 2)] {
        check_iops(rate, seconds, LATE, &[deep]);
        check_iops(rate, seconds, LATE, &[deep, deep]);
        check_iops(rate, seconds, LATE, &[deep, on(1, deep), on(2, deep)]);
    }
    check_iops(1_000, 10, LATE, &[Load::reads(0, 1, 512)]);
    // Threads that are very late lose nothing either.
    check_iops(1_000, 10, 15 * MILLISECOND, &[deep]);
    check_iops(20_000, 4, 90 * MILLISECOND, &[deep, deep]);
    check_iops(5_000, 10, 90 * MILLISECOND, &[Load { service: MILLISECOND, ..deep }]);
    check_iops(20_000, 4, 15 * MILLISECOND, &[deep, on(1, deep)]);
}

#[test]
fn bytes_are_exact() {
    for (rate, size) in
        [(1_000_000, 4096), (100_000_000, 65_536), (1_000_000_000, 1 << 20), (12_345_678, 512)]
    {
        for loads in [vec![Load::reads(0, 32, size)], vec![Load::reads(0, 32, size); 3]] {
            let mut simulation = Simulation::new(&format!("bps-total={rate}"), LATE, &loads);
            let passed = sum(&simulation.run_until(10 * SECOND));
            close(&format!("{rate} bytes of {size}"), passed.bytes, 10 * rate, 0.5);
        }
    }
}

#[test]
fn several_limits_hold_together() {
    let load = Load::reads(0, 32, 65_536);
    let mut simulation = Simulation::new("bps-total=10000000,iops-total=100", LATE, &[load]);
    close("operations", simulation.run_until(20 * SECOND)[0].operations, 2_000, 0.5);
    let mut simulation = Simulation::new("bps-total=1000000,iops-total=100", LATE, &[load]);
    // 15 requests a second, so one more or less is much.
    close("bytes", simulation.run_until(20 * SECOND)[0].bytes, 20_000_000, 1.0);
}

#[test]
fn an_idle_disk_saves_up_20_ms() {
    let mut simulation = Simulation::new("iops-total=1000", 0, &[Load::reads(0, 0, 512)]);
    simulation.run_until(60 * SECOND);
    simulation.start(Load::reads(0, 64, 512));
    // The one more is the request that any empty bucket lets through.
    let at_once = simulation.run_until(60 * SECOND + MILLISECOND / 2)[1].operations;
    assert_eq!(at_once, 21);
    close("then", simulation.run_until(70 * SECOND)[1].operations, 10_000, 0.5);
}

/// How many operations have passed after each of those tenths of a second.
#[track_caller]
fn check_burst(limits: &str, expected: &[(u64, u64)]) {
    let mut simulation = Simulation::new(limits, 0, &[Load::reads(0, 256, 512)]);
    let mut passed = 0;
    for (tenths, operations) in expected {
        passed += simulation.run_until(tenths * SECOND / 10)[0].operations;
        close(&format!("{limits} after {tenths}"), passed, *operations, 1.0);
    }
}

#[test]
fn bursts_are_those_of_qemu() {
    // Without a length, as many as pass in a second at the burst's rate pass at once.
    check_burst("iops-total=100,iops-total-max=1000", &[(1, 1_010), (10, 1_100), (50, 1_500)]);
    // With one, they pass at that rate until the bucket is full: 5000 = (1000 - 100) x 5.55 s.
    check_burst(
        "iops-total=100,iops-total-max=1000,iops-total-max-length=5",
        &[(10, 1_100), (50, 5_100), (100, 6_000), (200, 7_000)],
    );
}

#[test]
fn a_limit_of_reads_does_not_hold_writes() {
    let operations = [read(512), write(512)];
    let writes = Load { operations: [write(512); 2], ..Load::reads(0, 8, 512) };
    let both = Load { operations, ..writes };
    // Two loads on one lane's node: a guest whose reads wait goes on writing.
    let loads = [writes, Load::reads(0, 8, 512)];
    let mut simulation = Simulation::new("iops-read=100,iops-write=10000", LATE, &loads);
    let passed = simulation.run_until(10 * SECOND);
    close("writes", passed[0].writes, 100_000, 0.5);
    close("reads", passed[1].operations, 1_000, 0.5);
    // And on one lane: of 64 requests at once the 32 writes pass.
    let clock = FakeClock::new();
    let node = disk(&group("iops-read=1", &clock));
    let mut lane = node.open_lane(&LaneContext::idle()).unwrap();
    let answers = ask(&mut *lane, (0..64).map(|token| both.operations[token % 2]));
    let held: Vec<usize> = (0..64).filter(|token| answers[*token] == Answer::Held).collect();
    assert_eq!(held, (2..64).step_by(2).collect::<Vec<_>>());
}

/// The lane's answers to a batch, under tokens from 0 on.
fn ask(lane: &mut dyn Lane, operations: impl IntoIterator<Item = Operation>) -> Vec<Answer> {
    let tokens = (0..).map(Token);
    let mut batch: Vec<Mapping> =
        tokens.zip(operations).map(|(token, operation)| Mapping::new(token, operation)).collect();
    lane.map(&mut batch, &mut BatchPieces::default());
    batch.iter().map(|mapping| mapping.answer).collect()
}

/// The tokens of what the lane lets go at that time.
fn resume(lane: &mut dyn Lane, clock: &FakeClock, nanos: u64) -> Vec<u32> {
    clock.set(nanos);
    let mut late = Vec::new();
    lane.resume(clock.instant(nanos), &mut late, &mut BatchPieces::default());
    assert!(late.iter().all(|mapping| matches!(mapping.answer, Answer::Now(_))));
    late.iter().map(|mapping| mapping.token.0).collect()
}

#[test]
fn discards_and_zeroings_are_writes_of_their_size_and_flushes_are_free() {
    let durability = Durability::Cached;
    let changes = [
        write(1 << 20),
        Operation::Discard(extent(1 << 20), durability),
        Operation::WriteZeroes(extent(1 << 20), ZeroTerms::UNMAP, durability),
    ];
    for change in changes {
        let clock = FakeClock::new();
        let node = disk(&group("bps-write=1048576", &clock));
        let mut lane = node.open_lane(&LaneContext::idle()).unwrap();
        let answers = ask(&mut *lane, [change, change, Operation::Flush, read(1 << 20)]);
        let held: Vec<_> = answers.iter().map(|answer| *answer == Answer::Held).collect();
        assert_eq!(held, [false, true, false, false], "{change:?}");
        // The first took a second of the rate.
        assert_eq!(resume(&mut *lane, &clock, 979 * MILLISECOND), []);
        assert_eq!(resume(&mut *lane, &clock, 980 * MILLISECOND), [1]);
    }
}

#[test]
fn large_requests_count_as_several_operations_in_fractions() {
    // In a minute; a request of 12 KiB counts as one and a half.
    for (size, expected) in [(4096, 6_000), (8192, 6_000), (12_288, 4_000), (65_536, 750)] {
        let load = Load::reads(0, 16, size);
        let mut simulation = Simulation::new("iops-total=100,iops-size=8192", LATE, &[load]);
        let passed = simulation.run_until(60 * SECOND)[0].operations;
        close(&format!("{size} bytes"), passed, expected, 0.5);
    }
}

#[test]
fn a_small_request_does_not_overtake_a_large_one() {
    let clock = FakeClock::new();
    let node = disk(&group("bps-total=1048576", &clock));
    let mut lane = node.open_lane(&LaneContext::idle()).unwrap();
    // Of the first one's four seconds, one is there at once.
    assert_eq!(ask(&mut *lane, [read(4 << 20)]), [Answer::Held]);
    let mut batch = [Mapping::new(Token(1), read(512))];
    lane.map(&mut batch, &mut BatchPieces::default());
    assert_eq!(batch[0].answer, Answer::Held);
    let mut passed = Vec::new();
    for tenth in 0..50 {
        passed.extend(resume(&mut *lane, &clock, tenth * 100 * MILLISECOND));
        assert!(passed.is_empty() || tenth >= 29, "{passed:?} after {tenth}");
    }
    assert_eq!(passed, [0, 1]);
}

#[test]
fn what_is_released_goes_at_once_and_is_paid_for_a_second_at_most() {
    let mut simulation = Simulation::new("iops-total=10", 0, &[Load::reads(0, 64, 4096)]);
    simulation.run_until(SECOND);
    assert_eq!(simulation.held(0), 64);
    simulation.release(0);
    assert_eq!(simulation.held(0), 0);
    let passed = simulation.run_until(SECOND + 10 * MICROSECOND)[0].operations;
    assert_eq!(passed, 64);
    // The 64 that its guest makes next wait, but for 6.4 s less.
    assert_eq!(simulation.run_until(SECOND + 990 * MILLISECOND)[0].operations, 0);
    let passed = simulation.run_until(3 * SECOND)[0].operations;
    assert!((9..=12).contains(&passed), "{passed}");
}

#[test]
fn a_release_pays_the_short_debt_in_full() {
    let mut simulation = Simulation::new("iops-total=1000", 0, &[Load::reads(0, 64, 4096)]);
    simulation.run_until(SECOND);
    simulation.release(0);
    close("both", simulation.run_until(5 * SECOND)[0].operations, 4_000, 0.5);
}

#[test]
fn nobody_waits_for_more_than_a_second_of_what_is_over() {
    // A request that takes 256 s of the rate is paid for before it passes.
    let mut simulation =
        Simulation::new("bps-total=1048576", LATE, &[Load::reads(0, 2, 256 << 20)]);
    assert_eq!(simulation.run_until(254 * SECOND)[0].operations, 0);
    assert_eq!(simulation.run_until(256 * SECOND)[0].operations, 1);
    close("long", simulation.run_until(2561 * SECOND)[0].operations, 9, 0.0);
    // What the next one has gathered and reserved is lost with its guest, and nobody waits for it.
    simulation.run_until(2600 * SECOND);
    simulation.kill(0);
    simulation.start(Load::reads(0, 1, 4096));
    assert!(simulation.run_until(2601 * SECOND + LATE)[1].operations > 0);
}

#[test]
fn what_a_lane_has_reserved_is_given_back_with_it() {
    // Half a second each: one has passed, and the other one's is reserved behind it.
    let mut simulation = Simulation::new("bps-total=2097152", 0, &[Load::reads(0, 2, 1 << 20)]);
    simulation.run_until(MILLISECOND);
    assert_eq!(simulation.held(0), 2);
    simulation.kill(0);
    simulation.start(Load::reads(0, 1, 4096));
    assert_eq!(simulation.run_until(479 * MILLISECOND)[1].operations, 0);
    assert!(simulation.run_until(481 * MILLISECOND)[1].operations > 0);
}

#[test]
fn new_limits_hold_at_once_for_what_waits_as_well() {
    let loads = [Load::reads(0, 64, 4096), Load::reads(1, 64, 4096)];
    let mut simulation = Simulation::new("bps-total=10", LATE, &loads);
    simulation.run_until(10 * SECOND);
    // By the old limit, the next one passes after 400 s.
    simulation.group.set_limits(limits("iops-total=1000"));
    assert_eq!(*simulation.group.limits().settings(), *limits("iops-total=1000").settings());
    close("faster", sum(&simulation.run_until(20 * SECOND)).operations, 10_000, 1.0);
    simulation.group.set_limits(limits("iops-read=100,iops-write=5"));
    close("slower", sum(&simulation.run_until(40 * SECOND)).operations, 2_000, 1.0);
    simulation.group.set_limits(limits(""));
    simulation.run_until(40 * SECOND + 51 * MILLISECOND);
    assert_eq!((simulation.held(0), simulation.held(1)), (0, 0));
    assert!(simulation.run_until(40 * SECOND + 100 * MILLISECOND)[0].operations > 100_000);
    simulation.group.set_limits(limits("iops-total=100"));
    simulation.run_until(41 * SECOND + MILLISECOND);
    close("again", sum(&simulation.run_until(61 * SECOND)).operations, 2_000, 1.0);
}

#[test]
fn requests_keep_their_order_under_new_limits() {
    let clock = FakeClock::new();
    let group = group("iops-read=1,iops-write=1", &clock);
    let mut lane = disk(&group).open_lane(&LaneContext::idle()).unwrap();
    let operations = [write(512), read(512), write(512), write(512), read(512), read(512)];
    let answers = ask(&mut *lane, operations);
    assert_eq!(answers.iter().filter(|answer| **answer == Answer::Held).count(), 4);
    group.set_limits(limits("iops-total=50"));
    assert_eq!(resume(&mut *lane, &clock, SECOND), [2, 3]);
    group.set_limits(limits(""));
    assert_eq!(resume(&mut *lane, &clock, 2 * SECOND), [4, 5]);
    assert_eq!(lane.due(), None);
}

#[test]
fn limits_that_do_not_limit_need_neither_clock_nor_budget() {
    let clock = FakeClock::new();
    let group = group("iops-total=10000000,bps-total=100000000000", &clock);
    let mut lane = disk(&group).open_lane(&LaneContext::idle()).unwrap();
    let (mut answered, before) = (0, clock.reads());
    for batch in 0..10_000 {
        // A million a second, a tenth of what is allowed.
        clock.set(batch * 16 * MICROSECOND);
        let answers = ask(&mut *lane, [read(4096); 16]);
        answered += answers.iter().filter(|answer| matches!(answer, Answer::Now(_))).count();
    }
    assert_eq!(answered, 160_000);
    let reads = clock.reads() - before;
    assert!(reads <= 240, "{reads} looks at the clock for {answered} requests");
}

/// A disk whose lane holds each request for 10 ms.
#[derive(Debug)]
struct SlowNode(Arc<FakeClock>);

#[derive(Debug)]
struct SlowLane {
    clock: Arc<FakeClock>,
    held: Vec<(u64, Mapping)>,
}

impl Node for SlowNode {
    fn name(&self) -> &'static str {
        "slow"
    }
    fn size(&self) -> DiskSize {
        EmptyNode.size()
    }
    fn limits(&self) -> BlockLimits {
        EmptyNode.limits()
    }
    fn access(&self) -> Access {
        Access::ReadOnly
    }
    fn flush(&self) -> std::io::Result<()> {
        Err(std::io::ErrorKind::Other.into())
    }
    fn claim(&self, _: Rights) -> Result<Claim, ClaimError> {
        Ok(Claim::nothing())
    }
    fn open_lane(&self, _: &LaneContext) -> Result<Box<dyn Lane>, LaneError> {
        Ok(Box::new(SlowLane { clock: Arc::clone(&self.0), held: Vec::new() }))
    }
}

impl Lane for SlowLane {
    fn map(&mut self, batch: &mut [Mapping], _: &mut BatchPieces) {
        let at = self.clock.nanos(block::Clock::now(&*self.clock)) + 10 * MILLISECOND;
        for mapping in batch {
            mapping.answer = Answer::Held;
            self.held.push((at, *mapping));
        }
    }
    fn due(&self) -> Option<WakeTime> {
        let at = self.held.iter().map(|(at, _)| *at).min()?;
        Some(WakeTime { at: self.clock.instant(at), slack: std::time::Duration::ZERO })
    }
    fn resume(&mut self, now: std::time::Instant, late: &mut Vec<Mapping>, list: &mut BatchPieces) {
        let now = self.clock.nanos(now);
        for (_, mapping) in self.held.extract_if(.., |(at, _)| *at <= now) {
            late.push(Mapping { answer: Answer::Now(list.none()), ..mapping });
        }
    }
    fn release(&mut self) {
        for (at, _) in &mut self.held {
            *at = 0;
        }
    }
    fn completed(&mut self, _: Token, outcome: Outcome) -> LaneCompletionDecision {
        LaneCompletionDecision::Finish(outcome)
    }
}

#[test]
fn what_is_held_here_and_below_comes_once() {
    let clock = FakeClock::new();
    let group = group("iops-total=10", &clock);
    let slow = Child::new(Arc::new(SlowNode(Arc::clone(&clock))));
    let node = ThrottleNode::new("throttle", slow, group, Access::ReadOnly);
    assert_eq!((node.access(), node.flush().is_err()), (Access::ReadOnly, true));
    let mut lane = node.open_lane(&LaneContext::idle()).unwrap();
    assert_eq!(ask(&mut *lane, [read(512); 10]), [Answer::Held; 10]);
    let mut seen = HashSet::new();
    let mut time = 0;
    let due = |lane: &dyn Lane| clock.nanos(lane.due().expect("something is held").at);
    // The first one passes and is held below; the next ones are held here.
    assert_eq!(due(&*lane), 10 * MILLISECOND);
    while seen.len() < 6 {
        time = time.max(due(&*lane));
        for token in resume(&mut *lane, &clock, time) {
            assert!(seen.insert(token), "{token} came twice");
        }
    }
    // The sixth waits for five tenths of a second less what is free, and then for 10 ms below.
    assert_eq!(time, 490 * MILLISECOND);
    lane.release();
    // What was held here is held below from now on, and was not meant by the release then.
    let mut rest: HashSet<u32> = resume(&mut *lane, &clock, time).into_iter().collect();
    lane.release();
    rest.extend(resume(&mut *lane, &clock, time));
    assert_eq!(rest.len(), 4);
    assert!(rest.is_disjoint(&seen));
    assert_eq!(lane.due(), None);
}
