//! Simulated iothreads on one kernel and one clock: who goes on, and when nobody can without time passing.
//!
//! Where it stands: a player asks for requests, and lets the machine go on between them.
//!
//! Invariants: what the kernel tells comes one by one or many at once, and an iothread takes it up at once or later.

use std::sync::Arc;

use anyhow::{Result, ensure};
use block::{Clock, Medium, Node, WakeTime};

use super::clock::JumpClock;
use super::iothread::Iothread;
use super::{Ended, SharedWorld, World};
use crate::rng::Rng;

/// So many rounds after its death a process may take to end what is left.
const ROUNDS_MAX: usize = 1000;

/// How likely each kind of step is, and how much is in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weights {
    pub(crate) ask: u64,
    resume: u64,
    apply: u64,
    deliver: u64,
    /// The most ends that are told at once.
    together: u64,
    pub(crate) depth: usize,
    pub(crate) batch: u64,
}

impl Weights {
    pub(crate) fn any(rng: &mut Rng, threads: usize) -> Self {
        let weight = |rng: &mut Rng| [1, 4, 16][rng.index(3)];
        let depth = [1, 2, 4, 8, 32][rng.index(5)];
        Self {
            ask: weight(rng),
            resume: weight(rng),
            apply: weight(rng),
            deliver: weight(rng),
            together: [1, 4, 32][rng.index(3)],
            depth: if threads == 1 { depth.max(2) } else { depth },
            batch: 1 + rng.below(6),
        }
    }
}

/// What goes on next.
enum Choice {
    Ask(usize),
    Apply,
    Deliver,
    Round(usize),
}

/// A process: its iothreads, and the kernel below.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) world: SharedWorld,
    pub(crate) clock: Arc<JumpClock>,
    pub(crate) iothreads: Vec<Iothread>,
}

impl Machine {
    pub(crate) fn new(world: World) -> Self {
        let (clock, iothreads) = (Arc::new(JumpClock::new()), Vec::new());
        Self { world: SharedWorld::new(world), clock, iothreads }
    }

    pub(crate) fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.clock) as Arc<dyn Clock>
    }

    /// Starts another iothread.
    pub(crate) fn open(&mut self, node: &Arc<dyn Node>, media: &Arc<[Medium]>) -> Result<()> {
        let place = self.iothreads.len();
        self.iothreads.push(Iothread::open(place, node, &self.world, media, self.clock())?);
        Ok(())
    }

    /// Somebody goes on. Returns an iothread that is to be asked for more, if it is time for that.
    pub(crate) fn step(&mut self, weights: &Weights, may_ask: bool) -> Result<Option<usize>> {
        self.world.lock().log.step += 1;
        self.disturb();
        match self.choose(weights, may_ask) {
            Some(Choice::Ask(thread)) => return Ok(Some(thread)),
            Some(Choice::Apply) => {
                let World { kernel, log, rng, .. } = &mut *self.world.lock();
                if let Some(place) = kernel.any(false, rng) {
                    kernel.apply(place, log, rng);
                }
            }
            Some(Choice::Deliver) => self.deliver(weights.together),
            Some(Choice::Round(thread)) => self.round(thread),
            None => {
                let went_on = self.wake_or_jump();
                ensure!(went_on || !self.is_busy(), "nothing can go on:\n{}", self.describe());
            }
        }
        Ok(None)
    }

    /// What comes at any time: a sleeper wakes, a thread looks for nothing, somebody waits for what is held.
    fn disturb(&mut self) {
        let (thread, dice) = {
            let World { kernel, rng, .. } = &mut *self.world.lock();
            if rng.one_in(64) {
                kernel.wake_one(rng);
            }
            (rng.index(self.iothreads.len()), rng.below(1200))
        };
        match dice {
            0 => self.iothreads[thread].release(self.clock.now()),
            1..4 => self.round(thread),
            4..80 if self.iothreads[thread].is_rung() => self.round(thread),
            _ => {}
        }
    }

    fn choose(&mut self, weights: &Weights, may_ask: bool) -> Option<Choice> {
        let called: Vec<usize> = (0..self.iothreads.len())
            .filter(|thread| self.iothreads[*thread].is_called())
            .collect();
        let asks =
            |thread: &usize| may_ask && self.iothreads[*thread].open_requests() < weights.depth;
        let asking: Vec<usize> = (0..self.iothreads.len()).filter(asks).collect();
        let World { kernel, rng, .. } = &mut *self.world.lock();
        let shares = [
            if asking.is_empty() { 0 } else { weights.ask },
            if called.is_empty() { 0 } else { weights.resume },
            if kernel.has_ready(false) { weights.apply } else { 0 },
            if kernel.has_ready(true) { weights.deliver } else { 0 },
        ];
        let total: u64 = shares.iter().sum();
        if total == 0 {
            return None;
        }
        let mut dice = rng.below(total);
        let mut chosen = 0;
        while dice >= shares[chosen] {
            dice -= shares[chosen];
            chosen += 1;
        }
        Some(match chosen {
            0 => Choice::Ask(asking[rng.index(asking.len())]),
            1 => Choice::Round(called[rng.index(called.len())]),
            2 => Choice::Apply,
            _ => Choice::Deliver,
        })
    }

    /// Tells of some operations that were applied. Who hears of them takes them up now or later.
    fn deliver(&mut self, together: u64) {
        let mut hearers = Vec::new();
        {
            let world = &mut *self.world.lock();
            for _ in 0..1 + world.rng.below(together) {
                let World { kernel, log, rng, .. } = world;
                let Some(place) = kernel.any(true, rng) else { break };
                let to = kernel.addressee(place);
                let loses = to.port.map_or(0, |port| world.ports[port].loses);
                if let (Some(port), true) = (to.port, loses > 0 && rng.one_in(loses)) {
                    kernel.lose_connection(port, log, rng);
                    world.ports[port].lose();
                } else {
                    let told = kernel.deliver(place, log);
                    world.tell(told);
                }
                hearers.push(to.thread);
            }
            if world.rng.one_in(2) {
                return;
            }
        }
        hearers.sort_unstable();
        hearers.dedup();
        hearers.into_iter().for_each(|thread| self.round(thread));
    }

    pub(crate) fn round(&mut self, thread: usize) {
        let now = self.clock.now();
        self.iothreads[thread].round(now);
    }

    /// Goes on where nothing goes on by itself: a sleeper wakes, a bell that rang is heard, or time passes.
    fn wake_or_jump(&mut self) -> bool {
        {
            let World { kernel, rng, .. } = &mut *self.world.lock();
            if kernel.wake_one(rng) {
                return true;
            }
        }
        if self.hear_bells() {
            return true;
        }
        let seed = self.world.lock().rng.next_u64();
        self.jump(&mut Rng::new(seed))
    }

    fn hear_bells(&mut self) -> bool {
        let rung = |thread: &usize| self.iothreads[*thread].is_rung();
        let rung: Vec<usize> = (0..self.iothreads.len()).filter(rung).collect();
        rung.iter().for_each(|thread| self.round(*thread));
        !rung.is_empty()
    }

    /// Goes to the moment when the first iothread has something to do, or a little later, and has those called that are
    /// due then; false if there is none.
    pub(crate) fn jump(&mut self, rng: &mut Rng) -> bool {
        let due = self.iothreads.iter().map(Iothread::due).fold(None, WakeTime::first);
        let Some(WakeTime { at, slack }) = due else { return false };
        let late = if rng.one_in(2) { slack } else { slack * 100 };
        self.clock.jump_to(if rng.one_in(2) { at + late } else { at });
        self.call_due();
        true
    }

    fn is_due(&self) -> bool {
        let now = self.clock.now();
        self.iothreads.iter().any(|thread| thread.due().is_some_and(|due| due.at <= now))
    }

    fn call_due(&mut self) {
        let now = self.clock.now();
        for thread in 0..self.iothreads.len() {
            if self.iothreads[thread].due().is_some_and(|due| due.at <= now) {
                self.round(thread);
            }
        }
    }

    /// Whether operations of channels wait for a connection.
    pub(crate) fn has_lost_connections(&self) -> bool {
        self.world.lock().kernel.has_lost_connections()
    }

    /// Carries out all that can be without time passing.
    pub(crate) fn settle_now(&mut self, weights: &Weights) {
        let mut patience = ROUNDS_MAX;
        loop {
            match self.choose(weights, false) {
                Some(Choice::Apply) => {
                    let World { kernel, log, rng, .. } = &mut *self.world.lock();
                    if let Some(place) = kernel.any(false, rng) {
                        kernel.apply(place, log, rng);
                    }
                }
                Some(Choice::Deliver) => self.deliver(weights.together),
                Some(Choice::Round(thread)) => self.round(thread),
                Some(Choice::Ask(_)) | None => {
                    let is_woken = {
                        let World { kernel, rng, .. } = &mut *self.world.lock();
                        kernel.wake_one(rng)
                    };
                    if !is_woken && !self.hear_bells() {
                        // One layer may hold what another one has let go.
                        patience -= 1;
                        if patience == 0 || !self.is_due() {
                            return;
                        }
                        self.call_due();
                    }
                }
            }
        }
    }

    /// Whether anything is not over.
    pub(crate) fn is_busy(&mut self) -> bool {
        self.iothreads.iter_mut().any(Iothread::is_busy) || self.world.lock().kernel.len() > 0
    }

    /// The requests that are over, unless a contract was broken.
    pub(crate) fn take_ended(&mut self) -> Result<Vec<Ended>> {
        let world = &mut *self.world.lock();
        world.check()?;
        Ok(std::mem::take(&mut world.ended))
    }

    pub(crate) fn describe(&mut self) -> String {
        let threads: Vec<String> = self.iothreads.iter_mut().map(Iothread::describe).collect();
        format!("{}\n{}", threads.join("\n"), self.world.lock().log.last())
    }

    /// Closes all iothreads, which have nothing in flight.
    pub(crate) fn close(&mut self) {
        self.iothreads.iter_mut().for_each(Iothread::close_lane);
        self.iothreads.clear();
        self.world.lock().forget_process();
    }

    /// The process dies: nothing of it reaches the disk any more but what the kernel has. Engines end what they have
    /// begun, so that its memory is given back.
    pub(crate) fn kill(&mut self, how: &'static str) {
        {
            let world = &mut *self.world.lock();
            world.log.all(how);
            world.is_dead = true;
            let ended = world.kernel.die(&mut world.log, &mut world.rng);
            ended.into_iter().for_each(|told| world.tell(told));
        }
        let now = self.clock.now();
        for _ in 0..ROUNDS_MAX {
            let mut is_busy = false;
            for thread in &mut self.iothreads {
                thread.release(now);
                is_busy |= thread.is_busy();
            }
            if !is_busy {
                break;
            }
        }
        self.iothreads.clear();
        let world = &mut *self.world.lock();
        world.forget_process();
        world.ended.clear();
        world.wrong = None;
    }
}
