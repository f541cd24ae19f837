//! Requests that the lane below keeps and answers again: layers that hold pass the further answers on at once.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use block::{
    Access, AfterPiecesAction, Answer, BatchPieces, BlockLimits, ByteCount, Child, Claim,
    ClaimError, Clock, DiskSize, Lane, LaneCompletionDecision, LaneContext, LaneError, Mapping,
    Node, Operation, Outcome, Rights, Token, WakeTime,
};
use layers::{
    DelayNode, DelayOrder, DelaySettings, Distribution, Latency, LimitKind, ThrottleGroup,
    ThrottleLimits, ThrottleNode, ThrottleSettings,
};

use crate::stripe::child::{Start, extent, limits};

/// A clock that the test sets.
#[derive(Debug, Default)]
struct Hand(Mutex<u64>);

impl Clock for Hand {
    fn now(&self) -> Instant {
        Instant::at(*self.0.lock().unwrap())
    }
}

/// Keeps each request so many times.
#[derive(Debug)]
struct Keeping(u32);

#[derive(Debug)]
struct KeepingLane {
    rounds: u32,
    open: Vec<(Token, Operation, u32)>,
    kept: Vec<(Token, Operation, u32)>,
}

impl Node for Keeping {
    fn name(&self) -> &'static str {
        "keeping"
    }

    fn size(&self) -> DiskSize {
        DiskSize(ByteCount(1 << 30))
    }

    fn limits(&self) -> BlockLimits {
        limits(512, 512)
    }

    fn access(&self) -> Access {
        Access::ReadWrite
    }

    fn flush(&self) -> std::io::Result<()> {
        Ok(())
    }

    fn claim(&self, _: Rights) -> Result<Claim, ClaimError> {
        Ok(Claim::nothing())
    }

    fn open_lane(&self, _: &LaneContext) -> Result<Box<dyn Lane>, LaneError> {
        Ok(Box::new(KeepingLane { rounds: self.0, open: Vec::new(), kept: Vec::new() }))
    }
}

impl KeepingLane {
    fn answer(&mut self, mapping: &mut Mapping, rounds: u32, pieces: &BatchPieces) {
        mapping.answer = Answer::Now(pieces.none());
        if rounds > 0 {
            mapping.after = AfterPiecesAction::NotifyLane;
            self.open.push((mapping.token, mapping.operation, rounds - 1));
        }
    }
}

impl Lane for KeepingLane {
    fn map(&mut self, batch: &mut [Mapping], pieces: &mut BatchPieces) {
        batch.iter_mut().for_each(|mapping| self.answer(mapping, self.rounds, pieces));
    }

    fn due(&self) -> Option<WakeTime> {
        None
    }

    fn release(&mut self) {}

    fn resume(&mut self, _: Instant, late: &mut Vec<Mapping>, pieces: &mut BatchPieces) {
        for (token, operation, rounds) in std::mem::take(&mut self.kept) {
            let mut mapping = Mapping::new(token, operation);
            self.answer(&mut mapping, rounds, pieces);
            late.push(mapping);
        }
    }

    fn completed(&mut self, token: Token, _: Outcome) -> LaneCompletionDecision {
        let place = self.open.iter().position(|open| open.0 == token);
        self.kept.push(self.open.remove(place.expect("it asked to be told")));
        LaneCompletionDecision::HoldAgain
    }
}

fn read() -> Operation {
    Operation::Read(extent(0..512))
}

fn map(lane: &mut dyn Lane, token: u32) -> Mapping {
    let mut batch = [Mapping::new(Token(token), read())];
    lane.map(&mut batch, &mut BatchPieces::default());
    batch[0]
}

fn resume(lane: &mut dyn Lane, ms: u64) -> Vec<Mapping> {
    let mut late = Vec::new();
    lane.resume(Instant::at(ms), &mut late, &mut BatchPieces::default());
    late
}

/// Has a request that was answered carried out again and again.
#[track_caller]
fn check_rounds(lane: &mut dyn Lane, token: u32, rounds: u32, ms: u64, last: AfterPiecesAction) {
    for left in (0..rounds).rev() {
        assert_eq!(lane.completed(Token(token), Outcome::Done), LaneCompletionDecision::HoldAgain);
        let late = resume(lane, ms);
        let [again] = late[..] else { panic!("{late:?}") };
        assert!(matches!(again.answer, Answer::Now(_)), "{again:?}");
        let after = if left > 0 { AfterPiecesAction::NotifyLane } else { last };
        assert_eq!((again.token, again.after), (Token(token), after));
    }
    if last == AfterPiecesAction::NotifyLane {
        assert_eq!(
            lane.completed(Token(token), Outcome::Done),
            LaneCompletionDecision::Finish(Outcome::Done)
        );
    }
}

/// When the second of two requests is due if the first one was kept so many times.
fn due_behind(rounds: u32) -> Option<WakeTime> {
    let mut settings = ThrottleSettings::default();
    settings.limit_mut(LimitKind::IopsTotal).rate = 10;
    let limits = ThrottleLimits::check(settings).unwrap();
    let group = ThrottleGroup::new("group", limits, Arc::new(Hand::default()));
    let below = Child::new(Arc::new(Keeping(rounds)));
    let node = ThrottleNode::new("throttle", below, group, Access::ReadWrite);
    let mut lane = node.open_lane(&LaneContext::idle()).unwrap();
    assert!(matches!(map(&mut *lane, 0).answer, Answer::Now(_)));
    check_rounds(&mut *lane, 0, rounds, 0, AfterPiecesAction::Finish);
    assert_eq!(map(&mut *lane, 1).answer, Answer::Held);
    lane.due()
}

#[test]
fn a_throttle_charges_a_request_once_however_often_it_is_answered() {
    let due = due_behind(0);
    assert!(due.is_some_and(|due| due.at > Instant::at(1)));
    assert_eq!(due_behind(1), due);
    assert_eq!(due_behind(9), due);
}

#[test]
fn a_delay_holds_a_request_once_and_keeps_its_order() {
    for (order, last) in [
        (DelayOrder::Any, AfterPiecesAction::Finish),
        (DelayOrder::AsBegun, AfterPiecesAction::NotifyLane),
    ] {
        let read = Distribution::Fixed(Latency::from_ns(5_000_000).unwrap());
        let (write, flush) = (Distribution::NONE, Distribution::NONE);
        let settings = DelaySettings { read, write, flush, order };
        let (below, clock) = (Child::new(Arc::new(Keeping(3))), Arc::new(Hand::default()));
        let node = DelayNode::new("delay", below, Access::ReadWrite, settings, 1, clock);
        let mut lane = node.open_lane(&LaneContext::idle()).unwrap();
        assert_eq!(map(&mut *lane, 0).answer, Answer::Held);
        assert!(resume(&mut *lane, 4).is_empty());
        let [first] = resume(&mut *lane, 5)[..] else { panic!("it is due") };
        assert_eq!(first.after, AfterPiecesAction::NotifyLane);
        check_rounds(&mut *lane, 0, 3, 5, last);
    }
}
