//! Lives of a process that serves an image: random requests, random steps, and an end at any of them.
//!
//! Where it stands: decides at each step who goes on. After each end it judges the disk, opens the image again and goes
//! on.

use std::panic::Location;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail, ensure};
use block::{Access, Claim, Clock, FileId, Node, Rights};

use super::child::{ControlThread, FileChild, Life};
use super::disk::Disk;
use super::iothread::{Iothread, SharedWorld, World, bury, deliver, media};
use super::kernel::Kernel;
use super::load::{Load, Tally, WrongSector, check_size};
use super::log::Log;
use super::make::{Made, Recipe};
use super::{Mischief, Setup, Subject, check, peer};
use crate::conformance::clock::JumpClock;
use crate::conformance::number;
use crate::rng::Rng;

const THREADS_MAX: u64 = 4;
/// The most steps from an open to a crash.
const STEPS_MAX: u64 = 1 << 13;
/// The most steps that it takes until nothing is in flight, when nothing new comes.
const PATIENCE: u64 = 2_000_000;

/// What is played.
#[derive(Clone, Debug)]
pub struct Options {
    /// The image.
    pub recipe: Recipe,
    /// How often it is opened.
    pub lives: u64,
    /// What goes wrong on purpose.
    pub mischief: Mischief,
    /// One of so many operations of the kernel fails; none if zero.
    pub fail_one_in: u64,
    /// One of so many ends is also judged by qemu-img; none if zero.
    pub peer_one_in: u64,
}

/// What was played.
#[derive(Clone, Debug, Default)]
pub struct Played {
    /// Requests that ended.
    pub tally: Tally,
    /// Decisions.
    pub steps: u64,
    /// Lives that were closed, that were killed, and that ended with the power.
    pub closed: u64,
    /// Lives that were killed.
    pub killed: u64,
    /// Lives that ended with the power.
    pub powerless: u64,
    /// Clusters that nobody used, in the worst image of a killed life.
    pub leaks_max: u64,
    /// Clusters that nobody used after a clean close, besides those that had been leaked before it.
    pub leaks_of_closed: u64,
    /// How often qemu-img judged.
    pub peer_judged: u64,
}

impl Played {
    /// Counts another game too.
    pub fn add(&mut self, other: &Self) {
        self.tally.add(&other.tally);
        self.steps += other.steps;
        self.closed += other.closed;
        self.killed += other.killed;
        self.powerless += other.powerless;
        self.leaks_max = self.leaks_max.max(other.leaks_max);
        self.leaks_of_closed = self.leaks_of_closed.max(other.leaks_of_closed);
        self.peer_judged += other.peer_judged;
    }
}

/// How a life ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Close,
    Death,
    PowerLoss,
}

/// Plays with an image of this seed. The first mistake ends it, and is told with its history.
#[track_caller]
pub fn play(seed: u64, subject: &dyn Subject, options: &Options) -> Result<Played> {
    let place = Location::caller();
    let text = move || format!("seed {seed:#x}, {} with {options:?}", place);
    let _told = Told(text());
    let mut player = Player::new(seed, subject, options).with_context(text)?;
    let lives = (0..options.lives).try_for_each(|_| player.live());
    lives.with_context(|| format!("step {}", player.world.lock().log.step)).with_context(text)?;
    player.played.tally = player.load.tally;
    player.played.steps = player.world.lock().log.step;
    Ok(player.played)
}

/// Says on a panic which seed it was.
struct Told(String);

impl Drop for Told {
    #[expect(clippy::print_stderr, reason = "a panic says nothing of the seed")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.0);
        }
    }
}

/// The files of an image on the disk.
#[derive(Clone, Copy, Debug)]
struct Files {
    image: FileId,
    backing: Option<FileId>,
    data: Option<FileId>,
}

struct Player<'a> {
    subject: &'a dyn Subject,
    options: &'a Options,
    disk: Arc<Disk>,
    files: Files,
    made: Made,
    clock: Arc<JumpClock>,
    load: Load,
    world: SharedWorld,
    played: Played,
    leaked: u64,
}

/// One life: what is open.
struct Open {
    // Closed in this order.
    iothreads: Vec<Iothread>,
    claims: Vec<Claim>,
    nodes: Vec<Arc<dyn Node>>,
    life: Arc<Life>,
}

impl<'a> Player<'a> {
    fn new(seed: u64, subject: &'a dyn Subject, options: &'a Options) -> Result<Self> {
        let mut rng = Rng::new(seed);
        let made = options.recipe.make(&mut rng)?;
        let disk = Arc::new(Disk::default());
        let image = disk.add(&made.image);
        let backing = made.backing.as_ref().map(|bytes| disk.add(bytes));
        let data = made.data.as_ref().map(|bytes| disk.add(bytes));
        let files = Files { image, backing, data };
        let clock = Arc::new(JumpClock::new());
        let world = World {
            kernel: Kernel::new(Arc::clone(&disk), options.mischief, options.fail_one_in),
            log: Log::default(),
            mischief: options.mischief,
            ended: Vec::new(),
            rng: rng.clone(),
            events: Vec::new(),
            lane_syncs: 0,
            wrong: None,
            is_dead: false,
        };
        let world = SharedWorld::new(world);
        let load = Load::new(&made.content, made.cluster, options.fail_one_in > 0, &mut rng)?;
        check_size(number(made.content.len()))?;
        let played = Played::default();
        let mut player =
            Self { subject, options, disk, files, made, clock, load, world, played, leaked: 0 };
        player.judge(Fate::Close).context("the image that was made")?;
        Ok(player)
    }

    fn live(&mut self) -> Result<()> {
        let mut world = self.world.lock();
        let World { rng, kernel, log, .. } = &mut *world;
        let fate =
            [Fate::Close, Fate::Death, Fate::Death, Fate::PowerLoss, Fate::PowerLoss][rng.index(5)];
        let magnitude = 4 + rng.below(u64::from(STEPS_MAX.ilog2()) - 3);
        let steps = 1 + rng.below(1 << magnitude);
        self.load.change_habits(rng);
        kernel.change_habits(rng);
        log.all("the image is opened");
        let life = Life::new(match rng.one_in(8) && fate != Fate::Close {
            true => rng.below(40),
            false => u64::MAX,
        });
        drop(world);
        let opened = self.open(&life);
        let mut open = match opened {
            Ok(open) => {
                open.life.spare();
                open
            }
            Err(_) if life.is_over() => {
                self.world.lock().log.all("the process died while it opened the image");
                return self.judge_end(fate);
            }
            Err(error) => return Err(error.context("open the image")),
        };
        let weights = Weights::any(&mut self.world.lock().rng, open.iothreads.len());
        for _ in 0..steps {
            self.step(&mut open, &weights, true)?;
        }
        if fate == Fate::PowerLoss && self.world.lock().rng.one_in(2) {
            // The order of metadata is at stake most while its sync is awaited.
            let mut patience = STEPS_MAX;
            while self.world.lock().lane_syncs == 0 && patience > 0 {
                patience -= 1;
                self.step(&mut open, &weights, true)?;
            }
        }
        match fate {
            Fate::Close => self.close(open)?,
            Fate::Death | Fate::PowerLoss => self.kill(open, fate),
        }
        self.judge_end(fate)
    }

    fn open(&mut self, life: &Arc<Life>) -> Result<Open> {
        let threads = 1 + self.world.lock().rng.below(THREADS_MAX);
        let is_cloned = self.options.mischief == Mischief::ClonedMetadata;
        let count = if is_cloned { threads } else { 1 };
        let mut nodes: Vec<Arc<dyn Node>> = Vec::new();
        let mut claims = Vec::new();
        for _ in 0..count {
            let node = self.subject.open(&self.setup(life))?;
            let (found, expected) = (node.size().0.0, number(self.made.content.len()));
            ensure!(found == expected, "the disk has {found} bytes, not {expected}");
            let claim = node.claim(Rights::of_user(Access::ReadWrite)).context("claim the node")?;
            if self.world.lock().rng.one_in(2) {
                claim.refresh().context("refresh the claim")?;
            }
            claims.push(claim);
            nodes.push(node);
        }
        let media = media(self.disk.count());
        let clock = || Arc::clone(&self.clock) as Arc<dyn Clock>;
        let mut iothreads = Vec::new();
        for place in 0..usize::try_from(threads)? {
            let node = &nodes[place % nodes.len()];
            iothreads.push(Iothread::open(place, node, &self.world, &media, clock())?);
        }
        Ok(Open { iothreads, claims, nodes, life: Arc::clone(life) })
    }

    fn setup(&mut self, life: &Arc<Life>) -> Setup {
        let discards = self.world.lock().rng.one_in(2);
        let child = |name: &str, file, access| -> Arc<dyn Node> {
            Arc::new(FileChild {
                name: name.to_owned(),
                disk: Arc::clone(&self.disk),
                file,
                access,
                discards,
                life: Arc::clone(life),
            })
        };
        Setup {
            file: child("file", self.files.image, Access::ReadWrite),
            backing: self.files.backing.map(|file| child("backing", file, Access::ReadOnly)),
            data_file: self.files.data.map(|file| child("data-file", file, Access::ReadWrite)),
            engines: Arc::new(ControlThread {
                disk: Arc::clone(&self.disk),
                life: Arc::clone(life),
            }),
            clock: Arc::clone(&self.clock) as Arc<dyn Clock>,
            seed: self.world.lock().rng.next_u64(),
        }
    }

    /// Somebody goes on.
    fn step(&mut self, open: &mut Open, weights: &Weights, may_ask: bool) -> Result<()> {
        self.world.lock().log.step += 1;
        let choice = self.choose(open, weights, may_ask)?;
        let mut delivered = None;
        match choice {
            Choice::Ask(thread) => {
                let rng = &mut self.world.lock().rng.clone();
                let count = 1 + rng.below(weights.batch);
                let requests = (0..count).map(|_| self.load.begin(rng)).collect();
                self.world.lock().rng = rng.clone();
                open.iothreads[thread].submit(requests);
            }
            Choice::Apply(op) => {
                let World { kernel, log, rng, .. } = &mut *self.world.lock();
                kernel.apply(op, log, rng);
            }
            Choice::Deliver(op) => {
                let World { kernel, log, .. } = &mut *self.world.lock();
                let op = kernel.deliver(op, log);
                delivered = Some(op);
            }
            Choice::Resume(thread) => open.iothreads[thread].round(self.clock.now()),
            Choice::Release(thread) => open.iothreads[thread].release(self.clock.now()),
            Choice::Nothing => {}
        }
        if let Some(op) = delivered {
            let thread = deliver(&self.world, op);
            open.iothreads[thread].round(self.clock.now());
        }
        self.judge_ended()
    }

    fn choose(&mut self, open: &mut Open, weights: &Weights, may_ask: bool) -> Result<Choice> {
        let is_called = |thread: &mut Iothread| thread.is_called();
        let called: Vec<bool> = open.iothreads.iter_mut().map(is_called).collect();
        let mut world = self.world.lock();
        let World { kernel, rng, .. } = &mut *world;
        if rng.one_in(64) {
            kernel.wake_one(rng);
        }
        if rng.one_in(300) {
            let thread = rng.index(open.iothreads.len());
            return Ok(if rng.one_in(4) {
                Choice::Release(thread)
            } else {
                Choice::Resume(thread)
            });
        }
        let asks =
            |thread: &usize| may_ask && open.iothreads[*thread].open_requests() < weights.depth;
        let asking: Vec<usize> = (0..open.iothreads.len()).filter(asks).collect();
        let called: Vec<usize> = (0..called.len()).filter(|thread| called[*thread]).collect();
        let (mut begun, mut applied) = (Vec::new(), Vec::new());
        kernel.ready(false, &mut begun);
        kernel.ready(true, &mut applied);
        let shares = [
            if asking.is_empty() { 0 } else { weights.ask },
            if called.is_empty() { 0 } else { weights.resume },
            if begun.is_empty() { 0 } else { weights.apply },
            if applied.is_empty() { 0 } else { weights.deliver },
        ];
        let total: u64 = shares.iter().sum();
        if total == 0 {
            drop(world);
            return self.choose_when_stuck(open);
        }
        let mut dice = rng.below(total);
        let mut chosen = 0;
        while dice >= shares[chosen] {
            dice -= shares[chosen];
            chosen += 1;
        }
        Ok(match chosen {
            0 => Choice::Ask(asking[rng.index(asking.len())]),
            1 => Choice::Resume(called[rng.index(called.len())]),
            2 => Choice::Apply(begun[rng.index(begun.len())]),
            _ => Choice::Deliver(applied[rng.index(applied.len())]),
        })
    }

    /// Everybody sleeps: who wakes first?
    fn choose_when_stuck(&mut self, open: &mut Open) -> Result<Choice> {
        {
            let World { kernel, rng, .. } = &mut *self.world.lock();
            if kernel.wake_one(rng) {
                return Ok(Choice::Nothing);
            }
        }
        let due = |(place, thread): (usize, &Iothread)| Some((thread.due()?, place));
        if let Some((at, thread)) = open.iothreads.iter().enumerate().filter_map(due).min() {
            self.clock.jump_to(at);
            return Ok(Choice::Resume(thread));
        }
        if !open.iothreads.iter_mut().any(Iothread::is_busy) {
            return Ok(Choice::Nothing);
        }
        let threads: Vec<String> = open.iothreads.iter_mut().map(Iothread::describe).collect();
        bail!("nothing can go on:\n{}\n{}", threads.join("\n"), self.world.lock().log.last())
    }

    fn judge_ended(&mut self) -> Result<()> {
        let (ended, wrong) = {
            let World { ended, wrong, log, .. } = &mut *self.world.lock();
            let wrong = wrong.take().map(|wrong| wrong.context(log.last()));
            (std::mem::take(ended), wrong)
        };
        if let Some(wrong) = wrong {
            return Err(wrong);
        }
        for (request, outcome, data) in ended {
            self.load.end(request, outcome, &data).map_err(|wrong| self.explain(wrong))?;
        }
        Ok(())
    }

    fn explain(&self, wrong: WrongSector) -> anyhow::Error {
        let WrongSector { sector, error } = wrong;
        let history = self.world.lock().log.of_sector(sector, self.made.cluster);
        let image = self.disk.snapshot(self.files.image);
        let place = check::describe_place(&image, number(sector) * 512);
        error.context(format!("{place}\n{history}\n"))
    }

    /// Nothing new comes; everything ends; then all is given back.
    fn close(&mut self, mut open: Open) -> Result<()> {
        let weights = Weights::any(&mut self.world.lock().rng, open.iothreads.len());
        self.settle(&mut open, &weights)?;
        open.iothreads.drain(..).for_each(Iothread::close);
        self.judge_ended()?;
        if self.world.lock().rng.one_in(2) {
            open.claims.iter().try_for_each(Claim::flush).context("flush the claim")?;
        }
        open.claims.clear();
        open.nodes.clear();
        open.life.end();
        self.world.lock().log.all("the image is closed");
        Ok(())
    }

    fn settle(&mut self, open: &mut Open, weights: &Weights) -> Result<()> {
        for _ in 0..PATIENCE {
            if !open.iothreads.iter_mut().any(Iothread::is_busy)
                && self.world.lock().kernel.len() == 0
            {
                return Ok(());
            }
            self.step(open, weights, false)?;
        }
        let threads: Vec<String> = open.iothreads.iter_mut().map(Iothread::describe).collect();
        bail!("it does not end:\n{}\n{}", threads.join("\n"), self.world.lock().log.last())
    }

    fn kill(&mut self, open: Open, fate: Fate) {
        let Open { iothreads, claims, nodes, life } = open;
        life.end();
        let ops = {
            let World { kernel, log, rng, is_dead, .. } = &mut *self.world.lock();
            log.all(match fate {
                Fate::PowerLoss => "the power goes",
                Fate::Death | Fate::Close => "the process is killed",
            });
            *is_dead = true;
            kernel.die(log, rng)
        };
        for op in ops {
            deliver(&self.world, op);
        }
        bury(iothreads, self.clock.now());
        let World { ended, events, lane_syncs, wrong, is_dead, .. } = &mut *self.world.lock();
        ended.clear();
        events.clear();
        (*lane_syncs, *wrong, *is_dead) = (0, None, false);
        drop((claims, nodes));
    }

    fn judge_end(&mut self, fate: Fate) -> Result<()> {
        self.load.die();
        match fate {
            Fate::Close => self.played.closed += 1,
            Fate::Death => {
                self.played.killed += 1;
                self.disk.outlive_process();
            }
            Fate::PowerLoss => {
                self.played.powerless += 1;
                self.disk.lose_power(&mut self.world.lock().rng);
                self.load.lose_power();
            }
        }
        self.judge(fate).with_context(|| format!("after the end by {fate:?}"))
    }

    /// Checks the image as it lies on the disk, and reads all of it.
    fn judge(&mut self, fate: Fate) -> Result<()> {
        let image = self.disk.snapshot(self.files.image);
        let data = self.files.data.map(|file| self.disk.snapshot(file));
        let verdict =
            check::check(&image).map_err(|error| anyhow!("no image any more: {error}"))?;
        if let Some(first) = verdict.errors.first() {
            let all: Vec<&str> =
                verdict.errors.iter().take(10).map(|it| it.text.as_str()).collect();
            let history = self.world.lock().log.of_bytes(self.files.image, &first.bytes);
            bail!("{} errors in the image:\n{}\n{history}", verdict.errors.len(), all.join("\n"));
        }
        let content = super::image::read_all(&image, data.as_ref(), self.made.backing.as_deref())
            .map_err(|error| anyhow!("read the image: {error}"))?;
        self.load.check_all(&content).map_err(|wrong| self.explain(wrong))?;
        let every = self.options.peer_one_in;
        if every > 0 && self.world.lock().rng.one_in(every) {
            peer::judge(&image, data.as_ref(), self.made.backing.as_deref(), &content)?;
            self.played.peer_judged += 1;
        }
        match fate {
            Fate::Close => {
                let more = verdict.leaks.saturating_sub(self.leaked);
                self.played.leaks_of_closed = self.played.leaks_of_closed.max(more);
            }
            Fate::Death | Fate::PowerLoss => {
                self.played.leaks_max = self.played.leaks_max.max(verdict.leaks);
            }
        }
        self.leaked = verdict.leaks;
        // After a death what was not flushed can still be lost, unless the host wrote it back meanwhile.
        if fate == Fate::PowerLoss || self.world.lock().rng.one_in(2) {
            self.disk.settle();
            self.load.start_from(&content)?;
        }
        Ok(())
    }
}

enum Choice {
    Ask(usize),
    Apply(usize),
    Deliver(usize),
    Resume(usize),
    Release(usize),
    Nothing,
}

/// How likely each kind of step is, and how much is in flight.
struct Weights {
    ask: u64,
    resume: u64,
    apply: u64,
    deliver: u64,
    depth: usize,
    batch: u64,
}

impl Weights {
    fn any(rng: &mut Rng, threads: usize) -> Self {
        let weight = |rng: &mut Rng| [1, 4, 16][rng.index(3)];
        let depth = [1, 2, 4, 8, 32][rng.index(5)];
        Self {
            ask: weight(rng),
            resume: weight(rng),
            apply: weight(rng),
            deliver: weight(rng),
            depth: if threads == 1 { depth.max(2) } else { depth },
            batch: 1 + rng.below(6),
        }
    }
}
