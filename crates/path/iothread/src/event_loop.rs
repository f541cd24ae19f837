//! The loop of one iothread: commands, kernel events, turns.
//!
//! Where it stands in the life of a request: it calls each source's turn after a kick, a finished
//! request or a signal of the notifier. When none has anything to do it looks for a while, if that is
//! worth it and takes CPU from nobody, and then asks for kicks and sleeps (`idle`). What control threads ask for, a
//! hand-over among it, is in `commands`.
//!
//! Invariants: who is in which list of sources is kept true here and in the children, which no one else calls.
//! What layers hold (a throttle, a delay) goes on when it is due, which ends a sleep (`wake_latency`); at once
//! if its source stops.
//! Threads: this is the iothread. It sleeps only in the kernel's wait.
//! Limits: a round gives every source that has something to do one turn, and those last whose
//! last turn was too short for them. A turn takes [`TURN_REQUESTS_ALONE`] new requests, or beside
//! other awake sources [`TURN_REQUESTS_SHARED`]; there it ends after a [`STEP`], or an
//! [`INLINE_STEP`], as soon as one of those others has something new (`awake_sources`). So a request of
//! a ring that had nothing waits for at most one step of each other ring, and rings that always have
//! more get turns of the same length; but of each disk only one in a round, if several disks have such rings
//! (`disk_rounds`).

mod commands;
mod disk_rounds;
mod idle;
mod round_sample;
mod source_entry;

use std::error::Error;
use std::io;
use std::ops::ControlFlow;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use block::{ByteCount, Clock, GaugeWriter};
use kernel_io::{ServedRings, WaitMode};
use request_path::{
    BatchLimit, Engine, EventLoopEvent, FairTurnBudget, LaneIndex, SourceKey, TurnBudget,
    TurnResult,
};

use self::disk_rounds::{BusySource, DiskRounds};
use self::round_sample::RoundSample;
pub(crate) use self::source_entry::SourceEntry;
use self::source_entry::SourceState;
use crate::awake_sources::{OtherAwakeSources, ScanCursor};
use crate::command::{Inbox, Retirement, answer};
use crate::gauges::{LoopActivity, LoopGauges, TimeAccount};
use crate::poll_gate::PollGate;
use crate::poll_trial::PollTrial;
use crate::polling::{AdaptivePolling, PollSettings};
use crate::wake_latency::WakeLatency;
use crate::work_alarm::WorkAlarm;

/// The most new requests a source may bring in one turn while no other source is awake.
const TURN_REQUESTS_ALONE: u32 = 64;

/// The same while others are: how long two saturated rings make each other wait.
const TURN_REQUESTS_SHARED: u32 = 16;

/// How far a turn goes beside others before it asks whether they have something new: how long a
/// saturated ring makes a quiet one wait.
const STEP: BatchLimit = BatchLimit::of(8);

/// The same while requests are carried out by this thread itself, which takes it about a
/// microsecond for each and more for large ones.
const INLINE_STEP: BatchLimit = BatchLimit { requests: 2, bytes: ByteCount(8 << 10) };

/// For how long after a short transfer the turns of long ones stay short: sources that bring short ones less often
/// wait for a longer one each time.
const SHORT_AFTER: Duration = Duration::from_millis(10);

/// How many rounds there are between two looks at the clock, if no pause needs one: for sources that fell silent, and for
/// the gauges.
const ROUNDS_PER_CLOCK: u32 = 64;

/// The event loop of one iothread: its engine, its sources, and whose turn is next.
#[derive(Debug)]
pub(crate) struct EventLoop {
    engine: Engine,
    inbox: Arc<Inbox>,
    sources: Vec<Option<SourceEntry>>,
    /// Sources that shall have a turn, in order.
    ready: Vec<SourceKey>,
    /// Sources that shall have one after those, because their last one was too short for them.
    more: Vec<SourceKey>,
    /// An empty list, kept for its room.
    next_ready: Vec<SourceKey>,
    /// Sources that wait for room; some may have had a turn or left since.
    full: Vec<SourceKey>,
    /// Sources that have to be looked at, or asked to kick, before the thread sleeps.
    awake: Vec<SourceKey>,
    scan: ScanCursor,
    disk_rounds: DiskRounds,
    /// Rounds since the last look at the clock for them.
    rounds: u32,
    sample: RoundSample,
    signals: Vec<EventLoopEvent>,
    /// Lanes that are being drained, and who waits for it.
    draining: Vec<(LaneIndex, mpsc::Sender<()>)>,
    /// How long it looks before it sleeps, as it was told.
    poll: PollSettings,
    /// How long completions of the kernel are worth looking for.
    completions: AdaptivePolling,
    trial: PollTrial,
    gate: PollGate,
    timer: WakeLatency,
    times: TimeAccount,
    /// Since when there has been nothing to do.
    idle_since: Option<Instant>,
    clock: Arc<dyn Clock>,
    /// The last look at the clock.
    now: Instant,
    /// When a source last brought a short transfer, as of that look.
    last_short: Instant,
    /// Whether to end when nothing is left to do.
    retirement: Option<Retirement>,
}

impl EventLoop {
    pub(crate) fn new(
        engine: Engine,
        inbox: Arc<Inbox>,
        poll: PollSettings,
        clock: Arc<dyn Clock>,
        (gauges, alarm): (GaugeWriter<LoopGauges>, Option<Arc<WorkAlarm>>),
    ) -> Self {
        let now = clock.now();
        Self {
            engine,
            inbox,
            sources: Vec::new(),
            ready: Vec::new(),
            more: Vec::new(),
            next_ready: Vec::new(),
            full: Vec::new(),
            awake: Vec::new(),
            scan: ScanCursor::default(),
            disk_rounds: DiskRounds::default(),
            rounds: 0,
            sample: RoundSample::default(),
            signals: Vec::new(),
            draining: Vec::new(),
            poll,
            completions: AdaptivePolling::default(),
            trial: PollTrial::new(now),
            gate: PollGate::new(now),
            timer: WakeLatency::default(),
            times: TimeAccount::new(gauges, alarm, now),
            idle_since: None,
            now,
            last_short: now,
            clock,
            retirement: None,
        }
    }

    /// Serves until told to end and everything is over that was begun here.
    pub(crate) fn run(mut self) -> io::Result<()> {
        while !self.may_end() {
            let alone = self.awake.len() <= 1;
            self.share_inline(alone);
            // What is submitted first may be finished at once.
            self.engine.wait(WaitMode::Poll)?;
            self.resume();
            self.take_signals(None);
            // What was finished in the turns may have made room: nobody wakes for that.
            self.schedule_full();
            if self.more.is_empty() && self.ready.is_empty() {
                // Room may have come without a signal: from requests of rings that have left, and with
                // the end of a drain.
                self.schedule_full();
            }
            if self.more.is_empty() && self.ready.is_empty() {
                if !self.may_end()
                    && let Some(slept) = self.find_work()?
                {
                    self.take_signals(Some(slept));
                }
            } else if !alone {
                self.scan();
            }
            if !self.more.is_empty() || !self.ready.is_empty() {
                self.idle_since = None;
            }
            self.schedule_full();
            self.sample.begin(alone, &*self.clock);
            self.give_turns();
            self.round_over(alone);
        }
        Ok(())
    }

    /// Says how much may be done inline in the next round; `alone` if no other source is awake.
    fn share_inline(&mut self, alone: bool) {
        if self.engine.take_short() {
            self.last_short = self.now;
        }
        let is_short_due = self.now.saturating_duration_since(self.last_short) < SHORT_AFTER;
        self.engine.share_inline(match (alone, is_short_due) {
            (true, _) => ServedRings::One,
            (false, true) => ServedRings::Several,
            (false, false) => ServedRings::SeveralLong,
        });
    }

    /// Looks at the clock once in a while; `alone` if no other source had to wait for that.
    fn round_over(&mut self, alone: bool) {
        self.rounds += 1;
        if self.rounds < ROUNDS_PER_CLOCK {
            return;
        }
        self.times.rounds(std::mem::take(&mut self.rounds));
        self.now = self.clock.now();
        self.times.spent(LoopActivity::Work, self.now);
        if !alone {
            self.enable_idle_kicks();
        }
    }

    /// Whether the thread was told to end, and may. Nobody can ask for anything more then.
    fn may_end(&mut self) -> bool {
        let engine = &mut self.engine;
        let may_end = match self.retirement {
            None => return false,
            Some(Retirement::WhenUnused) => engine.is_unused(),
            Some(Retirement::WhenOver) => {
                // Rings that have left wait for what is held.
                engine.release_all();
                engine.is_over()
            }
        };
        may_end && self.inbox.close()
    }

    /// Goes on with what was held, if it is time.
    fn resume(&mut self) {
        if let Some(due) = self.engine.due() {
            self.now = self.clock.now();
            if due.at <= self.now {
                self.engine.resume(self.now);
            }
        }
    }

    /// Calls sources that have something new while others keep the thread from looking: their
    /// kicks are off.
    fn scan(&mut self) {
        let Self { awake, sources, scan, ready, now, .. } = self;
        scan.each(awake, |key| {
            if let Some(served) = &mut sources[key.0 as usize]
                && served.has_new()
            {
                served.called = true;
                served.last_new = *now;
                ready.push(key);
            }
            ControlFlow::Continue(())
        });
    }

    /// Calls the sources that have something new; whether there was one.
    fn schedule_new(&mut self) -> bool {
        for &key in &self.awake {
            if let Some(served) = &mut self.sources[key.0 as usize]
                && served.has_new()
            {
                served.called = true;
                served.last_new = self.now;
                self.ready.push(key);
            }
        }
        !self.ready.is_empty()
    }

    /// Calls the sources that had no room, once there is some, before those that have had it. Until
    /// then nothing of theirs is looked for: a completion makes room, and wakes.
    fn schedule_full(&mut self) {
        if self.full.is_empty() {
            return;
        }
        let Self { full, sources, engine, .. } = self;
        let mut first = std::mem::take(&mut self.next_ready);
        // Not always the same one first.
        full.rotate_left(1);
        full.retain(|key| match &mut sources[key.0 as usize] {
            Some(served) if served.full => {
                let waits = !served.bundle.source.has_room(engine);
                if !waits {
                    served.full = false;
                    if !std::mem::replace(&mut served.called, true) {
                        first.push(*key);
                    }
                }
                waits
            }
            Some(_) | None => false,
        });
        first.append(&mut self.ready);
        // Keeps the room of both lists.
        self.next_ready = std::mem::replace(&mut self.ready, first);
    }

    /// Works off what the kernel has brought; `slept` is how long that took if the loop slept.
    fn take_signals(&mut self, slept: Option<Duration>) {
        let mut signals = std::mem::take(&mut self.signals);
        self.engine.dispatch(&mut signals);
        let mut completed: Option<PollSettings> = None;
        for signal in signals.drain(..) {
            match signal {
                EventLoopEvent::Kicked(key) => {
                    self.kicked(key, slept);
                    self.schedule(key);
                }
                EventLoopEvent::Writable(key) => self.schedule(key),
                EventLoopEvent::Finished(key) => {
                    if slept.is_some() {
                        completed = completed.max(self.poll_settings(key));
                    }
                    self.schedule(key);
                }
                EventLoopEvent::Unwatched(key) => self.unwatched(key),
                EventLoopEvent::Bell => self.process_inbox(),
            }
        }
        self.signals = signals;
        // Never sleeps before it has looked: what is in flight may have ended without a signal.
        self.end_drains();
        if let (Some(slept), Some(settings)) = (slept, completed) {
            self.completions.called_after(slept, &settings);
        }
    }

    /// Tells those who wait for a drain that is over.
    fn end_drains(&mut self) {
        let Self { draining, engine, .. } = self;
        draining.retain(|(lane, reply)| {
            let is_drained = engine.is_drained(*lane);
            if is_drained {
                answer(reply, ());
            }
            !is_drained
        });
    }

    fn kicked(&mut self, key: SourceKey, slept: Option<Duration>) {
        let settings = self.poll_settings(key);
        if let Some(served) = self.sources.get_mut(key.0 as usize).and_then(Option::as_mut) {
            served.last_new = self.now;
            if served.is_kicked_while_empty() {
                served.bundle.observer.kicked_while_empty();
            }
            if let (Some(slept), Some(settings)) = (slept, settings) {
                served.adaptive.called_after(slept, &settings);
            }
        }
    }

    /// Gives every source that was called one turn. Who is called meanwhile is next.
    fn give_turns(&mut self) {
        let mut now = std::mem::replace(&mut self.ready, std::mem::take(&mut self.next_ready));
        // Not always the same one first: those that come later more often stop after a step.
        if self.more.len() > 1 {
            self.more.rotate_left(1);
        }
        now.append(&mut self.more);
        if now.len() > 1 {
            let Self { sources, disk_rounds, more, .. } = self;
            disk_rounds.begin(&mut now, more, |key| {
                let served = sources[key.0 as usize].as_ref()?;
                Some(BusySource { disk: served.disk, round: served.busy_in? })
            });
        }
        for key in now.drain(..) {
            self.turn(key);
        }
        self.next_ready = now;
    }

    /// Notes that a source shall have a turn. It may have left meanwhile.
    fn schedule(&mut self, key: SourceKey) {
        if let Some(served) = self.sources.get_mut(key.0 as usize).and_then(Option::as_mut)
            && !served.called
        {
            served.called = true;
            self.ready.push(key);
        }
    }

    fn turn(&mut self, key: SourceKey) {
        let Self { sources, awake, scan, engine, sample, clock, disk_rounds, .. } = self;
        let Some((before, [place, after @ ..])) = sources.split_at_mut_checked(key.0 as usize)
        else {
            return;
        };
        let Some(served) = place else { return };
        served.called = false;
        served.full = false;
        if !served.awake && served.state.is_serving() {
            served.awake = true;
            awake.push(key);
        }
        let others = OtherAwakeSources { before, after, awake, scan };
        let appetite = match served.state {
            SourceState::Serving if awake.len() == 1 => TurnBudget::Alone(TURN_REQUESTS_ALONE),
            SourceState::Serving => TurnBudget::Shared(FairTurnBudget {
                requests: TURN_REQUESTS_SHARED,
                step: STEP,
                inline_step: INLINE_STEP,
                others: &others,
            }),
            SourceState::Broken | SourceState::Departing { .. } | SourceState::Stopping { .. } => {
                TurnBudget::CompletionsOnly
            }
        };
        if let Some(time) = sample.turn_begins(served.turn_ended, &**clock) {
            served.bundle.source.waited(time);
        }
        let turn = served.bundle.source.turn(engine, appetite);
        if let Some(ended) = sample.turn_ends(&**clock) {
            served.turn_ended = ended;
            served.bundle.source.begin_wait();
        }
        let is_busy = served.state.is_serving()
            && (matches!(turn, TurnResult::More) || served.bundle.source.taken() >= STEP.requests);
        served.busy_in = is_busy.then_some(disk_rounds.round);
        match turn {
            TurnResult::Idle => {}
            TurnResult::More => {
                served.called = true;
                served.last_new = self.now;
                self.more.push(key);
            }
            TurnResult::Full => {
                served.full = true;
                // From an earlier turn, if nothing had room since then.
                if !self.full.contains(&key) {
                    self.full.push(key);
                }
            }
            TurnResult::Broken(fault) => self.broken(key, &*fault),
        }
        self.release_if_stopping(key);
        self.finish_stop(key);
    }

    fn broken(&mut self, key: SourceKey, fault: &(dyn Error + 'static)) {
        let served = self.sources[key.0 as usize].as_mut().expect("it had a turn");
        // Who stops or leaves does so all the same, and is waited for.
        if served.state.is_serving() {
            served.state = SourceState::Broken;
        }
        served.bundle.observer.broken(fault);
        // What was popped before the fault is still carried out; its outcomes need a turn.
        self.schedule(key);
    }
}
