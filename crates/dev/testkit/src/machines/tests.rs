//! The machines as a whole: the same seed gives the same runs, and the truth is what many runs have in the middle.

use super::*;

fn ask(machine: &Machine, iothreads: u16, started_s: f64) -> Ask {
    let load = machine.loads()[0];
    Ask { subject: Subject::Vm, iothreads, load, started_s, ramp_s: 1.0, seconds: 5.0 }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[test]
fn the_same_seed_gives_the_same_runs_and_another_others() {
    let runs = |seed| {
        let machines = all(seed).into_iter().map(|named| named.machine);
        let run = |mut machine: Machine| {
            (0..3).map(|i| machine.run(&ask(&machine, 4, 10.0 * f64::from(i))).iops).collect()
        };
        machines.map(run).collect::<Vec<Vec<f64>>>()
    };
    assert_eq!(runs(5), runs(5));
    assert!(runs(5).iter().zip(&runs(6)).all(|(a, b)| a != b));
}

#[test]
fn the_truth_is_the_median_of_many_runs() {
    for Named { name, mut machine } in all(17) {
        if *machine.course() != Course::STILL {
            continue;
        }
        for (subject, iothreads) in [(Subject::Host, 0), (Subject::Vm, 0), (Subject::Vm, 4)] {
            let load = machine.loads()[0];
            let runs = (0..4001).map(|i| {
                let started_s = 10.0 * f64::from(i);
                let ask = Ask { subject, iothreads, load, started_s, ramp_s: 1.0, seconds: 5.0 };
                machine.boot();
                machine.run(&ask).iops
            });
            let median = median(runs.collect());
            let truth = machine.truth(subject, iothreads, load);
            assert!((median / truth - 1.0).abs() < 0.015, "{name} {iothreads}: {median} {truth}");
        }
    }
}

#[test]
fn a_run_is_the_mean_of_its_windows() {
    for Named { name, mut machine } in all(3) {
        let ran = machine.run(&ask(&machine, 2, 0.0));
        let mean = ran.windows.iter().sum::<f64>() / 5.0;
        assert!((ran.iops / mean - 1.0).abs() < 1e-9, "{name}");
        assert!(
            ran.iops > 0.0 && ran.cpu_us_per_request > 0.0 && ran.p50_ns < ran.p99_ns,
            "{name}"
        );
    }
}

#[test]
fn the_best_number_is_the_one_that_lacks_least() {
    for Named { name, machine } in all(8) {
        let loads = machine.loads();
        let (best, lack) = machine.best(loads);
        assert!(
            COUNTS.iter().all(|&n| machine.shortfall(n, loads) >= lack - 1e-9),
            "{name} {best}"
        );
        assert!(machine.n90(loads[0]) <= 16);
    }
    assert_eq!(named("flat", 1).best(named("flat", 1).loads()), (0, 0.0));
    let conflict = named("conflict", 1);
    assert!(conflict.best(conflict.loads()).1 > 0.05, "no number suits both");
}

#[test]
fn the_truth_knows_nothing_of_what_was_run() {
    let mut machine = named("carries-over", 2);
    let load = machine.loads()[0];
    let before = machine.truth(Subject::Vm, 4, load);
    for i in 0..5 {
        machine.run(&ask(&machine, 16, 10.0 * f64::from(i)));
    }
    assert_eq!(machine.truth(Subject::Vm, 4, load), before);
}

#[test]
fn names_are_unique() {
    let mut names: Vec<_> = all(0).iter().map(|named| named.name).collect();
    names.sort_unstable();
    assert!(names.windows(2).all(|pair| pair[0] != pair[1]));
}
