//! Other questions than the most IOPS: the lowest p99, the least CPU, and what must be kept.

use super::*;

/// What a number measured in each of six repeats: IOPS, p99 in µs and CPU time per request in µs.
type Measured = (u16, [u64; 3]);

fn measured(cells: &[(&str, &[Measured])]) -> Vec<Run> {
    let mut runs = Vec::new();
    for (op, rows) in cells {
        for (repeat, (count, [iops, p99_us, cpu_us])) in
            (0..6).flat_map(|repeat| rows.iter().map(move |row| (repeat, row)))
        {
            let mut run = run(cell(op, 4096, 8, 1), client(*count), repeat, *iops);
            run.latency_ns = vec![(p99_us * 1000, *iops)];
            run.cost.groups[0].cpu_ns = cpu_us * 1000 * iops;
            runs.push(run);
        }
    }
    runs
}

/// The question of these options.
fn question(line: &str) -> Question {
    let settings = plan::testing::settings(line, 8);
    settings.check().unwrap();
    settings.question()
}

#[track_caller]
fn told(runs: &[Run], line: &str, iothreads: u16, expected: &str) -> Vec<String> {
    let found =
        answer(Subject::Client, &summarise(runs, 64), &question(line), &[]).expect("an answer");
    assert_eq!(sentence(&found), expected);
    if found.recommends() {
        assert_eq!(found.iothreads, Iothreads::new(iothreads));
    }
    details(&found, Some(Repeats::DEFAULT))
}

/// More iothreads do more requests, for more CPU and from 4 on a higher p99.
const RISING: &[(&str, &[Measured])] = &[
    (
        "randread",
        &[
            (0, [20_000, 900, 10]),
            (1, [30_000, 700, 12]),
            (4, [90_000, 1500, 20]),
            (8, [120_000, 4000, 30]),
        ],
    ),
    (
        "randwrite",
        &[
            (0, [10_000, 950, 11]),
            (1, [25_000, 800, 12]),
            (4, [60_000, 1900, 21]),
            (8, [80_000, 2100, 31]),
        ],
    ),
];
const SURE: &str = "sure: in 100 % of resamplings no number is better by more than 5 %.";

#[test]
fn each_want_has_its_own_answer_of_the_same_runs() {
    let runs = measured(RISING);
    let of = |want: &str| {
        let found = answer(Subject::Client, &summarise(&runs, 64), &question(want), &[]);
        found.unwrap().iothreads.count()
    };
    assert_eq!(["", "--want throughput", "--want latency", "--want cpu"].map(of), [8, 8, 1, 0]);
    let details = told(
        &runs,
        "--want latency",
        1,
        &format!(
            "For the lowest p99 use 1 iothread: the lowest in every cell, p99 −22 % to −16 % against none, \
             for 0.4 CPUs instead of 0.2 where it costs most; {SURE}"
        ),
    );
    assert_eq!(
        details,
        [
            "Its IOPS are up to 75 % (in randread 4k jobs=8 iodepth=1) below the most that any number reaches."
        ]
    );
    told(
        &runs,
        "--want cpu",
        0,
        &format!("For the least CPU per request use no iothread: the least in every cell; {SURE}"),
    );
}

#[test]
fn a_bound_leaves_only_numbers_that_keep_it_in_every_cell() {
    let runs = measured(RISING);
    let kept = "sure: in 100 % of resamplings it keeps that and none that does is better by more than 5 %.";
    let details = told(
        &runs,
        "--p99-max 2ms",
        4,
        &format!(
            "For the most IOPS with a p99 of at most 2ms use 4 iothreads: the best of those that keep that in every \
             cell, p99 1.9 ms at most, +350 % to +500 % over none, for 1.8 CPUs instead of 0.2 where it costs \
             most; {kept}"
        ),
    );
    assert_eq!(
        details.last().unwrap(),
        "What would change the answer: without a bound: 8 iothreads."
    );
    let details = told(
        &runs,
        "--want cpu --iops-min 50k",
        4,
        &format!(
            "For the least CPU per request with at least 50,000 IOPS use 4 iothreads: the least of those that keep \
             that in every cell, 60,000 IOPS at least, CPU per request +91 % to +100 % against none; {kept}"
        ),
    );
    assert!(details.last().unwrap().contains("without a bound: no iothread"), "{details:?}");
    // Another cell that does not count may miss it.
    let found = |line: &str| {
        answer(Subject::Client, &summarise(&runs, 64), &question(line), &[]).unwrap().iothreads
    };
    assert_eq!(found("--want cpu --iops-min 90k --weights randread=1"), Iothreads::new(4));
    assert_eq!(found("--want cpu --iops-min 20k --p99-max 1ms"), Iothreads::new(1));
}

#[test]
fn where_no_number_keeps_a_bound_the_nearest_is_named() {
    let runs = measured(RISING);
    let details = told(
        &runs,
        "--p99-max 500us",
        0,
        "No number of iothreads has a p99 of at most 500us in every cell that counts: the nearest, 1 \
         iothread, has p99 800 µs in randwrite 4k jobs=8 iodepth=1.",
    );
    assert!(details[0].contains("tune curve measures it at lower rates"), "{details:?}");
    told(
        &runs,
        "--want latency --iops-min 100k",
        0,
        "No number of iothreads has at least 100,000 IOPS in every cell that counts: the nearest, 8 \
         iothreads, has 80,000 IOPS in randwrite 4k jobs=8 iodepth=1.",
    );
    // Half of the repeats miss it, though the middle does not.
    let mut runs = measured(&[("randread", &[(0, [9, 900, 1]), (1, [50, 900, 1])])]);
    for run in &mut runs {
        let p99_us = if run.key.repeat < 3 { 990 } else { 1009 };
        run.latency_ns = vec![(p99_us * 1000, run.operations)];
    }
    let found = answer(Subject::Client, &summarise(&runs, 64), &question("--p99-max 1ms"), &[]);
    let text = sentence(&found.unwrap());
    assert!(
        text.contains("is shown to have a p99") && text.contains("% of resamplings only"),
        "{text}"
    );
}

#[test]
fn what_a_bound_forbids_is_not_what_others_lack() {
    // 8 reaches ten times as much, and 1 a tenth more than none: of what keeps the bound that is worth it.
    let runs = measured(&[(
        "randread",
        &[(0, [10_000, 500, 10]), (1, [11_000, 500, 11]), (8, [100_000, 5000, 30])],
    )]);
    let found = answer(Subject::Client, &summarise(&runs, 64), &question("--p99-max 1ms"), &[]);
    assert_eq!(found.unwrap().iothreads, Iothreads::new(1));
}

#[test]
fn what_was_not_measured_is_no_answer() {
    let mut runs = measured(RISING);
    runs.iter_mut().for_each(|run| run.cost.groups.clear());
    let details = told(
        &runs,
        "--want cpu",
        0,
        "What is wanted was not measured in randread 4k jobs=8 iodepth=1, so no number of iothreads is \
         recommended for it.",
    );
    assert!(details.is_empty(), "{details:?}");
}

#[test]
fn auto_is_recommended_by_every_want_if_it_is_better() {
    let runs = measured(&[(
        "randread",
        &[(0, [10_000, 900, 10]), (2, [50_000, 800, 9]), (AUTO, [90_000, 600, 7])],
    )]);
    for line in ["", "--want latency", "--want cpu", "--p99-max 700us", "--want cpu --iops-min 80k"]
    {
        let found = answer(Subject::Client, &summarise(&runs, 64), &question(line), &[]).unwrap();
        assert!(found.iothreads.is_auto(), "{line}: {}", sentence(&found));
        assert!(sentence(&found).to_lowercase().contains("use iothread=auto"), "{line}");
    }
}
