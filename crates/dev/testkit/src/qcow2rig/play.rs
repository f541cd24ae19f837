//! Lives of a process that serves an image: random requests, random steps, and an end at any of them.
//!
//! Where it stands: decides at each step who goes on. After each end it judges the disk, opens the image again and goes
//! on.

use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, anyhow, bail, ensure};
use block::{Access, Claim, DurableWriteMethod, FileId, Node, Rights};

use super::checked::CheckedNode;
use super::load::{Load, Tally, WrongSector, check_size};
use super::make::{Made, Recipe, chain};
use super::remembered::Remembered;
use super::{Mischief, Setup, Subject, check, peer};
use crate::conformance::number;
use crate::rng::Rng;
use crate::simulation::channel::{ChannelHabits, ChannelNode};
use crate::simulation::child::{ControlThread, FileChild, Life};
use crate::simulation::disk::Disk;
use crate::simulation::iothread::media;
use crate::simulation::kernel::{Kernel, KernelHabits, KernelMischief};
use crate::simulation::machine::{Machine, Weights};
use crate::simulation::{Ended, World};

const THREADS_MAX: u64 = 4;
/// Clusters of the images of a chain have 2 to one of these bytes.
const CHAIN_BITS: [u32; 3] = [9, 12, 16];
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
    /// Whether the backing file, if there is one, is a chain of images.
    pub chain: bool,
    /// What goes wrong on purpose.
    pub mischief: Mischief,
    /// One of so many operations of the kernel fails; none if zero.
    pub fail_one_in: u64,
    /// One of so many syncs fails; none if zero.
    pub fail_syncs_one_in: u64,
    /// One of so many files is behind channels, each time it is opened; none if zero.
    pub channels_one_in: u64,
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
    lives
        .with_context(|| format!("step {}", player.machine.world.lock().log.step))
        .with_context(text)?;
    player.played.tally = player.load.tally;
    player.played.steps = player.machine.world.lock().log.step;
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
#[derive(Clone, Debug)]
struct Files {
    image: FileId,
    backing: Option<FileId>,
    /// In its place, the lowest first.
    backing_images: Vec<FileId>,
    data: Option<FileId>,
}

struct Player<'a> {
    subject: &'a dyn Subject,
    options: &'a Options,
    disk: Arc<Disk>,
    files: Files,
    made: Made,
    load: Load,
    machine: Machine,
    lane_syncs: Arc<AtomicUsize>,
    played: Played,
    leaked: u64,
}

/// One life: what is open besides iothreads.
struct Open {
    // Closed in this order.
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
        let data = made.data.as_ref().map(|bytes| disk.add(bytes));
        let below = made.backing.as_ref().filter(|_| !options.chain);
        let backing = below.map(|bytes| disk.add(bytes));
        let chained = made.backing.as_ref().filter(|_| options.chain);
        let images = chained.map(|bytes| chain(bytes, CHAIN_BITS[rng.index(CHAIN_BITS.len())]));
        let backing_images = images.iter().flatten().map(|image| disk.add(image)).collect();
        let files = Files { image, backing, backing_images, data };
        let Options { mischief, fail_one_in, fail_syncs_one_in, .. } = *options;
        let habits = KernelHabits {
            mischief: match mischief {
                Mischief::LateZeroing => KernelMischief::LateZeroing,
                Mischief::LyingSyncs => KernelMischief::LyingSyncs,
                Mischief::ForgetfulChannels => KernelMischief::ForgetfulChannels,
                Mischief::None
                | Mischief::ClonedMetadata
                | Mischief::UnwrittenMetadata
                | Mischief::LyingLaneSyncs
                | Mischief::Remembers(_)
                | Mischief::EarlyEnds => KernelMischief::None,
            },
            failures: fail_one_in,
            sync_failures: fail_syncs_one_in,
            ..KernelHabits::PLAIN
        };
        let machine = Machine::new(World::new(Kernel::new(Arc::clone(&disk), habits), rng.clone()));
        let may_fail = fail_one_in > 0 || fail_syncs_one_in > 0;
        let load = Load::new(&made.content, made.cluster, may_fail, &mut rng)?;
        check_size(number(made.content.len()))?;
        let played = Played::default();
        let mut player = Self {
            subject,
            options,
            disk,
            files,
            made,
            load,
            machine,
            lane_syncs: Arc::default(),
            played,
            leaked: 0,
        };
        player.judge(Fate::Close).context("the image that was made")?;
        Ok(player)
    }

    fn live(&mut self) -> Result<()> {
        let mut world = self.machine.world.lock();
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
        let open = match opened {
            Ok(open) => {
                open.life.spare();
                open
            }
            Err(_) if life.is_over() => {
                self.machine.world.lock().log.all("the process died while it opened the image");
                return self.judge_end(fate);
            }
            Err(error) => return Err(error.context("open the image")),
        };
        if let Err(wrong) = self.work(steps, fate) {
            // What others wait for goes first.
            open.life.end();
            self.machine.kill("the game is over");
            return Err(wrong);
        }
        match fate {
            Fate::Close => self.close(open)?,
            Fate::Death | Fate::PowerLoss => self.kill(open, fate),
        }
        self.judge_end(fate)
    }

    fn work(&mut self, steps: u64, fate: Fate) -> Result<()> {
        let weights =
            Weights::any(&mut self.machine.world.lock().rng, self.machine.iothreads.len());
        for _ in 0..steps {
            self.step(&weights)?;
        }
        if fate == Fate::PowerLoss && self.machine.world.lock().rng.one_in(2) {
            // The order of metadata is at stake most while its sync is awaited.
            let mut patience = STEPS_MAX;
            while self.lane_syncs.load(Ordering::Relaxed) == 0 && patience > 0 {
                patience -= 1;
                self.step(&weights)?;
            }
        }
        if fate == Fate::Close {
            let weights =
                Weights::any(&mut self.machine.world.lock().rng, self.machine.iothreads.len());
            for _ in 0..PATIENCE {
                if !self.machine.is_busy() {
                    return Ok(());
                }
                self.machine.step(&weights, false)?;
                self.judge_ended()?;
            }
            bail!("it does not end:\n{}", self.machine.describe());
        }
        Ok(())
    }

    fn open(&mut self, life: &Arc<Life>) -> Result<Open> {
        let threads = 1 + self.machine.world.lock().rng.below(THREADS_MAX);
        let is_cloned = self.options.mischief == Mischief::ClonedMetadata;
        let count = if is_cloned { threads } else { 1 };
        let mut nodes: Vec<Arc<dyn Node>> = Vec::new();
        let mut claims = Vec::new();
        for _ in 0..count {
            let node = self.subject.open(&self.setup(life))?;
            let (found, expected) = (node.size().0.0, number(self.made.content.len()));
            ensure!(found == expected, "the disk has {found} bytes, not {expected}");
            let claim = node.claim(Rights::of_user(Access::ReadWrite)).context("claim the node")?;
            if self.machine.world.lock().rng.one_in(2) {
                claim.refresh().context("refresh the claim")?;
            }
            claims.push(claim);
            nodes.push(node);
        }
        let mut remembered = None;
        if let Mischief::Remembers(forgotten) = self.options.mischief {
            remembered = Some(Remembered::new(forgotten, self.made.cluster));
        }
        let media = media(self.disk.count(), 1, DurableWriteMethod::BySync);
        for thread in 0..usize::try_from(threads)? {
            let node = Arc::new(CheckedNode {
                node: Arc::clone(&nodes[thread % nodes.len()]),
                world: self.machine.world.clone(),
                thread,
                mischief: self.options.mischief,
                remembered: remembered.clone(),
                lane_syncs: Arc::clone(&self.lane_syncs),
            });
            self.machine.open(&(node as Arc<dyn Node>), &media)?;
        }
        Ok(Open { claims, nodes, life: Arc::clone(life) })
    }

    fn setup(&mut self, life: &Arc<Life>) -> Setup {
        let discards = self.machine.world.lock().rng.one_in(2);
        let child = |name: &str, file, access| -> Arc<dyn Node> {
            let file = FileChild {
                name: name.to_owned(),
                disk: Arc::clone(&self.disk),
                file,
                access,
                discards,
                life: Arc::clone(life),
            };
            let world = &self.machine.world;
            let habits = {
                let rng = &mut world.lock().rng;
                let one_in = self.options.channels_one_in;
                (one_in > 0 && rng.one_in(one_in)).then(|| ChannelHabits::choose(rng, 4096))
            };
            match habits {
                None => Arc::new(file),
                Some(habits) => {
                    Arc::new(ChannelNode::new(file, habits, world, self.machine.clock()))
                }
            }
        };
        Setup {
            file: child("file", self.files.image, Access::ReadWrite),
            backing: self.files.backing.map(|file| child("backing", file, Access::ReadOnly)),
            backing_images: {
                let files = self.files.backing_images.iter();
                files.map(|file| child("below", *file, Access::ReadOnly)).collect()
            },
            data_file: self.files.data.map(|file| child("data-file", file, Access::ReadWrite)),
            engines: Arc::new(ControlThread {
                disk: Arc::clone(&self.disk),
                life: Arc::clone(life),
            }),
            clock: self.machine.clock(),
            seed: self.machine.world.lock().rng.next_u64(),
        }
    }

    /// Somebody goes on.
    fn step(&mut self, weights: &Weights) -> Result<()> {
        if let Some(thread) = self.machine.step(weights, true)? {
            let rng = &mut self.machine.world.lock().rng.clone();
            let count = 1 + rng.below(weights.batch);
            let requests = (0..count).map(|_| self.load.begin(rng)).collect();
            self.machine.world.lock().rng = rng.clone();
            self.machine.iothreads[thread].submit(requests);
        }
        self.judge_ended()
    }

    fn judge_ended(&mut self) -> Result<()> {
        for Ended { number, outcome, data } in self.machine.take_ended()? {
            self.load.end(number, outcome, &data).map_err(|wrong| self.explain(wrong))?;
        }
        Ok(())
    }

    fn explain(&self, wrong: WrongSector) -> anyhow::Error {
        let WrongSector { sector, error } = wrong;
        let history = self.machine.world.lock().log.of_sector(sector, self.made.cluster);
        let image = self.disk.snapshot(self.files.image);
        let place = check::describe_place(&image, number(sector) * 512);
        error.context(format!("{place}\n{history}\n"))
    }

    /// Everything has ended; all is given back.
    fn close(&mut self, mut open: Open) -> Result<()> {
        self.machine.close();
        self.judge_ended()?;
        let may_fail = self.options.fail_syncs_one_in > 0;
        if !may_fail && self.machine.world.lock().rng.one_in(2) {
            open.claims.iter().try_for_each(Claim::flush).context("flush the claim")?;
        }
        open.claims.clear();
        open.nodes.clear();
        open.life.end();
        self.machine.world.lock().log.all("the image is closed");
        Ok(())
    }

    fn kill(&mut self, open: Open, fate: Fate) {
        let Open { claims, nodes, life } = open;
        life.end();
        self.machine.kill(match fate {
            Fate::PowerLoss => "the power goes",
            Fate::Death | Fate::Close => "the process is killed",
        });
        drop((claims, nodes));
    }

    fn judge_end(&mut self, fate: Fate) -> Result<()> {
        self.load.die();
        match fate {
            Fate::Close => {
                self.played.closed += 1;
                self.disk.forget_failed_syncs();
            }
            Fate::Death => {
                self.played.killed += 1;
                self.disk.outlive_process();
            }
            Fate::PowerLoss => {
                self.played.powerless += 1;
                self.disk.lose_power(&mut self.machine.world.lock().rng);
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
            let history = self.machine.world.lock().log.of_bytes(self.files.image, &first.bytes);
            bail!("{} errors in the image:\n{}\n{history}", verdict.errors.len(), all.join("\n"));
        }
        let content = super::image::read_all(&image, data.as_ref(), self.made.backing.as_deref())
            .map_err(|error| anyhow!("read the image: {error}"))?;
        self.load.check_all(&content).map_err(|wrong| self.explain(wrong))?;
        let every = self.options.peer_one_in;
        if every > 0 && self.machine.world.lock().rng.one_in(every) {
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
        if fate == Fate::PowerLoss || self.machine.world.lock().rng.one_in(2) {
            self.disk.settle();
            self.load.start_from(&content)?;
        }
        Ok(())
    }
}
