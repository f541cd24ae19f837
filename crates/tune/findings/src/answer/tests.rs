//! Which number is recommended, when none is, and how it reads.

mod price;
mod questions;

use std::ops::Range;

use plan::repeats::Repeats;
use plan::runs::Purpose;
use plan::testing::{cell, client};
use plan::variant::Variant;
use records::results::{Failure, Run};
use records::testing::run;

use super::*;
use crate::summary::{FailedContender, failed, summarise};

/// One cell per element, alternately read and written: the IOPS of each number in each repeat.
fn cells(rows: &[&[(u16, &[u64])]]) -> Vec<CellSummary> {
    let mut runs = Vec::new();
    for (iodepth, rows) in (1..).zip(rows) {
        let op = if iodepth % 2 == 1 { "randread" } else { "randwrite" };
        for (count, repeats) in *rows {
            for (repeat, iops) in (0..).zip(*repeats) {
                runs.push(run(cell(op, 4096, 8, iodepth), client(*count), repeat, *iops));
            }
        }
    }
    summarise(&runs, 64)
}

fn spot(op: &str, iodepth: u16) -> CellOnVariant {
    CellOnVariant { cell: cell(op, 4096, 8, iodepth), variant: None }
}

fn weighted(weights: &[Weight]) -> Question {
    Question { weights: weights.to_vec(), ..Question::default() }
}

fn asked(rows: &[&[(u16, &[u64])]], weights: &[Weight]) -> Answer {
    answer(Subject::Client, &cells(rows), &weighted(weights), &[]).unwrap()
}

#[track_caller]
fn check(rows: &[&[(u16, &[u64])]], iothreads: u16, expected: &str) -> Answer {
    let answer = asked(rows, &[]);
    assert_eq!(answer.iothreads, Iothreads::new(iothreads));
    // What it costs has a test of its own.
    let free = Answer { price: None, cheaper: None, dearer: None, ..answer };
    assert_eq!(sentence(&free), expected);
    free
}

#[test]
fn the_smallest_worst_shortfall_wins() {
    let answer = check(
        &[
            &[(0, &[500; 6]), (1, &[900; 6]), (2, &[1000; 6])],
            &[(0, &[700; 6]), (1, &[1000; 6]), (2, &[800; 6])],
        ],
        1,
        "Use 1 iothread: at most 10 % below the best of each cell (randread 4k jobs=8 iodepth=1), \
         +43 % to +80 % over none; sure: in 100 % of resamplings no number is better by more than 5 %.",
    );
    assert_eq!(
        details(&answer, Some(Repeats::DEFAULT)),
        ["What would change the answer: for randread alone: 2 iothreads."]
    );
}

#[test]
fn the_fewest_of_those_within_the_tolerance_win() {
    check(
        &[
            &[(0, &[996; 3]), (1, &[1000; 3]), (2, &[1005; 3])],
            &[(0, &[992; 3]), (1, &[995; 3]), (2, &[1000; 3])],
        ],
        0,
        "Use no iothread: within 1 % of the best in every cell; likely: in 100 % of resamplings no number is better by more than 5 %.",
    );
    check(
        &[&[(0, &[970; 6]), (1, &[1000; 6])]],
        0,
        "Use no iothread: 3 % below the best; sure: in 100 % of resamplings no number is better by more \
         than 5 %.",
    );
    check(
        &[&[(0, &[930; 6]), (1, &[1000; 6])]],
        1,
        "Use 1 iothread: the best, +8 % over none; sure: in 100 % of resamplings no number is better by \
         more than 5 %.",
    );
}

#[test]
fn weights_let_some_cells_count_more() {
    let rows: &[&[(u16, &[u64])]] = &[
        &[(0, &[500; 3]), (1, &[1000; 3]), (2, &[700; 3])],
        &[(0, &[500; 3]), (1, &[600; 3]), (2, &[1000; 3])],
    ];
    let pick = |weights: &str| {
        let weights: Vec<Weight> = weights.split(',').map(|it| it.parse().unwrap()).collect();
        asked(rows, &weights)
    };
    assert_eq!(pick("randread=1").iothreads, Iothreads::new(1));
    assert_eq!(pick("randwrite=1").iothreads, Iothreads::new(2));
    let mostly_reads = pick("randread=9,randwrite=1");
    assert_eq!(mostly_reads.iothreads, Iothreads::new(1));
    assert!((mostly_reads.shortfall - 0.04).abs() < 1e-9, "{mostly_reads:?}");
    let text = sentence(&mostly_reads);
    assert!(text.starts_with("Use 1 iothread: 4 % below the best on weighted average"), "{text}");
}

#[test]
fn in_noise_that_hides_the_differences_the_cheaper_is_taken_and_doubted() {
    // Each is best in some blocks and bad in others.
    let rows: &[&[(u16, &[u64])]] =
        &[&[(0, &[1000, 500, 980, 520, 1010, 490]), (1, &[510, 990, 500, 1000, 480, 1020])]];
    let answer = asked(rows, &[]);
    assert_eq!((answer.doubts.len(), answer.certainty()), (0, Certainty::Doubtful));
    let text = sentence(&answer);
    assert!(
        text.starts_with("Use no iothread: ") && text.contains("; in doubt: in only "),
        "{text}"
    );
    assert!(details(&answer, Some(Repeats::DEFAULT))[0].contains("--resume and a longer --budget"));
}

#[test]
fn what_cannot_be_told_is_said() {
    let doubts = |rows: &[&[(u16, &[u64])]]| asked(rows, &[]).doubts;
    assert_eq!(asked(&[&[(2, &[5; 3])]], &[]).nothing, Some(NoAnswer::OneNumber));
    assert_eq!(doubts(&[&[(0, &[5; 2]), (1, &[9; 2])]]), [Doubt::FewRepeats(2)]);
    assert_eq!(doubts(&[&[(0, &[5; 3]), (1, &[9; 3])]]), []);
    let mut emulated = cells(&[&[(0, &[5; 3]), (1, &[9; 3])]]);
    emulated[0].rows[1].emulated = true;
    let found = answer(Subject::Client, &emulated, &Question::default(), &[]).unwrap();
    assert_eq!(found.doubts, [Doubt::Emulated]);
    let fine = cells(&[&[(0, &[5; 3]), (1, &[9; 3])]]);
    let failed = [1, 2].map(|iodepth| FailedCell {
        variant: Variant::default(),
        cell: cell("write", 4096, 1, iodepth),
        contenders: vec![FailedContender {
            contender: client(1),
            count: 1,
            error: "no memory".to_owned(),
        }],
    });
    let found = answer(Subject::Client, &fine, &Question::default(), &failed).unwrap();
    assert_eq!(found.doubts, [Doubt::Failures { measured: 1, failed: 2 }]);
    assert_eq!(answer(Subject::VmQemu, &fine, &Question::default(), &[]), None);
    assert_eq!(
        sentence(&asked(&[&[(2, &[5; 3])]], &[])),
        "Only one number of iothreads was measured (2), so there is nothing to compare."
    );
}

#[test]
fn numbers_that_share_too_few_repeats_are_named() {
    let answer = asked(&[&[(0, &[5; 2]), (1, &[9; 3])]], &[]);
    assert_eq!(
        sentence(&answer),
        "No two numbers of iothreads were measured in enough of the same repeats (no iothread in 2 \
         repeats, 1 iothread in 3 repeats), so there is nothing to compare."
    );
}

#[test]
fn emulated_guests_are_not_told_to_repeat() {
    let mut emulated = cells(&[&[(0, &[5; 2]), (1, &[9; 2])]]);
    emulated[0].rows[1].emulated = true;
    let found = answer(Subject::Client, &emulated, &Question::default(), &[]).unwrap();
    assert_eq!(found.doubts, [Doubt::Emulated, Doubt::FewRepeats(2)]);
    assert_eq!(details(&found, Some(Repeats::DEFAULT)), ["A host with KVM would tell."]);
}

#[test]
fn figures_that_are_bent_are_not_called_sure() {
    let rows: &[&[(u16, &[u64])]] = &[&[(0, &[500; 6]), (1, &[1000; 6])]];
    let end = |bent| {
        let text = sentence(&Answer { bent, ..asked(rows, &[]) });
        text.split_once("; ").unwrap().1.to_owned()
    };
    let bent = Caveats::default();
    assert_eq!(end(bent), "sure: in 100 % of resamplings no number is better by more than 5 %.");
    assert_eq!(
        end(Caveats { drifted: true, ..bent }),
        "likely: in 100 % of resamplings no number is better by more than 5 %, but the machine drifted meanwhile."
    );
    assert_eq!(
        end(Caveats { unsteady: true, holes: true, ..bent }),
        "likely: in 100 % of resamplings no number is better by more than 5 %, but most runs were not steady, and the file has \
         holes, which look too fast."
    );
}

#[test]
fn most_runs_are_unsteady_or_not() {
    let unsteady = |unsteady: u64| {
        let mut runs = Vec::new();
        for (number, repeat) in (0..2).flat_map(|number| (0..4).map(move |it| (number, it))) {
            let mut run = run(cell("randread", 4096, 8, 1), client(number), repeat, 500);
            let ok = u64::from(number) * 4 + u64::from(repeat) >= unsteady;
            let last = if ok { 100 } else { 30 };
            run.windows = [100, 100, 100, 100, last].map(|it| (1_000_000, it)).to_vec();
            runs.push(run);
        }
        answer(Subject::Client, &summarise(&runs, 64), &Question::default(), &[])
            .unwrap()
            .bent
            .unsteady
    };
    assert_eq!([0, 4, 5, 8].map(unsteady), [false, false, true, true]);
}

#[test]
fn a_gain_that_may_be_none_is_called_so() {
    check(
        &[
            &[(0, &[1000, 1100, 900, 1000, 1000, 1000]), (1, &[1050; 6])],
            &[(0, &[1000; 6]), (1, &[2000; 6])],
        ],
        1,
        "Use 1 iothread: the best in every cell, +5 % to +100 % over none (which may be noise in 1 \
         of 2 cells); sure: in 100 % of resamplings no number is better by more than 5 %.",
    );
}

#[test]
fn numbers_that_a_cell_cannot_use_are_rated_by_the_highest_it_can() {
    check(
        &[&[(0, &[500; 6]), (1, &[1000; 6])], &[(0, &[250; 6]), (1, &[500; 6]), (4, &[1000; 6])]],
        4,
        "Use 4 iothreads: the best in every cell, +100 % to +300 % over none; sure: in 100 % of \
         resamplings no number is better by more than 5 %.",
    );
}

#[test]
fn a_number_that_failed_somewhere_is_no_answer() {
    let rows: &[&[(u16, &[u64])]] =
        &[&[(0, &[500; 3]), (1, &[900; 3]), (4, &[1000; 3])], &[(0, &[500; 3]), (1, &[1000; 3])]];
    let summaries = cells(rows);
    let key = run(cell("randwrite", 4096, 8, 2), client(4), 0, 1).key;
    let failures = failed(&[Failure::new(key, &anyhow::anyhow!("no memory"))]);
    let of = |failures: &[FailedCell]| {
        answer(Subject::Client, &summaries, &Question::default(), failures).unwrap().iothreads
    };
    assert_eq!([of(&[]), of(&failures)], [4, 1].map(Iothreads::new));
}

#[test]
fn where_nothing_was_done_nothing_is_recommended() {
    let answer = asked(&[&[(0, &[0; 3]), (1, &[0; 3])], &[(0, &[5; 3]), (1, &[9; 3])]], &[]);
    assert_eq!(answer.doubts, [Doubt::Idle(spot("randread", 1))]);
}

#[test]
fn what_was_only_explored_in_a_cell_is_doubted() {
    let mut runs = Vec::new();
    for (iodepth, again) in [(1, &[0, 1][..]), (2, &[0, 1, 4][..])] {
        let cell = cell("randread", 4096, 8, iodepth);
        for count in [0, 1, 4] {
            runs.push(run(cell, client(count), 0, 100 + u64::from(count) * 100));
        }
        for (repeat, count) in (0..3).flat_map(|it| again.iter().map(move |count| (it, *count))) {
            let mut again = run(cell, client(count), repeat, 100 + u64::from(count) * 100);
            again.key.purpose = Purpose::Confirm;
            runs.push(again);
        }
    }
    let answer = answer(Subject::Client, &summarise(&runs, 64), &Question::default(), &[]).unwrap();
    assert_eq!(answer.iothreads, Iothreads::new(4));
    assert_eq!(answer.doubts, [Doubt::Explored(spot("randread", 1))]);
}

#[test]
fn what_would_tell_more_can_be_done() {
    let noisy: &[&[(u16, &[u64])]] =
        &[&[(0, &[1000, 500, 980, 520, 1010, 490]), (1, &[510, 990, 500, 1000, 480, 1020])]];
    let answer = asked(noisy, &[]);
    for (repeats, expected) in
        [("3-12", "--resume"), ("3-6", "--repeats 6-40"), ("6", "--repeats 6-40")]
    {
        let text = &details(&answer, Some(repeats.parse().unwrap()))[0];
        assert!(text.contains(expected), "{repeats}: {text}");
    }
    // Without a header there is nothing to go on with.
    assert!(details(&answer, None)[0].contains("--repeats 6-40"));
    let failed = Answer { nothing: Some(NoAnswer::NumbersFailed(1)), doubts: Vec::new(), ..answer };
    let again = "The same command with --resume tries the failed runs again.";
    assert_eq!(details(&failed, Some(Repeats::DEFAULT)), [again]);
    assert!(details(&failed, None).is_empty());
}

#[test]
fn cells_that_do_not_count_are_not_told_of() {
    let rows: &[&[(u16, &[u64])]] =
        &[&[(0, &[950; 3]), (1, &[1000; 3])], &[(0, &[100; 3]), (1, &[900; 3])]];
    let text = sentence(&asked(rows, &["randread=1".parse().unwrap()]));
    assert!(text.contains(", +5 % over none"), "{text}");
}

/// Runs of a cell that was searched: what each number reached when it was explored, and in which repeats it was measured
/// again with which IOPS.
fn searched(op: &str, explored: &[(u16, u64)], again: &[(u16, Range<u16>, u64)]) -> Vec<Run> {
    let cell = cell(op, 4096, 8, 1);
    let sweep = explored.iter().map(|(count, iops)| run(cell, client(*count), 0, *iops));
    let again = again.iter().flat_map(|(count, repeats, iops)| {
        repeats.clone().map(move |repeat| {
            let mut run = run(cell, client(*count), repeat, *iops);
            run.key.purpose = Purpose::Confirm;
            run
        })
    });
    sweep.chain(again).collect()
}

#[track_caller]
fn check_searched(cells: &[Vec<Run>; 2], expected: &str) {
    let found = answer(Subject::Client, &summarise(&cells.concat(), 64), &Question::default(), &[])
        .unwrap();
    let text = sentence(&found);
    assert!(text.starts_with(expected), "{text}");
}

#[test]
fn a_number_is_rated_by_the_few_blocks_that_it_has_where_it_was_not_explored() {
    let reads = searched(
        "randread",
        &[(0, 500), (1, 600), (4, 900), (6, 1000), (8, 900)],
        &[(0, 0..6, 500), (4, 0..6, 900), (6, 0..6, 1000), (8, 0..6, 900)],
    );
    let writes = searched(
        "randwrite",
        &[(0, 500), (1, 600), (4, 1000), (8, 700)],
        &[(0, 0..6, 500), (4, 0..6, 1000), (6, 4..6, 400)],
    );
    check_searched(&[reads, writes], "Use 4 iothreads: at most 10 % below");
}

#[test]
fn what_was_explored_counts_where_the_best_was_not() {
    let reads = searched(
        "randread",
        &[(0, 500), (1, 600), (4, 850), (6, 900), (8, 860), (16, 1000)],
        &[(0, 0..6, 500), (4, 0..6, 850), (6, 0..6, 900), (16, 0..6, 1000)],
    );
    let writes = searched(
        "randwrite",
        &[(0, 500), (1, 600), (4, 960), (8, 700), (16, 600)],
        &[(0, 0..6, 500), (4, 0..6, 960), (6, 0..6, 1000)],
    );
    check_searched(&[reads, writes], "Use 6 iothreads: at most 10 % below");
}

#[test]
fn what_shares_no_block_with_the_best_is_compared_by_what_shares_some_with_both() {
    let reads = searched(
        "randread",
        &[(0, 500), (4, 900), (8, 1000)],
        &[(0, 0..6, 500), (4, 0..6, 880), (8, 0..6, 1000)],
    );
    let writes = searched(
        "randwrite",
        &[(0, 500), (4, 1000), (8, 700)],
        &[(0, 0..12, 500), (4, 3..12, 990), (6, 3..12, 1000), (8, 0..3, 600)],
    );
    check_searched(&[reads, writes], "Use 4 iothreads: at most 12 % below");
}

#[test]
fn a_number_that_a_cell_left_out_is_doubted() {
    let reads = || {
        let six = [(0, 0..6, 500), (4, 0..6, 900), (6, 0..6, 1000), (8, 0..6, 900)];
        searched("randread", &[], &six)
    };
    let writes = |rows: &[(u16, Range<u16>, u64)], queues| {
        let mut runs = searched("randwrite", &[], rows);
        runs.iter_mut().for_each(|run| run.queues = queues);
        runs
    };
    let doubt = "Your machine cannot tell how many iothreads are best: it was not compared in \
                 randwrite 4k jobs=8 iodepth=1. Of what was measured, 6 iothreads would be the choice.";
    // 8 was measured, so 6 could have been.
    check_searched(
        &[reads(), writes(&[(0, 0..6, 500), (4, 0..6, 1000), (8, 0..6, 900)], 8)],
        doubt,
    );
    // There are queues for 6, or there are not.
    let up_to_4 = [(0, 0..6, 500), (4, 0..6, 1000)];
    check_searched(&[reads(), writes(&up_to_4, 8)], doubt);
    check_searched(&[reads(), writes(&up_to_4, 4)], "Use 6 iothreads: the best in every cell");
}

#[test]
fn what_is_left_out_of_a_cell_on_purpose_is_no_doubt() {
    let measured = |cell: Cell, device: &str, numbers: &[u64]| -> Vec<Run> {
        let of = |(repeat, count): (u16, &u64)| {
            let number = Iothreads::new(u16::try_from(*count).unwrap());
            let contender = Contender::new(Subject::VmQemu, number);
            let mut run = run(cell, contender, repeat, 500 + 100 * count);
            run.key.variant.device = device.parse().unwrap();
            run.queues = 16;
            run
        };
        (0..6).flat_map(|repeat| numbers.iter().map(move |it| (repeat, it))).map(of).collect()
    };
    let doubts = |other: Vec<Run>| {
        let all = measured(cell("randread", 4096, 8, 1), "virtio-blk", &[0, 1, 2, 4]);
        let summaries = summarise(&[all, other].concat(), 64);
        answer(Subject::VmQemu, &summaries, &Question::default(), &[]).unwrap().doubts
    };
    let plain = cell("randread", 4096, 8, 2);
    // An nvme disk has no iothreads, large blocks need few.
    assert_eq!(doubts(measured(plain, "nvme", &[0])), []);
    assert_eq!(doubts(measured(cell("read", 1 << 20, 8, 1), "virtio-blk", &[0, 1, 2])), []);
    let left_out = doubts(measured(plain, "virtio-blk", &[0, 1, 2]));
    assert_eq!(left_out, [Doubt::NotCompared(spot("randread", 2))]);
}

#[test]
fn a_number_that_failed_in_some_repeats_is_no_answer() {
    let summaries = cells(&[&[(0, &[500; 6]), (1, &[700; 6]), (4, &[1000; 3])]]);
    let failure = |count, repeat| {
        let key = run(cell("randread", 4096, 8, 1), client(count), repeat, 1).key;
        Failure::new(key, &anyhow::anyhow!("no memory"))
    };
    let text = |failures: &[Failure]| {
        sentence(
            &answer(Subject::Client, &summaries, &Question::default(), &failed(failures)).unwrap(),
        )
    };
    let four: Vec<Failure> = (3..6).map(|repeat| failure(4, repeat)).collect();
    assert!(text(&[]).starts_with("Use 4 iothreads"), "{}", text(&[]));
    assert!(text(&four).starts_with("Use 1 iothread: 30 % below"), "{}", text(&four));
    let two = [four, vec![failure(1, 0)]].concat();
    assert_eq!(
        text(&two),
        "All numbers of iothreads but one failed in some run, so there is nothing to compare."
    );
    let all = [two, vec![failure(0, 0)]].concat();
    assert_eq!(text(&all), "Every number of iothreads failed in some run, so none is recommended.");
}

#[test]
fn weights_of_cells_that_were_not_measured_are_named() {
    let summaries = cells(&[&[(0, &[500; 6]), (1, &[1000; 6])]]);
    let weights = ["randwrite=1", "randread=0"].map(|it| it.parse().unwrap());
    let found = answer(Subject::Client, &summaries, &weighted(&weights), &[]).unwrap();
    assert_eq!(
        sentence(&found),
        "No cell that was measured counts by --weights randwrite=1,randread=0, so no number of \
         iothreads is recommended."
    );
    assert!(details(&found, Some(Repeats::DEFAULT)).is_empty());
}

#[test]
fn only_failures_of_the_subject_in_cells_that_count_are_a_doubt() {
    let summaries = cells(&[&[(0, &[500; 6]), (1, &[1000; 6])]]);
    let failures = |contender| {
        failed(&[1, 2].map(|jobs| {
            let key = run(cell("write", 4096, jobs, 1), contender, 0, 1).key;
            Failure::new(key, &anyhow::anyhow!("no memory"))
        }))
    };
    let text = |contender, weights: &[Weight]| {
        let failures = failures(contender);
        sentence(&answer(Subject::Client, &summaries, &weighted(weights), &failures).unwrap())
    };
    let use_1 = "Use 1 iothread";
    for (contender, weights, expected) in [
        (Contender::HOST, "randread=1,write=1", use_1),
        (client(1), "randread=1", use_1),
        (client(1), "randread=1,write=1", "Your machine cannot tell"),
    ] {
        let weights: Vec<Weight> = weights.split(',').map(|it| it.parse().unwrap()).collect();
        let text = text(contender, &weights);
        assert!(text.starts_with(expected), "{contender}: {text}");
        assert!(!text.contains("failed") || expected != use_1, "{contender}: {text}");
    }
    let one = &failures(client(1))[..1];
    let found = answer(Subject::Client, &summaries, &Question::default(), one).unwrap();
    assert_eq!((&found.doubts[..], found.bent.failed_cells), (&[][..], 1));
    let text = sentence(&found);
    assert!(text.contains("; likely: in 100 %"), "{text}");
    assert!(text.ends_with("5 %, but every run of 1 other cell failed."), "{text}");
}

#[test]
fn sure_is_only_what_has_six_repeats_in_every_cell() {
    let word = |of_1: &[u64]| {
        let answer = asked(&[&[(0, &[500; 12]), (1, of_1)], &[(0, &[5; 12]), (1, &[9; 12])]], &[]);
        let text = sentence(&answer);
        let word = text.split_once("; ").unwrap().1.split_once(':').unwrap().0.to_owned();
        (answer.repeats, word)
    };
    for (repeats, expected) in [(12, "sure"), (6, "sure"), (5, "likely"), (3, "likely")] {
        assert_eq!(word(&[1000; 12][..repeats]), (repeats, expected.to_owned()));
    }
}

#[test]
fn a_gain_of_few_repeats_is_not_proof_against_noise() {
    let gain = |cells: &[&[(u16, &[u64])]]| {
        let text = sentence(&asked(cells, &[]));
        let after = text.split_once(" over none").unwrap().1;
        after.split_once(", for").unwrap().0.to_owned()
    };
    let six: &[(u16, &[u64])] = &[(0, &[500; 6]), (1, &[1000; 6])];
    let five: &[(u16, &[u64])] = &[(0, &[500; 5]), (1, &[1000; 5])];
    assert_eq!(gain(&[six]), "");
    assert_eq!(gain(&[five]), " (of too few repeats to rule out noise)");
    assert_eq!(gain(&[six, five]), " (of too few repeats to rule out noise in 1 of 2 cells)");
    let noisy: &[(u16, &[u64])] = &[(0, &[500; 6]), (1, &[499, 503, 504, 505, 506, 507])];
    assert_eq!(gain(&[noisy, five]), " (which may be noise)");
}

#[test]
fn of_several_variants_the_one_that_decides_is_named() {
    let mut runs = Vec::new();
    let cells = [("raw", "randread", [1000, 1000]), ("raw", "randwrite", [800, 1000])];
    let qcow2 = [("qcow2", "randread", [1000, 950]), ("qcow2", "randwrite", [1000, 1000])];
    for (image, op, [one, four]) in cells.into_iter().chain(qcow2) {
        for repeat in 0..6 {
            for (count, iops) in [(0, 500), (1, one), (4, four)] {
                let mut run = run(cell(op, 4096, 8, 1), client(count), repeat, iops);
                run.key.variant.image = image.parse().unwrap();
                runs.push(run);
            }
        }
    }
    let answer = answer(Subject::Client, &summarise(&runs, 64), &Question::default(), &[]).unwrap();
    let text = sentence(&answer);
    let expected = "Use 4 iothreads: at most 5 % below the best of each cell (randread 4k jobs=8 \
                    iodepth=1, qcow2), ";
    assert!(text.starts_with(expected), "{text}");
    let changes = details(&answer, Some(Repeats::DEFAULT));
    let expected = "What would change the answer: for randread alone: 1 iothread; without randwrite \
                    4k jobs=8 iodepth=1, the usual variant: 1 iothread.";
    assert_eq!(changes[0], expected);
}

/// `auto` as a row of these tests.
const AUTO: u16 = u16::MAX;

#[test]
fn auto_is_the_answer_where_no_number_suits_all_cells() {
    let cells = [
        &[(0, &[1000; 6][..]), (1, &[700; 6]), (4, &[500; 6]), (AUTO, &[990; 6])][..],
        &[(0, &[300; 6]), (1, &[600; 6]), (4, &[1000; 6]), (AUTO, &[980; 6])],
    ];
    let sentence = "Use iothread=auto: at most 2 % below the best of each cell (randwrite 4k jobs=8 \
                    iodepth=2), -1 % to +227 % over none; sure: in 100 % of resamplings no number is better by more than 5 %.";
    check(&cells, AUTO, &sentence.replace('-', "−"));
    // A number that is as good is the answer: it is settled.
    let as_good = [&[(0, &[500; 6][..]), (2, &[1000; 6]), (AUTO, &[1005; 6])][..]];
    assert_eq!(asked(&as_good, &[]).iothreads, Iothreads::new(2));
}

#[test]
fn auto_is_no_number_that_suffices_and_nothing_stands_for_it() {
    let two = [&[(0, &[500; 6][..]), (1, &[890; 6]), (2, &[905; 6]), (AUTO, &[1000; 6])][..]];
    let verdict = cells(&two)[0].verdicts[0].1;
    // Of 905, not of what auto has reached.
    assert_eq!((verdict.best, verdict.n90), (Iothreads::new(2), Iothreads::new(1)));
    let missing = [two[0], &[(0, &[500; 6][..]), (2, &[1000; 6])]];
    let answer = asked(&missing, &[]);
    assert_eq!(answer.iothreads, Iothreads::new(2), "auto was not measured in one cell");
    let alone = [&[(AUTO, &[500; 6][..])][..]];
    assert!(super::answer(Subject::Client, &cells(&alone), &Question::default(), &[]).is_none());
}
