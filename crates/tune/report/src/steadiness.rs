//! What the report says of runs that were not steady. Pure functions.

use plan::units::counted;
use records::results::{Header, Run};
use records::steady::Steady;

use super::around::named;

/// A sentence about those that only needed a longer ramp, and one about the others.
pub(super) fn sentences(runs: &[Run], header: &Header) -> Vec<String> {
    let (mut warming, mut others) = (Vec::new(), Vec::new());
    for run in runs {
        match run.steadiness() {
            Steady::Unknown | Steady::Steady => {}
            Steady::Unsteady { still_warming: true, .. } => warming.push(run),
            Steady::Unsteady { range, rise, still_warming: false } => {
                others.push((run, range, rise));
            }
        }
    }
    let ramp = if header.is_unknown() {
        "ramp".to_owned()
    } else {
        format!("ramp of {} s", header.settings.ramp)
    };
    let names: Vec<String> = warming.iter().map(|run| name(run)).collect();
    let short = (!names.is_empty()).then(|| {
        let list = named(&names);
        format!("Warning: the {ramp} was too short for {}: {list}.", of(&names, runs))
    });
    let names: Vec<String> = others.iter().map(|(run, ..)| name(run)).collect();
    let unsteady = (!names.is_empty()).then(|| {
        let greatest = |figure: fn(&(&Run, f64, f64)) -> f64| {
            others.iter().map(figure).fold(0.0, f64::max) * 100.0
        };
        let (range, rise) = (greatest(|it| it.1), greatest(|it| it.2.abs()));
        let (of, list) = (of(&names, runs), named(&names));
        format!(
            "Warning: {of} were not steady (their fifths differ by up to {range:.0} % and drift by \
             up to {rise:.0} %): {list}; a longer --runtime helps, if nothing disturbs the host."
        )
    });
    short.into_iter().chain(unsteady).collect()
}

fn name(run: &Run) -> String {
    let twice = if run.stretched { " (twice as long)" } else { "" };
    format!("{}{twice}", run.key)
}

/// `3 of 20 runs`.
fn of(names: &[String], runs: &[Run]) -> String {
    format!("{} of {}", names.len(), counted(runs.len(), "run"))
}

#[cfg(test)]
mod tests {
    use plan::testing::{cell, client};
    use records::testing::{header, run};

    use super::*;

    fn windows(run: &mut Run, operations: [u64; 5]) {
        run.windows = operations.iter().map(|&operations| (1_000_000, operations)).collect();
    }

    #[test]
    fn unsteady_runs_are_named_with_what_would_help() {
        let mut header = header("--ramp 0.5");
        let runs: Vec<Run> = [
            [100, 100, 100, 100, 100],
            [50, 100, 100, 100, 100],
            [100, 100, 40, 100, 100],
            [100, 95, 90, 80, 70],
            [0, 0, 0, 0, 0],
        ]
        .into_iter()
        .zip(0..)
        .map(|(operations, number)| {
            let mut run = run(cell("read", 4096, 1, 1), client(number), 0, 5);
            windows(&mut run, operations);
            run.stretched = number == 2;
            run
        })
        .collect();
        assert_eq!(
            sentences(&runs, &header),
            [
                "Warning: the ramp of 0.5 s was too short for 1 of 5 runs: read 4k jobs=1 iodepth=1, \
                 client 1.",
                "Warning: 2 of 5 runs were not steady (their fifths differ by up to 68 % and drift by \
                 up to 34 %): read 4k jobs=1 iodepth=1, client 2 (twice as long); read 4k jobs=1 iodepth=1, client 3; \
                 a longer --runtime helps, if nothing disturbs the host."
            ]
        );
        assert_eq!(sentences(&runs[..1], &header), Vec::<String>::new());
        header.ringloom.clear();
        let unknown = &sentences(&runs, &header)[0];
        assert!(unknown.starts_with("Warning: the ramp was too short for 1 of"), "{unknown}");
    }

    #[test]
    fn of_many_some_are_named() {
        let header = header("");
        let mut one = run(cell("read", 4096, 1, 1), client(1), 0, 5);
        windows(&mut one, [50, 100, 100, 100, 100]);
        let again = vec![one.clone(); 3];
        let sentence = sentences(&again, &header).concat();
        assert!(
            sentence.ends_with("3 of 3 runs: read 4k jobs=1 iodepth=1, client 1 ×3."),
            "{sentence}"
        );
        let number = |iothreads| {
            let mut run = one.clone();
            run.key.contender = client(iothreads);
            run
        };
        let sentence = sentences(&(0..9).map(number).collect::<Vec<_>>(), &header).concat();
        assert!(sentence.ends_with("client 4; and 4 more."), "{sentence}");
    }
}
