//! Loads that gain by polling, lose, and change, under noise.

use super::*;
use block::{Clock, SystemClock};

/// A load as the iothread sees it: requests per second and CPU time per request, without looking and with it.
#[derive(Debug, Clone, Copy)]
struct Load {
    rate: [f64; 2],
    cpu_us: [f64; 2],
}

/// One request at a time, on a disk that answers in less time than a wake-up takes.
const ALONE: Load = Load { rate: [20e3, 32e3], cpu_us: [24.0, 31.0] };
/// A disk that is itself the limit.
const DISK: Load = Load { rate: [140e3, 142e3], cpu_us: [4.0, 6.9] };
/// Two threads that wake each other, or do not.
const WAKING: Load = Load { rate: [17e3, 1e6], cpu_us: [20.0, 0.9] };
/// A few requests a second.
const TRICKLE: Load = Load { rate: [100.0, 100.0], cpu_us: [30.0, 280.0] };

/// An iothread that serves these loads.
struct Rig {
    trial: PollTrial,
    now: Instant,
    cpu: Duration,
    answered: Vec<f64>,
    noise: f64,
    random: u32,
    /// Time in which everything was looked for, and nothing, by trials.
    tried: [Duration; 2],
}

impl Rig {
    fn new(sources: usize, noise: f64, seed: u32) -> Self {
        let now = SystemClock.now();
        let mut trial = PollTrial::new(now);
        (0..sources).for_each(|place| trial.arrive(place, PollFinding::Unknown, now));
        let answered = vec![0.0; sources];
        let (cpu, tried) = (Duration::ZERO, [Duration::ZERO; 2]);
        Self { trial, now, cpu, answered, noise, random: seed * 2 + 1, tried }
    }

    /// A factor whose logarithm is between -noise and noise.
    fn factor(&mut self) -> f64 {
        self.random = self.random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        ((f64::from(self.random) / f64::from(u32::MAX) * 2.0 - 1.0) * self.noise).exp()
    }

    /// Serves for so long, in steps; `drift` is by which factor the rates grow in a second.
    fn run(&mut self, loads: &[Load], seconds: f64, drift: f64) {
        const STEP: Duration = Duration::from_micros(500);
        let end = self.now + Duration::from_secs_f64(seconds);
        let start = self.now;
        while self.now < end {
            let grown = drift.powf(self.now.saturating_duration_since(start).as_secs_f64());
            for (place, load) in loads.iter().enumerate() {
                let rule = self.trial.rule(place);
                let looked = usize::from(rule == PollRule::Long);
                let factor = self.factor() * grown;
                let count = load.rate[looked] * factor * STEP.as_secs_f64();
                self.answered[place] += count;
                self.cpu += Duration::from_secs_f64(count * load.cpu_us[looked] / factor / 1e6);
            }
            self.now += STEP;
            if let Some(looks) = self.trial.looks_now() {
                self.tried[usize::from(looks)] += STEP;
            }
            if self.trial.is_due(self.now) {
                let Self { trial, now, cpu, answered, .. } = self;
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "counts"
                )]
                trial.step(*now, || *cpu, |place| answered[place] as u64);
            }
        }
    }

    fn rules(&self) -> Vec<PollRule> {
        (0..self.answered.len()).map(|place| self.trial.rule(place)).collect()
    }
}

/// After a second these loads are looked for so, however noisy the machine.
#[track_caller]
fn check(loads: &[Load], expected: &[PollRule]) {
    for noise in [0.0, 0.05, 0.1] {
        let wrong = (0..50).filter(|seed| {
            let mut rig = Rig::new(loads.len(), noise, *seed);
            rig.run(loads, 1.0, 1.0);
            while rig.trial.looks_now().is_some() {
                rig.run(loads, 0.001, 1.0);
            }
            rig.rules() != expected
        });
        assert!(wrong.count() <= 1, "noise {noise}");
    }
}

#[test]
fn looking_goes_on_where_it_saves_more_than_it_costs() {
    check(&[ALONE], &[PollRule::Long]);
    check(&[WAKING], &[PollRule::Long]);
    check(&[DISK], &[PollRule::Never]);
}

#[test]
fn each_source_is_judged_by_what_it_gains() {
    check(&[ALONE, DISK], &[PollRule::Long, PollRule::Never]);
    check(&[DISK, DISK, DISK], &[PollRule::Never; 3]);
}

/// Of windows of other lengths a source that does nothing has other rates.
#[test]
fn of_a_source_that_does_nothing_nothing_is_found() {
    let mut rig = Rig::new(2, 0.05, 1);
    let slow = Load { rate: [2000.0, 2040.0], cpu_us: [20.0, 200.0] };
    let idle = Load { rate: [0.0, 0.0], ..slow };
    rig.run(&[slow, idle], 3.0, 1.0);
    while rig.trial.looks_now().is_some() {
        rig.run(&[slow, idle], 0.001, 1.0);
    }
    assert_eq!(rig.rules(), [PollRule::Never, PollRule::AsSet]);
}

#[test]
fn what_was_found_goes_with_the_source() {
    let mut rig = Rig::new(1, 0.0, 1);
    rig.run(&[WAKING], 1.0, 1.0);
    let finding = rig.trial.leave(0, rig.now);
    assert_eq!(finding, PollFinding::Pays);
    let mut other = PollTrial::new(rig.now);
    other.arrive(3, finding, rig.now);
    assert_eq!(other.rule(3), PollRule::Long);
}

#[test]
fn too_few_requests_are_looked_for_as_is_set() {
    let mut rig = Rig::new(1, 0.05, 1);
    rig.run(&[TRICKLE], 20.0, 1.0);
    assert_eq!(rig.tried[1], Duration::ZERO);
    assert!(rig.tried[0] < Duration::from_secs(2));
}

#[test]
fn a_rate_that_rises_meanwhile_is_no_gain() {
    for seed in 0..20 {
        let mut rig = Rig::new(1, 0.02, seed);
        rig.run(&[DISK], 0.5, 2.0);
        assert_eq!(rig.rules(), [PollRule::Never]);
    }
}

#[test]
fn another_load_is_tried_soon_and_the_same_one_seldom() {
    let mut rig = Rig::new(1, 0.05, 3);
    rig.run(&[DISK], 60.0, 1.0);
    let tried = rig.tried[0] + rig.tried[1];
    assert!(tried < Duration::from_millis(1000), "{tried:?} of a minute");
    rig.run(&[WAKING], 0.5, 1.0);
    assert_eq!(rig.rules(), [PollRule::Long]);
    rig.run(&[DISK], 0.5, 1.0);
    assert_eq!(rig.rules(), [PollRule::Never]);
}

#[test]
fn loads_that_change_all_the_time_are_tried_for_a_tenth_of_it() {
    let mut rig = Rig::new(1, 0.05, 5);
    for _ in 0..100 {
        rig.run(&[DISK], 0.15, 1.0);
        rig.run(&[WAKING], 0.15, 1.0);
    }
    let tried = rig.tried[0] + rig.tried[1];
    assert!(tried < Duration::from_secs(4), "{tried:?} of half a minute");
}

#[test]
fn a_trial_that_is_broken_off_finds_nothing() {
    let mut rig = Rig::new(1, 0.0, 1);
    for _ in 0..500 {
        rig.run(&[WAKING], 0.002, 1.0);
        rig.trial.break_off(rig.now);
    }
    assert_eq!(rig.rules(), [PollRule::AsSet]);
}

#[test]
fn other_settings_begin_anew() {
    let mut rig = Rig::new(1, 0.0, 1);
    rig.run(&[DISK], 1.0, 1.0);
    assert_eq!(rig.rules(), [PollRule::Never]);
    rig.trial.forget(rig.now);
    assert_eq!(rig.rules(), [PollRule::AsSet]);
}

/// Others want the CPU whenever it is looked: no trial comes to its end.
#[test]
fn beside_others_that_want_the_cpu_trials_become_rare() {
    let mut rig = Rig::new(1, 0.05, 1);
    let mut ended = Vec::new();
    for _ in 0..12 {
        while rig.trial.looks_now() != Some(true) {
            rig.run(&[ALONE], 0.0005, 1.0);
        }
        rig.trial.crowded(rig.now);
        ended.push(rig.now);
    }
    assert_eq!(rig.rules(), [PollRule::AsSet]);
    let pauses: Vec<Duration> = ended.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(pauses[0] < 2 * NEXT_AFTER, "one may have been a chance: {pauses:?}");
    assert!(pauses[7..].iter().all(|pause| *pause >= NEXT_AFTER_MAX), "{pauses:?}");
    // The others have gone.
    rig.run(&[ALONE], 9.0, 1.0);
    while rig.trial.looks_now().is_some() {
        rig.run(&[ALONE], 0.001, 1.0);
    }
    assert_eq!(rig.rules(), [PollRule::Long]);
}

/// A slow load, of which a window takes long.
#[test]
fn what_is_found_again_and_again_is_tried_for_less_than_a_hundredth_of_the_time() {
    let mut rig = Rig::new(1, 0.05, 3);
    let slow = Load { rate: [2000.0, 2040.0], cpu_us: [35.0, 300.0] };
    rig.run(&[slow], 60.0, 1.0);
    rig.tried = [Duration::ZERO; 2];
    rig.run(&[slow], 300.0, 1.0);
    let tried = rig.tried[0] + rig.tried[1];
    assert!(!tried.is_zero() && tried < Duration::from_secs(3), "{tried:?} of five minutes");
    // Another load is tried soon.
    rig.run(&[WAKING], 10.0, 1.0);
    while rig.trial.looks_now().is_some() {
        rig.run(&[WAKING], 0.001, 1.0);
    }
    assert_eq!(rig.rules(), [PollRule::Long]);
}
