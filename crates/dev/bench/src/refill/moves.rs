//! How long a ring is not served while it moves, and what its guest loses by that.
//!
//! Self-refilling rings go to and fro between two iothreads, all of them together.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use iothread::{SourceMove, move_many};

use crate::clock;
use crate::measure::{Values, as_f64};
use crate::refill::{RAMP, Rings, SATURATED, Stage};
use crate::results::Metric;

/// Between two moves: as often as a policy that tries placements moves at most.
const PAUSE: Duration = Duration::from_millis(5);

/// Moves so many saturated rings on a null disk; the times are those in which a ring is not served, for all moves.
pub(crate) fn measure(rings: u16, runtime: Duration) -> Result<Values> {
    let stage = Stage::new(None)?;
    let all = Rings::start(&stage, SATURATED, 1, rings)?;
    let first = all.placed[0].iothread().context("its iothread")?;
    let second = stage.iothread("t1")?;
    clock::pause(RAMP);
    let (start, before) = (clock::now(), all.answered());
    let mut pauses: Vec<u64> = Vec::new();
    let mut moves = 0;
    while start.elapsed() < runtime {
        let to = if moves % 2 == 0 { &second } else { &first };
        moves += 1;
        let of = |ring: &Arc<_>| SourceMove { source: Arc::clone(ring), to: Arc::clone(to) };
        let list: Vec<_> = all.placed.iter().map(|ring| of(ring)).collect();
        let moved = |it: &SourceMove| it.source.gauges().move_ns.get();
        let known: Vec<u64> = list.iter().map(moved).collect();
        move_many(&list).into_iter().collect::<Result<(), _>>()?;
        pauses.extend(list.iter().zip(known).map(|(it, known)| moved(it) - known));
        clock::pause(PAUSE);
    }
    let (elapsed, answered) = (start.elapsed(), all.answered() - before);
    let errors = all.stop();
    anyhow::ensure!(errors == 0, "{errors} requests of self-refilling rings failed");
    pauses.sort_unstable();
    let percentile = |percent: usize| as_f64(pauses[(pauses.len() - 1) * percent / 100]) / 1e3;
    Ok(BTreeMap::from([
        (Metric::RequestsPerS, as_f64(answered) / elapsed.as_secs_f64()),
        (Metric::P50Us, percentile(50)),
        (Metric::P99Us, percentile(99)),
    ]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_are_served_while_they_move() {
        let values = measure(3, Duration::from_millis(100)).unwrap();
        assert!(values[&Metric::RequestsPerS] > 1000.0, "{values:?}");
        assert!(values[&Metric::P50Us] > 0.0, "{values:?}");
    }
}
