//! Medians, ratios, percentiles, and which runs they come from.

use plan::cell::Cell;
use plan::question::Want;
use plan::testing::{cell, client};
use records::testing::run;

use super::*;

fn estimate(values: &[f64]) -> Estimate {
    Estimate::of(values.iter().copied()).unwrap()
}

#[test]
fn ratios_are_formed_inside_a_block() {
    // The machine doubles its speed after the first repeat; the ratios do not notice.
    let cell = cell("randread", 4096, 2, 16);
    let mut runs = Vec::new();
    for (repeat, speed) in [(0, 100), (1, 200), (2, 200)] {
        runs.push(run(cell, client(2), repeat, 6 * speed));
        runs.push(run(cell, Contender::HOST, repeat, 8 * speed));
        runs.push(run(cell, client(0), repeat, 4 * speed));
    }
    let summary = &summarise(&runs, 2)[0];
    let [host, none, two] = &summary.rows[..] else { panic!("{summary:?}") };
    assert_eq!(host.to_none, None);
    assert_eq!(host.to_host, Some(estimate(&[1.0; 3])));
    assert_eq!(none.to_host, Some(estimate(&[0.5; 3])));
    assert_eq!(two.to_none, Some(estimate(&[1.5; 3])));
    assert_eq!(two.iops, estimate(&[600.0, 1200.0, 1200.0]));
    assert_eq!(two.cpu_us, Some(10.0));
    assert_eq!([host, none, two].map(|row| row.cpu_bound), [false, true, true]);
}

#[test]
fn a_block_without_its_base_has_no_ratio() {
    let cell = cell("randread", 4096, 2, 16);
    let runs = [run(cell, client(0), 0, 100), run(cell, client(1), 1, 200)];
    let rows = &summarise(&runs, 2)[0].rows;
    assert_eq!((rows[1].to_none, rows[1].to_host), (None, None));
}

#[test]
fn percentiles_come_from_all_repeats_together() {
    let cell = cell("randread", 4096, 2, 16);
    let mut slow = run(cell, client(0), 1, 1000);
    slow.latency_ns = vec![(10_000_000, 1000)];
    let rows = &summarise(&[run(cell, client(0), 0, 1000), slow], 8)[0].rows;
    assert!(rows[0].p50.unwrap() < Duration::from_micros(102));
    assert!(rows[0].p99.unwrap() > Duration::from_millis(9));
}

#[test]
fn cells_keep_their_order() {
    let cells = [cell("randwrite", 4096, 2, 16), cell("randread", 65_536, 2, 16)];
    let runs = cells.map(|cell| run(cell, Contender::HOST, 0, 1));
    let order: Vec<_> = summarise(&runs, 2).iter().map(|summary| summary.cell).collect();
    assert_eq!(order, cells);
    assert!(summarise(&runs, 2).iter().all(|summary| summary.verdicts.is_empty()));
}

#[test]
fn of_a_listed_number_its_few_blocks_count_not_its_best_run() {
    // The machine doubles its speed when 2 was measured.
    let cell = cell("randread", 4096, 2, 16);
    let mut runs = Vec::new();
    for (repeat, speed) in [(0, 1), (1, 1), (2, 2), (3, 2), (4, 2), (5, 2)] {
        runs.extend(
            [(0, 50), (1, 100)].map(|(n, iops)| run(cell, client(n), repeat, iops * speed)),
        );
    }
    runs.extend([0, 1].map(|repeat| run(cell, client(2), repeat, 90)));
    let blocks = summarise(&runs, 2)[0].blocks(Subject::Client, Want::Throughput);
    assert_eq!(blocks.other_shares(), [(Iothreads::new(2), 0.9)]);
}

/// A run of those that are measured again.
fn again(cell: Cell, contender: Contender, repeat: u16, operations: u64) -> Run {
    let mut run = run(cell, contender, repeat, operations);
    run.key.purpose = Purpose::Confirm;
    run
}

#[test]
fn one_that_was_measured_again_has_its_figures_from_those_runs_alone() {
    let cell = cell("randread", 4096, 2, 16);
    let again = |contender, repeat, operations| again(cell, contender, repeat, operations);
    let mut runs: Vec<Run> = [(0, 50), (1, 120), (2, 100), (4, 60)]
        .map(|(n, iops)| run(cell, client(n), 0, iops))
        .into();
    runs.extend([(0, 50), (1, 100), (2, 105)].map(|(n, iops)| again(client(n), 0, iops)));
    runs.extend([(0, 50), (1, 100), (2, 105)].map(|(n, iops)| again(client(n), 1, iops)));
    let summary = &summarise(&runs, 2)[0];
    let [none, one, two, four] = &summary.rows[..] else { panic!("{summary:?}") };
    assert_eq!((one.iops, one.explored[0].iops), (estimate(&[100.0, 100.0]), 120.0));
    assert_eq!(two.to_none, Some(estimate(&[2.1, 2.1])));
    assert!(none.is_confirmed() && !four.is_confirmed());
    assert_eq!(four.iops, estimate(&[60.0]));
    let (_, verdict) = summary.verdicts[0];
    assert_eq!((verdict.best, verdict.n90), (Iothreads::new(2), Iothreads::new(1)));
    // 4 reached 60 of 100 when both were explored.
    assert_eq!(verdict.n90_stays, None, "4 reached too little");
}

#[test]
fn of_two_explored_runs_the_better_counts() {
    let cell = cell("randread", 4096, 2, 16);
    let again = |contender, repeat, operations| again(cell, contender, repeat, operations);
    let mut runs = vec![run(cell, client(1), 0, 1000), run(cell, client(1), 1, 400)];
    runs.push(run(cell, client(2), 0, 500));
    runs.extend([0, 1, 2].map(|repeat| again(client(1), repeat, 900)));
    let blocks = summarise(&runs, 2)[0].blocks(Subject::Client, Want::Throughput);
    assert_eq!(blocks.other_shares(), [(Iothreads::new(2), 0.5)]);
}
