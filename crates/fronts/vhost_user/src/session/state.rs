//! A session as it is handed over to another process, which goes on with it on the same connection.
//!
//! Where it stands: [`SessionServer::run`](crate::SessionServer::run) gives it to whoever asks for a pause;
//! [`SessionServer::restore`](crate::SessionServer::restore) makes a session of it again.
//!
//! Invariants: no ring is served when a state is made, nor when one has been restored. It holds
//! what a front end would say to a new back end, and where each ring stands: nothing is in flight.
//! What it says is checked like messages of a front end.
//! Not here: how a state travels (`daemon`).

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use virtio::{
    Features, GuestMemory, InflightDescription, Region, RegionSpec, RingAddresses, RingBase,
};

use super::log::LOG_ALL;
use super::ring::RingState as Standing;
use super::{Session, SessionRing};
use crate::{Device, MessageRefusal, QueueIndex};

/// A session as it is handed over in a takeover: what its front end has said, and how far its rings were served.
#[derive(Debug, Default)]
pub struct SavedSession {
    /// What the driver chose, with the transport's bit (SET_FEATURES).
    pub features: Features,
    /// What the front end chose (SET_PROTOCOL_FEATURES).
    pub protocol: u64,
    /// The guest's memory.
    pub regions: Vec<SavedRegion>,
    /// Where requests in flight are tracked.
    pub inflight: Option<InflightDescription>,
    /// The back end's own channel, if the front end has given one (SET_BACKEND_REQ_FD).
    pub channel: Option<OwnedFd>,
    /// The rings, from queue 0 on.
    pub rings: Vec<SavedRing>,
    /// The dirty log, if the front end has given one.
    pub log: Option<SavedLog>,
    /// Whether pages are marked in it: that is not handed over.
    pub is_logging: bool,
}

/// A dirty log as it is handed over: file, offset and size (SET_LOG_BASE). A front end that has cancelled a migration
/// does not take it back.
#[derive(Debug)]
pub struct SavedLog {
    /// Its size.
    pub bytes: u64,
    /// Where it starts in its file, in bytes.
    pub offset: u64,
    /// Its file.
    pub file: OwnedFd,
}

/// A region of guest memory as it is handed over, with its file.
#[derive(Debug)]
pub struct SavedRegion {
    /// What the front end said of it.
    pub spec: RegionSpec,
    /// Its file.
    pub file: OwnedFd,
}

/// A ring as it is handed over: size, addresses, base, descriptors.
#[derive(Debug, Default)]
pub struct SavedRing {
    /// How many descriptors it has, if that was said.
    pub size: Option<u16>,
    /// Where it lies in the front end's address space, if that was said.
    pub addresses: Option<RingAddresses>,
    /// How far it was served, if it ever was or that was said.
    pub base: Option<RingBase>,
    /// Whether it is enabled (SET_VRING_ENABLE).
    pub enabled: bool,
    /// The driver kicks through it; there is one if the ring is started.
    pub kick: Option<OwnedFd>,
    /// The guest is interrupted through it.
    pub call: Option<OwnedFd>,
    /// The front end hears through it that the ring is broken.
    pub error: Option<OwnedFd>,
}

impl<D: Device> Session<D> {
    /// Stops all rings and says how everything stands. [`Session::go_on`] serves them again. The device keeps what
    /// it holds for them.
    pub fn pause(&mut self) -> Result<SavedSession, MessageRefusal> {
        self.pause_all()?;
        // Whatever a session learns to hold must be handed over too: no `..` here.
        let Self {
            device: _,
            memory,
            // It is known again from the regions.
            has_shared: _,
            inflight,
            features,
            log,
            protocol,
            channel,
            incoming_channel: _,
            rings,
        } = self;
        let is_logged = |ring: &SessionRing| ring.logged_at.is_some();
        let is_logging = features.contains(LOG_ALL) || rings.iter().any(is_logged);
        let log = log.as_ref().map(|log| -> Result<_, MessageRefusal> {
            let RegionSpec { bytes, file_offset: offset, .. } = log.region().spec();
            Ok(SavedLog { bytes, offset, file: copy(log.region().file())? })
        });
        let regions = memory
            .regions()
            .iter()
            .map(|region| Ok(SavedRegion { spec: region.spec(), file: copy(region.file())? }))
            .collect::<Result<_, MessageRefusal>>()?;
        let inflight = inflight.as_ref().map(|tracking| tracking.region().description());
        let rings = (0..).zip(&*rings).map(|(queue, ring)| ring.save(QueueIndex(queue)));
        Ok(SavedSession {
            features: *features,
            protocol: *protocol,
            regions,
            inflight: inflight.transpose().map_err(MessageRefusal::Copy)?,
            channel: channel.as_ref().map(|channel| copy(channel.as_fd())).transpose()?,
            rings: rings.collect::<Result<_, _>>()?,
            log: log.transpose()?,
            is_logging,
        })
    }

    /// Serves every ring that is ready.
    pub fn go_on(&mut self) -> Result<(), MessageRefusal> {
        self.start_all_ready()
    }

    /// Takes over what another process has heard, into a session that has chosen the same features.
    /// No ring is served before [`Session::go_on`].
    pub(crate) fn restore(&mut self, state: SavedSession) -> Result<(), MessageRefusal> {
        let SavedSession {
            features: _,
            protocol: _,
            regions,
            inflight,
            channel,
            rings,
            log,
            is_logging: _,
        } = state;
        if let Some(last) = rings.len().checked_sub(1) {
            self.check(u32::try_from(last).unwrap_or(u32::MAX))?;
        }
        let rules = self.device.memory_rules();
        let map = |it: SavedRegion| Region::map(it.file, it.spec, rules).map(Arc::new);
        let regions = regions.into_iter().map(map).collect::<Result<_, _>>()?;
        let memory = GuestMemory::new(regions)?;
        self.share(memory);
        if let Some(inflight) = inflight {
            self.adopt_inflight(inflight)?;
        }
        if let Some(channel) = channel {
            self.set_channel(channel);
        }
        if let Some(SavedLog { bytes, offset, file }) = log {
            self.set_log(file, bytes, offset)?;
        }
        // Whether they lie in guest memory is looked at when they are served: one that does not waits.
        self.rings = (0..)
            .zip(rings)
            .map(|(queue, ring)| SessionRing::restore(QueueIndex(queue), ring))
            .collect::<Result<_, _>>()?;
        Ok(())
    }
}

impl SessionRing {
    fn save(&self, queue: QueueIndex) -> Result<SavedRing, MessageRefusal> {
        let Standing::Stopped { base } = self.state else {
            unreachable!("all rings were stopped just now");
        };
        let [kick, call, error] = self.descriptors(queue)?;
        let Self { size, addresses, enabled, .. } = *self;
        Ok(SavedRing { size, addresses, base, enabled, kick, call, error })
    }

    fn restore(queue: QueueIndex, state: SavedRing) -> Result<Self, MessageRefusal> {
        use super::vring_fd::{VringFdKind, take};
        let check = |fd: Option<OwnedFd>, what| fd.map(|fd| take(queue, what, fd)).transpose();
        let SavedRing { size, addresses, base, enabled, kick, call, error } = state;
        Ok(Self {
            size,
            addresses,
            logged_at: None,
            kick: check(kick, VringFdKind::Kick)?,
            call: check(call, VringFdKind::Call)?,
            error: check(error, VringFdKind::Error)?,
            enabled,
            state: Standing::Stopped { base },
        })
    }
}

fn copy(fd: std::os::fd::BorrowedFd<'_>) -> Result<OwnedFd, MessageRefusal> {
    fd.try_clone_to_owned().map_err(MessageRefusal::Copy)
}
