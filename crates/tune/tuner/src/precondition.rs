//! Before anything is measured: the disk is written until what writes goes at a rate that has settled.
//!
//! SNIA's Performance Test Specification for SSDs (PTS 2.0.1) writes the whole device twice over, and then runs the load in
//! rounds until the last five are steady. `run` does so with `--precondition`; the report tells what became of each cell.
//!
//! Invariants: a command that goes on begins anew, since its scratch files are new.

use anyhow::{Context, Result, bail};
use findings::settling::{is_settled, round_of};
use plan::matrix::Matrix;
use plan::runs::{PlannedRun, Purpose, RunKey, watched};
use plan::variant::{Image, Variant};
use records::results::{Line, Results, Run};
use storage::scratch;

use crate::measure::Bench;

/// The rounds of the specification: so many at most.
const ROUNDS_MAX: u32 = 25;
/// How often the whole disk is written first.
pub(crate) const PASSES: u64 = 2;
/// What a cell takes, as a rule.
const ROUNDS_USUAL: u32 = 8;

/// One cell that writes, on the way to a steady rate.
#[derive(Clone, Debug)]
pub(crate) struct Settling {
    next: PlannedRun,
    /// Length in ns and requests of each round.
    rounds: Vec<(u64, u64)>,
}

impl Settling {
    /// Of all cells of a matrix that write, each with what is measured first of it.
    pub(crate) fn all(matrix: &Matrix, seed: u64) -> Vec<Self> {
        let writes = matrix.entries.iter().filter(|entry| entry.cells[0].writes());
        let first = |entry| {
            let contender = watched(entry).next()?;
            let (variant, cell, purpose) = (entry.variant, entry.cells[0], Purpose::Precondition);
            let key = RunKey { purpose, repeat: 0, step: 0, contender, variant, cell };
            let jobs_max = entry.jobs_max();
            let next = PlannedRun { key, jobs_max, seed, round: Some(0), stretch: 1 };
            Some(Self { next, rounds: Vec::new() })
        };
        writes.filter_map(first).collect()
    }

    /// Runs that this usually takes, for the estimate of the time.
    pub(crate) fn outlook(&self) -> Vec<PlannedRun> {
        vec![self.next.clone(); usize::try_from(ROUNDS_USUAL).expect("few fit usize")]
    }

    /// The next round, unless the last ones were steady or there were too many.
    fn next(&self) -> Option<&PlannedRun> {
        let is_over = self.next.key.step >= ROUNDS_MAX || is_settled(&self.rounds);
        (!is_over).then_some(&self.next)
    }

    /// A round is over.
    fn measured(&mut self, run: &Run) {
        self.rounds.push(round_of(run));
        self.next.key.step += 1;
        self.next.seed = self.next.seed.wrapping_add(1);
    }
}

/// Whether the disks of a command can be written so.
///
/// # Errors
/// Why not, as the end of a sentence.
pub(crate) fn check(variants: &[Variant]) -> Result<()> {
    match variants.iter().find(|variant| variant.image != Image::Raw) {
        Some(variant) => bail!("--precondition writes raw disks, not {}", variant.image),
        None => Ok(()),
    }
}

/// Writes the disks, then runs each cell that writes until it is steady.
///
/// # Errors
/// If a disk cannot be written, a run fails, or a signal comes.
pub(crate) fn carry_out(
    bench: &mut Bench<'_>,
    matrix: &Matrix,
    results: &mut Results,
) -> Result<()> {
    let seed = bench.settings.seed;
    for path in bench.storages.paths() {
        bench.progress.before("the disk is written twice");
        for pass in 0..PASSES {
            scratch::overwrite(&path, seed.wrapping_add(pass), bench.interrupt)
                .with_context(|| format!("write {} before it is measured", path.display()))?;
        }
    }
    for mut settling in Settling::all(matrix, seed) {
        while let Some(planned) = settling.next().cloned() {
            let left = bench.pace.total(&settling.outlook());
            let run = bench.measure(&planned, None, left)?;
            settling.measured(&run);
            results.append(Line::Run(Box::new(run)))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use plan::matrix::Writes;
    use plan::testing::client;
    use plan::testing::settings;
    use plan::variant::Layers;
    use records::testing::run;

    use super::*;

    fn settling(line: &str) -> Vec<Settling> {
        let settings = settings(line, 2);
        let matrix = Matrix::new(&settings, &|_| Layers::Kernel, 1 << 30, Writes::Allowed).unwrap();
        Settling::all(&matrix, 7)
    }

    /// How many rounds it takes at these rates, the last of which goes on.
    fn rounds(rates: &[u64]) -> usize {
        let mut settling = settling("--op randwrite --bs 4k").swap_remove(0);
        let mut rates = rates.iter().copied().chain(std::iter::repeat(*rates.last().unwrap()));
        let mut count = 0;
        while let Some(planned) = settling.next().cloned() {
            assert_eq!(planned.key.step, u32::try_from(count).unwrap());
            count += 1;
            settling.measured(&run(planned.key.cell, client(1), 0, rates.next().unwrap()));
        }
        count
    }

    #[test]
    fn five_steady_rounds_are_waited_for_but_not_for_ever() {
        assert_eq!(rounds(&[100]), 5);
        assert_eq!(rounds(&[1000, 700, 500, 300, 100]), 9);
        let unsteady: Vec<u64> = (0..40).map(|round| 100 + round % 2 * 100).collect();
        assert_eq!(rounds(&unsteady), 25);
        assert_eq!(rounds(&[0]), 25, "nothing was done in any of them");
    }

    #[test]
    fn only_what_writes_is_run_before() {
        let cells = settling("--op randread,randwrite --bs 4k,64k");
        assert_eq!(cells.len(), 2);
        assert!(cells.iter().all(|it| it.next.key.cell.writes()));
        assert!(settling("--op randread").is_empty());
    }
}
