//! The loop of one iothread: commands, kernel events, turns.
//!
//! Where it stands in the life of a request: it calls each source's turn after a kick, a finished
//! request or a ring of the bell. When none has anything to do it looks for a while, if that is
//! worth it and takes CPU from nobody (`looker`), and then asks for kicks and sleeps.
//!
//! A hand-over from A to B: the control thread has had a lane prepared on B; A stops popping and
//! cancels the kick poll, waits until the kernel says that it is cancelled, makes B the owner of
//! the mailbox and sends the source; B arms the poll and gives the source one turn
//! unconditionally, because a kick may have been consumed by A. What A has in flight stays there
//! and its outcomes are posted to the mailbox.
//!
//! Invariants: a source is in exactly one loop or in one inbox. A source that stops is given back
//! only when its poll is cancelled and nothing of it is in flight on any thread.
//! What layers hold (a throttle, a delay) goes on when it is due, which ends a sleep (`timer`); at once
//! if its source stops.
//! Threads: this is the iothread. It sleeps only in the kernel's wait.
//! Limits: a round gives every source that has something to do one turn, and those last whose
//! last turn was too short for them. A turn takes [`TURN_REQUESTS_ALONE`] new requests, or beside
//! other awake sources [`TURN_REQUESTS_SHARED`]; there it ends after a [`STEP`], or an
//! [`INLINE_STEP`], as soon as one of those others has something new (`neighbours`). So a request of
//! a ring that had nothing waits for at most one step of each other ring, and rings that always have
//! more get turns of the same length.
//! Long because who is in which list of sources is kept true in one place.

use std::io;
use std::ops::ControlFlow;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use block::{ByteCount, Clock};
use kernel_io::{InlineShare, Wait};
use request_path::{
    Appetite, Engine, Fault, LaneIndex, Rest, Share, Signal, Source, SourceKey, Step, Turn,
};

use crate::command::{Cargo, Command, Inbox, SourceId};
use crate::looker::Looker;
use crate::neighbours::{Glance, Neighbours};
use crate::polling::{Adaptive, IDLE_AFTER, LookedFor};
use crate::timer::{Nap, Timer};

/// The most new requests a source may bring in one turn while no other source is awake.
const TURN_REQUESTS_ALONE: u32 = 64;

/// The same while others are: how long two saturated rings make each other wait.
const TURN_REQUESTS_SHARED: u32 = 16;

/// How far a turn goes beside others before it asks whether they have something new: how long a
/// saturated ring makes a quiet one wait.
const STEP: Step = Step::of(8);

/// The same while requests are carried out by this thread itself, which takes it about a
/// microsecond for each and more for large ones.
const INLINE_STEP: Step = Step { requests: 2, bytes: ByteCount(8 << 10) };

/// How many rounds without a pause there are between two looks for sources that fell silent.
const ROUNDS_PER_CLOCK: u32 = 64;

/// How often to look between two looks at the clock, which cost about as much as ten of them.
const LOOKS_PER_CLOCK: u32 = 16;

/// What the iothread does with a source.
#[derive(Debug)]
enum Life {
    /// Serves it.
    Serving,
    /// Does not take anything from it: its guest broke the rules.
    Broken,
    /// Hands it over once its poll is cancelled.
    Departing { to: Arc<Inbox>, lane: LaneIndex, reply: mpsc::Sender<()> },
    /// Gives it back once its poll is cancelled and nothing is in flight.
    Stopping { reply: mpsc::Sender<Box<dyn Source>> },
}

impl Life {
    fn is_serving(&self) -> bool {
        matches!(self, Self::Serving)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Watch {
    On,
    Ending,
    Off,
}

#[derive(Debug)]
pub(crate) struct Served {
    cargo: Cargo,
    lane: LaneIndex,
    life: Life,
    watch: Watch,
    /// It is in `ready` already.
    called: bool,
    /// It is in `full`: it has more to do, and there was no room for it.
    full: bool,
    /// It is in `awake`: new requests may come without a kick.
    awake: bool,
    /// How long it is worth looking for.
    adaptive: Adaptive,
    /// When it last had something new, as far as the loop has looked at the clock.
    last_new: Instant,
}

impl Served {
    /// Whether it has something new that it was not called for yet.
    pub(crate) fn has_new(&self) -> bool {
        !self.called && !self.full && self.life.is_serving() && self.cargo.source.has_new()
    }
}

#[derive(Debug)]
pub(crate) struct EventLoop {
    engine: Engine,
    inbox: Arc<Inbox>,
    sources: Vec<Option<Served>>,
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
    glance: Glance,
    /// Rounds since the last look for sources that fell silent.
    rounds: u32,
    signals: Vec<Signal>,
    /// Lanes that are being drained, and who waits for it.
    draining: Vec<(LaneIndex, mpsc::Sender<()>)>,
    looker: Looker,
    timer: Timer,
    /// Since when there has been nothing to do.
    resting_since: Option<Instant>,
    clock: Arc<dyn Clock>,
    /// The last look at the clock.
    now: Instant,
    quit: bool,
}

impl EventLoop {
    pub(crate) fn new(
        engine: Engine,
        inbox: Arc<Inbox>,
        looker: Looker,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            engine,
            inbox,
            sources: Vec::new(),
            ready: Vec::new(),
            more: Vec::new(),
            next_ready: Vec::new(),
            full: Vec::new(),
            awake: Vec::new(),
            glance: Glance::default(),
            rounds: 0,
            signals: Vec::new(),
            draining: Vec::new(),
            looker,
            timer: Timer::default(),
            resting_since: None,
            now: clock.now(),
            clock,
            quit: false,
        }
    }

    /// Serves until told to quit.
    pub(crate) fn run(mut self) -> io::Result<()> {
        while !self.quit {
            let alone = self.awake.len() <= 1;
            let share = if alone { InlineShare::Alone } else { InlineShare::Beside };
            self.engine.share_inline(share);
            // What is submitted first may be finished at once.
            self.engine.wait(Wait::Poll)?;
            self.resume();
            self.take_signals(None);
            // What was finished in the turns may have made room: nobody wakes for that.
            self.call_full();
            if self.more.is_empty() && self.ready.is_empty() {
                // Room may have come without a signal: from requests of rings that have left, and with
                // the end of a drain.
                self.call_full();
            }
            if self.more.is_empty() && self.ready.is_empty() {
                if !self.quit
                    && let Some(slept) = self.find_work()?
                {
                    self.take_signals(Some(slept));
                }
            } else if !alone {
                self.glance();
            }
            if !self.more.is_empty() || !self.ready.is_empty() {
                self.resting_since = None;
            }
            self.call_full();
            self.give_turns();
        }
        Ok(())
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

    /// Looks for work, and sleeps until there is some or something is due, if none was found. Returns
    /// how long there has been nothing to do if it slept.
    fn find_work(&mut self) -> io::Result<Option<Duration>> {
        self.now = self.clock.now();
        if self.engine.has_own_work() {
            // No time to sleep, so no reason to ask for kicks.
            self.call_new();
            return Ok(None);
        }
        let start = *self.resting_since.get_or_insert(self.now);
        if self.look() {
            return Ok(None);
        }
        let wait = match self.engine.due() {
            None => Wait::Block,
            Some(due) => {
                self.now = self.clock.now();
                match self.timer.nap(due.at.saturating_duration_since(self.now), due.slack) {
                    Nap::Sleep(limit) => Wait::AtMost(limit),
                    Nap::Look => {
                        self.look_until(due.at);
                        return Ok(None);
                    }
                }
            }
        };
        if self.let_all_rest() {
            return Ok(None);
        }
        self.looker.sleep();
        self.engine.wait(wait)?;
        let asleep = self.now;
        self.now = self.clock.now();
        if let Wait::AtMost(limit) = wait {
            self.timer.woke(limit, self.now.saturating_duration_since(asleep));
        }
        Ok(Some(self.now.saturating_duration_since(start)))
    }

    /// Looks for something new until then: something is due, and too soon for a sleep.
    fn look_until(&mut self, due: Instant) {
        while self.now < due && !self.call_new() && !self.engine.has_news() {
            std::hint::spin_loop();
            self.now = self.clock.now();
        }
    }

    /// Looks for something new as long as the sources are worth it; whether there was any.
    fn look(&mut self) -> bool {
        let budget = self.budget();
        if budget.is_zero() || !self.looker.may_look(self.now) {
            return false;
        }
        self.let_idle_rest();
        let start = self.now;
        loop {
            for _ in 0..LOOKS_PER_CLOCK {
                if self.call_new() {
                    self.requests_found(start);
                    return true;
                }
                if self.engine.has_news() {
                    self.completions_found(start);
                    return true;
                }
                std::hint::spin_loop();
            }
            self.now = self.clock.now();
            if self.engine.due().is_some_and(|due| due.at <= self.now) {
                return true;
            }
            if self.now.saturating_duration_since(start) >= budget {
                return false;
            }
        }
    }

    /// Tells the called sources that are on trial how long the look took.
    fn requests_found(&mut self, start: Instant) {
        let settings = *self.looker.settings();
        let mut waited = None;
        for key in &self.ready {
            if let Some(served) = &mut self.sources[key.0 as usize]
                && served.adaptive.is_on_trial()
            {
                let now = &mut self.now;
                let waited = *waited.get_or_insert_with(|| {
                    *now = self.clock.now();
                    now.saturating_duration_since(start)
                });
                served.adaptive.found_after(waited, &settings);
            }
        }
    }

    /// The kernel has something; while requests are being carried out that is almost always their
    /// completions.
    fn completions_found(&mut self, start: Instant) {
        if self.looker.is_trying_completions() && self.engine.is_busy() {
            self.now = self.clock.now();
            self.looker.completion_found(self.now.saturating_duration_since(start));
        }
    }

    /// How long it is worth looking now: as long as for the source that is worth most.
    fn budget(&self) -> Duration {
        let of_source = |key: &SourceKey| {
            let served = self.sources[key.0 as usize].as_ref();
            served.map_or(Duration::ZERO, |served| served.adaptive.budget())
        };
        let sources = self.awake.iter().map(of_source).max().unwrap_or_default();
        let busy = self.engine.is_busy();
        let completions = if busy { self.looker.completions_budget() } else { Duration::ZERO };
        sources.max(completions)
    }

    /// Calls sources that have something new while others keep the thread from looking: their
    /// kicks are off.
    fn glance(&mut self) {
        self.rounds += 1;
        if self.rounds >= ROUNDS_PER_CLOCK {
            self.rounds = 0;
            self.now = self.clock.now();
            self.let_idle_rest();
        }
        let Self { awake, sources, glance, ready, now, .. } = self;
        glance.each(awake, |key| {
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
    fn call_new(&mut self) -> bool {
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
    fn call_full(&mut self) {
        if self.full.is_empty() {
            return;
        }
        let Self { full, sources, engine, .. } = self;
        let mut first = std::mem::take(&mut self.next_ready);
        // Not always the same one first.
        full.rotate_left(1);
        full.retain(|key| match &mut sources[key.0 as usize] {
            Some(served) if served.full => {
                let waits = engine.room(served.lane) == 0;
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

    /// Asks all sources for kicks; whether one has something new for which no kick may come.
    fn let_all_rest(&mut self) -> bool {
        while let Some(key) = self.awake.pop() {
            self.let_rest(key);
        }
        !self.ready.is_empty()
    }

    /// Asks the sources for kicks that have been silent for long: looking at them would cost those
    /// that are not.
    fn let_idle_rest(&mut self) {
        let now = self.now;
        let mut place = 0;
        while let Some(&key) = self.awake.get(place) {
            let idle = self.sources[key.0 as usize]
                .as_ref()
                .is_none_or(|served| now.saturating_duration_since(served.last_new) > IDLE_AFTER);
            if idle {
                self.awake.swap_remove(place);
                self.let_rest(key);
            } else {
                place += 1;
            }
        }
    }

    fn let_rest(&mut self, key: SourceKey) {
        let Some(served) = &mut self.sources[key.0 as usize] else { return };
        served.awake = false;
        if served.life.is_serving() && served.cargo.source.rest() == Rest::More && !served.full {
            self.call(key);
        }
    }

    /// Works off what the kernel has brought; `slept` is how long that took if the loop slept.
    fn take_signals(&mut self, slept: Option<Duration>) {
        let mut signals = std::mem::take(&mut self.signals);
        self.engine.dispatch(&mut signals);
        let mut completed = false;
        for signal in signals.drain(..) {
            match signal {
                Signal::Kicked(key) => {
                    self.kicked(key, slept);
                    self.call(key);
                }
                Signal::Finished(key) => {
                    completed = true;
                    self.call(key);
                }
                Signal::Unwatched(key) => self.unwatched(key),
                Signal::Bell => self.answer_bell(),
            }
        }
        self.signals = signals;
        // Never sleeps before it has looked: what is in flight may have ended without a signal.
        self.end_drains();
        if let Some(slept) = slept.filter(|_| completed) {
            self.looker.completed_after(slept);
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
        if let Some(served) = self.sources.get_mut(key.0 as usize).and_then(Option::as_mut) {
            served.last_new = self.now;
            if let Some(slept) = slept {
                served.adaptive.called_after(slept, self.looker.settings());
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
        for key in now.drain(..) {
            self.turn(key);
        }
        self.next_ready = now;
    }

    /// Notes that a source shall have a turn. It may have left meanwhile.
    fn call(&mut self, key: SourceKey) {
        if let Some(served) = self.sources.get_mut(key.0 as usize).and_then(Option::as_mut)
            && !served.called
        {
            served.called = true;
            self.ready.push(key);
        }
    }

    fn served(&mut self, key: SourceKey) -> &mut Served {
        let place = self.sources.get_mut(key.0 as usize).and_then(Option::as_mut);
        place.expect("the source of this key is served here")
    }

    fn find(&self, id: SourceId) -> SourceKey {
        let known = |served: &Option<Served>| served.as_ref().is_some_and(|s| s.cargo.id == id);
        let place = self.sources.iter().position(known);
        let place = place.expect("a source is asked for where its controller placed it");
        SourceKey(u32::try_from(place).expect("fewer sources than descriptors"))
    }

    fn turn(&mut self, key: SourceKey) {
        let Self { sources, awake, glance, engine, .. } = self;
        let Some((before, [place, after @ ..])) = sources.split_at_mut_checked(key.0 as usize)
        else {
            return;
        };
        let Some(served) = place else { return };
        served.called = false;
        served.full = false;
        if !served.awake && served.life.is_serving() {
            served.awake = true;
            awake.push(key);
        }
        let others = Neighbours { before, after, awake, glance };
        let appetite = match served.life {
            Life::Serving if awake.len() == 1 => Appetite::Pop(TURN_REQUESTS_ALONE),
            Life::Serving => Appetite::Share(Share {
                requests: TURN_REQUESTS_SHARED,
                step: STEP,
                inline_step: INLINE_STEP,
                others: &others,
            }),
            Life::Broken | Life::Departing { .. } | Life::Stopping { .. } => Appetite::DrainOnly,
        };
        match served.cargo.source.turn(engine, appetite) {
            Turn::Idle => {}
            Turn::More => {
                served.called = true;
                served.last_new = self.now;
                self.more.push(key);
            }
            Turn::Full => {
                served.full = true;
                self.full.push(key);
            }
            Turn::Broken(fault) => self.broken(key, &fault),
        }
        self.release_if_stopping(key);
        self.finish_stop(key);
    }

    fn broken(&mut self, key: SourceKey, fault: &Fault) {
        let served = self.sources[key.0 as usize].as_mut().expect("it had a turn");
        // Who stops or leaves does so all the same, and is waited for.
        if served.life.is_serving() {
            served.life = Life::Broken;
        }
        served.cargo.source.signal_error(&mut self.engine);
        served.cargo.watcher.broken(fault);
        // What was popped before the fault is still carried out; its outcomes need a turn.
        self.call(key);
    }

    fn answer_bell(&mut self) {
        for command in self.inbox.take() {
            self.obey(command);
        }
        for place in 0..self.sources.len() {
            let mail = self.sources[place]
                .as_ref()
                .is_some_and(|served| !served.cargo.source.mailbox().is_empty());
            if mail {
                self.call(SourceKey(u32::try_from(place).expect("fewer sources than descriptors")));
            }
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Prepare { node, reply } => answer(&reply, self.engine.open_lane(&node)),
            Command::Arrive { cargo, lane, reply } => {
                self.arrive(cargo, lane);
                answer(&reply, ());
            }
            Command::Depart { id, to, lane, reply } => {
                self.leave_when_unwatched(id, Life::Departing { to, lane, reply });
            }
            Command::Stop { id, reply } => self.leave_when_unwatched(id, Life::Stopping { reply }),
            Command::SetCall { id, call } => {
                let key = self.find(id);
                let served = self.sources[key.0 as usize].as_mut().expect("it was found");
                served.cargo.source.set_call(&mut self.engine, call);
            }
            Command::SetLog { id, log, reply } => {
                let key = self.find(id);
                let served = self.sources[key.0 as usize].as_mut().expect("it was found");
                served.cargo.source.set_log(&mut self.engine, log);
                answer(&reply, ());
            }
            Command::Release { node } => self.engine.release_on(&node),
            Command::Drain { node, reply } => {
                let lane = self.engine.drain(&node);
                self.draining.push((lane, reply));
            }
            Command::Reopen { node, reply } => answer(&reply, self.engine.prepare_lane(&node)),
            Command::Withdraw { node, reply } => {
                self.engine.withdraw_lane(&node);
                answer(&reply, ());
            }
            Command::Admit { node } => self.engine.admit(&node),
            Command::Quit => self.quit = true,
        }
    }

    fn arrive(&mut self, cargo: Cargo, lane: LaneIndex) {
        let place = self.sources.iter().position(Option::is_none).unwrap_or(self.sources.len());
        if place == self.sources.len() {
            self.sources.push(None);
        }
        let key = SourceKey(u32::try_from(place).expect("fewer sources than descriptors"));
        let (life, watch) = (Life::Serving, Watch::On);
        let served = self.sources[place].insert(Served {
            cargo,
            lane,
            life,
            watch,
            called: false,
            full: false,
            awake: false,
            adaptive: Adaptive::new(LookedFor::Requests),
            last_new: self.now,
        });
        served.cargo.source.arrive(&mut self.engine, lane, key);
        self.engine.watch(served.cargo.source.kick(), key);
        self.call(key);
    }

    /// Stops popping, cancels the poll and leaves the rest to [`EventLoop::unwatched`].
    fn leave_when_unwatched(&mut self, id: SourceId, life: Life) {
        let key = self.find(id);
        let served = self.served(key);
        assert!(served.watch == Watch::On, "a source leaves once");
        served.life = life;
        served.watch = Watch::Ending;
        self.engine.unwatch(key);
        self.release_if_stopping(key);
    }

    /// Who stops is waited for: nothing of it is held any longer, however it got there.
    fn release_if_stopping(&mut self, key: SourceKey) {
        if let Some(served) = &self.sources[key.0 as usize]
            && let Life::Stopping { .. } = served.life
        {
            self.engine.release(served.lane);
        }
    }

    fn unwatched(&mut self, key: SourceKey) {
        let served = self.served(key);
        served.watch = Watch::Off;
        match served.life {
            Life::Departing { .. } => self.hand_over(key),
            Life::Stopping { .. } => self.call(key),
            Life::Serving | Life::Broken => panic!("nobody asked to end this poll"),
        }
    }

    fn hand_over(&mut self, key: SourceKey) {
        let served = self.sources[key.0 as usize].take().expect("an unwatched source is here");
        let Served { mut cargo, lane: own_lane, life: Life::Departing { to, lane, reply }, .. } =
            served
        else {
            panic!("only a departing source is handed over")
        };
        cargo.source.depart(&mut self.engine);
        self.awake.retain(|awake| *awake != key);
        self.engine.close_lane(own_lane);
        cargo.source.mailbox().set_owner(Arc::clone(to.bell()) as Arc<dyn request_path::Wake>);
        to.send(Command::Arrive { cargo, lane, reply });
    }

    fn finish_stop(&mut self, key: SourceKey) {
        let place = &mut self.sources[key.0 as usize];
        let over = place.as_ref().is_some_and(|served| {
            matches!(served.life, Life::Stopping { .. })
                && served.watch == Watch::Off
                && served.cargo.source.in_flight() == 0
        });
        if !over {
            return;
        }
        if let Some(Served { mut cargo, lane, life: Life::Stopping { reply }, .. }) = place.take() {
            // Whoever serves the ring next may rely on kicks; what came meanwhile is theirs.
            let _more = cargo.source.rest();
            cargo.source.depart(&mut self.engine);
            self.awake.retain(|awake| *awake != key);
            self.engine.close_lane(lane);
            answer(&reply, cargo.source);
        }
    }
}

/// Answers a control thread. One that has gone away does not need the answer.
fn answer<T>(reply: &mpsc::Sender<T>, value: T) {
    if reply.send(value).is_err() {
        tracing::debug!("nobody waits for an iothread's answer any more");
    }
}
