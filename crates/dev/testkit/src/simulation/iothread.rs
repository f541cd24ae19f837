//! A simulated iothread: a real engine with one lane of the node under test, on a kernel whose operations go on when the
//! machine says so.
//!
//! Invariants: nobody holds the world while an engine is called.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use block::{
    Alignments, Buffers, ByteCount, ByteOffset, Clock, Durability, DurableWriteMethod, FileId,
    Interest, IoFailure, Medium, Node, Operation, Outcome, Segment, SourceRequestSlot, Tag,
    WakeTime,
};
use kernel_io::{
    BounceBuffer, DiscardOrZeroGoal, EngineKernel, Event, FileExtent, Notifier, ServedRings,
    WaitMode,
};
use request_path::{Engine, SourcelessRequests};
use rustix::io::Errno;

use super::child::ControlThread;
use super::kernel::{Addressee, Order, Told};
use super::memory::RequestMemory;
use super::{Ended, SharedWorld, World};
use crate::conformance::number;

/// The most requests that an iothread has at once.
pub(crate) const SLOTS: u16 = 64;

/// Files as engines know them, in blocks of so many bytes.
pub(crate) fn media(count: usize, block: u32, stable_writes: DurableWriteMethod) -> Arc<[Medium]> {
    let alignments = Alignments { memory: 1, offset: block, allocation: block };
    let medium = |file| Medium::new(format!("file {file}"), alignments, stable_writes);
    (0..count).map(medium).collect()
}

#[derive(Debug)]
struct Open {
    number: u64,
    memory: RequestMemory,
    /// Whether it is a flush that began after a sync had failed.
    must_fail: bool,
}

/// One iothread.
#[derive(Debug)]
pub(crate) struct Iothread {
    place: usize,
    engine: Engine<SimulatedKernel>,
    requests: Option<SourcelessRequests>,
    open: Vec<Option<Open>>,
    finished: Vec<(SourceRequestSlot, Outcome)>,
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
        let kernel = SimulatedKernel { way, media: Arc::clone(media), bell: None };
        let engine = Engine::with(kernel, Arc::new(Notifier::new()?), clock);
        let open = (0..SLOTS).map(|_| None).collect();
        let world = world.clone();
        let mut iothread =
            Self { place, engine, requests: None, open, finished: Vec::new(), world };
        iothread.open_lane(node)?;
        Ok(iothread)
    }

    /// Opens the engine's lane, which is closed.
    pub(crate) fn open_lane(&mut self, node: &Arc<dyn Node>) -> Result<()> {
        self.world.lock().opening = Some(self.place);
        let opened = SourcelessRequests::new(&mut self.engine, node, SLOTS).context("open a lane");
        self.world.lock().opening = None;
        self.requests = Some(opened?);
        Ok(())
    }

    /// Closes the lane, which has nothing in flight.
    pub(crate) fn close_lane(&mut self) {
        if let Some(requests) = self.requests.take() {
            requests.close(&mut self.engine);
        }
    }

    /// Whether anything of it is not over.
    pub(crate) fn is_busy(&mut self) -> bool {
        !self.engine.is_over() || self.is_called()
    }

    /// Its requests that are not over.
    pub(crate) fn open_requests(&self) -> usize {
        self.open.iter().flatten().count()
    }

    /// Whether the engine has something to do, as far as can be seen without asking its bell.
    pub(crate) fn is_called(&mut self) -> bool {
        self.engine.has_pending()
    }

    /// Whether another thread has rung.
    pub(crate) fn is_rung(&self) -> bool {
        let mut fds =
            [rustix::event::PollFd::new(self.engine.notifier(), rustix::event::PollFlags::IN)];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
    }

    /// When the engine has something to do.
    pub(crate) fn due(&self) -> Option<WakeTime> {
        self.engine.due()
    }

    /// Asks for new requests: their numbers, what they ask, their memory.
    pub(crate) fn submit(&mut self, requests: Vec<(u64, Operation, Vec<u8>)>) {
        let mut batch = Vec::new();
        let has_failed_sync = self.world.lock().has_failed_sync;
        for (number, operation, memory) in requests {
            let slot = self.open.iter().position(Option::is_none).expect("few requests");
            let memory = RequestMemory::of(&memory);
            let must_fail = has_failed_sync && operation == Operation::Flush;
            let open = self.open[slot].insert(Open { number, memory, must_fail });
            let slot = SourceRequestSlot(u16::try_from(slot).expect("few requests"));
            batch.push((slot, operation, open.memory.name()));
        }
        let requests = self.requests.as_ref().expect("its lane is open");
        requests.begin(&mut self.engine, batch.into_iter());
        self.collect();
    }

    /// A round of the engine.
    pub(crate) fn round(&mut self, now: Instant) {
        self.engine.wait(WaitMode::Poll).expect("the simulated kernel can be waited for");
        if self.engine.due().is_some() {
            self.engine.resume(now);
        }
        self.engine.dispatch(&mut Vec::new());
        self.collect();
    }

    /// Somebody waits for the end of what the lane holds.
    pub(crate) fn release(&mut self, now: Instant) {
        if let Some(requests) = &self.requests {
            requests.release(&mut self.engine);
        }
        self.round(now);
    }

    fn collect(&mut self) {
        let Some(requests) = &self.requests else { return };
        requests.take_finished(&mut self.engine, &mut self.finished);
        for (slot, outcome) in self.finished.drain(..) {
            let open = self.open[usize::from(slot.0)].take().expect("a request ends once");
            let Open { number, memory, must_fail } = open;
            let world = &mut *self.world.lock();
            if must_fail && outcome == Outcome::Done && !world.is_dead {
                world.note(Err(anyhow::anyhow!("a flush succeeds after a sync that has failed")));
            }
            world.ended.push(Ended { number, outcome, data: memory.into_bytes() });
        }
    }

    /// What is in flight, for a report.
    pub(crate) fn describe(&mut self) -> String {
        let (place, called, due) = (self.place, self.is_called(), self.due());
        let open: Vec<u64> = self.open.iter().flatten().map(|open| open.number).collect();
        format!("thread {place} is called: {called}, due: {due:?}, requests {open:?}")
    }
}

/// The kernel, as one engine uses it.
#[derive(Debug)]
pub(super) struct SimulatedKernel {
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
    AtOnce { control: ControlThread, events: VecDeque<Told> },
}

impl SimulatedKernel {
    /// Of a control thread.
    pub(super) fn of_control(control: ControlThread) -> Self {
        let media = media(control.disk.count(), 1, DurableWriteMethod::BySync);
        Self { way: Way::AtOnce { control, events: VecDeque::new() }, media, bell: None }
    }

    /// Does something with what was told.
    fn events<T>(&mut self, act: impl FnOnce(&mut VecDeque<Told>) -> T) -> T {
        match &mut self.way {
            Way::Stepwise { thread, world } => act(&mut world.lock().events[*thread]),
            Way::AtOnce { events, .. } => act(events),
        }
    }

    fn begin(
        &mut self,
        file: FileId,
        at: ByteOffset,
        count: u64,
        (order, bounce): (Order, Option<BounceBuffer>),
        tag: Tag,
    ) {
        let bytes = at.0..at.0 + count;
        let block = u64::from(self.media[file.0 as usize].alignments().offset);
        let is_aligned = !matches!(order, Order::Read(_) | Order::Write(..) | Order::Zero)
            || (at.0 | count).is_multiple_of(block);
        assert!(is_aligned, "{order:?} of bytes {bytes:?} in blocks of {block}");
        let is_extent = matches!(order, Order::FindExtent);
        let (thread, result, bounce) = match &self.way {
            Way::AtOnce { control, .. } => (0, control.carry_out(file, bytes, order), bounce),
            Way::Stepwise { thread, world } => {
                let World { kernel, log, rng, is_dead, events, .. } = &mut *world.lock();
                let to = Addressee { thread: *thread, port: None, tag };
                if !*is_dead {
                    let told = kernel.begin(to, (order, bounce), (file, bytes), log, rng);
                    events[*thread].extend(told);
                    return;
                }
                (*thread, Err(Errno::IO), bounce)
            }
        };
        let result = result.map_err(|errno| IoFailure::Errno { offset: at, errno });
        let found = FileExtent { count: ByteCount(count), is_hole: false };
        let event = match is_extent {
            true => Event::Extent { tag, found },
            false => Event::Finished { tag, result, bounce },
        };
        let to = Addressee { thread, port: None, tag };
        self.events(|events| events.push_back(Told { to, event, is_failed_sync: false }));
    }

    fn bell_rings(&self) -> bool {
        let Some((bell, _)) = &self.bell else { return false };
        let mut fds = [rustix::event::PollFd::new(bell, rustix::event::PollFlags::IN)];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
    }
}

fn count_of(memory: &Buffers) -> u64 {
    number(memory.count())
}

fn copy_of(memory: &Buffers) -> Vec<u8> {
    let mut bytes = vec![0; memory.count()];
    memory.copy_to(0, &mut bytes);
    bytes
}

fn collect(memory: impl Iterator<Item = Segment>) -> Buffers {
    let mut buffers = Buffers::default();
    memory.for_each(|segment| buffers.push(segment));
    buffers
}

impl EngineKernel for SimulatedKernel {
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
        self.begin(file, offset, count_of(&memory), (Order::Read(memory), None), tag);
    }

    fn write(
        &mut self,
        file: FileId,
        offset: ByteOffset,
        durability: Durability,
        memory: impl Iterator<Item = Segment>,
        tag: Tag,
    ) {
        let bytes = copy_of(&collect(memory));
        let count = number(bytes.len());
        self.begin(file, offset, count, (Order::Write(bytes, durability), None), tag);
    }

    fn read_bounce(
        &mut self,
        file: FileId,
        offset: ByteOffset,
        count: usize,
        buffer: BounceBuffer,
        tag: Tag,
    ) {
        let memory = collect(std::iter::once(buffer.segment(count)));
        self.begin(file, offset, number(count), (Order::Read(memory), Some(buffer)), tag);
    }

    fn write_bounce(
        &mut self,
        file: FileId,
        offset: ByteOffset,
        durability: Durability,
        count: usize,
        buffer: BounceBuffer,
        tag: Tag,
    ) {
        let bytes = copy_of(&collect(std::iter::once(buffer.segment(count))));
        let order = (Order::Write(bytes, durability), Some(buffer));
        self.begin(file, offset, number(count), order, tag);
    }

    fn sync(&mut self, file: FileId, tag: Tag) {
        self.begin(file, ByteOffset(0), 0, (Order::Sync, None), tag);
    }

    fn allocate(
        &mut self,
        file: FileId,
        offset: ByteOffset,
        count: ByteCount,
        how: DiscardOrZeroGoal,
        tag: Tag,
    ) {
        let order = match how {
            DiscardOrZeroGoal::Discard => Order::Discard,
            DiscardOrZeroGoal::Zeroes(_) => Order::Zero,
        };
        self.begin(file, offset, count.0, (order, None), tag);
    }

    fn find_extent(&mut self, file: FileId, offset: ByteOffset, count: ByteCount, tag: Tag) {
        self.begin(file, offset, count.0, (Order::FindExtent, None), tag);
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
            let (to, event) = (Addressee { thread: 0, port: None, tag }, Event::Ready { tag });
            self.events(|events| events.push_back(Told { to, event, is_failed_sync: false }));
        }
        let waits_for_ever = wait == WaitMode::Block && self.events(|events| events.is_empty());
        assert!(!waits_for_ever, "a control thread waits for what nobody does");
        Ok(())
    }

    fn has_pending(&mut self) -> bool {
        !self.events(|events| events.is_empty())
    }

    fn inline_waiting(&self) -> usize {
        0
    }

    fn has_stale_flag(&self) -> bool {
        false
    }

    fn next_event(&mut self) -> Option<Event> {
        let told = self.events(VecDeque::pop_front)?;
        if let (true, Way::Stepwise { world, .. }) = (told.is_failed_sync, &self.way) {
            world.lock().has_failed_sync = true;
        }
        Some(told.event)
    }

    fn next_finished(&mut self) -> Option<(Tag, Result<(), IoFailure>, Option<BounceBuffer>)> {
        None
    }
}
