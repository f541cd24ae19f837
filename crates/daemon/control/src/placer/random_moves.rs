//! Rings moved at random, in the place of the policy, for tests of what a move may break (feature `fault-points`).
//!
//! `RINGLOOM_MOVES=SEED` has half of the rings moved every few milliseconds, and iothreads that serve nothing ended.

use std::collections::BTreeSet;
use std::time::Duration;

use placement::{IothreadSlot, Order, RingMove, Snapshot};

/// What asks for it.
const VARIABLE: &str = "RINGLOOM_MOVES";
/// The longest time between two rounds.
const PAUSE_MAX_US: u64 = 6000;
/// After so many moves there is a line in the log.
const MOVES_PER_LINE: u64 = 100;

/// A source of moves.
#[derive(Debug)]
pub(super) struct RandomMoves {
    state: u64,
    moves: u64,
}

impl RandomMoves {
    /// If it is asked for.
    pub(super) fn from_environment() -> Option<Self> {
        let seed: u64 = std::env::var(VARIABLE).ok()?.parse().ok()?;
        Some(Self { state: seed | 1, moves: 0 })
    }

    fn below(&mut self, bound: u64) -> u64 {
        // xorshift
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state % bound
    }

    /// Where new rings are to begin, now and then.
    pub(super) fn home(&mut self, slots: usize) -> Option<usize> {
        let home = usize::try_from(self.below(wide(slots))).unwrap_or(0);
        (self.below(4) == 0).then_some(home)
    }

    /// When to do something again.
    pub(super) fn pause(&mut self) -> Duration {
        Duration::from_micros(self.below(PAUSE_MAX_US))
    }

    /// What to do now with the rings that are not pinned.
    pub(super) fn orders(&mut self, snapshot: &Snapshot, slots: usize) -> Vec<Order> {
        let mut moves = Vec::new();
        for (disk, ring) in
            snapshot.disks.iter().flat_map(|it| it.rings.iter().map(|ring| (it.id, ring)))
        {
            let to = IothreadSlot(u16::try_from(self.below(wide(slots))).unwrap_or(0));
            if !ring.is_pinned && to != ring.iothread && self.below(2) == 0 {
                moves.push(RingMove { disk, queue: ring.queue, to });
            }
        }
        let rings = snapshot.disks.iter().flat_map(|it| &it.rings).map(|it| it.iothread);
        let used: BTreeSet<IothreadSlot> = rings.chain(moves.iter().map(|it| it.to)).collect();
        let unused = snapshot.iothreads.iter().map(|it| it.slot).filter(|it| !used.contains(it));
        let unused: Vec<IothreadSlot> = unused.collect();
        let ends = unused.into_iter().filter(|_| self.below(8) == 0).map(Order::End);
        let ends: Vec<Order> = ends.collect();
        let mut orders = super::with_starts(moves, snapshot);
        orders.extend(ends);
        orders
    }

    /// So many rings were moved.
    pub(super) fn note(&mut self, moves: u64) {
        let lines = self.moves / MOVES_PER_LINE;
        self.moves += moves;
        for _ in lines..self.moves / MOVES_PER_LINE {
            tracing::info!("{MOVES_PER_LINE} queues were moved at random");
        }
    }
}

fn wide(count: usize) -> u64 {
    u64::try_from(count).expect("a pool is small")
}
