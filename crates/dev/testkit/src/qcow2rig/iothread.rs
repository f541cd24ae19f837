//! A simulated iothread: a real engine with one lane of the node under test, on a kernel whose operations go on when the
//! player says so.
//!
//! Invariants: nobody holds the world while an engine is called.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result};
use block::{
    Alignments, Buffers, ByteCount, ByteOffset, Clock, Durability, FileId, Interest, IoFailure,
    Medium, Node, Operation, Outcome, RequestSlot, Segment, StableWrites, Tag,
};
use kernel_io::{
    AllocationGoal, BounceBuffer, EngineKernel, Event, Notifier, ServedRings, WaitMode,
};
use request_path::{Engine, Requests};
use rustix::io::Errno;

use super::Mischief;
use super::checked::CheckedNode;
use super::child::ControlThread;
use super::kernel::{Addressee, Kernel, KernelOp, Order};
use super::log::Log;
use super::memory::RequestMemory;
use crate::rng::Rng;

/// The most requests that an iothread has at once.
const SLOTS: u16 = 64;

/// So many rounds after its death an engine may take to end what is left.
const ROUNDS_MAX: usize = 10_000;

/// Requests that are over: their number, their outcome and their memory.
pub(crate) type Ended = Vec<(u64, Outcome, Vec<u8>)>;

/// What iothreads use besides their own.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) kernel: Kernel,
    pub(crate) log: Log,
    pub(crate) rng: Rng,
    pub(crate) mischief: Mischief,
    pub(crate) ended: Ended,
    /// What the kernel has told each iothread.
    pub(crate) events: Vec<VecDeque<Event>>,
    /// How many syncs lanes wait for that they need themselves.
    pub(crate) lane_syncs: usize,
    /// The first breach of the contract of lanes.
    pub(crate) wrong: Option<anyhow::Error>,
    /// Whether the process is dead: nothing that it begins reaches the disk.
    pub(crate) is_dead: bool,
}

/// All of it, for those who live in it.
#[derive(Clone, Debug)]
pub(crate) struct SharedWorld(Arc<Mutex<World>>);

impl SharedWorld {
    pub(crate) fn new(world: World) -> Self {
        Self(Arc::new(Mutex::new(world)))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The files of a life, as engines know them.
pub(crate) fn media(count: usize) -> Arc<[Medium]> {
    let medium = |file| Medium::new(format!("file {file}"), Alignments::NONE, StableWrites::BySync);
    (0..count).map(medium).collect()
}

#[derive(Debug)]
struct Open {
    number: u64,
    memory: RequestMemory,
}

/// One iothread.
#[derive(Debug)]
pub(crate) struct Iothread {
    place: usize,
    engine: Engine<RigKernel>,
    requests: Requests,
    open: Vec<Option<Open>>,
    finished: Vec<(RequestSlot, Outcome)>,
    world: SharedWorld,
}

impl Iothread {
    pub(crate) fn open(
        place: usize,
        node: &Arc<dyn Node>,
        world: &SharedWorld,
        media: &Arc<[Medium]>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self> {
        world.lock().events.resize_with(place + 1, VecDeque::new);
        let way = Way::Stepwise { thread: place, world: world.clone() };
        let kernel = RigKernel { way, media: Arc::clone(media), bell: None };
        let mut engine = Engine::with(kernel, Arc::new(Notifier::new()?), clock);
        let (node, world) = (Arc::clone(node), world.clone());
        let checked = CheckedNode { node, world: world.clone(), thread: place };
        let checked: Arc<dyn Node> = Arc::new(checked);
        let requests = Requests::new(&mut engine, &checked, SLOTS).context("open a lane")?;
        let open = (0..SLOTS).map(|_| None).collect();
        Ok(Self { place, engine, requests, open, finished: Vec::new(), world })
    }

    /// Whether anything of it is not over.
    pub(crate) fn is_busy(&mut self) -> bool {
        !self.engine.is_over() || self.is_called()
    }

    /// Its requests that are not over.
    pub(crate) fn open_requests(&self) -> usize {
        self.open.iter().flatten().count()
    }

    /// Whether the engine has something to do.
    pub(crate) fn is_called(&mut self) -> bool {
        self.engine.has_pending()
    }

    /// When the lane has something to do.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.engine.due().map(|due| due.at)
    }

    /// Asks for new requests.
    pub(crate) fn submit(&mut self, requests: Vec<(u64, Operation, Vec<u8>)>) {
        let mut batch = Vec::new();
        for (number, operation, memory) in requests {
            let slot = self.open.iter().position(Option::is_none).expect("few requests");
            let open = self.open[slot].insert(Open { number, memory: RequestMemory::of(&memory) });
            let slot = RequestSlot(u16::try_from(slot).expect("few requests"));
            batch.push((slot, operation, open.memory.name()));
        }
        self.requests.begin(&mut self.engine, batch.into_iter());
        self.collect();
    }

    /// A round of the engine.
    pub(crate) fn round(&mut self, now: Instant) {
        self.engine.wait(WaitMode::Poll).expect("the rig's kernel can be waited for");
        if self.engine.due().is_some() {
            self.engine.resume(now);
        }
        self.engine.dispatch(&mut Vec::new());
        self.collect();
    }

    /// Somebody waits for the end of what the lane holds.
    pub(crate) fn release(&mut self, now: Instant) {
        self.requests.release(&mut self.engine);
        self.round(now);
    }

    fn collect(&mut self) {
        self.requests.take_finished(&mut self.engine, &mut self.finished);
        for (slot, outcome) in self.finished.drain(..) {
            let Open { number, memory } =
                self.open[usize::from(slot.0)].take().expect("a request ends once");
            self.world.lock().ended.push((number, outcome, memory.into_bytes()));
        }
    }

    /// What is in flight, for a report.
    pub(crate) fn describe(&mut self) -> String {
        let (place, called, due) = (self.place, self.is_called(), self.due());
        let open: Vec<u64> = self.open.iter().flatten().map(|open| open.number).collect();
        format!("thread {place} is called: {called}, due: {due:?}, requests {open:?}")
    }

    /// Closes the lane, which has nothing in flight.
    pub(crate) fn close(self) {
        let Self { mut engine, requests, .. } = self;
        requests.close(&mut engine);
    }
}

/// The process has died, and nothing of it reaches the disk: ends what its engines have begun, so that its memory is
/// given back.
pub(crate) fn bury(mut iothreads: Vec<Iothread>, now: Instant) {
    for _ in 0..ROUNDS_MAX {
        let mut is_busy = false;
        for thread in &mut iothreads {
            thread.release(now);
            is_busy |= thread.is_busy();
        }
        if !is_busy {
            return;
        }
    }
}

/// The rig's kernel, as one engine uses it.
#[derive(Debug)]
pub(super) struct RigKernel {
    way: Way,
    media: Arc<[Medium]>,
    bell: Option<(OwnedFd, Tag)>,
}

/// When operations are carried out.
#[derive(Debug)]
enum Way {
    /// When the player says so.
    Stepwise { thread: usize, world: SharedWorld },
    /// At once. What was told is here.
    AtOnce { control: ControlThread, events: VecDeque<Event> },
}

impl RigKernel {
    /// Of a control thread.
    pub(super) fn of_control(control: ControlThread) -> Self {
        let media = media(control.disk.count());
        Self { way: Way::AtOnce { control, events: VecDeque::new() }, media, bell: None }
    }

    /// Does something with what was told.
    fn events<T>(&mut self, act: impl FnOnce(&mut VecDeque<Event>) -> T) -> T {
        match &mut self.way {
            Way::Stepwise { thread, world } => act(&mut world.lock().events[*thread]),
            Way::AtOnce { events, .. } => act(events),
        }
    }

    fn begin(&mut self, file: FileId, at: ByteOffset, count: u64, order: Order, tag: Tag) {
        let bytes = at.0..at.0 + count;
        let result = match &self.way {
            Way::AtOnce { control, .. } => Some(control.carry_out(file, bytes, order)),
            Way::Stepwise { thread, world } => {
                let World { kernel, log, rng, is_dead, .. } = &mut *world.lock();
                let to = Addressee { thread: *thread, tag };
                if *is_dead {
                    Some(Err(Errno::IO))
                } else {
                    kernel.begin(to, order, file, bytes, log, rng).then_some(Ok(()))
                }
            }
        };
        if let Some(result) = result {
            let result = result.map_err(|errno| IoFailure::Errno { offset: at, errno });
            self.events(|events| events.push_back(Event::Finished { tag, result, bounce: None }));
        }
    }

    fn bell_rings(&self) -> bool {
        let Some((bell, _)) = &self.bell else { return false };
        let mut fds = [rustix::event::PollFd::new(bell, rustix::event::PollFlags::IN)];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
    }
}

fn count_of(memory: &Buffers) -> u64 {
    crate::conformance::number(memory.count())
}

fn collect(memory: impl Iterator<Item = Segment>) -> Buffers {
    let mut buffers = Buffers::default();
    memory.for_each(|segment| buffers.push(segment));
    buffers
}

impl EngineKernel for RigKernel {
    fn medium(&mut self, file: FileId) -> &Medium {
        &self.media[file.0 as usize]
    }

    fn read(
        &mut self,
        file: FileId,
        offset: ByteOffset,
        memory: impl Iterator<Item = Segment>,
        tag: Tag,
    ) {
        let memory = collect(memory);
        self.begin(file, offset, count_of(&memory), Order::Read(memory), tag);
    }

    fn write(
        &mut self,
        file: FileId,
        offset: ByteOffset,
        _: Durability,
        memory: impl Iterator<Item = Segment>,
        tag: Tag,
    ) {
        let memory = collect(memory);
        let mut bytes = vec![0; memory.count()];
        memory.copy_to(0, &mut bytes);
        self.begin(file, offset, count_of(&memory), Order::Write(bytes), tag);
    }

    fn read_bounce(&mut self, _: FileId, _: ByteOffset, _: usize, _: BounceBuffer, _: Tag) {
        panic!("nothing is staged for files that take any bytes")
    }

    fn write_bounce(
        &mut self,
        _: FileId,
        _: ByteOffset,
        _: Durability,
        _: usize,
        _: BounceBuffer,
        _: Tag,
    ) {
        panic!("nothing is staged for files that take any bytes")
    }

    fn sync(&mut self, file: FileId, tag: Tag) {
        self.begin(file, ByteOffset(0), 0, Order::Sync, tag);
    }

    fn allocate(
        &mut self,
        file: FileId,
        offset: ByteOffset,
        count: ByteCount,
        _: AllocationGoal,
        tag: Tag,
    ) {
        self.begin(file, offset, count.0, Order::Zero, tag);
    }

    fn find_extent(&mut self, _: FileId, _: ByteOffset, _: ByteCount, _: Tag) {
        panic!("the rig asks for no status")
    }

    fn forget_files(&mut self) {}

    fn poll(&mut self, fd: BorrowedFd<'_>, _: Interest, tag: Tag) {
        // What comes after the bell is an alarm for the operator.
        if self.bell.is_none() {
            let bell = fd.as_fd().try_clone_to_owned().expect("there are descriptors");
            self.bell = Some((bell, tag));
        }
    }

    fn cancel_poll(&mut self, tag: Tag) {
        panic!("nobody watches {tag:?}")
    }

    fn ring(&mut self, _: BorrowedFd<'_>) -> io::Result<()> {
        panic!("there is no client")
    }

    fn share_inline(&mut self, _: ServedRings) {}

    fn wait(&mut self, wait: WaitMode) -> io::Result<()> {
        if self.bell_rings() {
            let tag = self.bell.as_ref().expect("it rings").1;
            self.events(|events| events.push_back(Event::Ready { tag }));
        }
        let waits_for_ever = wait == WaitMode::Block && self.events(|events| events.is_empty());
        assert!(!waits_for_ever, "a control thread waits for what nobody does");
        Ok(())
    }

    fn has_pending(&mut self) -> bool {
        !self.events(|events| events.is_empty()) || self.bell_rings()
    }

    fn has_inline_work(&self) -> bool {
        false
    }

    fn has_stale_flag(&self) -> bool {
        false
    }

    fn next_event(&mut self) -> Option<Event> {
        self.events(VecDeque::pop_front)
    }

    fn next_finished(&mut self) -> Option<(Tag, Result<(), IoFailure>, Option<BounceBuffer>)> {
        None
    }
}

/// Tells an iothread of the end of an operation.
pub(crate) fn deliver(world: &SharedWorld, op: KernelOp) -> usize {
    let (to, event) = op.into_event();
    world.lock().events[to.thread].push_back(event);
    to.thread
}
