//! The bars that the policy is held to, in short form; `cargo run --release -p rehearsal` has the long one.

use placement::{Fault, Preference};
use rehearsal::families::many::{self, ALL_HEAVY, BUSY, MOSTLY_IDLE, Mix};
use rehearsal::families::published::{Setup, outcomes, summary};
use rehearsal::families::{faults, least, most, moving, quantile, still};
use rehearsal::parameters::Parameters;
use rehearsal::policies::Name;

/// Some of the cells for some seconds: the most of them that may miss 0.97 of the best fixed number, and what nine of ten
/// may use of the CPU of the cheapest fixed number.
#[track_caller]
fn check_cells(parameters: Parameters, one_in: usize, missed_max: usize, cpu_max: f64) {
    let setup = Setup { seconds: 40.0, from: 30.0, one_in, ..Setup::long(parameters, 300) };
    let found = outcomes(&setup);
    let of_best: Vec<f64> = found.iter().map(|it| it.of_best).collect();
    let cpu: Vec<f64> = found.iter().map(|it| it.cpu).collect();
    let lost: Vec<f64> = found.iter().map(|it| it.lost).collect();
    let missed = of_best.iter().filter(|it| **it < 0.97).count();
    let text = summary(&found);
    assert!(missed <= missed_max && least(&of_best) >= 0.95, "{text}");
    assert!(quantile(&cpu, 0.9) <= cpu_max && most(&cpu) <= 2.05, "{text}");
    assert!(most(&lost) <= 0.01, "{text}");
}

#[test]
fn published_cells_have_097_of_the_best_fixed_number() {
    check_cells(Parameters::fitted(), 6, 0, 1.15);
}

#[test]
fn wrong_waits_and_few_cpus_are_no_harm() {
    check_cells(Parameters { wait_factor: 0.3, ..Parameters::fitted() }, 16, 0, 2.0);
    check_cells(Parameters { wait_factor: 3.0, ..Parameters::fitted() }, 16, 1, 2.0);
    check_cells(Parameters { cpus: 20.0, ..Parameters::fitted() }, 16, 1, 2.0);
}

#[test]
fn four_busy_queues_of_sixteen_have_four_iothreads_within_a_second() {
    let (of_fixed, most) = still::four_of_sixteen(&Parameters::fitted(), 3, Fault::None, 1.0, 20.0);
    assert!(of_fixed >= 0.99 && most <= 4, "{of_fixed:.3} with {most}");
}

#[test]
fn nothing_to_do_is_nothing_done() {
    assert_eq!(still::idle(1), (true, 0));
}

#[test]
fn jobs_that_wander_and_bursts_are_followed() {
    let found = moving::wander(0.2, 1, 20.0, Fault::None);
    assert!(found >= 0.94, "wandering: {found:.3}");
    let found = moving::bursts(1.0, 1.0, 1, 20.0, Fault::None);
    assert!(found >= 0.94, "bursts: {found:.3}");
}

/// Ninety disks: not below static maps, and the least that a disk may have of its fair share.
#[track_caller]
fn check_many(threads: u16, mix: Mix, of_fair_min: f64) {
    let setup =
        many::Setup { phases: 1, phase_seconds: 16.0, ..many::Setup::long(threads, mix, 5) };
    let auto = many::outcome(&setup, Name::Auto(Preference::Throughput), Fault::None);
    assert!(auto.least_of_fair >= of_fair_min, "{auto:?}");
    let short = many::Setup { phase_seconds: 0.2, ..setup };
    for name in many::STATIC {
        let other = many::outcome(&short, name, Fault::None);
        let is_below = auto.requests_per_s < 0.98 * other.requests_per_s
            || auto.least_of_fair < 0.98 * other.least_of_fair;
        assert!(!is_below, "{name}: {other:?} and auto: {auto:?}");
    }
}

#[test]
fn ninety_disks_on_64_iothreads() {
    check_many(64, MOSTLY_IDLE, 0.9);
    check_many(64, BUSY, 0.8);
}

#[test]
fn ninety_disks_on_8_iothreads() {
    check_many(8, BUSY, 0.8);
    check_many(8, ALL_HEAVY, 0.8);
}

#[test]
fn a_guest_that_plays_harms_itself() {
    for (game, least_min) in [(still::Game::Lure, 0.9), (still::Game::Blink, 0.85)] {
        let found = still::least_beside(game, 16, 2);
        assert!(found >= least_min, "{game:?}: {found:.3}");
    }
}

#[test]
fn planted_faults_are_found() {
    let trying = faults::trying(Fault::None);
    assert!(trying < 0.3, "{trying}");
    let trying = faults::trying(Fault::NoBackOff);
    assert!(trying > 0.5, "without back-off: {trying}");
    let awake = faults::awake(Fault::None);
    assert!(awake < 12.0, "{awake}");
    let awake = faults::awake(Fault::PollsAreWork);
    assert!(awake > 20.0, "with polls as work: {awake}");
}
