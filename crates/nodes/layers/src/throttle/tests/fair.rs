//! How the disks of a group share it.

use block::{LaneContext, Node};

use super::simulation::{
    FakeClock, Load, MICROSECOND, MILLISECOND, SECOND, Simulation, disk, group,
};
use super::simulation::{read, write};
use super::{LATE, on, sum};

/// What the disks have got in eight seconds: the least of them in parts of the most. All that is
/// scarce is used.
#[track_caller]
fn check(limits: &str, late: u64, loads: &[Load], ratio_min: f64) {
    let mut simulation = Simulation::new(limits, late, loads);
    simulation.run_until(SECOND);
    let passed = simulation.run_until(9 * SECOND);
    let disks = loads.iter().map(|load| load.disk).max().unwrap() + 1;
    let of = |disk| {
        let own = passed.iter().zip(loads).filter(|(_, load)| load.disk == disk);
        own.map(|(passed, _)| passed.bytes).sum::<u64>()
    };
    let shares: Vec<u64> = (0..disks).map(of).collect();
    let ratio = *shares.iter().min().unwrap() as f64 / *shares.iter().max().unwrap() as f64;
    assert!(ratio >= ratio_min, "{limits}, late by {late}: {ratio:.4} of {shares:?}");
    let (kind, rate) = limits.split_once('=').unwrap();
    let rate: u64 = rate.parse().unwrap();
    let all = sum(&passed);
    let all = if kind.starts_with("bps") { all.bytes } else { all.operations };
    let lost = 1.0 - all as f64 / (8 * rate) as f64;
    assert!(lost < 0.01, "{limits}: {all} in 8 s");
}

fn deep() -> Load {
    Load::reads(0, 64, 4096)
}

#[test]
fn a_deep_queue_gets_no_more_than_a_shallow_one() {
    let shallow = Load::reads(1, 1, 4096);
    for rate in ["iops-total=100", "iops-total=5000", "iops-total=50000", "bps-total=10000000"] {
        check(rate, LATE, &[deep(), shallow], 0.99);
    }
    // A disk that is slow enough to miss its turn if it did not keep it.
    let slow = Load { service: 14 * MILLISECOND, ..shallow };
    check("iops-total=100", LATE, &[deep(), slow], 0.98);
}

#[test]
fn two_iothreads_get_no_more_than_one() {
    for rate in ["iops-total=100", "iops-total=5000", "iops-total=100000", "bps-total=10000000"] {
        check(rate, LATE, &[deep(), deep(), on(1, deep())], 0.99);
    }
    let shallow = Load::reads(1, 1, 4096);
    check(
        "iops-total=5000",
        LATE,
        &[deep(), deep(), deep(), deep(), shallow, on(2, shallow)],
        0.99,
    );
}

/// The iothreads of one disk, all of them busy: the least in parts of the most.
#[track_caller]
fn check_turns(late: u64, lanes: usize) {
    let mut simulation = Simulation::new("iops-total=5000", late, &vec![deep(); lanes]);
    simulation.run_until(SECOND);
    let passed = simulation.run_until(9 * SECOND);
    let least = passed.iter().map(|passed| passed.operations).min().unwrap();
    let most = passed.iter().map(|passed| passed.operations).max().unwrap();
    assert!(least as f64 / most as f64 > 0.95, "{lanes} lanes, late by {late}: {passed:?}");
}

#[test]
fn iothreads_of_a_disk_take_turns() {
    for lanes in [2, 3, 8] {
        check_turns(0, lanes);
        check_turns(LATE, lanes);
    }
}

#[test]
fn large_requests_get_no_more_than_small_ones() {
    let large = Load::reads(1, 16, 1 << 20);
    for rate in ["bps-total=10000000", "bps-total=100000000", "bps-total=1000000000"] {
        check(rate, LATE, &[deep(), large], 0.98);
    }
    check("bps-total=100000000", LATE, &[Load::reads(0, 1, 4096), large], 0.98);
    check(
        "bps-total=100000000",
        LATE,
        &[deep(), deep(), large, on(2, Load::reads(2, 4, 65_536))],
        0.98,
    );
}

#[test]
fn reads_and_writes_together_get_no_more_than_reads() {
    let both = Load { operations: [read(4096), write(4096)], ..deep() };
    check("iops-total=5000", LATE, &[both, on(1, deep())], 0.99);
    check("bps-total=50000000", LATE, &[both, both, on(1, deep())], 0.99);
}

#[test]
fn many_disks_share_evenly() {
    let loads: Vec<Load> = (0..24).map(|number| on(number % 16, deep())).collect();
    check("iops-total=1600", LATE, &loads, 0.95);
    check("iops-total=100000", LATE, &loads, 0.95);
}

#[test]
fn late_threads_share_fairly_still() {
    let (shallow, large) = (Load::reads(1, 1, 4096), Load::reads(1, 16, 1 << 20));
    for late in [2 * MILLISECOND, 8 * MILLISECOND] {
        check("iops-total=5000", late, &[deep(), shallow], 0.85);
        check("bps-total=10000000", late, &[deep(), large], 0.85);
        check("bps-total=100000000", late, &[deep(), large], 0.85);
    }
}

#[test]
fn what_one_does_not_ask_for_the_others_get() {
    let quiet = Load { service: 100 * MILLISECOND, ..Load::reads(1, 1, 4096) };
    let mut simulation = Simulation::new("iops-total=1000", LATE, &[deep(), quiet, on(2, deep())]);
    let passed = simulation.run_until(20 * SECOND);
    let [deep, quiet, other] = &passed[..] else { panic!() };
    assert!(quiet.operations > 190, "{passed:?}");
    assert!(deep.operations + other.operations > 19_700, "{passed:?}");
}

#[test]
fn a_quiet_disk_does_not_wait_for_a_deep_one() {
    // It asks for a tenth of its share, so it waits for at most a turn of the other.
    let quiet = Load { service: 20 * MILLISECOND, ..Load::reads(1, 1, 4096) };
    let mut simulation = Simulation::new("iops-total=1000", LATE, &[deep(), quiet]);
    let passed = simulation.run_until(22 * SECOND);
    assert!(passed[1].operations >= 1_000, "{passed:?}");
}

#[test]
fn a_lane_that_has_gone_leaves_its_turn() {
    let mut simulation = Simulation::new("iops-total=10", 0, &[deep(), deep(), on(1, deep())]);
    simulation.run_until(10 * SECOND);
    simulation.kill(0);
    let passed = simulation.run_until(30 * SECOND);
    let [_, left, other] = &passed[..] else { panic!() };
    assert!(left.operations.abs_diff(other.operations) <= 2, "{passed:?}");
    assert!(left.operations + other.operations >= 198, "{passed:?}");
    simulation.kill(2);
    simulation.run_until(31 * SECOND);
    let passed = simulation.run_until(41 * SECOND);
    assert!(passed[1].operations >= 99, "{passed:?}");
}

#[test]
fn more_lanes_than_places_all_pass() {
    let clock = FakeClock::new();
    let node = disk(&group("iops-total=1000", &clock));
    let lanes: Vec<_> = (0..130).map(|_| node.open_lane(&LaneContext::idle()).unwrap()).collect();
    drop(lanes);
    let loads: Vec<Load> = (0..130).map(|_| Load::reads(0, 1, 512)).collect();
    let mut simulation = Simulation::new("iops-total=1300", 20 * MICROSECOND, &loads);
    let passed = simulation.run_until(5 * SECOND);
    let least = passed.iter().map(|passed| passed.operations).min().unwrap();
    assert!(least >= 15, "{least} of 50, {passed:?}");
}
