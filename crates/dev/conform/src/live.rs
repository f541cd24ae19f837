//! The suite on iothreads: several clients on two iothreads at once, guests with rings and others, and files of the host.
//!
//! Where it stands: one thread plays all clients. They are moved between the iothreads and stopped and started again
//! while their requests are under way; a stop must not wait for what a layer holds.
//!
//! Limits: nothing may take longer than [`PATIENCE`].

mod client;
mod guest;
mod image;
mod segments;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use block::{Clock, Durability, FileId, Node, SystemClock};
use iothread::{Iothread, PollSettings, ProcessResources, SourceObserver, SourceRegistry};
use kernel_io::ReactorChoice;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use testkit::ceph::Cluster;
use testkit::channel::Remote;
use testkit::conformance::checked::Complaints;
use testkit::conformance::faults::Faulty;
use testkit::conformance::layout::Layout;
use testkit::conformance::play::Played;
use testkit::conformance::stack::{Sizes, Stack, Subject, Which};
use testkit::conformance::stamp::SECTOR_BYTES;
use testkit::conformance::workload::{Habits, Overlap, Workload};
use testkit::deadline::Deadline;
use testkit::rng::Rng;

use crate::subjects::{FileEnd, Medium, NbdEnd, RbdEnd, RemoteEnd, Twice};
use client::{Client, OnPlainMemory, OnRing, OnStream};
use image::Image;
use segments::REQUEST_SECTORS_MAX;

/// How long an answer or a stop may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// The most requests of a stack before it is compared as a whole.
const REQUESTS_MAX: u64 = 300;
const CLIENTS_MAX: usize = 4;

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
    all.push(Arc::new(Twice));
    // Several times: most stacks are to store something.
    all.extend(std::iter::repeat_n(file, 3));
    let remote: Arc<dyn Subject> = Arc::new(RemoteEnd(Arc::clone(&medium)));
    all.extend(std::iter::repeat_n(remote, 2));
    all.push(Arc::new(NbdEnd(Arc::clone(&medium))));
    play_stack(rng, seed, &all, which, medium)
}

/// The same, on images of a cluster.
pub(crate) fn play_on_cluster(
    seed: u64,
    subjects: &[Arc<dyn Subject>],
    which: Which<'_>,
    directory: &Path,
    cluster: &Arc<Cluster>,
) -> Result<Played> {
    let rng = &mut Rng::new(seed);
    let medium = Arc::new(Medium::new(directory)?);
    let image: Arc<dyn Subject> = Arc::new(RbdEnd::new(&medium, cluster, seed));
    let mut all = subjects.to_vec();
    all.push(Arc::new(Faulty));
    all.push(Arc::new(Twice));
    all.extend(std::iter::repeat_n(image, 6));
    play_stack(rng, seed, &all, which, medium)
}

/// Makes a stack of these subjects and plays with it.
fn play_stack(
    rng: &mut Rng,
    seed: u64,
    all: &[Arc<dyn Subject>],
    which: Which<'_>,
    medium: Arc<Medium>,
) -> Result<Played> {
    let stack = Stack::new(rng, all, which).with_context(|| format!("seed {seed:#x}"))?;
    let text = format!("seed {seed:#x}, stack {stack} in {}", medium.directory().display());
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
    let player =
        Player::new(Below::Image(Box::new(image)), layout, node, medium, complaints, rng.clone());
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

impl SourceObserver for Watch {
    fn broken(&self, fault: &(dyn Error + 'static)) {
        self.0.add(format!("a well-behaved client was found broken: {fault}"));
    }

    fn kicked_while_empty(&self) {}
}

/// What the disk under test stands on.
enum Below {
    Stack(Stack),
    Image(Box<Image>),
}

struct Player {
    below: Below,
    medium: Arc<Medium>,
    node: Arc<dyn Node>,
    complaints: Arc<Complaints>,
    workload: Workload,
    iothreads: [Arc<Iothread>; 2],
    clients: Vec<Box<dyn Client>>,
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
        let reactors = if rng.one_in(3) { ReactorChoice::EpollOnly } else { ReactorChoice::Any };
        let sources = Arc::new(SourceRegistry::default());
        let iothread = |name, settings| {
            let (files, clock) = (Arc::clone(&medium.table), Arc::clone(&clock));
            let sources = Arc::clone(&sources);
            let (spare_rings, confine, alarm) = (Arc::default(), None, None);
            let host =
                ProcessResources { files, clock, sources, reactors, spare_rings, confine, alarm };
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
        let clients = Vec::new();
        let mut player =
            Self { below, medium, node, complaints, workload, iothreads, clients, rng };
        for _ in 0..2 + player.rng.index(CLIENTS_MAX - 1) {
            player.add_client()?;
        }
        Ok(player)
    }

    fn add_client(&mut self) -> Result<()> {
        let durability = if self.rng.one_in(4) { Durability::Stable } else { Durability::Cached };
        let client: Box<dyn Client> = match self.rng.below(4) {
            0 => Box::new(OnPlainMemory::new()?),
            1 => Box::new(OnStream::new(self.node.size())?),
            _ => Box::new(OnRing::new(durability)?),
        };
        self.clients.push(client);
        self.start(self.clients.len() - 1)
    }

    /// Has a client served that is stopped, by one iothread or the other.
    fn start(&mut self, client: usize) -> Result<()> {
        let iothread = &self.iothreads[(client + self.rng.index(2)) % 2];
        let watch = Watch(Arc::clone(&self.complaints));
        self.clients[client].start(&self.node, iothread, watch)
    }

    fn work(&mut self) -> Result<()> {
        let requests = 20 + self.rng.below(REQUESTS_MAX - 20);
        let mut begun = 0;
        while begun < requests {
            let client = self.rng.index(self.clients.len());
            match self.rng.below(1000) {
                0..680 => begun += self.submit_some(client)?,
                680..870 => self.wait()?,
                870..920 => self.clients[client].change_iothread(&self.iothreads)?,
                920..940 => {
                    self.clients[client].stop()?;
                    self.start(client)?;
                }
                _ => self.workload.change_refusals(&mut self.rng),
            }
            self.collect()?;
        }
        self.workload.end_mischief();
        self.finish()?;
        self.check_all().context("reading the whole disk")
    }

    fn submit_some(&mut self, client: usize) -> Result<u64> {
        let mut begun = 0;
        for _ in 0..1 + self.rng.below(4) {
            if !self.clients[client].has_room() {
                break;
            }
            let asks = self.clients[client].asks_status() && self.rng.one_in(4);
            let request = if asks {
                self.workload.next_status(&mut self.rng)
            } else {
                self.workload.next(&mut self.rng)
            };
            let Some(request) = request else { break };
            self.clients[client].submit(request, &mut self.rng)?;
            begun += 1;
        }
        Ok(begun)
    }

    fn collect(&mut self) -> Result<()> {
        self.complaints.check()?;
        for client in &mut self.clients {
            for (request, ended) in client.collect()? {
                self.workload.complete(&request, ended)?;
            }
        }
        Ok(())
    }

    /// Waits until a client is called, if one has something in flight.
    fn wait(&self) -> Result<()> {
        let waiting = self.clients.iter().filter(|client| client.in_flight() > 0);
        let calls = waiting.map(|client| client.call());
        let mut fds: Vec<_> =
            calls.map(|call| PollFd::from_borrowed_fd(call, PollFlags::IN)).collect();
        if fds.is_empty() {
            return Ok(());
        }
        let limit = Timespec::try_from(PATIENCE)?;
        let ready = poll(&mut fds, Some(&limit))?;
        ensure!(ready > 0, "no answer for {PATIENCE:?}: {:?}", self.in_flight());
        Ok(())
    }

    fn in_flight(&self) -> Vec<usize> {
        self.clients.iter().map(|client| client.in_flight()).collect()
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

    fn stop_all(&mut self) -> Result<()> {
        self.clients.iter_mut().try_for_each(|client| client.stop())?;
        self.complaints.check()
    }

    fn check_all(&mut self) -> Result<()> {
        let all = self.workload.layout().ends.len();
        let longest = usize::try_from(REQUEST_SECTORS_MAX)?;
        let step = (1 + self.rng.index(all)).min(longest).max(all / 64);
        for start in (0..all).step_by(step) {
            let request = self.workload.read(&(start..(start + step).min(all)));
            let client = self.rng.index(self.clients.len());
            self.clients[client].submit(request, &mut self.rng)?;
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
        self.medium.fetch()?;
        for file in 0..stack.files() {
            let path = self.medium.path(file);
            // Not every end has a file.
            if path.exists() {
                let bytes = std::fs::read(&path)?;
                self.workload.check_file(file, &bytes).context("in the files below")?;
            }
        }
        check_copies(stack, &mut self.workload)
    }
}

/// Compares what layers have written a second time.
fn check_copies(stack: &Stack, workload: &mut Workload) -> Result<()> {
    let mut contents: Vec<(Arc<Remote>, Vec<u8>)> = Vec::new();
    for sector in 0..workload.layout().ends.len() {
        let mut copies = Vec::new();
        stack.follow(u64::try_from(sector * SECTOR_BYTES)?, &mut |chosen, at| {
            copies.extend(chosen.second_copy().map(|remote| (Arc::clone(remote), at)));
        });
        for (remote, at) in copies {
            let is_known = |(known, _): &(Arc<Remote>, _)| Arc::ptr_eq(known, &remote);
            let place = match contents.iter().position(is_known) {
                Some(place) => place,
                None => {
                    let content = remote.content()?;
                    contents.push((remote, content));
                    contents.len() - 1
                }
            };
            let found = &contents[place].1[usize::try_from(at)?..][..SECTOR_BYTES];
            let judged = workload.check_copy(sector, found);
            judged.with_context(|| format!("in a second copy, at byte {at}"))?;
        }
    }
    Ok(())
}
