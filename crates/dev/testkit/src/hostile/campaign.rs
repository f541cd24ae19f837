//! A campaign: bystanders alone, then everybody, then bystanders alone again, and the daemon's end.
//!
//! Where it stands: `cargo xtask hostile` and a short test call `run`.
//!
//! Invariants: the first thing that is wrong ends it; it is told with the seed, which repeats the attacks and their order,
//! and the events of the daemon, but not how threads and processes interleave. With [`Mischief`] the rig itself does
//! something that must be found.
//! Threads: one for each bystander, attacker and waiter, one that watches; this one runs the daemon.

use std::thread::Scope;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::attacks::{Arena, Deck};
use super::bystander::{Bystander, Times};
use super::disks::{Disks, Locking, QUEUES};
use super::operator::Operator;
pub use super::operator::{EVENTS, Event, Events};
use super::service::{Phase, Service};
use super::watch::Watch;
pub use super::watch::{Bounds, Peaks};
use super::{STALL_MAX, waiter};
use crate::deadline::{Deadline, poll_until};
use crate::image;
use crate::process::Program;
use crate::rawring::Survivor;
use crate::rng::Rng;

/// How long bystanders are alone at first, if nothing else is said.
const QUIET: Duration = Duration::from_secs(2);
/// How long the first requests may take.
const FIRST_LIMIT: Duration = Duration::from_secs(20);
/// So long after their time attackers go on, until each attack has come once.
const ALL_ATTACKS_LIMIT: Duration = Duration::from_secs(60);
/// The longest time between two events, in milliseconds.
const BETWEEN_MILLIS_MAX: u64 = 1500;

/// What the rig does behind everybody's back, which must be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mischief {
    /// Bytes of a bystander's image are changed.
    ForeignBytes,
    /// The daemon stands still for longer than a request may take.
    Stall,
    /// A bystander's image is not locked.
    Unlocked,
    /// The daemon is killed by nobody.
    Death,
    /// The daemon keeps a client that is not there.
    Kept,
}

/// What a campaign does.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Decides what is done, and in which order.
    pub seed: u64,
    /// How long bystanders are alone at first.
    pub quiet: Duration,
    /// How long there are attackers at least; on a slow machine until each attack has come once, for a minute more at
    /// most.
    pub time: Duration,
    /// How many there are at once.
    pub attackers: usize,
    /// Only attacks with this in their name.
    pub only: String,
    /// What happens to the daemon.
    pub events: Vec<Event>,
    /// What the daemon may have.
    pub bounds: Bounds,
    /// What the rig does that must be found.
    pub mischief: Option<Mischief>,
}

impl Plan {
    /// What `cargo xtask hostile` does.
    pub fn new(seed: u64, time: Duration) -> Self {
        let (events, bounds) = (EVENTS.to_vec(), Bounds::default());
        let (quiet, attackers, only) = (QUIET, 3, String::new());
        Self { seed, quiet, time, attackers, only, events, bounds, mischief: None }
    }
}

/// What has happened.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Attacks that did what they should.
    pub attacks: u32,
    /// Whether there was each attack at least once.
    pub has_all_attacks: bool,
    /// What the daemon went through.
    pub events: Events,
    /// What the daemon had at most.
    pub peaks: Peaks,
    /// A line for each bystander and each attack.
    pub lines: Vec<String>,
}

impl std::fmt::Display for Summary {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { attacks, events, peaks, .. } = self;
        let Events { upgrades, refused, survived, too_late, wrong_lines, kills } = events;
        write!(
            formatter,
            "{attacks} attacks; {upgrades} upgrades, {refused} refused, {survived} successors cut short before they \
             served and {too_late} after, {wrong_lines} wrong lines, {kills} kills; at most {} MiB, {} descriptors, {} \
             threads",
            peaks.memory_kib >> 10,
            peaks.descriptors,
            peaks.threads
        )
    }
}

/// Runs a campaign; `tell` gets a line for each event.
pub fn run(program: &Program, plan: &Plan, tell: &mut dyn FnMut(&str)) -> Result<Summary> {
    let locking = match plan.mischief {
        Some(Mischief::Unlocked) => Locking::Off,
        _ => Locking::Usual,
    };
    let disks = Disks::make(locking)?;
    let mut operator = Operator::start(program, &disks, plan.bounds)?;
    let service = Service::new(operator.process());
    let campaign = Campaign { plan, disks: &disks, service: &service };
    let result = campaign.hold(&mut operator, tell);
    result.with_context(|| format!("seed {}; log of the daemon: {}", plan.seed, operator.log()))
}

/// What all threads share.
#[derive(Clone, Copy, Debug)]
struct Campaign<'a> {
    plan: &'a Plan,
    disks: &'a Disks,
    service: &'a Service,
}

impl Campaign<'_> {
    /// Has everybody do their work, until the daemon has ended.
    fn hold(&self, operator: &mut Operator<'_>, tell: &mut dyn FnMut(&str)) -> Result<Summary> {
        let Self { plan, disks, service } = self;
        let mut rng = Rng::new(plan.seed);
        let deck = Deck::new(disks, &plan.only, rng.next_u64());
        let bystanders: Vec<Bystander<'_>> = disks
            .calm
            .iter()
            .map(|calm| Bystander::new(calm.name, calm.p99_always, service))
            .collect();
        let arena = Arena { disks, service, bystanders: &bystanders };
        let clients = disks
            .calm
            .iter()
            .map(|calm| Survivor::connect(&disks.calm_socket(calm), calm.layout, QUEUES))
            .collect::<Result<Vec<_>>>()?;
        let (done, peaks) = std::thread::scope(|scope| {
            let mut workers = Vec::new();
            for (bystander, client) in bystanders.iter().zip(clients) {
                let seed = rng.next_u64();
                workers.push(scope.spawn(move || {
                    let done = bystander.work(client, seed);
                    // Told at once, so that nobody waits for it.
                    done.map_err(|error| service.fail(error.context(bystander.name()))).ok()
                }));
            }
            let result = self.conduct(scope, &deck, &arena, operator, &mut rng, tell);
            let peaks = match result {
                Ok(peaks) => peaks,
                Err(error) => {
                    service.fail(error);
                    operator.abandon();
                    Peaks::default()
                }
            };
            service.enter(Phase::Over);
            let done: Vec<_> = workers
                .into_iter()
                .filter_map(|worker| worker.join().expect("a bystander does not panic"))
                .collect();
            if !service.has_failed()
                && let Err(error) = operator.end(service)
            {
                service.fail(error);
            }
            if service.has_failed() {
                // Whoever waits for a lock of it waits no longer.
                operator.abandon();
            }
            (done, peaks)
        });
        if let Some(fault) = service.fault() {
            return Err(fault);
        }
        let attacks = deck.judge()?;
        let mut lines = Vec::new();
        for (calm, (client, times)) in disks.calm.iter().zip(&done) {
            let found = calm.read().context(calm.name)?;
            ensure!(found == client.expected(), "{}: its image has other bytes", calm.name);
            let Times { quiet, worst, longest, requests } = times;
            lines.push(format!(
                "{}: {requests} requests, 99th percentile {quiet:?} alone, at worst {worst:?}, longest {longest:?}",
                calm.name
            ));
        }
        lines.extend(deck.lines());
        let (events, has_all_attacks) = (operator.events(), deck.is_through());
        Ok(Summary { attacks, has_all_attacks, events, peaks, lines })
    }

    /// The parts of a campaign, one after the other.
    fn conduct<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        deck: &'scope Deck,
        arena: &'scope Arena<'scope>,
        operator: &mut Operator<'_>,
        rng: &mut Rng,
        tell: &mut dyn FnMut(&str),
    ) -> Result<Peaks> {
        let Self { plan, disks, service } = self;
        let progress = || arena.bystanders.iter().map(Bystander::rounds).min().unwrap_or_default();
        poll_until("the bystanders' first requests", FIRST_LIMIT, || {
            Ok((progress() > 10 || service.has_failed()).then_some(()))
        })?;
        service.rest(plan.quiet, Phase::Quiet);
        let watch = Watch::new(service, plan.bounds)?;
        for calm in &disks.calm {
            scope.spawn(|| self.tell_of(waiter::wait(&calm.image, service)));
        }
        service.enter(Phase::Attack);
        let attackers: Vec<_> =
            (0..plan.attackers).map(|_| scope.spawn(|| deck.attack(arena))).collect();
        let watcher = scope.spawn({
            let watch = watch.clone();
            move || watch.work()
        });
        self.run_daemon(operator, deck, &progress, rng, tell)?;
        service.enter(Phase::Rest);
        for attacker in attackers {
            attacker.join().expect("an attacker does not panic");
        }
        let peaks = watcher.join().expect("whoever watches does not panic")?;
        let _kept = match plan.mischief {
            Some(Mischief::Kept) => Some(arena.client_that_stays()?),
            _ => None,
        };
        watch.judge_rest()?;
        operator.look(service)?;
        Ok(peaks)
    }

    fn tell_of(&self, result: Result<()>) {
        if let Err(error) = result {
            self.service.fail(error);
        }
    }

    /// Has things happen to the daemon while there are attackers.
    fn run_daemon(
        &self,
        operator: &mut Operator<'_>,
        deck: &Deck,
        progress: &dyn Fn() -> u64,
        rng: &mut Rng,
        tell: &mut dyn FnMut(&str),
    ) -> Result<()> {
        let Self { plan, disks, service } = self;
        let (end, limit) =
            (Deadline::after(plan.time), Deadline::after(plan.time + ALL_ATTACKS_LIMIT));
        let is_done = || plan.attackers == 0 || deck.is_through() || limit.has_passed();
        match plan.mischief {
            None | Some(Mischief::Unlocked | Mischief::Kept) => {}
            Some(Mischief::ForeignBytes) => {
                let bytes = Survivor::disk_bytes(QUEUES);
                for block in (0..bytes).step_by(4096) {
                    image::corrupt(&disks.calm[1].image, block + 7)?;
                }
            }
            Some(Mischief::Stall) => operator.stall(STALL_MAX + Duration::from_secs(1))?,
            Some(Mischief::Death) => operator.betray()?,
        }
        let mut order: Vec<Event> = Vec::new();
        while !(end.has_passed() && is_done()) {
            service.rest(Duration::from_millis(rng.below(BETWEEN_MILLIS_MAX)), Phase::Attack);
            if service.has_failed() {
                bail!("somebody was not served as it should be");
            }
            operator.look(service)?;
            if order.is_empty() {
                order.clone_from(&plan.events);
            }
            if !order.is_empty() {
                let event = order.swap_remove(rng.index(order.len()));
                tell(&format!("{:?}: {event:?}", end.elapsed()));
                if let Some(said) = operator.act(event, service, progress, rng)? {
                    tell(&said);
                }
            }
        }
        Ok(())
    }
}
