//! Medians, ratios, n90 and the property of the published sweep.

use proptest::prelude::*;

use super::*;
use crate::cell::tests::{cell, client};
use crate::results::tests::run;

fn spread(median: f64, lowest: f64, highest: f64) -> Spread {
    Spread { median, lowest, highest }
}

#[test]
fn a_spread_is_median_and_extremes() {
    for (values, expected) in [
        (vec![], None),
        (vec![5.0], Some(spread(5.0, 5.0, 5.0))),
        (vec![3.0, 1.0], Some(spread(2.0, 1.0, 3.0))),
        (vec![9.0, 1.0, 2.0], Some(spread(2.0, 1.0, 9.0))),
        (vec![4.0, 1.0, 2.0, 9.0], Some(spread(3.0, 1.0, 9.0))),
    ] {
        assert_eq!(Spread::of(values.iter().copied()), expected, "{values:?}");
    }
}

#[track_caller]
fn check_verdict(medians: &[(u16, f64)], best: u16, n90: u16) {
    let medians: Vec<_> = medians.iter().map(|&(n, iops)| (Iothreads::new(n), iops)).collect();
    let expected = Verdict { best: Iothreads::new(best), n90: Iothreads::new(n90) };
    assert_eq!(verdict(&medians), Some(expected));
}

#[test]
fn n90_is_the_fewest_that_is_enough() {
    check_verdict(&[(0, 100.0)], 0, 0);
    check_verdict(&[(0, 90.0), (1, 100.0)], 1, 0);
    check_verdict(&[(0, 89.9), (1, 100.0)], 1, 1);
    check_verdict(&[(0, 50.0), (1, 89.0), (2, 91.0), (4, 100.0)], 4, 2);
    check_verdict(&[(0, 50.0), (1, 95.0), (2, 80.0), (4, 100.0)], 4, 1);
    check_verdict(&[(4, 100.0), (1, 95.0), (0, 10.0)], 4, 1);
}

#[test]
fn of_equal_counts_the_fewer_is_best() {
    check_verdict(&[(0, 100.0), (1, 100.0), (2, 100.0)], 0, 0);
    check_verdict(&[(2, 7.0), (1, 7.0)], 1, 1);
}

#[test]
fn without_clients_there_is_no_verdict() {
    assert_eq!(verdict(&[]), None);
}

proptest! {
    /// The rule of the published sweep: n90 is 0 exactly where the gain is at most 1/0.9 − 1.
    #[test]
    fn none_is_enough_exactly_where_the_gain_is_small(
        none in 1_000_u32..2_000_000,
        gains in proptest::collection::vec(-50_i32..300, 1..9),
    ) {
        let none = f64::from(none);
        let mut medians = vec![(Iothreads::NONE, none)];
        for (n, gain) in (1..).zip(&gains) {
            medians.push((Iothreads::new(n), none * (1.0 + f64::from(*gain) / 100.0)));
        }
        let Verdict { best, n90 } = verdict(&medians).unwrap();
        let most = medians.iter().map(|m| m.1).fold(0.0, f64::max);
        let gain = most / none - 1.0;
        prop_assert_eq!(n90 == Iothreads::NONE, gain <= 1.0 / 0.9 - 1.0, "gain {}", gain);
        prop_assert!(n90 <= best);
    }
}

#[test]
fn ratios_are_formed_inside_a_block() {
    // The machine doubles its speed after the first repeat; the ratios do not notice.
    let cell = cell("randread", 4096, 2, 16);
    let mut runs = Vec::new();
    for (repeat, speed) in [(0, 100), (1, 200), (2, 200)] {
        runs.push(run(cell, client(2), repeat, 6 * speed));
        runs.push(run(cell, Contender::Host, repeat, 8 * speed));
        runs.push(run(cell, client(0), repeat, 4 * speed));
    }
    let summary = &summarise(&runs, 2)[0];
    let [host, none, two] = &summary.rows[..] else { panic!("{summary:?}") };
    assert_eq!(host.to_none, None);
    assert_eq!(host.to_host, Some(spread(1.0, 1.0, 1.0)));
    assert_eq!(none.to_host, Some(spread(0.5, 0.5, 0.5)));
    assert_eq!(two.to_none, Some(spread(1.5, 1.5, 1.5)));
    assert_eq!(two.iops, spread(1200.0, 600.0, 1200.0));
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
    let runs = cells.map(|cell| run(cell, Contender::Host, 0, 1));
    let order: Vec<_> = summarise(&runs, 2).iter().map(|summary| summary.cell).collect();
    assert_eq!(order, cells);
    assert!(summarise(&runs, 2).iter().all(|summary| summary.verdicts.is_empty()));
}
