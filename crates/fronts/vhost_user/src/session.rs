//! The state of one session, with one method for each message.
//!
//! Where it stands: the adapter calls it for every message; it calls the device. A ring is served
//! if and only if it is started (it has a kick descriptor), enabled, fully described and in guest
//! memory (vhost-user, "Ring states"); after every message [`Session::start_if_ready`] makes it so.
//!
//! Invariants: guest memory, the in-flight region and the cache mode change only while no ring is
//! served; nothing about a ring changes while it is served, except its call descriptor and what of
//! it is logged.
//! Threads: one session has one thread of its own; it waits for the threads that serve rings.
//! Limits: as many rings as the device has queues.

mod backend_channel;
mod config;
mod descriptor_limit;
mod inflight;
mod log;
mod memory;
mod ring;
mod state;
mod vring_fd;

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use tracing::debug;
use vhost::vhost_user::VhostUserProtocolFeatures as Protocol;
use virtio::{DirtyLog, Features, GuestMemory, RING_SIZE_MAX, RingBase, RingLayout};

use crate::{
    BackendChannel, DescriptorCloseRisk, Device, MessageRefusal, QueueIndex, RingStart, StartResult,
};
use inflight::InflightTracking;
use log::LOG_ALL;
use ring::{RingState, SessionRing};

pub use descriptor_limit::{
    DESCRIPTORS_PER_MESSAGE, DESCRIPTORS_PER_QUEUE, DESCRIPTORS_PER_REGION,
    DESCRIPTORS_PER_SESSION, descriptors_wanted,
};
pub use state::{SavedLog, SavedRegion, SavedRing, SavedSession};
pub use vring_fd::VringFdKind;

/// VHOST_USER_F_PROTOCOL_FEATURES, a feature bit of the transport.
const PROTOCOL_FEATURES: Features = Features(1 << 30);

/// The state of a vhost-user session with one front end.
#[derive(Debug)]
pub struct Session<D> {
    device: D,
    memory: Arc<GuestMemory>,
    /// Whether there ever was any.
    has_shared: bool,
    /// Where requests in flight are tracked, if the front end wants that.
    inflight: Option<InflightTracking>,
    /// What the driver chose, with the transport's bits.
    features: Features,
    /// Where the front end wants to see what was written.
    log: Option<Arc<DirtyLog>>,
    /// What the front end chose (SET_PROTOCOL_FEATURES).
    protocol: u64,
    /// The back end's own channel, if the front end has given one.
    channel: Option<Arc<BackendChannel>>,
    /// The one that the message brings that is read now, if it does.
    incoming_channel: Option<OwnedFd>,
    /// All rings that were ever named; the others are as [`SessionRing::default`] says.
    rings: Vec<SessionRing>,
}

/// What to do with a ring whose addresses are not in guest memory: refuse it, or wait for the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UnmappedRingPolicy {
    /// It is an error: the ring was just described.
    Refuse,
    /// It waits: the front end changes memory region by region.
    Wait,
}

impl<D: Device> Session<D> {
    /// A session in which nothing has been said yet.
    pub fn new(device: D) -> Self {
        Self {
            device,
            memory: Arc::default(),
            has_shared: false,
            inflight: None,
            features: Features::NONE,
            log: None,
            protocol: 0,
            channel: None,
            incoming_channel: None,
            rings: Vec::new(),
        }
    }

    /// What it means to close what comes with the next message.
    pub(crate) fn inspect_descriptors(
        &mut self,
        connection: BorrowedFd<'_>,
    ) -> Result<DescriptorCloseRisk, MessageRefusal> {
        Ok(self.device.inspect_descriptors(connection)?)
    }

    /// What the driver may choose from (GET_FEATURES).
    pub fn features(&self) -> Features {
        self.device.features() | PROTOCOL_FEATURES | LOG_ALL
    }

    /// What the driver chose (SET_FEATURES). While a ring is served only VHOST_F_LOG_ALL may change.
    pub fn set_features(&mut self, chosen: Features) -> Result<(), MessageRefusal> {
        let offered = self.features();
        if !offered.contains(chosen) {
            return Err(MessageRefusal::Features { chosen, offered });
        }
        if chosen.without(LOG_ALL) != self.features.without(LOG_ALL)
            && let Some(queue) = self.served().next()
        {
            return Err(MessageRefusal::FeaturesInUse { queue });
        }
        self.features = chosen;
        self.log_all()
    }

    /// What the front end may choose from (GET_PROTOCOL_FEATURES).
    pub fn protocol_features(&self) -> Protocol {
        Protocol::MQ
            | Protocol::LOG_SHMFD
            | Protocol::BACKEND_REQ
            | Protocol::CONFIG
            | Protocol::CONFIGURE_MEM_SLOTS
            | Protocol::INFLIGHT_SHMFD
            | Protocol::RESET_DEVICE
            | Protocol::REPLY_ACK
    }

    /// What the front end chose (SET_PROTOCOL_FEATURES). The adapter's library lets
    /// through only messages that go with it; here it is kept for a successor.
    pub fn set_protocol_features(&mut self, chosen: u64) -> Result<(), MessageRefusal> {
        let offered = self.protocol_features().bits();
        if chosen & !offered == 0 {
            self.protocol = chosen;
            Ok(())
        } else {
            Err(MessageRefusal::ProtocolFeatures { chosen, offered })
        }
    }

    /// How many queues there are (GET_QUEUE_NUM).
    pub fn queues_max(&self) -> u16 {
        self.device.queues_max()
    }

    /// The number of descriptors of a ring (SET_VRING_NUM).
    pub fn set_ring_size(&mut self, queue: u32, size: u32) -> Result<(), MessageRefusal> {
        let queue = self.stopped_queue(queue, "SET_VRING_NUM")?;
        let layout = self.layout();
        let fits = |size: &u16| match layout {
            RingLayout::Split => size.is_power_of_two() && *size <= RING_SIZE_MAX,
            RingLayout::Packed => (1..=RING_SIZE_MAX).contains(size),
        };
        match (u16::try_from(size).ok().filter(fits), layout) {
            (Some(size), _) => self.ring(queue).size = Some(size),
            (None, RingLayout::Split) => return Err(MessageRefusal::RingSize { queue, size }),
            (None, RingLayout::Packed) => {
                return Err(MessageRefusal::PackedRingSize { queue, size });
            }
        }
        self.check_description(queue)?;
        self.start_if_ready(queue, UnmappedRingPolicy::Refuse)
    }

    /// Where a ring goes on (SET_VRING_BASE).
    pub fn set_ring_base(&mut self, queue: u32, base: u32) -> Result<(), MessageRefusal> {
        let queue = self.stopped_queue(queue, "SET_VRING_BASE")?;
        if self.layout() == RingLayout::Split && base > u16::MAX.into() {
            return Err(MessageRefusal::RingBase { queue, base });
        }
        self.ring(queue).state = RingState::Stopped { base: Some(RingBase(base)) };
        self.start_if_ready(queue, UnmappedRingPolicy::Refuse)
    }

    /// Stops a ring until it is kicked off again, and says where it stopped (GET_VRING_BASE).
    pub fn stop_ring(&mut self, queue: u32) -> Result<RingBase, MessageRefusal> {
        let queue = self.check(queue)?;
        let base = self.stop_if_served(queue)?;
        self.ring(queue).kick = None;
        self.rest_if_idle()?;
        Ok(base)
    }

    /// Starts a ring: the driver kicks through this descriptor (SET_VRING_KICK).
    pub fn set_kick(&mut self, queue: u32, kick: Option<OwnedFd>) -> Result<(), MessageRefusal> {
        let queue = self.check(queue)?;
        let kick = kick.ok_or(MessageRefusal::NoKick { queue })?;
        let kick = vring_fd::take(queue, VringFdKind::Kick, kick)?;
        self.stop_if_served(queue)?;
        self.ring(queue).kick = Some(kick);
        self.start_if_ready(queue, UnmappedRingPolicy::Refuse)?;
        self.rest_if_idle()
    }

    /// The guest is interrupted through this descriptor; not at all without one
    /// (SET_VRING_CALL).
    pub fn set_call(&mut self, queue: u32, call: Option<OwnedFd>) -> Result<(), MessageRefusal> {
        let queue = self.check(queue)?;
        let take = |fd| vring_fd::take(queue, VringFdKind::Call, fd);
        let call = call.map(take).transpose()?;
        let ring = self.ring(queue);
        ring.call = call;
        match ring.state {
            RingState::Stopped { .. } => Ok(()),
            RingState::Served => {
                let copy = vring_fd::duplicate(queue, VringFdKind::Call, ring.call.as_ref())?;
                self.device.set_call(queue, copy);
                Ok(())
            }
        }
    }

    /// The front end hears through this descriptor that a ring is broken, from its next start on
    /// (SET_VRING_ERR).
    pub fn set_error(&mut self, queue: u32, error: Option<OwnedFd>) -> Result<(), MessageRefusal> {
        let queue = self.check(queue)?;
        let take = |fd| vring_fd::take(queue, VringFdKind::Error, fd);
        self.ring(queue).error = error.map(take).transpose()?;
        Ok(())
    }

    /// Lets a started ring be served, or pauses it (SET_VRING_ENABLE).
    pub fn set_enabled(&mut self, queue: u32, enabled: bool) -> Result<(), MessageRefusal> {
        let queue = self.check(queue)?;
        self.ring(queue).enabled = enabled;
        if !enabled {
            self.stop_if_served(queue)?;
        }
        self.start_if_ready(queue, UnmappedRingPolicy::Refuse)?;
        self.rest_if_idle()
    }

    /// The device as it was when the session began, except for guest memory, which the front end
    /// takes for still known (RESET_DEVICE). The requests of an in-flight region are those of the
    /// rings before; it is forgotten.
    pub fn reset(&mut self) -> Result<(), MessageRefusal> {
        self.halt_all()?;
        self.rings.clear();
        self.inflight = None;
        self.features = Features::NONE;
        self.log = None;
        Ok(())
    }

    /// Disables all rings, the one meaning that was left to RESET_OWNER.
    pub fn disable_all(&mut self) -> Result<(), MessageRefusal> {
        self.halt_all()?;
        for ring in &mut self.rings {
            ring.enabled = false;
            // Without protocol features a ring is enabled by being started.
            ring.kick = None;
        }
        Ok(())
    }

    /// Stops all rings and lets the device rest. All are tried; the first error is returned.
    pub fn halt_all(&mut self) -> Result<(), MessageRefusal> {
        let paused = self.pause_all();
        let rested = self.device.rings_stopped();
        paused.and(rested.map_err(MessageRefusal::from))
    }

    /// Stops all rings, of which some may be served again by the same message: the device keeps what it
    /// holds for them.
    fn pause_all(&mut self) -> Result<(), MessageRefusal> {
        let served: Vec<QueueIndex> = self.served().collect();
        let mut result = Ok(());
        for queue in served {
            result = result.and(self.stop_if_served(queue).map(|_base| ()));
        }
        result
    }

    /// Lets the device rest unless it serves a ring, or will as soon as the ring has its memory again:
    /// front ends take regions away and give them back while the guest runs.
    fn rest_if_idle(&mut self) -> Result<(), MessageRefusal> {
        let features = self.features;
        let is_idle = self.rings.iter().all(|ring| match ring.state {
            RingState::Stopped { .. } => ring.ready(features).is_none(),
            RingState::Served => false,
        });
        if is_idle { Ok(self.device.rings_stopped()?) } else { Ok(()) }
    }

    /// The queues that are being served.
    fn served(&self) -> impl Iterator<Item = QueueIndex> + '_ {
        (0..).zip(&self.rings).filter_map(|(index, ring)| match ring.state {
            RingState::Served => Some(QueueIndex(index)),
            RingState::Stopped { .. } => None,
        })
    }

    /// How rings lie in memory, as far as the features were chosen.
    fn layout(&self) -> RingLayout {
        RingLayout::of(self.features)
    }

    fn check(&self, queue: u32) -> Result<QueueIndex, MessageRefusal> {
        let queues = self.device.queues_max();
        match u16::try_from(queue) {
            Ok(index) if index < queues => Ok(QueueIndex(index)),
            Ok(_) | Err(_) => Err(MessageRefusal::NoSuchQueue { queue, queues }),
        }
    }

    /// A queue that exists and is not being served.
    fn stopped_queue(
        &mut self,
        queue: u32,
        message: &'static str,
    ) -> Result<QueueIndex, MessageRefusal> {
        let queue = self.check(queue)?;
        match self.ring(queue).state {
            RingState::Stopped { .. } => Ok(queue),
            RingState::Served => Err(MessageRefusal::RingInUse { queue, message }),
        }
    }

    fn ring(&mut self, queue: QueueIndex) -> &mut SessionRing {
        let index = usize::from(queue.0);
        if self.rings.len() <= index {
            self.rings.resize_with(index + 1, SessionRing::default);
        }
        &mut self.rings[index]
    }

    /// Stops a ring if it is being served; says where it stands.
    fn stop_if_served(&mut self, queue: QueueIndex) -> Result<RingBase, MessageRefusal> {
        let start = RingBase::start(self.layout());
        match self.ring(queue).state {
            RingState::Stopped { base } => Ok(base.unwrap_or(start)),
            RingState::Served => {
                let stopped = self.device.stop(queue);
                // After an error the session ends and asks for nothing more.
                let base = stopped.as_ref().ok().copied();
                self.ring(queue).state = RingState::Stopped { base };
                let base = stopped?;
                debug!(%queue, %base, "stopped");
                Ok(base)
            }
        }
    }

    /// A ring that was just described must lie in guest memory, if there is any yet.
    fn check_description(&mut self, queue: QueueIndex) -> Result<(), MessageRefusal> {
        let features = self.features;
        match self.ring(queue).described(features) {
            Some(setup) if !self.memory.is_empty() => {
                setup.check(&self.memory).map_err(|source| MessageRefusal::Ring { queue, source })
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Serves every ring that is ready, after a pause; one outside guest memory waits.
    fn start_all_ready(&mut self) -> Result<(), MessageRefusal> {
        for queue in (0..).take(self.rings.len()).map(QueueIndex) {
            self.start_if_ready(queue, UnmappedRingPolicy::Wait)?;
        }
        self.rest_if_idle()
    }

    /// Serves a ring if it is ready and not being served.
    fn start_if_ready(
        &mut self,
        queue: QueueIndex,
        outside: UnmappedRingPolicy,
    ) -> Result<(), MessageRefusal> {
        let features = self.features;
        let Some(setup) = self.ring(queue).ready(features) else {
            return Ok(());
        };
        if self.memory.is_empty() {
            // While regions are exchanged there may be none for a moment.
            if !self.has_shared {
                self.device.no_memory_shared(queue);
            }
            return Ok(());
        }
        if !features.contains(Features::VERSION_1) {
            return Err(MessageRefusal::Legacy { queue });
        }
        // Not before: a front end may say the new size first and the new base after.
        setup.check_base().map_err(|source| MessageRefusal::Ring { queue, source })?;
        match (setup.check(&self.memory), outside) {
            (Ok(()), _) => {}
            (Err(source), UnmappedRingPolicy::Refuse) => {
                return Err(MessageRefusal::Ring { queue, source });
            }
            (Err(error), UnmappedRingPolicy::Wait) => {
                debug!(%queue, %error, "waits for its memory");
                return Ok(());
            }
        }
        let inflight = self.inflight_of(queue, &setup)?;
        let log = self.ring_log(queue)?;
        let [kick, call, error] = self.ring(queue).descriptors(queue)?;
        let start = RingStart {
            setup,
            memory: Arc::clone(&self.memory),
            inflight,
            kick: kick.expect("a ring that is ready has been started with one"),
            call,
            error,
            features: features.without(PROTOCOL_FEATURES | LOG_ALL),
            log,
        };
        match self.device.start(queue, start)? {
            StartResult::Served => {
                self.ring(queue).state = RingState::Served;
                debug!(%queue, base = %setup.base, layout = %setup.layout, "served");
            }
            // The message is answered all the same: the ring is ready, and `go_on` starts it.
            StartResult::Postponed => debug!(%queue, "waits for the end of a pause"),
        }
        Ok(())
    }
}
