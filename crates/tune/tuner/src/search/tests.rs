//! What is asked for next, answered by a machine that does as it is told.

use plan::contender::{Iothreads, Subject};
use plan::matrix::Writes;
use plan::testing::client;
use plan::testing::settings;
use plan::variant::Layers;
use records::testing::run;

use super::*;

fn matrix(line: &str, cores: usize) -> (Settings, Matrix) {
    let settings = settings(line, cores);
    let matrix = Matrix::new(&settings, &|_| Layers::Kernel, 1 << 30, Writes::Allowed).unwrap();
    (settings, matrix)
}

/// All blocks of a search on a machine that reaches `iops`.
fn blocks(line: &str, cores: usize, iops: impl Fn(&RunKey) -> u64) -> Vec<Vec<RunKey>> {
    let (settings, matrix) = matrix(line, cores);
    searched(&settings, &matrix, iops)
}

fn searched(
    settings: &Settings,
    matrix: &Matrix,
    iops: impl Fn(&RunKey) -> u64,
) -> Vec<Vec<RunKey>> {
    let mut search = Search::new(matrix, settings);
    let mut blocks = Vec::new();
    while let Some(block) = search.next(&|_| true) {
        for planned in &block {
            let RunKey { cell, contender, repeat, .. } = planned.key;
            let mut run = run(cell, contender, repeat, iops(&planned.key));
            run.key = planned.key.clone();
            search.measured(&run);
        }
        blocks.push(block.into_iter().map(|run| run.key).collect());
    }
    blocks
}

fn numbers(blocks: &[Vec<RunKey>], purpose: Purpose) -> Vec<u16> {
    let of = blocks.iter().flatten().filter(|key| key.purpose == purpose);
    let mut all: Vec<u16> =
        of.filter_map(|key| key.contender.iothreads()).map(Iothreads::count).collect();
    all.sort_unstable();
    all.dedup();
    all
}

const ONE_CELL: &str = "--op randread --bs 4k --jobs 16 --subject client --sentinel 0";

/// IOPS of a number of iothreads.
fn curve(key: &RunKey, points: &[(u16, u64)]) -> u64 {
    let count = key.contender.iothreads().map_or(0, Iothreads::count);
    points.iter().rev().find(|(from, _)| *from <= count).map_or(1, |(_, iops)| *iops)
}

#[test]
fn the_number_in_use_is_explored_and_measured_again() {
    let (mut settings, matrix) = matrix(ONE_CELL, 16);
    settings.today = Some(Iothreads::new(12));
    let points = [(0, 50), (1, 91), (2, 92), (3, 96), (4, 100), (6, 80)];
    let found = searched(&settings, &matrix, |key| curve(key, &points) * 1000);
    assert_eq!(numbers(&found[..1], Purpose::Sweep), [0, 1, 4, 8, 12, 16]);
    assert_eq!(numbers(&found, Purpose::Confirm), [0, 1, 2, 3, 4, 12]);
}

#[test]
fn numbers_far_apart_come_first_then_neighbours_of_the_best_and_of_the_line() {
    // The best is 4, and 1 is just enough: looks closer at 2, 3, 6.
    let points = [(0, 50), (1, 91), (2, 92), (3, 96), (4, 100), (6, 80)];
    let found = blocks(ONE_CELL, 16, |key| curve(key, &points) * 1000);
    let first: Vec<u16> = numbers(&found[..1], Purpose::Sweep);
    assert_eq!(first, [0, 1, 4, 8, 16]);
    assert_eq!(numbers(&found, Purpose::Sweep), [0, 1, 2, 3, 4, 6, 8, 16]);
    // none, the two closest to the line, the best two.
    assert_eq!(numbers(&found, Purpose::Confirm), [0, 1, 2, 3, 4]);
}

#[test]
fn of_few_numbers_none_is_given_up_for_one_run_that_stalled() {
    let stalls = |key: &RunKey| key.purpose == Purpose::Sweep && key.contender == client(1);
    let found = blocks(ONE_CELL, 2, |key| if stalls(key) { 5 } else { 1000 });
    assert_eq!(numbers(&found, Purpose::Confirm), [0, 1, 2]);
}

#[test]
fn what_is_known_is_repeated_six_times_and_what_is_not_twelve_times() {
    let points = [(0, 50), (1, 100)];
    let again = |found: &[Vec<RunKey>]| {
        found
            .iter()
            .flatten()
            .filter(|key| {
                key.purpose == Purpose::Confirm
                    && key.contender.iothreads() == Some(Iothreads::new(1))
            })
            .count()
    };
    let quiet = blocks(ONE_CELL, 2, |key| curve(key, &points) * 1000);
    assert_eq!(again(&quiet), 6);
    let noisy =
        blocks(ONE_CELL, 2, |key| curve(key, &points) * (1000 + 100 * u64::from(key.repeat % 3)));
    assert_eq!(again(&noisy), 12);
    let more = format!("{ONE_CELL} --repeats 8-12");
    assert_eq!(again(&blocks(&more, 2, |key| curve(key, &points) * 1000)), 8);
}

#[test]
fn what_always_fails_is_given_up_after_the_least_and_keeps_nobody() {
    for fails in [client(1), Contender::HOST] {
        let (settings, matrix) = matrix(&ONE_CELL.replace("client", "client,host"), 2);
        let mut search = Search::new(&matrix, &settings);
        let mut asked: Vec<RunKey> = Vec::new();
        while let Some(block) = search.next(&|_| true) {
            for planned in block {
                asked.push(planned.key.clone());
                if planned.key.contender == fails {
                    search.failed(&planned.key);
                } else {
                    let mut run = run(planned.key.cell, planned.key.contender, 0, 1000);
                    run.key = planned.key;
                    search.measured(&run);
                }
            }
        }
        let times = |contender| {
            let own = |key: &&RunKey| key.purpose == Purpose::Confirm && key.contender == contender;
            asked.iter().filter(own).count()
        };
        assert_eq!([times(fails), times(client(2))], [3, 6], "{fails}");
    }
}

#[test]
fn numbers_that_are_all_measured_again_are_explored_once() {
    let explored = |line: &str| {
        let found = blocks(&(ONE_CELL.replace("client", "client,host") + line), 16, |_| 1000);
        found.iter().flatten().filter(|key| key.purpose == Purpose::Sweep).count()
    };
    assert_eq!(explored(" --iothreads none,1,2,4,8"), 6);
    assert_eq!(explored(" --iothreads none,1,2,4,8,16"), 3 * 7);
}

#[test]
fn what_is_beaten_is_given_up_after_the_least_but_the_baseline_stays() {
    let points = [(0, 10), (1, 84), (2, 100)];
    let found = blocks(ONE_CELL, 2, |key| curve(key, &points) * 1000);
    let times = |count| {
        let own = |key: &&RunKey| {
            key.purpose == Purpose::Confirm
                && key.contender.iothreads() == Some(Iothreads::new(count))
        };
        found.iter().flatten().filter(own).count()
    };
    assert_eq!([times(0), times(1), times(2)], [6, 3, 6]);
}

#[test]
fn no_run_is_asked_for_twice_even_if_it_failed() {
    let (settings, matrix) = matrix(ONE_CELL, 4);
    let mut search = Search::new(&matrix, &settings);
    let mut seen = HashSet::new();
    while let Some(block) = search.next(&|_| true) {
        for planned in block {
            assert!(seen.insert(planned.key.clone()), "{:?}", planned.key);
            search.failed(&planned.key);
        }
    }
    assert!(seen.iter().any(|key| key.purpose == Purpose::Sweep));
}

#[test]
fn a_resumed_search_goes_on_as_it_would_have() {
    let (settings, matrix) = matrix("--subject client,host --jobs 4 --sentinel 0", 4);
    let speed = |key: &RunKey| {
        let count = u64::from(key.contender.iothreads().map_or(9, Iothreads::count));
        1000 + count * 70 + u64::from(key.repeat % 2) * 13
    };
    let follow = |stop: usize| {
        let mut runs: Vec<Run> = Vec::new();
        let mut search = Search::new(&matrix, &settings);
        loop {
            if runs.len() >= stop {
                // As if the command had been ended and begun again.
                let mut resumed = Search::new(&matrix, &settings);
                runs.iter().for_each(|run| resumed.measured(run));
                search = resumed;
            }
            let Some(block) = search.next(&|_| true) else { return runs };
            for planned in block {
                let RunKey { cell, contender, repeat, .. } = planned.key;
                let mut run = run(cell, contender, repeat, speed(&planned.key));
                run.key = planned.key.clone();
                search.measured(&run);
                runs.push(run);
                if runs.len() == stop {
                    break;
                }
            }
        }
    };
    let whole: Vec<RunKey> = follow(usize::MAX).into_iter().map(|run| run.key).collect();
    for stop in [1, 7, 30] {
        let resumed: Vec<RunKey> = follow(stop).into_iter().map(|run| run.key).collect();
        assert_eq!(resumed, whole, "stopped after {stop}");
    }
}

/// Counts runs, stretched ones twice.
struct Clock {
    most: usize,
    done: usize,
}

impl Clock {
    fn length(runs: &[PlannedRun]) -> usize {
        runs.iter().map(|run| usize::try_from(run.stretch).unwrap()).sum()
    }
}

/// The stretches of what is measured again on a machine where cells are the less steady the larger their block is, of a
/// command that is ended and resumed after each of `stops` runs.
fn stretched(time: impl Fn(usize) -> usize, stops: &[usize]) -> Vec<(RunKey, u32)> {
    let (settings, matrix) =
        matrix("--subject client --op randread --bs 4k,8k,16k,32k --sentinel 0 --repeats 6-7", 2);
    let mut search = Search::new(&matrix, &settings);
    let mut clock = Clock { most: time(Clock::length(&search.outlook(search.wanted()))), done: 0 };
    let (mut runs, mut planned) = (Vec::<Run>::new(), Vec::new());
    loop {
        let left = clock.most - clock.done;
        let Some(block) = search.next(&|runs| Clock::length(runs) <= left) else { return planned };
        for one in block {
            let RunKey { cell, contender, repeat, purpose, .. } = one.key;
            let mut run = run(cell, contender, repeat, 1000);
            run.key = one.key.clone();
            run.stretched = one.stretch > 1;
            let block = cell.shape().block().get();
            // Of none, 1, 2 and auto: none steady of 32k and 16k, one of 8k, all of 4k.
            let unsteady = match block {
                32_768 | 16_384 => true,
                8192 => contender != client(0),
                _ => false,
            };
            if purpose == Purpose::Sweep && unsteady {
                run.windows = vec![(1, 10), (1, 20), (1, 30), (1, 40), (1, 50)];
            }
            search.measured(&run);
            clock.done += Clock::length(std::slice::from_ref(&one));
            if purpose == Purpose::Confirm {
                planned.push((one.key, one.stretch));
            }
            runs.push(run);
            if stops.contains(&runs.len()) {
                search = Search::new(&matrix, &settings);
                runs.iter().for_each(|run| search.measured(run));
                break;
            }
        }
    }
}

/// The block sizes that are measured twice as long.
fn stretched_blocks(planned: &[(RunKey, u32)]) -> Vec<u32> {
    let long = planned.iter().filter(|(_, stretch)| *stretch > 1);
    let mut blocks: Vec<u32> = long.map(|(key, _)| key.cell.shape().block().get()).collect();
    blocks.sort_unstable();
    blocks.dedup();
    blocks
}

#[test]
fn the_least_steady_cells_are_measured_longer_as_far_as_there_is_time() {
    // Six repeats of three numbers and auto, once more for each cell that is stretched.
    for (more, expected) in
        [(0, &[][..]), (24, &[16_384]), (48, &[16_384, 32_768]), (72, &[8192, 16_384, 32_768])]
    {
        let planned = stretched(|whole| whole + more, &[]);
        assert_eq!(stretched_blocks(&planned), expected, "{more} more");
        assert!(planned.len() >= 4 * 24, "{more} more: six repeats of all");
    }
    assert_eq!(stretched_blocks(&stretched(|_| 10_000, &[])), [8192, 16_384, 32_768]);
}

#[test]
fn a_resumed_search_stretches_what_it_would_have_stretched() {
    for more in [24, 48, 54] {
        let whole = stretched(|it| it + more, &[]);
        // The exploration are 16 runs; then the first repeat of each of the four cells.
        for stop in [5, 16, 17, 20, 24, 27, 28, 32, 50] {
            assert_eq!(stretched(|it| it + more, &[stop]), whole, "{more} more, stop at {stop}");
        }
        assert_eq!(stretched(|it| it + more, &[17, 21, 25]), whole);
    }
}

#[test]
fn the_outlook_is_of_what_is_left() {
    let (settings, matrix) = matrix("--subject client,host --op randread --sentinel 0", 4);
    let speed =
        |key: &RunKey| 1000 + u64::from(key.contender.iothreads().map_or(9, Iothreads::count)) * 70;
    let mut search = Search::new(&matrix, &settings);
    let mut left = search.outlook(6).len();
    let mut done = 0;
    while let Some(block) = search.next(&|_| true) {
        for planned in block {
            let RunKey { cell, contender, repeat, .. } = planned.key;
            let mut run = run(cell, contender, repeat, speed(&planned.key));
            run.key = planned.key;
            search.measured(&run);
            done += 1;
            let now = search.outlook(6).len();
            assert!(now < left || now == 0 && left == 0, "{done} done: {now} after {left}");
            left = now;
        }
    }
    assert_eq!((search.outlook(6).len(), search.outlook(u16::MAX).len()), (0, 0));
    assert!(done > 50, "{done}");
}

/// The repeats of a search that has no time for any block.
fn without_time(line: &str) -> Vec<u16> {
    let (settings, matrix) = matrix(&format!("{ONE_CELL} {line}"), 4);
    let mut search = Search::new(&matrix, &settings);
    let mut repeats = Vec::new();
    let mut explored = 0;
    while let Some(block) = search.next(&|_| false) {
        let key = &block[0].key;
        match key.purpose {
            Purpose::Sweep | Purpose::Deeper => explored += block.len(),
            Purpose::Confirm => repeats.push(key.repeat),
            Purpose::Precondition | Purpose::Sentinel | Purpose::Probe | Purpose::Curve => {
                panic!("{key} is no run of a search")
            }
        }
        for PlannedRun { key, .. } in block {
            let mut run = run(key.cell, key.contender, key.repeat, 1000);
            run.key = key;
            search.measured(&run);
        }
    }
    assert!(explored > 3, "{line}");
    repeats
}

#[test]
fn the_time_that_the_user_gave_ends_the_repeats_but_not_the_exploration() {
    assert!(without_time("--budget 1m").is_empty());
    assert!(without_time("--budget 1m --repeats 8-12").is_empty());
}

#[test]
fn the_least_is_measured_if_the_user_gave_no_time() {
    assert_eq!(without_time(""), [0, 1, 2]);
    assert_eq!(without_time("--repeats 8-12"), [0, 1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn everything_is_explored_in_full() {
    let found = blocks(
        "--full --op read --bs 1M --jobs 16 --iodepth 1 --subject vm:qemu --queues 16 --vcpus 16",
        2,
        |_| 5,
    );
    assert_eq!(numbers(&found, Purpose::Sweep), [0, 1, 2, 3, 4, 6, 8, 12, 16]);
}

#[test]
fn the_outlook_is_close_to_what_is_done() {
    let (settings, matrix) = matrix("--subject client,host --jobs 16 --op randread", 16);
    let search = Search::new(&matrix, &settings);
    let outlook = search.outlook(search.wanted()).len();
    let noisy = |key: &RunKey| {
        let count = u64::from(key.contender.iothreads().map_or(9, Iothreads::count));
        10_000 + count * 400 + u64::from(key.repeat * 7 % 5) * 1300
    };
    let line = "--subject client,host --jobs 16 --op randread --repeats 3-6";
    let done = blocks(line, 16, noisy).iter().flatten().count();
    let ratio = outlook as f64 / done as f64;
    assert!((0.8..1.3).contains(&ratio), "{outlook} expected, {done} done");
    assert!(matrix.has(Subject::Client));
}

#[test]
fn what_is_repeated_follows_the_question() {
    // More iothreads do more; p99 falls up to 2 and then rises.
    let measure = |line: &str| {
        let (settings, matrix) = matrix(&format!("{ONE_CELL} {line}"), 16);
        let mut search = Search::new(&matrix, &settings);
        let mut again = Vec::new();
        while let Some(block) = search.next(&|_| true) {
            for planned in block {
                let number = planned.key.contender.number();
                let count = number.map_or(0, Iothreads::count);
                let iops = 1000 * u64::from(10 + count);
                let RunKey { cell, contender, repeat, .. } = planned.key;
                let mut run = run(cell, contender, repeat, iops);
                let p99_us = 1000 + 100 * u64::from(count.abs_diff(2));
                run.latency_ns = vec![(p99_us * 1000, iops)];
                run.key = planned.key;
                search.measured(&run);
                let is_again = run.key.purpose == Purpose::Confirm;
                again.extend(number.filter(|_| is_again && run.key.repeat == 5).map(|_| count));
            }
        }
        again.sort_unstable();
        again
    };
    // none is the baseline.
    assert_eq!(measure(""), [0, 16], "the best is repeated to the end");
    assert_eq!(measure("--want latency"), [0, 1, 2, 3]);
    assert_eq!(measure("--p99-max 1250us"), [0, 2, 3, 4], "6 misses it clearly");
}
