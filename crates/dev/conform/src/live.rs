//! The suite on iothreads: rings of guests on two iothreads at once, and files of the host.
//!
//! Where it stands: one thread plays all guests. Rings are moved between the iothreads and stopped and started again
//! while their requests are under way; a stop must not wait for what a layer holds.
//!
//! Limits: nothing may take longer than [`PATIENCE`].

mod guest;
mod image;

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use block::{Clock, Durability, FileId, Node, SystemClock};
use iothread::{Host, Iothread, Placed, PollSettings, Polling, Watcher};
use kernel_io::{Notifier, Reactors};
use request_path::Served;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use testkit::conformance::checked::Complaints;
use testkit::conformance::faults::Faulty;
use testkit::conformance::layout::Layout;
use testkit::conformance::play::Played;
use testkit::conformance::stack::{Sizes, Stack, Subject, Which};
use testkit::conformance::workload::{Ended, Habits, Overlap, Request, Workload};
use testkit::deadline::Deadline;
use testkit::rng::Rng;
use virtio::{BlkRules, Ring, RingBase};
use virtio_blk::{BlkRing, BlkRingSetup, Capacity};

use crate::subjects::{FileEnd, Medium};
use guest::{Guest, REQUEST_SECTORS_MAX};
use image::Image;

/// How long an answer or a stop may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// The most requests of a stack before it is compared as a whole.
const REQUESTS_MAX: u64 = 300;
const RINGS_MAX: usize = 4;

/// Makes the stack of this seed and plays with it, with files in one of the directories.
pub(crate) fn play(
    seed: u64,
    subjects: &[Arc<dyn Subject>],
    which: Which<'_>,
    directories: &[PathBuf],
) -> Result<Played> {
    let rng = &mut Rng::new(seed);
    let directory = &directories[rng.index(directories.len())];
    let medium = Arc::new(Medium::new(directory)?);
    let file: Arc<dyn Subject> = Arc::new(FileEnd(Arc::clone(&medium)));
    let mut all = subjects.to_vec();
    all.push(Arc::new(Faulty));
    // Several times: most stacks are to store something.
    all.extend(std::iter::repeat_n(file, 3));
    let stack = Stack::new(rng, &all, which).with_context(|| format!("seed {seed:#x}"))?;
    let text = format!("seed {seed:#x}, stack {stack} in {}", directory.display());
    let complaints = Arc::new(Complaints::default());
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let table = Arc::clone(&medium.table);
    let sizes: Sizes =
        Arc::new(move |FileId(id)| Some(table.all().get(usize::try_from(id).ok()?)?.bytes()));
    let node = stack.build(&clock, &complaints, &sizes).with_context(|| text.clone())?;
    let names = stack.names();
    let layout = Layout::new(&stack)?;
    let player = Player::new(Below::Stack(stack), layout, node, medium, complaints, rng.clone());
    play_through(player, names).with_context(|| text)
}

/// Makes the image of this seed and plays with it, with files in one of the directories.
pub(crate) fn play_image(seed: u64, directories: &[PathBuf]) -> Result<Played> {
    let rng = &mut Rng::new(seed);
    let directory = &directories[rng.index(directories.len())];
    let medium = Arc::new(Medium::new(directory)?);
    let (image, node) = Image::open(rng, &medium).with_context(|| format!("seed {seed:#x}"))?;
    let text = format!("seed {seed:#x}, {} in {}", image.describe(), directory.display());
    let layout = image.layout();
    let complaints = Arc::default();
    let player = Player::new(Below::Image(image), layout, node, medium, complaints, rng.clone());
    play_through(player, vec!["qcow2"]).with_context(|| text)
}

/// Plays with a disk of these subjects, and judges what is in the files then.
fn play_through(player: Result<Player>, names: Vec<&'static str>) -> Result<Played> {
    let mut player = player?;
    let worked = player.work();
    // A stop that fails as well says nothing new.
    let stopped = player.stop_all();
    worked.and(stopped).and_then(|()| player.check_files())?;
    let (held, kept) = (player.complaints.held(), player.complaints.kept());
    Ok(Played { names, tally: player.workload.tally, held, kept })
}

/// Complains when a ring is found broken.
#[derive(Debug)]
struct Watch(Arc<Complaints>);

impl Watcher for Watch {
    fn broken(&self, fault: &(dyn Error + 'static)) {
        self.0.add(format!("a well-behaved ring was found broken: {fault}"));
    }

    fn kicked_in_vain(&self) {}
}

/// A guest, and where its ring is served.
struct Client {
    guest: Guest,
    durability: Durability,
    /// `None` while it is stopped.
    placed: Option<Placed<BlkRing>>,
}

/// What the disk under test stands on.
enum Below {
    Stack(Stack),
    Image(Image),
}

struct Player {
    below: Below,
    medium: Arc<Medium>,
    node: Arc<dyn Node>,
    complaints: Arc<Complaints>,
    workload: Workload,
    iothreads: [Arc<Iothread>; 2],
    rings: Vec<Client>,
    rng: Rng,
}

impl Player {
    fn new(
        below: Below,
        layout: Layout,
        node: Arc<dyn Node>,
        medium: Arc<Medium>,
        complaints: Arc<Complaints>,
        mut rng: Rng,
    ) -> Result<Self> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let reactors = if rng.one_in(3) { Reactors::EpollOnly } else { Reactors::Any };
        let polling = Arc::new(Polling::of_process()?);
        let iothread = |name, settings| {
            let (files, clock) = (Arc::clone(&medium.table), Arc::clone(&clock));
            let polling = Arc::clone(&polling);
            let host = Host { files, clock, polling, reactors, confine: None };
            anyhow::Ok(Arc::new(Iothread::spawn(name, host, settings)?))
        };
        // One of them never looks, as `none` does not.
        let iothreads =
            [iothread("t0", PollSettings::default())?, iothread("t1", PollSettings::OFF)?];
        // The host may tear what a request writes while another one reads it, so they do not meet.
        let habits = Habits {
            sectors_max: 1 << rng.below(u64::from(REQUEST_SECTORS_MAX.ilog2()) + 1),
            overlap: Overlap::Avoided,
            durability: None,
        };
        let workload = Workload::new(layout, habits);
        let rings = Vec::new();
        let mut player = Self { below, medium, node, complaints, workload, iothreads, rings, rng };
        for _ in 0..2 + player.rng.index(RINGS_MAX - 1) {
            player.add_ring()?;
        }
        Ok(player)
    }

    fn add_ring(&mut self) -> Result<()> {
        let durability = if self.rng.one_in(4) { Durability::Stable } else { Durability::Cached };
        self.rings.push(Client { guest: Guest::new()?, durability, placed: None });
        let ring = self.rings.len() - 1;
        self.start(ring, RingBase(0))
    }

    /// Has a ring served that is stopped, by one iothread or the other.
    fn start(&mut self, ring: usize, base: RingBase) -> Result<()> {
        let iothread = &self.iothreads[(ring + self.rng.index(2)) % 2];
        let Client { guest, durability, placed } = &mut self.rings[ring];
        let rules = BlkRules {
            size: self.node.size(),
            access: self.node.access(),
            durability: *durability,
            discard: true,
            write_zeroes: true,
        };
        let front = BlkRing::new(BlkRingSetup {
            ring: Ring::new(guest.memory(), guest.setup(base))?,
            rules,
            capacity: Arc::new(Capacity::new(self.node.size())),
            serial: "conform".to_owned(),
            kick: guest.kick_fd()?,
            call: Some(guest.call_fd()?),
            error: None,
        });
        let source = Served::new(front, vec![Arc::clone(&self.node)], Arc::new(Notifier::new()?));
        let watch = Arc::new(Watch(Arc::clone(&self.complaints)));
        let on = Placed::on(iothread, source, watch);
        *placed = Some(on.map_err(|error| anyhow!("place a ring: {error}"))?);
        Ok(())
    }

    fn work(&mut self) -> Result<()> {
        let requests = 20 + self.rng.below(REQUESTS_MAX - 20);
        let mut begun = 0;
        while begun < requests {
            let ring = self.rng.index(self.rings.len());
            match self.rng.below(1000) {
                0..680 => begun += self.submit_some(ring)?,
                680..870 => self.wait()?,
                870..920 => self.move_ring(ring)?,
                920..940 => {
                    let base = self.stop(ring)?;
                    self.start(ring, base)?;
                }
                _ => self.workload.change_refusals(&mut self.rng),
            }
            self.collect()?;
        }
        self.workload.end_mischief();
        self.finish()?;
        self.check_all().context("reading the whole disk")
    }

    fn submit_some(&mut self, ring: usize) -> Result<u64> {
        let mut begun = 0;
        for _ in 0..1 + self.rng.below(4) {
            if !self.rings[ring].guest.has_room() {
                break;
            }
            let Some(request) = self.workload.next(&mut self.rng) else { break };
            self.rings[ring].guest.submit(request, &mut self.rng)?;
            begun += 1;
        }
        Ok(begun)
    }

    fn collect(&mut self) -> Result<()> {
        self.complaints.check()?;
        for Client { guest, .. } in &mut self.rings {
            for (request, status) in guest.collect()? {
                complete(&mut self.workload, &request, status)?;
            }
        }
        Ok(())
    }

    /// Waits until a guest is interrupted, if one has something in flight.
    fn wait(&self) -> Result<()> {
        let waits = |ring: &&Client| ring.guest.in_flight() > 0;
        let calls = self.rings.iter().filter(waits).map(|ring| ring.guest.call());
        let mut fds: Vec<_> = calls.map(|call| PollFd::new(call, PollFlags::IN)).collect();
        if fds.is_empty() {
            return Ok(());
        }
        let limit = Timespec::try_from(PATIENCE)?;
        let ready = poll(&mut fds, Some(&limit))?;
        ensure!(ready > 0, "no answer for {PATIENCE:?}: {:?}", self.in_flight());
        Ok(())
    }

    fn in_flight(&self) -> Vec<usize> {
        self.rings.iter().map(|ring| ring.guest.in_flight()).collect()
    }

    fn finish(&mut self) -> Result<()> {
        let deadline = Deadline::after(PATIENCE);
        while self.in_flight().iter().any(|count| *count > 0) {
            self.wait()?;
            self.collect()?;
            ensure!(!deadline.has_passed(), "not answered: {:?}", self.in_flight());
        }
        Ok(())
    }

    fn move_ring(&self, ring: usize) -> Result<()> {
        let Some(placed) = &self.rings[ring].placed else { return Ok(()) };
        let on_first = Arc::ptr_eq(&placed.iothread(), &self.iothreads[0]);
        Ok(placed.move_to(&self.iothreads[usize::from(on_first)])?)
    }

    /// Stops a ring, whose requests are answered then but for those that were not begun.
    fn stop(&mut self, ring: usize) -> Result<RingBase> {
        let placed = self.rings[ring].placed.take().context("the ring is served")?;
        let (stopped, source) = channel();
        // It has no limit of its own.
        std::thread::spawn(move || {
            // Nobody waits for it any more, after too long.
            let _late = stopped.send(placed.stop());
        });
        let source = source.recv_timeout(PATIENCE).context("a ring does not stop")?;
        ensure!(source.in_flight() == 0, "a ring was stopped with requests in flight");
        Ok(source.front().base())
    }

    fn stop_all(&mut self) -> Result<()> {
        for ring in 0..self.rings.len() {
            if self.rings[ring].placed.is_some() {
                self.stop(ring)?;
            }
        }
        self.complaints.check()
    }

    fn check_all(&mut self) -> Result<()> {
        let all = self.workload.layout().ends.len();
        let longest = usize::try_from(REQUEST_SECTORS_MAX)?;
        let step = (1 + self.rng.index(all)).min(longest).max(all / 64);
        for start in (0..all).step_by(step) {
            let request = self.workload.read(&(start..(start + step).min(all)));
            let ring = self.rng.index(self.rings.len());
            self.rings[ring].guest.submit(request, &mut self.rng)?;
            self.finish()?;
        }
        Ok(())
    }

    fn check_files(&mut self) -> Result<()> {
        let stack = match &mut self.below {
            Below::Stack(stack) => stack,
            Below::Image(image) => {
                // All is in the file, also before it is closed.
                image.check(&mut self.workload).context("before it is closed")?;
                image.close();
                return image.check(&mut self.workload);
            }
        };
        for file in 0..stack.files() {
            let path = self.medium.path(file);
            // Not every end has a file.
            if path.exists() {
                let bytes = std::fs::read(&path)?;
                self.workload.check_file(file, &bytes).context("in the files below")?;
            }
        }
        Ok(())
    }
}

fn complete(workload: &mut Workload, request: &Request, status: u8) -> Result<()> {
    let ended = match status {
        0 => Ended::Well,
        1 => Ended::FailedSomehow,
        other => return Err(anyhow!("{:?}: status {other}", request.operation)),
    };
    workload.complete(request, ended)
}
