//! How long runs take: guessed before anything was measured, then learned from each run that ends. Pure.
//!
//! `announce` adds up the plan before the start, `run` what is left of it; whoever keeps to a budget asks here too.
//!
//! Invariants: a run is never expected to take less than its ramp and its measured time.
//! Limits: the guesses are those of one machine with two CPUs; where they are wrong, the first run of each kind tells.
//! Not here: measuring how fast a disk is filled (`scratch::fill_rate`).

use std::collections::BTreeMap;
use std::time::Duration;

use plan::contender::Subject;
use plan::runs::{PlannedRun, RunKey};
use plan::settings::LoadKind;
use plan::settings::Settings;
use plan::variant::Device;
use records::results::Run;

/// Where nobody has looked: a slow disk.
const FILL_BYTES_PER_SECOND: f64 = 200.0 * 1024.0 * 1024.0;
/// The look at the host before the first run.
const LOOK: Duration = Duration::from_secs(1);
/// Booting one guest.
const BOOT: Duration = Duration::from_secs(2);
const BOOT_EMULATED: Duration = Duration::from_secs(6);
/// What fio needs for writing, reading and comparing 64 MiB of a disk.
const VERIFY: Duration = Duration::from_millis(900);
const VERIFY_EMULATED: Duration = Duration::from_millis(5800);

/// Runs that take alike on top of their ramp and measured time: of a subject, with a guest of their own or not, with or
/// without verification before them.
type Kind = (Subject, bool, bool);

/// The mean of what was seen, as a multiple of the guess.
#[derive(Clone, Copy, Debug)]
struct PaceEstimate {
    factor: f64,
    seen: u32,
}

impl PaceEstimate {
    const NOTHING: Self = Self { factor: 1.0, seen: 0 };

    fn observe(&mut self, took: Duration, guess: Duration) {
        let factor = took.as_secs_f64() / guess.as_secs_f64().max(f64::MIN_POSITIVE);
        self.seen = self.seen.saturating_add(1);
        self.factor += (factor - self.factor) / f64::from(self.seen);
    }

    fn of(self, guess: Duration) -> Duration {
        seconds_of(guess.as_secs_f64() * self.factor)
    }
}

/// What runs take, as far as is known.
#[derive(Clone, Debug)]
pub(crate) struct Pace {
    /// Ramp and measured time of a run that is not stretched.
    measured: Duration,
    /// Of the host.
    load: LoadKind,
    verify: bool,
    /// Whether guests' CPUs are.
    emulated: bool,
    kinds: BTreeMap<Kind, PaceEstimate>,
    boot: PaceEstimate,
    /// Filling the scratch files before each round but the first.
    fill: Duration,
    /// The round of the last run; none before the first.
    round: Option<u16>,
    /// Guests that were booted in it and stay.
    guests: u16,
}

impl Pace {
    /// Nothing was measured yet. `emulated` are the CPUs of guests.
    pub(crate) fn new(settings: &Settings, emulated: bool) -> Self {
        let (ramp, runtime) = (settings.ramp.duration(), settings.runtime.duration());
        Self {
            measured: ramp.saturating_add(runtime),
            load: settings.load,
            verify: settings.verify,
            emulated,
            kinds: BTreeMap::new(),
            boot: PaceEstimate::NOTHING,
            fill: Duration::ZERO,
            round: None,
            guests: 0,
        }
    }

    /// Rounds take so much longer, for their storage.
    pub(crate) fn with_fill(self, fill: Duration) -> Self {
        Self { fill, ..self }
    }

    /// A round begins: its guests are still to be booted, its files are filled, if they were, after so long.
    pub(crate) fn begin(&mut self, round: u16, filled: Option<Duration>) {
        (self.round, self.guests) = (Some(round), 0);
        self.fill = filled.unwrap_or(self.fill);
    }

    /// What a run should take if it is the next one.
    pub(crate) fn expected(&self, run: &PlannedRun) -> Duration {
        self.total(std::slice::from_ref(run))
    }

    /// What these runs should take, one after the other.
    pub(crate) fn total(&self, runs: &[PlannedRun]) -> Duration {
        self.sum(runs.iter().map(|run| (&run.key, run.stretch, run.round)))
    }

    /// What runs that were measured by an earlier command should have taken.
    pub(crate) fn spent(&self, runs: &[Run]) -> Duration {
        self.sum(runs.iter().map(|run| (&run.key, run.stretch(), run.round)))
    }

    /// Making the storage. `rate`: bytes per second that were measured.
    pub(crate) fn filling(bytes: u64, rate: Option<f64>) -> Duration {
        seconds_of(bytes as f64 / rate.unwrap_or(FILL_BYTES_PER_SECOND))
    }

    /// Making the storage and looking at the host, before the first run.
    pub(crate) fn before_runs(filling: Duration) -> Duration {
        LOOK.saturating_add(filling)
    }

    /// A run has ended well after so long.
    pub(crate) fn observe(&mut self, run: &PlannedRun, took: Duration) {
        let over = took.saturating_sub(self.measured.saturating_mul(run.stretch));
        let missing = self.missing(&run.key, self.guests);
        if missing == 0 {
            let guess = self.guess(&run.key);
            let kind = self.kind(&run.key);
            self.kinds.entry(kind).or_insert(PaceEstimate::NOTHING).observe(over, guess);
        } else {
            // What the run itself took is not known apart from the boots.
            let boots = over.saturating_sub(self.overhead(&run.key));
            self.boot.observe(boots, self.boot_guess().saturating_mul(missing.into()));
            self.guests += missing;
        }
    }

    /// A run has failed, which ends the guests that it used.
    pub(crate) fn failed(&mut self, run: &PlannedRun) {
        if self.keeps_guests(&run.key) {
            self.guests = 0;
        }
    }

    /// In any order: the runs of a round are measured together.
    fn sum<'a>(&self, runs: impl Iterator<Item = (&'a RunKey, u32, Option<u16>)>) -> Duration {
        let begun = self.round.or((self.guests > 0).then_some(0));
        let mut rounds: BTreeMap<u16, u16> =
            begun.map(|it| (it, self.guests)).into_iter().collect();
        let mut sum = Duration::ZERO;
        for (key, stretch, round) in runs {
            let round = round.or(rounds.keys().next_back().copied()).unwrap_or(0);
            // What the first round of all needs is there.
            let fill = !rounds.is_empty() && !rounds.contains_key(&round);
            let guests = rounds.entry(round).or_default();
            let missing = self.missing(key, *guests);
            *guests += missing;
            let boots = self.boot.of(self.boot_guess().saturating_mul(missing.into()));
            let fill = if fill { self.fill } else { Duration::ZERO };
            for part in [self.measured.saturating_mul(stretch), self.overhead(key), boots, fill] {
                sum = sum.saturating_add(part);
            }
        }
        sum
    }

    /// What a run takes on top of what it measures, without boots of guests that stay.
    fn overhead(&self, key: &RunKey) -> Duration {
        let learned = self.kinds.get(&self.kind(key)).copied().unwrap_or(PaceEstimate::NOTHING);
        learned.of(self.guess(key))
    }

    fn guess(&self, key: &RunKey) -> Duration {
        let (subject, is_cold, verified) = self.kind(key);
        // Once, and for each disk.
        let (once, each) = match subject {
            Subject::Host if self.load == LoadKind::Own => (35, 0),
            Subject::Host => (330, 0),
            Subject::Client => (80, 0),
            Subject::VmQemu if is_cold => (800, 0),
            Subject::VmQemu | Subject::VmRingloom => (400, 400),
            Subject::VmGiven | Subject::Pod | Subject::VmKubevirt => (800, 0),
        };
        let guests = if is_cold { key.variant.vms } else { 0 };
        let boots = self.boot_guess().saturating_mul(guests.into());
        let verification = match (verified, self.emulated && subject.is_booted()) {
            (false, _) => Duration::ZERO,
            (true, false) => VERIFY,
            (true, true) => VERIFY_EMULATED,
        };
        let disks = u64::from(key.variant.disks_in_all());
        Duration::from_millis(once + each * disks) + boots + verification
    }

    fn kind(&self, key: &RunKey) -> Kind {
        let is_cold = key.variant.device == Device::Ide;
        (key.contender.subject(), is_cold, self.verify && key.cell.writes())
    }

    /// Whether it uses guests that stay for the next run.
    fn keeps_guests(&self, key: &RunKey) -> bool {
        let (subject, is_cold, _) = self.kind(key);
        subject.is_booted() && !is_cold
    }

    /// How many guests must be booted for a run and stay, if there are so many.
    fn missing(&self, key: &RunKey, guests: u16) -> u16 {
        let needed = if self.keeps_guests(key) { key.variant.vms } else { 0 };
        needed.saturating_sub(guests)
    }

    fn boot_guess(&self) -> Duration {
        if self.emulated { BOOT_EMULATED } else { BOOT }
    }
}

/// What does not fit is longer than anybody waits.
fn seconds_of(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use plan::contender::{Contender, Iothreads};
    use plan::testing::settings;
    use plan::testing::{cell, client};
    use plan::variant::Variant;
    use records::testing::run;

    use super::*;

    const GUEST: Contender = Contender::new(Subject::VmQemu, Iothreads::new(1));

    fn planned(contender: Contender, variant: Variant) -> PlannedRun {
        let mut key = run(cell("randwrite", 4096, 2, 16), contender, 0, 5).key;
        key.variant = variant;
        PlannedRun { key, jobs_max: 2, seed: 1, round: None, stretch: 1 }
    }

    fn plain(contender: Contender) -> PlannedRun {
        planned(contender, Variant::default())
    }

    /// Two seconds of ramp and measured time.
    fn pace(line: &str) -> Pace {
        Pace::new(&settings(&format!("--ramp 0.5 --runtime 1.5 {line}"), 2), true)
    }

    fn seconds(duration: Duration) -> f64 {
        duration.as_secs_f64()
    }

    #[test]
    fn a_run_takes_its_time_and_what_its_kind_adds() {
        let cold = Variant { device: Device::Ide, vms: 2, ..Variant::default() };
        let several = Variant { vms: 2, disks: 3, ..Variant::default() };
        for (line, run, expected) in [
            ("--load own", plain(Contender::HOST), 2.035),
            ("--load fio", plain(Contender::HOST), 2.33),
            ("--load fio --verify", plain(Contender::HOST), 3.23),
            ("", plain(client(4)), 2.08),
            ("", plain(Contender::VM_GIVEN), 2.8),
            ("", plain(GUEST), 2.0 + 0.8 + 6.0),
            ("--verify", plain(GUEST), 2.0 + 0.8 + 6.0 + 5.8),
            ("", planned(GUEST, several), 2.0 + 0.4 + 6.0 * 0.4 + 2.0 * 6.0),
            ("", planned(GUEST, cold), 2.0 + 0.8 + 2.0 * 6.0),
        ] {
            let found = seconds(pace(line).expected(&run));
            assert!((found - expected).abs() < 1e-6, "{line} {:?}: {found}", run.key);
        }
    }

    #[test]
    fn a_stretched_run_measures_twice_as_long() {
        let run = PlannedRun { stretch: 2, ..plain(client(4)) };
        assert!((seconds(pace("").expected(&run)) - 4.08).abs() < 1e-6);
    }

    #[test]
    fn guests_that_stay_are_booted_once() {
        let pair = Variant { vms: 2, ..Variant::default() };
        let runs = [plain(Contender::HOST), plain(GUEST), planned(GUEST, pair), plain(GUEST)];
        let mut pace = pace("--load own");
        let boots = 2.0 * 6.0;
        let rest = 4.0 * 2.0 + 0.035 + 0.8 + 1.2 + 0.8;
        assert!((seconds(pace.total(&runs)) - rest - boots).abs() < 1e-6);
        pace.observe(&runs[2], pace.expected(&runs[2]));
        assert!((seconds(pace.total(&runs)) - rest).abs() < 1e-6, "both run");
        pace.failed(&runs[0]);
        assert!((seconds(pace.total(&runs)) - rest).abs() < 1e-6, "the host uses none");
        pace.failed(&runs[1]);
        assert!((seconds(pace.total(&runs)) - rest - boots).abs() < 1e-6, "all have ended");
    }

    #[test]
    fn the_mean_of_each_kind_is_learned() {
        let (mut pace, own) = (pace(""), plain(client(4)));
        for (over, mean) in [(400, 2.4), (200, 2.3), (600, 2.4)] {
            pace.observe(&own, Duration::from_millis(2000 + over));
            assert!((seconds(pace.expected(&own)) - mean).abs() < 1e-6, "{over}");
        }
        assert!((seconds(pace.expected(&plain(Contender::VM_GIVEN))) - 2.8).abs() < 1e-6);
        // Less than it measures: a clock, not a run.
        pace.observe(&own, Duration::ZERO);
        assert!(pace.expected(&own) > Duration::from_secs(2));
    }

    #[test]
    fn the_first_run_in_a_guest_tells_how_long_a_boot_takes() {
        let (mut pace, one) = (pace(""), plain(GUEST));
        pace.observe(&one, Duration::from_millis(2000 + 800 + 3000));
        assert!((seconds(pace.expected(&one)) - 2.8).abs() < 1e-6);
        let pair = planned(GUEST, Variant { vms: 2, ..Variant::default() });
        assert!((seconds(pace.expected(&pair)) - 2.0 - 1.2 - 3.0).abs() < 1e-6, "one is missing");
    }

    #[test]
    fn filling_is_as_fast_as_was_tried() {
        let before = |bytes, rate| Pace::before_runs(Pace::filling(bytes, rate));
        let time = |rate| seconds(before(1 << 30, rate));
        assert!((time(Some(f64::from(1 << 28))) - 5.0).abs() < 1e-6);
        assert!((time(None) - 6.12).abs() < 1e-6);
        assert_eq!(before(u64::MAX, Some(0.0)), Duration::MAX);
        assert_eq!(before(0, None), LOOK);
    }

    #[test]
    fn what_was_measured_before_was_spent() {
        let mut stretched = run(cell("read", 4096, 1, 1), client(1), 0, 5);
        stretched.stretched = true;
        let all = [run(cell("read", 4096, 1, 1), client(1), 0, 5), stretched];
        assert!((seconds(pace("").spent(&all)) - 2.08 - 4.08).abs() < 1e-6);
    }
}
