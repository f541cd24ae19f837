//! What the report says where what may be the answer was repeated less often than the user asked for. Pure functions.
//!
//! A search measures the least of `--repeats` unless the time of `--budget` is up, a signal ends it, or too many runs fail.

use std::collections::{BTreeSet, HashMap};

use plan::cell::Cell;
use plan::repeats::Repeats;
use plan::runs::Purpose;
use plan::units::counted;
use plan::variant::Variant;

use super::Findings;

/// In how many cells, how often at least, and what to do.
pub(super) fn sentence(findings: &Findings<'_>) -> Option<String> {
    let Findings { header, runs, failures, .. } = *findings;
    let settings = &header.settings;
    let least = match settings.repeats {
        Repeats::Until { least, .. } if !header.is_unknown() => usize::from(least),
        Repeats::Until { .. } | Repeats::Fixed(_) => return None,
    };
    // What was tried counts: what failed is told apart.
    let keys = runs.iter().map(|run| &run.key).chain(failures.iter().map(|failure| &failure.key));
    let mut cells: HashMap<(Variant, Cell), BTreeSet<u16>> = HashMap::new();
    for key in keys.filter(|key| key.purpose.is_compared()) {
        let repeats = cells.entry((key.variant, key.cell)).or_default();
        repeats.extend((key.purpose == Purpose::Confirm).then_some(key.repeat));
    }
    let few = || cells.values().map(BTreeSet::len).filter(|repeats| *repeats < least);
    let fewest = few().min()?;
    let (few, all) = (few().count(), counted(cells.len(), "cell"));
    let why = match settings.budget {
        None => "the command ended early; --resume measures the rest",
        Some(_) => {
            "the time was up or the command ended early; --resume and a longer --budget measure the rest"
        }
    };
    Some(format!(
        "Warning: in {few} of {all} there are fewer than the {least} repeats that --repeats {} asks for (the fewest: \
         {fewest}): {why}.",
        settings.repeats
    ))
}

#[cfg(test)]
mod tests {
    use plan::testing::{cell, client};
    use records::results::{Failure, Run};
    use records::testing::{header, run};

    use super::*;
    use crate::tests::findings;

    /// A cell with so many repeats.
    fn measured(bytes: u64, repeats: u16) -> Vec<Run> {
        let explored = run(cell("randread", bytes, 2, 16), client(1), 0, 5);
        let again = (0..repeats).map(|repeat| {
            let mut run = run(cell("randread", bytes, 2, 16), client(1), repeat, 5);
            run.key.purpose = Purpose::Confirm;
            run
        });
        std::iter::once(explored).chain(again).collect()
    }

    #[track_caller]
    fn check(line: &str, runs: &[Vec<Run>], expected: Option<&str>) {
        let found = sentence(&findings(&header(line), &runs.concat()));
        let expected = expected.map(|text| format!("Warning: {text}."));
        assert_eq!(found, expected, "{line}");
    }

    #[test]
    fn cells_with_fewer_repeats_than_the_least_are_told() {
        let (less, enough) = (measured(4096, 5), measured(8192, 8));
        let told = "in 1 of 2 cells there are fewer than the 8 repeats that --repeats 8-12 asks for (the fewest: 5): \
                    the time was up or the command ended early; --resume and a longer --budget measure the rest";
        let both = [less.clone(), enough.clone()];
        check("--repeats 8-12 --budget 1m", &both, Some(told));
        let none = measured(512, 0);
        let told = "in 2 of 2 cells there are fewer than the 8 repeats that --repeats 8-12 asks for (the fewest: 0): \
                    the command ended early; --resume measures the rest";
        check("--repeats 8-12", &[less, none], Some(told));
        check("--repeats 8-12 --budget 1m", &[enough], None);
        check("--repeats 8 --iothreads none,1", &[measured(4096, 0)], None);
    }

    #[test]
    fn repeats_that_failed_were_tried() {
        let mut runs = measured(4096, 3);
        let last = runs.pop().unwrap();
        let failures = [Failure::new(last.key, &anyhow::anyhow!("it hangs"))];
        let header = header("");
        let few = findings(&header, &runs);
        assert!(sentence(&few).is_some());
        assert_eq!(sentence(&Findings { failures: &failures, ..few }), None);
    }
}
