//! Channels to files of the simulated disk: storage that is no file for the engines that use it.
//!
//! Where it stands: in the place of [`super::child::FileChild`]. What a channel begins goes on with the operations of all
//! others, so it is late and out of order as those are; its connection may be lost instead of an answer, and comes back
//! after a while. On a control thread it is carried out at once.
//!
//! Invariants: what its medium promises the engine, a channel holds the engine to: alignment, length, room, memory.

use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use block::{
    Alignments, BeginResult, Buffers, ByteOffset, CancellationSupport, Channel,
    ChannelWakeCondition, Clock, Durability, DurableWriteMethod, IoFailure, Lane, LaneContext,
    LaneError, Medium, Node, Operation, Segment, Tag, WakeTime,
};
use rustix::io::Errno;

use super::SharedWorld;
use super::child::{ControlThread, FileChild, FileLane, Place};
use super::kernel::{Addressee, Order, Told};
use crate::rng::Rng;

/// How long after the end of a connection the next one is made.
const PAUSE: Duration = Duration::from_millis(5);

/// How a channel behaves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChannelHabits {
    pub(crate) cancel: CancellationSupport,
    /// What places and lengths of transfers must be multiples of, in bytes.
    pub(crate) alignment: u32,
    /// The most bytes of one transfer.
    pub(crate) transfer_max: u64,
    pub(crate) stable_writes: DurableWriteMethod,
    /// How many operations there is room for.
    pub(crate) room: usize,
    /// One in so many answers is lost together with the connection; none if it is 0.
    pub(crate) loses: u64,
    /// Whether it tells what bytes are.
    pub(crate) tells_status: bool,
}

impl ChannelHabits {
    /// Any, with blocks of at most so many bytes.
    pub(crate) fn choose(rng: &mut Rng, alignment_max: u32) -> Self {
        let choices = [CancellationSupport::Possible, CancellationSupport::Impossible];
        let stable = [DurableWriteMethod::BySync, DurableWriteMethod::ByThemselves];
        Self {
            cancel: choices[rng.index(2)],
            alignment: [1, 512, 4096][rng.index(3)].min(alignment_max),
            transfer_max: if rng.one_in(2) { 1 << 40 } else { (1 + rng.below(8)) * 4096 },
            stable_writes: stable[rng.index(2)],
            room: 1 + rng.index(16),
            loses: [0, 10, 100][rng.index(3)],
            tells_status: rng.one_in(2),
        }
    }
}

/// Where the ends of a channel's operations wait for it.
#[derive(Debug)]
pub(super) struct Port {
    done: Vec<(Tag, Result<(), IoFailure>)>,
    waker: Waker,
    pub(super) loses: u64,
    /// The connection is lost, and the channel has not heard of it.
    pub(super) is_lost: bool,
}

impl Port {
    pub(super) fn tell(&mut self, told: Told) {
        self.done.push(told.finished());
        self.waker.wake_by_ref();
    }

    pub(super) fn lose(&mut self) {
        self.is_lost = true;
        self.waker.wake_by_ref();
    }
}

/// A file of the disk as a node behind channels.
#[derive(Debug)]
pub(crate) struct ChannelNode {
    file: FileChild,
    habits: ChannelHabits,
    medium: Arc<Medium>,
    world: SharedWorld,
    clock: Arc<dyn Clock>,
}

impl ChannelNode {
    pub(crate) fn new(
        file: FileChild,
        habits: ChannelHabits,
        world: &SharedWorld,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let alignments = Alignments { offset: habits.alignment, ..Alignments::NONE };
        let medium = Medium::new(file.name.clone(), alignments, habits.stable_writes);
        let medium = Arc::new(medium.with_transfer_max(habits.transfer_max));
        Self { file, habits, medium, world: world.clone(), clock }
    }
}

impl Node for ChannelNode {
    crate::same_node_as!(file);

    fn open_lane(&self, io: &LaneContext) -> Result<Box<dyn Lane>, LaneError> {
        let mut world = self.world.lock();
        let way = match world.opening {
            Some(thread) => {
                let port = world.ports.len();
                let (waker, loses) = (io.waker().clone(), self.habits.loses);
                world.ports.push(Port { done: Vec::new(), waker, loses, is_lost: false });
                Way::Stepwise { thread, port }
            }
            None => {
                let (disk, life) = (Arc::clone(&self.file.disk), Arc::clone(&self.file.life));
                Way::AtOnce(ControlThread { disk, life })
            }
        };
        drop(world);
        let channel = io.enter(Box::new(SimulatedChannel {
            way,
            file: self.file.file,
            habits: self.habits,
            medium: Arc::clone(&self.medium),
            world: self.world.clone(),
            clock: Arc::clone(&self.clock),
            in_flight: 0,
            done: Vec::new(),
            reconnect: None,
        }));
        let FileChild { access, discards, .. } = self.file;
        Ok(Box::new(FileLane { place: Place::Channel(channel), access, discards }))
    }
}

/// When operations are carried out.
#[derive(Debug)]
enum Way {
    /// When the machine says so.
    Stepwise { thread: usize, port: usize },
    /// At once.
    AtOnce(ControlThread),
}

#[derive(Debug)]
struct SimulatedChannel {
    way: Way,
    file: block::FileId,
    habits: ChannelHabits,
    medium: Arc<Medium>,
    world: SharedWorld,
    clock: Arc<dyn Clock>,
    in_flight: usize,
    /// What was over when it was begun.
    done: Vec<(Tag, Result<(), IoFailure>)>,
    /// When to connect again.
    reconnect: Option<Instant>,
}

impl SimulatedChannel {
    /// Whether an operation is one that the medium allows.
    fn check(&self, operation: Operation, memory: &[Segment]) {
        let Some(extent) = operation.extent() else { return };
        let (start, count) = (extent.start().0, extent.count().0);
        if let Operation::Read(_) | Operation::Write(..) = operation {
            let alignment = u64::from(self.habits.alignment);
            let is_aligned = (start | count).is_multiple_of(alignment);
            assert!(is_aligned && count > 0, "{operation:?} in blocks of {alignment}");
            let segments: usize = memory.iter().map(|segment| segment.count()).sum();
            assert_eq!(segments as u64, count, "the memory of {operation:?}");
            assert!(count <= self.habits.transfer_max, "{operation:?} is too long");
        }
        if operation.durability() == Durability::Stable {
            let by_itself = self.habits.stable_writes == DurableWriteMethod::ByThemselves;
            assert!(by_itself && matches!(operation, Operation::Write(..)), "{operation:?}");
        }
    }

    fn order(&self, operation: Operation, memory: &[Segment]) -> Option<Order> {
        let mut buffers = Buffers::with_capacity(memory.len());
        memory.iter().for_each(|segment| buffers.push(*segment));
        Some(match operation {
            Operation::Read(_) => Order::Read(buffers),
            Operation::Write(_, durability) => {
                let mut bytes = vec![0; buffers.count()];
                buffers.copy_to(0, &mut bytes);
                Order::Write(bytes, durability)
            }
            Operation::Discard(..) => Order::Discard,
            Operation::WriteZeroes(..) => Order::Zero,
            Operation::Flush => Order::Sync,
            Operation::Status(_) if self.habits.tells_status => Order::Status(buffers),
            Operation::Status(_) => return None,
        })
    }
}

impl Channel for SimulatedChannel {
    fn medium(&self) -> &Arc<Medium> {
        &self.medium
    }

    fn cancel(&self) -> CancellationSupport {
        self.habits.cancel
    }

    fn begin(&mut self, operation: Operation, memory: &[Segment], tag: Tag) -> BeginResult {
        self.check(operation, memory);
        if self.in_flight >= self.habits.room {
            return BeginResult::Full;
        }
        self.in_flight += 1;
        let bytes = operation.extent().map_or(0..0, block::Extent::bytes);
        let failed = |errno| IoFailure::Errno { offset: ByteOffset(bytes.start), errno };
        let over = match (self.order(operation, memory), &self.way) {
            (None, _) => Some(Err(failed(Errno::OPNOTSUPP))),
            (Some(order), Way::AtOnce(control)) => {
                Some(control.carry_out(self.file, bytes.clone(), order).map_err(failed))
            }
            (Some(order), Way::Stepwise { thread, port }) => {
                let world = &mut *self.world.lock();
                let to = Addressee { thread: *thread, port: Some(*port), tag };
                let what = (self.file, bytes.clone());
                match world.is_dead {
                    true => Some(Err(failed(Errno::IO))),
                    false => world
                        .kernel
                        .begin(to, (order, None), what, &mut world.log, &mut world.rng)
                        .map(|told| told.finished().1),
                }
            }
        };
        self.done.extend(over.map(|result| (tag, result)));
        BeginResult::Started
    }

    fn collect(&mut self, done: &mut Vec<(Tag, Result<(), IoFailure>)>) {
        let before = done.len();
        done.append(&mut self.done);
        if let Way::Stepwise { port, .. } = self.way {
            let world = &mut *self.world.lock();
            let now = self.clock.now();
            if world.is_dead {
                self.reconnect = None;
            } else if std::mem::take(&mut world.ports[port].is_lost) {
                self.reconnect = Some(now + PAUSE);
            } else if self.reconnect.is_some_and(|at| at <= now) {
                self.reconnect = None;
                world.kernel.connect(port);
            }
            done.append(&mut world.ports[port].done);
        }
        self.in_flight -= done.len() - before;
    }

    fn wants(&self) -> ChannelWakeCondition<'_> {
        let due = self.reconnect.map(|at| WakeTime { at, slack: Duration::ZERO });
        ChannelWakeCondition { descriptor: None, again: false, due }
    }

    fn abandon(&mut self) {
        if let (Way::Stepwise { port, .. }, CancellationSupport::Possible) =
            (&self.way, self.habits.cancel)
        {
            let world = &mut *self.world.lock();
            for told in world.kernel.take_back(*port) {
                world.ports[*port].tell(told);
            }
        }
    }
}
