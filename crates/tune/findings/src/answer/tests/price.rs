//! What a number takes of the CPUs, and when that decides.

use super::*;

#[test]
fn the_price_is_told_and_what_a_dearer_number_would_bring() {
    // 10 µs of CPU time per request, but for 8 iothreads, which poll.
    let mut summaries = cells(&[&[(0, &[50_000; 6]), (1, &[96_000; 6]), (8, &[100_000; 6])]]);
    for row in &mut summaries[0].rows {
        if row.iothreads() == Some(Iothreads::new(8)) {
            (row.cpu_us, row.cpu_of_all_us) = (Some(80.0), Some(90.0));
        }
    }
    let answer = answer(Subject::Client, &summaries, &Question::default(), &[]).unwrap();
    assert_eq!(
        sentence(&answer),
        "Use 1 iothread: 4 % below the best, +92 % over none, for 1.0 CPUs instead of 0.5 where it costs \
         most; sure: in 100 % of resamplings no number is better by more than 5 %."
    );
    assert_eq!(
        details(&answer, Some(Repeats::DEFAULT)),
        ["8 iothreads would bring +4 %, for 8.0 CPUs instead of 1.0."]
    );
}

/// CPU time per request in µs of each number in each round; the IOPS are all the same.
fn by_cpu(rows: &[(u16, &[u64])]) -> Iothreads {
    let mut runs = Vec::new();
    for (count, rounds) in rows {
        for (round, cpu_us) in (0..).zip(*rounds) {
            let mut run = run(cell("randread", 4096, 8, 1), client(*count), round, 10_000);
            run.cost.groups[0].cpu_ns = cpu_us * 1000 * run.operations;
            runs.push(run);
        }
    }
    let summaries = summarise(&runs, 64);
    answer(Subject::Client, &summaries, &Question::default(), &[]).unwrap().iothreads
}

#[test]
fn more_iothreads_than_the_fewest_that_suffice_must_be_shown_to_take_less_cpu() {
    // In the middle 2 take 10 % less, but one round says otherwise.
    let by_chance: &[(u16, &[u64])] =
        &[(0, &[50, 50, 50, 50, 50, 50]), (2, &[45, 44, 46, 45, 52, 45])];
    assert_eq!(by_cpu(by_chance), Iothreads::NONE);
    // Rounds differ much, and 2 take less in each.
    let shown: &[(u16, &[u64])] = &[(0, &[50, 80, 50, 60, 50, 90]), (2, &[40, 64, 41, 48, 40, 70])];
    assert_eq!(by_cpu(shown), Iothreads::new(2));
    let too_little: &[(u16, &[u64])] = &[(0, &[50; 6]), (2, &[48; 6])];
    assert_eq!(by_cpu(too_little), Iothreads::NONE);
    // 8 take less than none, but not less than 2.
    let chain: &[(u16, &[u64])] = &[(0, &[50; 6]), (2, &[40; 6]), (8, &[39; 6])];
    assert_eq!(by_cpu(chain), Iothreads::new(2));
}
