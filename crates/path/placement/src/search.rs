//! The search for the number of iothreads of one disk: up at once when it is crowded, down slowly, and back if it does
//! not pay.
//!
//! Where it stands: the pool calls it for each window of a disk that has iothreads of its own.
//!
//! Invariants: a step up must bring more than all steps down after it may cost together, so still load comes to rest.

mod within;

use std::collections::BTreeMap;

use crate::balance::{Placement, balance, spread};
use crate::network::{Flow, whole};
use crate::refusals::{Direction, Refusals, is_same_load};
use crate::trial::{Comparison, Stage, Trial, Verdict};
use crate::window::{DiskWindow, RingWindow};
use crate::{Fault, IothreadSlot, Note, PoolSettings};

use self::within::{Evened, rebalance};

/// From this share of waiting on, more iothreads are used at once, and asked afterwards.
const CROWDED: f64 = 0.15;
/// An iothread that works so much of the time may be one too few, whatever the rings say.
const NEARLY_FULL: f64 = 0.7;
/// One whose single ring takes so much of it is filled by it.
const FULL: f64 = 0.95;
/// Rings that were busy within so many seconds may be so again.
const RECENT_SECONDS: f64 = 2.0;
/// Windows without a change before a proper trial begins.
const CALM_WINDOWS: usize = 4;
/// How many times as many iothreads a quick step may take.
const JUMP_MAX: f64 = 4.0;
/// How long fewer iothreads must look sufficient before they are tried, in seconds.
const HOLD_FIRST: f64 = 10.0;
const HOLD_MAX: f64 = 300.0;
/// The same for a step that is suspected, or was never needed.
const HOLD_SHORT: f64 = 1.0;
/// Growing again so soon after shrinking doubles the hold, in seconds.
const SHRUNK_SECONDS: f64 = 60.0;
/// A trial ends if the number of busy rings changes by more than these factors.
const SAME_RINGS: std::ops::RangeInclusive<f64> = 0.75..=1.34;
/// How long no proper trial begins after a change that was kept, in seconds: nothing after the first ones, so that a new
/// load finds its place soon, and more with each of them.
const REST_STEP: f64 = 5.0;
const REST_MAX: f64 = 10.0;
/// What a step up must bring while no CPU is free and other disks are busy, whose iothreads then wait: as a share.
const SCARCE_GAIN: f64 = 0.10;

/// Where a disk's rings are to be, and what they may use.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    /// The iothreads of the disk, at least one.
    pub(crate) threads: Vec<IothreadSlot>,
    /// Where each ring is to be.
    pub(crate) target: Placement,
}

/// What a search sees of a window.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a condition of its own, and none excludes another"
)]
#[derive(Debug)]
pub(crate) struct View<'a> {
    pub(crate) now: f64,
    pub(crate) seconds: f64,
    pub(crate) window: &'a DiskWindow,
    /// What pinned rings and other disks use of the iothreads.
    pub(crate) obstacles: &'a BTreeMap<IothreadSlot, f64>,
    /// How much the busiest iothread of the disk works.
    pub(crate) work_max: f64,
    /// No CPU is free.
    pub(crate) is_scarce: bool,
    /// Other disks of the pool are busy.
    pub(crate) has_neighbours: bool,
    /// Rings may be moved now.
    pub(crate) may_move: bool,
    /// A proper trial may begin.
    pub(crate) may_try: bool,
}

/// Gives up to so many iothreads that nobody has.
pub(crate) type Grant<'a> = dyn FnMut(usize) -> Vec<IothreadSlot> + 'a;

#[derive(Clone, Debug)]
pub(crate) struct Search {
    settings: PoolSettings,
    /// So many iothreads at most.
    pub(crate) threads_max: usize,
    pub(crate) trial: Option<Trial>,
    /// It is crowded and got no iothread.
    pub(crate) is_hungry: bool,
    /// What another iothread would bring at most, as a share.
    pub(crate) gain_max: f64,
    /// Progress per second of the last three windows.
    history: Vec<f64>,
    calm_windows: usize,
    /// What steps down since the last step up have cost.
    given: f64,
    jump: f64,
    refusals: Refusals,
    busy_at: BTreeMap<u16, f64>,
    /// The largest number of iothreads that paid.
    remembered: usize,
    hold: f64,
    easy_since: Option<f64>,
    shrunk_at: f64,
    is_suspect: bool,
    /// When rings were moved within the disk's iothreads, which were busy then, and how often since those are.
    evened: Evened,
    /// No proper trial before then.
    rests_until: f64,
    /// Busy rings and progress after the last change that was kept.
    kept_load: (usize, f64),
    /// How long it rests after the next change that is kept.
    rest: f64,
}

impl Search {
    pub(crate) fn new(settings: PoolSettings) -> Self {
        Self {
            settings,
            threads_max: settings.max,
            trial: None,
            is_hungry: false,
            gain_max: 0.0,
            history: Vec::new(),
            calm_windows: 0,
            given: 0.0,
            jump: JUMP_MAX,
            refusals: Refusals::default(),
            busy_at: BTreeMap::new(),
            remembered: 0,
            hold: HOLD_FIRST,
            easy_since: None,
            shrunk_at: -SHRUNK_SECONDS,
            is_suspect: false,
            evened: Evened::default(),
            rests_until: 0.0,
            kept_load: (0, 0.0),
            rest: 0.0,
        }
    }

    /// Its iothreads were changed by somebody else.
    pub(crate) fn forget_window(&mut self) {
        self.trial = None;
        self.history.clear();
        self.calm_windows = 0;
    }

    /// Goes back to where it was before the trial, if there is one.
    pub(crate) fn abort(&mut self, places: &mut Places) {
        if let Some(trial) = self.trial.take() {
            places.target = trial.comparison.old;
            places.threads = trial.comparison.old_threads;
        }
        self.forget_window();
    }

    /// Whether something may change soon, so that it is looked at often.
    pub(crate) fn is_restless(&self) -> bool {
        self.trial.is_some() || self.calm_windows < CALM_WINDOWS || self.is_suspect
    }

    /// A window is over, in which all rings were where they are wanted.
    pub(crate) fn step(
        &mut self,
        view: &View<'_>,
        places: &mut Places,
        grant: &mut Grant<'_>,
    ) -> Option<Note> {
        self.is_hungry = false;
        let all_busy: Vec<RingWindow> = view.window.busy().copied().collect();
        let is_movable = |it: &RingWindow| places.target.contains_key(&it.queue);
        let busy: Vec<RingWindow> = all_busy.iter().filter(|it| is_movable(it)).copied().collect();
        if busy.is_empty() {
            let is_over = self.busy_at.values().all(|seen| view.now - *seen > RECENT_SECONDS);
            match &mut self.trial {
                Some(trial) if !is_over => trial.throw_away(),
                Some(_) => self.abort(places),
                None => {}
            }
            return None;
        }
        self.busy_at.extend(all_busy.iter().map(|it| (it.queue, view.now)));
        self.busy_at.retain(|_, seen| view.now - *seen <= RECENT_SECONDS);
        let changed = self.trial.as_ref().is_some_and(|trial| {
            !SAME_RINGS.contains(&(all_busy.len() as f64 / trial.comparison.busy as f64))
        });
        if changed && self.settings.fault != Fault::TrialAcrossLoads {
            self.abort(places);
            return None;
        }
        let progress = view.window.progress();
        if self.trial.is_some() {
            return self.go_on(view, places, progress);
        }
        let sizes = self.sizes(&busy);
        if view.may_move && self.evened.allows(&sizes, view.now) && rebalance(view, places, &sizes)
        {
            self.evened.note(&sizes, view.now);
            self.history.clear();
            return None;
        }
        if self.history.len() == 3 {
            self.history.remove(0);
        }
        self.history.push(progress);
        self.calm_windows += 1;
        let mut flow = Flow::default();
        all_busy.iter().for_each(|it| flow.add(&it.flow));
        self.gain_max = flow.gain_max();
        self.consider(view, places, grant, &Load { busy: all_busy.len(), flow, sizes, progress })
    }

    fn sizes(&self, busy: &[RingWindow]) -> BTreeMap<u16, f64> {
        let by_use_now = self.settings.fault == Fault::BalanceByUseNow;
        let size =
            |ring: &RingWindow| if by_use_now { ring.flow.usage } else { ring.flow.usage_alone() };
        busy.iter().map(|it| (it.queue, size(it))).collect()
    }

    fn consider(
        &mut self,
        view: &View<'_>,
        places: &mut Places,
        grant: &mut Grant<'_>,
        load: &Load,
    ) -> Option<Note> {
        let now = places.threads.len();
        let top = self.threads_max.min(load.busy.max(self.busy_at.len()));
        let hint = self.crowded(view, places, grant, load, top);
        if self.trial.is_some() || self.try_more(view, places, grant, load, top) {
            return hint;
        }
        if now > 1 && (self.given < 0.9 * self.settings.prefer.loss_max()) {
            self.try_fewer(view, places, load);
        }
        hint.or_else(|| filled(view, load))
    }

    /// Rings wait for each other: more iothreads now, and asked afterwards.
    fn crowded(
        &mut self,
        view: &View<'_>,
        places: &mut Places,
        grant: &mut Grant<'_>,
        load: &Load,
        top: usize,
    ) -> Option<Note> {
        let (now, busy) = (places.threads.len(), load.busy);
        if self.gain_max < CROWDED || now >= busy || self.rests(view, load) {
            return None;
        }
        if now >= top {
            self.is_hungry = self.threads_max < busy;
            return None;
        }
        if view.is_scarce {
            return Some(Note::NoCpuFree { disk: view.window.id, gain_max: self.gain_max });
        }
        let mut wanted = if self.remembered > now {
            self.remembered.min(top)
        } else {
            let share = 1.0 - self.settings.prefer.gain_min();
            let enough = share * load.flow.predict(busy, busy);
            let least = (now + 1..busy).find(|&it| load.flow.predict(it, busy) >= enough);
            let jump = whole(self.jump * now as f64).max(now + 1);
            least.unwrap_or(busy).min(jump).min(top)
        };
        while wanted > now && self.refuses(Direction::Up, now, wanted, load, view) {
            wanted = usize::midpoint(now, wanted);
        }
        if wanted > now && view.may_move {
            let got = self.start(Stage::Quick, wanted, view, places, grant, load);
            self.is_hungry = !got;
        }
        None
    }

    /// Something says that more iothreads might bring a little: a proper trial.
    fn try_more(
        &mut self,
        view: &View<'_>,
        places: &mut Places,
        grant: &mut Grant<'_>,
        load: &Load,
        top: usize,
    ) -> bool {
        let now = places.threads.len();
        let worth = self.settings.prefer.gain_min() * 2.0 / 3.0;
        let may_land_elsewhere = self.busy_at.len() > load.busy;
        let is_full = view.work_max >= NEARLY_FULL;
        let has_reason = self.gain_max >= worth || may_land_elsewhere || is_full;
        if !has_reason || now >= top || self.calm_windows < CALM_WINDOWS || !self.may_try(view) {
            return false;
        }
        let base = load.flow.predict(now.min(load.busy), load.busy);
        let mut steps = [(2 * now).min(top), (now * 3).div_ceil(2).min(top), now + 1];
        steps.sort_unstable_by(|a, b| b.cmp(a));
        let wanted = steps.into_iter().find(|&to| {
            let gain = load.flow.predict(to.min(load.busy), load.busy) / base - 1.0;
            let might_gain = gain >= 0.75 * worth || is_full;
            (might_gain || (may_land_elsewhere && to >= load.busy))
                && !self.refuses(Direction::Up, now, to, load, view)
        });
        wanted.is_some_and(|to| self.start(Stage::Proper, to, view, places, grant, load))
    }

    /// Fewer iothreads look sufficient: a proper trial after a while.
    fn try_fewer(&mut self, view: &View<'_>, places: &mut Places, load: &Load) {
        let now = places.threads.len();
        let base = load.flow.predict(now.min(load.busy), load.busy);
        let mut steps = [now.div_ceil(2), (3 * now).div_ceil(4), now - 1];
        steps.sort_unstable();
        let loss_easy = self.settings.prefer.gain_min();
        let is_easy = |to: usize| {
            let loss = 1.0 - load.flow.predict(to.min(load.busy), load.busy) / base;
            to < now && (loss <= loss_easy || (self.is_suspect && 10 * to >= 7 * now))
        };
        if !steps.into_iter().any(is_easy) {
            self.easy_since = None;
            return;
        }
        let since = *self.easy_since.get_or_insert(view.now);
        let is_needless = self.is_suspect || self.remembered == 0;
        let hold = if is_needless { HOLD_SHORT } else { self.hold };
        if view.now - since < hold || !self.may_try(view) {
            return;
        }
        let refuses = |to| self.refuses(Direction::Down, now, to, load, view);
        match steps.into_iter().find(|&to| is_easy(to) && !refuses(to)) {
            Some(to) => {
                self.start(Stage::Proper, to, view, places, &mut |_| Vec::new(), load);
            }
            None => self.is_suspect = false,
        }
    }

    /// A change was kept a short while ago, and the load is still the same.
    fn rests(&self, view: &View<'_>, load: &Load) -> bool {
        let (busy, progress) = self.kept_load;
        view.now < self.rests_until && busy == load.busy && is_same_load(progress, load.progress)
    }

    fn may_try(&self, view: &View<'_>) -> bool {
        view.may_try && view.now >= self.rests_until
    }

    fn refuses(
        &self,
        direction: Direction,
        from: usize,
        to: usize,
        load: &Load,
        view: &View<'_>,
    ) -> bool {
        self.settings.fault != Fault::NoBackOff
            && self.refusals.refuses(direction, from, to, load.progress, view.now)
    }

    /// Begins a trial with so many iothreads, or as many more as there are.
    fn start(
        &mut self,
        stage: Stage,
        to: usize,
        view: &View<'_>,
        places: &mut Places,
        grant: &mut Grant<'_>,
        load: &Load,
    ) -> bool {
        let from = places.threads.len();
        let is_up = to > from;
        let mut threads = places.threads.clone();
        if is_up {
            threads.extend(grant(to - from));
            if threads.len() == from {
                return false;
            }
        } else {
            let busy_on = |slot: &IothreadSlot| {
                load.sizes.keys().filter(|it| places.target.get(it) == Some(slot)).count()
            };
            threads.sort_by_key(|it| std::cmp::Reverse(busy_on(it)));
            threads.truncate(to);
        }
        let to = threads.len();
        let mut new = balance(&places.target, &load.sizes, &threads, view.obstacles);
        let quiet =
            places.target.keys().copied().filter(|it| !new.contains_key(it)).collect::<Vec<_>>();
        spread(&mut new, &quiet, &places.target, &threads);
        let predict = |count: usize| load.flow.predict(count.min(load.busy), load.busy);
        let comparison = Comparison {
            direction: if is_up { Direction::Up } else { Direction::Down },
            old: places.target.clone(),
            new,
            old_threads: places.threads.clone(),
            new_threads: threads,
            busy: load.busy,
            before: self.history.iter().sum::<f64>() / self.history.len().max(1) as f64,
            predicted: predict(to) / predict(from) - 1.0,
            need: self.need(from, to, view.is_scarce && view.has_neighbours),
        };
        self.calm_windows = 0;
        let trial = Trial::new(comparison, stage);
        places.target = trial.placement().clone();
        self.trial = Some(trial);
        true
    }

    /// What a step must bring, or may cost, as a logarithm.
    fn need(&self, from: usize, to: usize, is_scarce: bool) -> f64 {
        let prefer = self.settings.prefer;
        if to < from {
            let given = if self.settings.fault == Fault::LossPerStep { 0.0 } else { self.given };
            return given - prefer.loss_max();
        }
        let doublings = (to as f64 / from as f64).log2();
        let need = match prefer {
            crate::Preference::Throughput => prefer.gain_min(),
            crate::Preference::Balanced | crate::Preference::Cpu => {
                prefer.gain_min().ln_1p() * doublings.max(1.0)
            }
        };
        if is_scarce { need.max(SCARCE_GAIN) } else { need }
    }

    fn go_on(&mut self, view: &View<'_>, places: &mut Places, progress: f64) -> Option<Note> {
        let trial = self.trial.as_mut()?;
        let requests = view.window.rings.iter().map(|it| it.requests).sum();
        let verdict = trial.observe(view.seconds, requests, progress);
        let (began, stage) = (trial.began, trial.stage);
        match verdict {
            Verdict::Open => {
                places.target.clone_from(trial.placement());
                None
            }
            Verdict::Keep { gain } => {
                let comparison = self.trial.take()?.comparison;
                self.kept(view, places, (began, stage), comparison, gain, progress)
            }
            Verdict::Refuse { gain, rate } => {
                let comparison = self.trial.take()?.comparison;
                let note = Note::Refused {
                    disk: view.window.id,
                    from: comparison.old_threads.len(),
                    to: comparison.new_threads.len(),
                    gain: gain.exp_m1(),
                };
                self.refused(view, places, began, comparison, gain, rate);
                Some(note)
            }
        }
    }

    fn kept(
        &mut self,
        view: &View<'_>,
        places: &mut Places,
        (began, stage): (Stage, Stage),
        comparison: Comparison,
        gain: f64,
        progress: f64,
    ) -> Option<Note> {
        let (from, to) = (comparison.old_threads.len(), comparison.new_threads.len());
        match comparison.direction {
            Direction::Up => {
                self.given = 0.0;
                self.is_suspect = gain < 0.5 * comparison.predicted;
                self.remembered = self.remembered.max(to);
                if view.now - self.shrunk_at < SHRUNK_SECONDS {
                    self.hold = (2.0 * self.hold).min(HOLD_MAX);
                }
                if began == Stage::Quick {
                    self.jump = (2.0 * self.jump).min(JUMP_MAX);
                }
            }
            Direction::Down => {
                self.given = (self.given - gain).max(0.0);
                self.is_suspect = gain > 0.01;
                self.shrunk_at = view.now;
            }
        }
        self.easy_since = None;
        self.kept_load = (comparison.busy, progress);
        self.rests_until = view.now;
        if stage == Stage::Proper {
            self.rests_until += self.rest;
            self.rest = (self.rest + REST_STEP).min(REST_MAX);
        }
        places.target = comparison.new;
        places.threads = comparison.new_threads;
        self.forget_window();
        let gain = gain.exp_m1();
        Some(Note::Kept { disk: view.window.id, from, to, gain, progress_per_s: progress })
    }

    fn refused(
        &mut self,
        view: &View<'_>,
        places: &mut Places,
        began: Stage,
        comparison: Comparison,
        gain: f64,
        rate: f64,
    ) {
        let (from, to) = (comparison.old_threads.len(), comparison.new_threads.len());
        let by_new = self.settings.fault == Fault::BackOffByNewRate;
        let rate = if by_new { rate * gain.exp() } else { rate };
        self.refusals.refuse(comparison.direction, from, to, rate, view.now);
        if comparison.direction == Direction::Up {
            if began == Stage::Quick {
                self.jump = (self.jump / 2.0).max(1.25);
            }
            if self.remembered >= to {
                self.remembered = to - 1;
            }
        }
        places.target = comparison.old;
        places.threads = comparison.old_threads;
        self.forget_window();
    }
}

/// What a disk's guest does, for one decision.
#[derive(Debug)]
struct Load {
    busy: usize,
    flow: Flow,
    /// What each busy ring would use alone.
    sizes: BTreeMap<u16, f64>,
    progress: f64,
}

/// Says if one queue alone fills an iothread.
fn filled(view: &View<'_>, load: &Load) -> Option<Note> {
    let ring = view.window.busy().find(|it| it.flow.usage >= FULL)?;
    let is_alone = load.busy == 1;
    is_alone.then_some(Note::QueueFillsIothread { disk: view.window.id, queue: ring.queue })
}

#[cfg(test)]
mod tests;
