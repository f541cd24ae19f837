//! Whether the rate of what writes has settled before anything is measured: SNIA's rule over rounds. Pure functions.

use plan::cell::Cell;
use plan::lists::unique;
use plan::runs::Purpose;
use plan::units::counted;
use plan::variant::Variant;
use records::results::Run;
use records::steady::{Steady, judge};

/// So many rounds are judged, the last ones.
const JUDGED: usize = 5;

/// Length in ns and requests of a round.
pub fn round_of(run: &Run) -> (u64, u64) {
    (run.elapsed_ns, run.operations)
}

/// Whether the last rounds were steady.
pub fn is_settled(rounds: &[(u64, u64)]) -> bool {
    rounds.len().checked_sub(JUDGED).is_some_and(|from| judge(&rounds[from..]) == Steady::Steady)
}

/// What became of each cell, a sentence each.
pub fn sentences(runs: &[Run]) -> Vec<String> {
    let own = || runs.iter().filter(|run| run.key.purpose == Purpose::Precondition);
    let cells = unique(own().map(|run| (run.key.variant, run.key.cell)));
    let sentence = |(variant, cell): (Variant, Cell)| {
        let mut rounds: Vec<&Run> =
            own().filter(|run| (run.key.variant, run.key.cell) == (variant, cell)).collect();
        rounds.sort_by_key(|run| run.key.step);
        let (first, last) = (rounds.first()?, rounds.last()?);
        let all: Vec<_> = rounds.iter().map(|run| round_of(run)).collect();
        let how = if is_settled(&all) { "settled" } else { "had not settled" };
        let rates = format!("{:.0} IOPS, then {:.0}", first.iops(), last.iops());
        Some(format!(
            "Preconditioned: {} {how} after {} ({rates}).",
            last.key,
            counted(all.len(), "run")
        ))
    };
    cells.into_iter().filter_map(sentence).collect()
}

#[cfg(test)]
mod tests {
    use plan::testing::{cell, client};
    use records::testing::run;

    use super::*;

    #[test]
    fn the_report_tells_what_became_of_each_cell() {
        let cell = cell("randwrite", 4096, 1, 1);
        let of = |rates: &[u64]| -> Vec<Run> {
            let round = |(step, rate): (u32, &u64)| {
                let mut run = run(cell, client(1), 0, *rate);
                (run.key.purpose, run.key.step) = (Purpose::Precondition, step);
                run
            };
            (0..).zip(rates).map(round).collect()
        };
        let told = sentences(&of(&[1000, 500, 100, 100, 100, 100, 100]));
        let expected = "Preconditioned: randwrite 4k jobs=1 iodepth=1, client 1, before settled after 7 runs (1000 IOPS, \
                        then 100).";
        assert_eq!(told, [expected]);
        let told = sentences(&of(&[100; 4]));
        assert!(told[0].contains("had not settled after 4 runs"), "{told:?}");
        assert_eq!(sentences(&[run(cell, client(1), 0, 5)]), Vec::<String>::new());
    }
}
