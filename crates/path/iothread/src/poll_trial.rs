//! Whether looking before sleeping pays: short windows with looking and without, compared while the guest runs.
//!
//! Where it stands: the event loop asks before it looks ([`PollTrial::rule`]), and lets a trial go on when it has
//! nothing to do ([`PollTrial::step`]).
//!
//! A look saves the time of a wake-up and costs CPU time. Whether the guest gets anything of what is saved no rule of
//! thumb says: a disk that is itself the limit completes as much while its completions wait for a thread to wake; two
//! threads that wake each other, or a guest with one request at a time, wait for every wake-up. So the iothread tries
//! both, in windows that follow each other as off, on, on, off (which cancels a drift), and compares for each source what
//! it has answered per second, and for the thread the CPU time per request. Looking goes on for the sources that gain,
//! if they gain at least [`PRICE`] seconds for each second of CPU time spent on it.
//!
//! Invariants: a trial changes how long is looked and nothing else. What was found holds until the next trial, which
//! comes the later the more often the same was found, and soon once the load is another one.
//! Limits: at most a tenth of the time is trials, and less than a hundredth once the same was found five times. Too few
//! requests for a window end a trial without a finding.
//! Here is only the deciding; time, CPU time and counts are arguments.

use std::time::{Duration, Instant};

/// What a second of CPU time must bring at least, in seconds that guests get done sooner.
const PRICE: f64 = 0.25;
/// The least gain that is one: below it is noise.
const GAIN_MIN: f64 = 0.05;
/// Looking that costs no more CPU time than this, relative to sleeping, need not bring a gain.
const FREE_MAX: f64 = 1.05;
/// What a source may lose by looking that is free.
const LOSS_MAX: f64 = 0.03;
/// By how much less than [`PRICE`] goes on once it was found to pay, so that it does not swing.
const STAY: f64 = 0.7;

/// What follows a change is not counted for so long: wake-ups and looks settle.
const SETTLE: Duration = Duration::from_millis(1);
/// The least length of a window, and the greatest.
const WINDOW_MIN: Duration = Duration::from_millis(4);
const WINDOW_MAX: Duration = Duration::from_millis(50);
/// How many requests a window wants, and how many it must have in its greatest length.
const REQUESTS_WANTED: u64 = 64;
const REQUESTS_MIN: u64 = 16;
/// How many pairs of windows there are at least, and at most.
const PAIRS_MIN: u32 = 4;
const PAIRS_MAX: u32 = 16;
/// By how many standard errors a gain must differ from the least one, to end a trial early.
const CERTAIN: f64 = 3.0;
/// Two pairs are enough in which each rate with looking is more than so many times that without, or less than its
/// inverse; one, if that was found before.
const CLEAR: f64 = 2.0;

/// When the first trial of a source comes, and the next one after a finding that is new.
const FIRST_AFTER: Duration = Duration::from_millis(20);
const NEXT_AFTER: Duration = Duration::from_millis(250);
const NEXT_AFTER_MAX: Duration = Duration::from_secs(8);
/// A trial is followed by at least so many times its length without one.
const REST: u32 = 10;
/// Each time that the same is found there are twice as many, so often, as long as the load stays as it is...
const DOUBLINGS_MAX: u32 = 4;
/// ... and for no longer than that.
const REST_MAX: Duration = Duration::from_secs(60);
/// How often the load is compared with that of the last trial.
const CHECK_EVERY: Duration = Duration::from_millis(50);
/// By which factor it must differ, in two checks, to be another one.
const OTHER_LOAD: f64 = 1.5;

/// How a source is looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PollRule {
    /// Not at all.
    Never,
    /// By the settings as they are: it is not known yet whether that pays.
    AsSet,
    /// For longer than that, where nobody has set a limit.
    Long,
}

/// Whether looking for a source was found to pay. Goes with the source to other iothreads.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PollFinding {
    /// Nobody knows yet.
    #[default]
    Unknown,
    /// It does.
    Pays,
    /// It does not.
    DoesNot,
}

/// What is known of a source.
#[derive(Debug, Clone, Copy)]
struct SourceRecord {
    finding: PollFinding,
    /// What it had answered when the window began.
    answered: u64,
    /// Its rate in the first window of the pair.
    first: f64,
    /// Requests that it has answered in all windows.
    requests: u64,
    /// Over all pairs: the logarithm of its rate with looking over that without, and its square.
    sum: f64,
    squares: f64,
    /// The least of these logarithms, and the greatest.
    range: [f64; 2],
}

/// What the thread used and did in all windows of one kind.
#[derive(Debug, Default, Clone, Copy)]
struct SideTotals {
    time: f64,
    cpu: f64,
    answered: f64,
}

impl SourceRecord {
    /// Whether it had enough requests in so many pairs of windows to say something of it.
    fn is_active(&self, pairs: u32) -> bool {
        self.requests >= REQUESTS_MIN * u64::from(pairs)
    }
}

/// Where a trial stands.
#[derive(Debug, Clone, Copy)]
enum TrialState {
    /// There is none.
    Waiting { checked: Instant, answered: u64, others: u32 },
    /// After a change that is not counted yet.
    Settling { window: u32 },
    /// In a window.
    Measuring { window: u32, since: Instant, cpu: Duration },
}

/// Finds out by trial for which sources of an iothread looking pays.
#[derive(Debug)]
pub(crate) struct PollTrial {
    sources: Vec<Option<SourceRecord>>,
    state: TrialState,
    /// When there is something to do for [`PollTrial::step`].
    due: Instant,
    /// When the next trial begins, if the load stays as it is, and how long after the last one.
    next: Instant,
    interval: Duration,
    /// When the trial began.
    begun: Instant,
    /// Without looking, and with it.
    sides: [SideTotals; 2],
    /// The earliest time of the next trial, if the load is another one.
    rested: Instant,
    /// Requests per second at the last finding.
    rate: f64,
    /// Whether others have ended the last trial.
    was_crowded: bool,
    /// How often in a row the last finding was found again.
    repeated: u32,
}

impl PollTrial {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            sources: Vec::new(),
            state: TrialState::Waiting { checked: now, answered: 0, others: 0 },
            due: now,
            next: now,
            interval: NEXT_AFTER,
            begun: now,
            sides: [SideTotals::default(); 2],
            rested: now,
            rate: 0.0,
            was_crowded: false,
            repeated: 0,
        }
    }

    /// A source has come to this place, of which so much is known.
    pub(crate) fn arrive(&mut self, place: usize, finding: PollFinding, now: Instant) {
        if self.sources.len() <= place {
            self.sources.resize(place + 1, None);
        }
        let (answered, requests, first, sum, squares, range) = (0, 0, 0.0, 0.0, 0.0, [0.0; 2]);
        self.sources[place] =
            Some(SourceRecord { finding, answered, first, requests, sum, squares, range });
        self.break_off(now);
        if finding == PollFinding::Unknown {
            self.next = self.next.min(self.rested.max(now + FIRST_AFTER));
        }
    }

    /// The source of this place has gone. Returns what is known of it.
    pub(crate) fn leave(&mut self, place: usize, now: Instant) -> PollFinding {
        self.break_off(now);
        self.sources[place].take().map(|it| it.finding).unwrap_or_default()
    }

    /// Forgets all findings: the settings are other ones.
    pub(crate) fn forget(&mut self, now: Instant) {
        for record in self.sources.iter_mut().flatten() {
            record.finding = PollFinding::Unknown;
        }
        self.break_off(now);
        self.next = now + FIRST_AFTER;
    }

    /// Somebody else has used the CPU while it was looked: what is measured now means nothing. Once may be a chance; if that
    /// goes on, trials come more and more seldom.
    pub(crate) fn crowded(&mut self, now: Instant) {
        if matches!(self.state, TrialState::Waiting { .. }) {
            return;
        }
        if std::mem::replace(&mut self.was_crowded, true) {
            self.double_interval();
            let [without, _] = self.sides;
            if without.time > 0.0 {
                // Another load is a reason to try sooner.
                self.rate = without.answered / without.time;
            }
        }
        self.rest(now);
    }

    /// What is measured now means nothing: the sources are others.
    fn break_off(&mut self, now: Instant) {
        if !matches!(self.state, TrialState::Waiting { .. }) {
            self.rest(now);
        }
    }

    /// How to look for the source of this place.
    pub(crate) fn rule(&self, place: usize) -> PollRule {
        match self.looks_now() {
            Some(true) => PollRule::Long,
            Some(false) => PollRule::Never,
            None => match self.sources.get(place).copied().flatten().map(|it| it.finding) {
                Some(PollFinding::Pays) => PollRule::Long,
                Some(PollFinding::DoesNot) => PollRule::Never,
                Some(PollFinding::Unknown) | None => PollRule::AsSet,
            },
        }
    }

    /// Whether there is something to do for [`PollTrial::step`].
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        now >= self.due
    }

    /// Goes on with a trial, or begins one if it is time; whether looking begins with that. `cpu` is the CPU time of the
    /// thread, `answered` how many requests the source of a place has answered, both since some point in the past.
    pub(crate) fn step(
        &mut self,
        now: Instant,
        cpu: impl FnOnce() -> Duration,
        answered: impl Fn(usize) -> u64,
    ) -> bool {
        match self.state {
            TrialState::Waiting { .. } if now >= self.next => {
                self.begun = now;
                self.sides = [SideTotals::default(); 2];
                for record in self.sources.iter_mut().flatten() {
                    (record.requests, record.sum, record.squares) = (0, 0.0, 0.0);
                    record.range = [f64::INFINITY, f64::NEG_INFINITY];
                }
                self.settle(0, now);
            }
            TrialState::Waiting { .. } => self.check_load(now, &answered),
            TrialState::Settling { window } => {
                for (place, record) in self.sources.iter_mut().enumerate() {
                    if let Some(record) = record {
                        record.answered = answered(place);
                    }
                }
                self.state = TrialState::Measuring { window, since: now, cpu: cpu() };
                self.due = now + WINDOW_MIN;
            }
            TrialState::Measuring { window, since, cpu: before } => {
                let passed = now.saturating_duration_since(since);
                let requests = self.requests(&answered);
                if requests < REQUESTS_WANTED && passed < WINDOW_MAX {
                    self.due = now + WINDOW_MIN / 2;
                } else if requests < REQUESTS_MIN {
                    self.put_off(now);
                } else {
                    let cpu = cpu().saturating_sub(before);
                    self.window_over(window, [passed, cpu], &answered);
                    if window % 2 == 1 && self.is_decided(window / 2 + 1) {
                        self.decide(now);
                    } else {
                        self.settle(window + 1, now);
                        return self.looks_now() == Some(true) && !looks_in(window);
                    }
                }
            }
        }
        false
    }

    /// In a trial, whether the present window is one with looking.
    fn looks_now(&self) -> Option<bool> {
        match self.state {
            TrialState::Waiting { .. } => None,
            TrialState::Settling { window } | TrialState::Measuring { window, .. } => {
                Some(looks_in(window))
            }
        }
    }

    fn settle(&mut self, window: u32, now: Instant) {
        self.state = TrialState::Settling { window };
        self.due = now + SETTLE;
    }

    /// Requests of all sources since the window began.
    fn requests(&self, answered: &impl Fn(usize) -> u64) -> u64 {
        let of = |(place, record): (usize, &Option<SourceRecord>)| {
            record.map_or(0, |it| answered(place).saturating_sub(it.answered))
        };
        self.sources.iter().enumerate().map(of).sum()
    }

    /// A window has taken so much time and CPU time.
    fn window_over(
        &mut self,
        window: u32,
        [passed, cpu]: [Duration; 2],
        answered: &impl Fn(usize) -> u64,
    ) {
        let seconds = passed.as_secs_f64();
        let side = &mut self.sides[usize::from(looks_in(window))];
        side.time += seconds;
        side.cpu += cpu.as_secs_f64();
        for (place, record) in self.sources.iter_mut().enumerate() {
            let Some(record) = record else { continue };
            let requests = answered(place).saturating_sub(record.answered);
            record.requests += requests;
            let count = float(requests);
            side.answered += count;
            // Not 0, whose logarithm is none.
            let rate = (count + 0.5) / seconds;
            if window.is_multiple_of(2) {
                record.first = rate;
            } else {
                let change = (rate / record.first).ln();
                let gain = if looks_in(window) { change } else { -change };
                record.sum += gain;
                record.squares += gain * gain;
                record.range = [record.range[0].min(gain), record.range[1].max(gain)];
            }
        }
    }

    /// Whether so many pairs say enough.
    fn is_decided(&self, pairs: u32) -> bool {
        let mut sources = self.active(pairs);
        if pairs >= PAIRS_MAX {
            return true;
        }
        if pairs < PAIRS_MIN {
            let clear = CLEAR.ln();
            // One is enough to find the same again.
            return sources.all(|it| match it.finding {
                PollFinding::Pays if pairs == 1 => it.range[0] > clear,
                PollFinding::DoesNot if pairs == 1 => it.range[1] < -clear,
                PollFinding::Unknown if pairs == 1 => false,
                PollFinding::Unknown | PollFinding::Pays | PollFinding::DoesNot => {
                    it.range[0] > clear || it.range[1] < -clear
                }
            });
        }
        let count = f64::from(pairs);
        let extra = self.extra_cpu();
        sources.all(|it| {
            let mean = it.sum / count;
            let error = ((it.squares / count - mean * mean).max(0.0) / (count - 1.0)).sqrt();
            (mean - self.least_gain(it, extra).ln_1p()).abs() >= CERTAIN * error
        })
    }

    /// The sources that had enough requests in so many pairs. Of the others nothing is found.
    fn active(&self, pairs: u32) -> impl Iterator<Item = &SourceRecord> {
        self.sources.iter().flatten().filter(move |it| it.is_active(pairs))
    }

    /// How much more of a CPU the thread uses with looking than the same requests take without.
    fn extra_cpu(&self) -> f64 {
        let [without, with] = self.sides;
        (with.cpu - without.cpu / without.answered * with.answered) / with.time
    }

    /// Whether looking costs next to nothing.
    fn is_free(&self) -> bool {
        let [without, with] = self.sides;
        with.cpu / with.answered <= FREE_MAX * without.cpu / without.answered
    }

    /// What looking must bring this source at least.
    fn least_gain(&self, record: &SourceRecord, extra: f64) -> f64 {
        if self.is_free() {
            return -LOSS_MAX;
        }
        (price_of(record) * extra).max(GAIN_MIN)
    }

    /// Ends the trial with a finding.
    fn decide(&mut self, now: Instant) {
        let pairs = match self.state {
            TrialState::Measuring { window, .. } => window / 2 + 1,
            TrialState::Waiting { .. } | TrialState::Settling { .. } => return,
        };
        let (extra, is_free) = (self.extra_cpu(), self.is_free());
        let gain = |it: &SourceRecord| (it.sum / f64::from(pairs)).exp_m1();
        let gains = |it: &SourceRecord| gain(it) >= if is_free { -LOSS_MAX } else { GAIN_MIN };
        // Those that gain bear the cost together.
        let gaining = || self.active(pairs).filter(|it| gains(it));
        let pays = is_free || gaining().map(|it| gain(it) / price_of(it)).sum::<f64>() >= extra;
        let total: f64 = gaining().map(gain).sum();
        let mut is_new = false;
        for record in self.sources.iter_mut().flatten().filter(|it| it.is_active(pairs)) {
            let finding =
                if pays && gains(record) { PollFinding::Pays } else { PollFinding::DoesNot };
            is_new |= std::mem::replace(&mut record.finding, finding) != finding;
        }
        let paying = self.sources.iter().flatten().filter(|it| it.finding == PollFinding::Pays);
        tracing::debug!(
            "polling pays for {} of {} rings: {:+.0} % for those that gain, for {extra:+.2} CPUs",
            paying.count(),
            self.sources.iter().flatten().count(),
            total * 100.0
        );
        let looks = self.sources.iter().flatten().any(|it| it.finding == PollFinding::Pays);
        let side = self.sides[usize::from(looks)];
        self.rate = side.answered / side.time;
        self.was_crowded = false;
        if is_new {
            (self.interval, self.repeated) = (NEXT_AFTER, 0);
        } else {
            self.double_interval();
            self.repeated = (self.repeated + 1).min(DOUBLINGS_MAX);
        }
        let length = self.rest(now);
        self.next = self.next.max(now + (length * (REST << self.repeated)).min(REST_MAX));
    }

    /// There are too few requests for a trial now.
    fn put_off(&mut self, now: Instant) {
        self.double_interval();
        self.rest(now);
    }

    /// The next trials come half as often.
    fn double_interval(&mut self) {
        self.interval = (self.interval * 2).min(NEXT_AFTER_MAX);
    }

    /// No trial for a while; how long this one was.
    fn rest(&mut self, now: Instant) -> Duration {
        let length = now.saturating_duration_since(self.begun);
        self.rested = now + REST * length;
        self.next = self.rested.max(now + self.interval);
        self.state = TrialState::Waiting { checked: now, answered: 0, others: 0 };
        self.due = now;
        length
    }

    /// Has the next trial come soon if the load is not that of the last one any more.
    fn check_load(&mut self, now: Instant, answered: &impl Fn(usize) -> u64) {
        let TrialState::Waiting { checked, answered: before, others } = self.state else { return };
        let present = self.sources.iter().enumerate().filter(|(_, it)| it.is_some());
        let total: u64 = present.map(|(place, _)| answered(place)).sum();
        let rate = float(total.saturating_sub(before))
            / now.saturating_duration_since(checked).as_secs_f64().max(f64::MIN_POSITIVE);
        let is_first = before == 0;
        let is_other = rate > OTHER_LOAD * self.rate || rate * OTHER_LOAD < self.rate;
        let others = if is_other && !is_first { others + 1 } else { 0 };
        if others >= 2 {
            self.next = self.next.min(self.rested.max(now));
        }
        self.state = TrialState::Waiting { checked: now, answered: total, others };
        self.due = self.next.min(now + CHECK_EVERY);
    }
}

/// What a second of CPU time must bring this source: less if it was looked for until now.
fn price_of(record: &SourceRecord) -> f64 {
    if record.finding == PollFinding::Pays { PRICE * STAY } else { PRICE }
}

/// Windows follow each other as off, on, on, off.
fn looks_in(window: u32) -> bool {
    matches!(window % 4, 1 | 2)
}

/// A number of requests in a window.
fn float(count: u64) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests;
