//! Sessions in packets: one for each export, region and ring, since a packet has few descriptors.
//!
//! Limits: as many exports as were offered; of each as many regions and rings as a session has.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use vhost_user::{InflightState, RegionState, SavedRing, SessionState};
use virtio::{
    CacheMode, Features, GuestAddress, INFLIGHT_QUEUES_MAX, REGIONS_MAX, RegionSpec, RingAddresses,
    RingBase,
};

use super::wire::{Message, SocketFile, Wire, WireError};
use super::{ANSWER_LIMIT, DRAIN_LIMIT};

/// How long the first packet may take: it comes when nothing is in flight any more.
pub(super) const FIRST_LIMIT: Duration = DRAIN_LIMIT.saturating_add(ANSWER_LIMIT);

/// Everything about one export.
#[derive(Debug)]
pub(super) struct Parcel {
    pub(super) socket: SocketFile,
    pub(super) cache: CacheMode,
    /// When its queues were to be stopped, on the clock that all processes share.
    pub(super) stopped: Duration,
    pub(super) listener: OwnedFd,
    /// The connection and what was said on it, if there is a client.
    pub(super) session: Option<(OwnedFd, SessionState)>,
}

/// Sends a parcel. The descriptors stay with the caller too.
pub(super) fn send(wire: &Wire, parcel: &Parcel) -> Result<(), WireError> {
    let Parcel { socket, cache, stopped, listener, session } = parcel;
    let head = Message::Export {
        socket: *socket,
        writeback: *cache == CacheMode::WriteBack,
        stopped_ns: u64::try_from(stopped.as_nanos()).unwrap_or(u64::MAX),
    };
    wire.send(&head, &[listener.as_fd()])?;
    let Some((connection, state)) = session else { return Ok(()) };
    let SessionState { features, protocol, regions, inflight, channel, rings, is_logging: _ } =
        state;
    let session = Message::Session { features: features.0, protocol: *protocol };
    wire.send(&session, &[connection.as_fd()])?;
    for RegionState { spec, file } in regions {
        let RegionSpec { guest, bytes, user_address, file_offset } = *spec;
        let region = Message::Region { guest: guest.0, bytes, user_address, file_offset };
        wire.send(&region, &[file.as_fd()])?;
    }
    if let Some(InflightState { queues, queue_size, bytes, offset, file }) = inflight {
        let (queues, queue_size, bytes, offset) = (*queues, *queue_size, *bytes, *offset);
        let inflight = Message::Inflight { queues, queue_size, bytes, offset };
        wire.send(&inflight, &[file.as_fd()])?;
    }
    if let Some(channel) = channel {
        wire.send(&Message::Channel, &[channel.as_fd()])?;
    }
    rings.iter().try_for_each(|ring| send_ring(wire, ring))
}

fn send_ring(wire: &Wire, ring: &SavedRing) -> Result<(), WireError> {
    let SavedRing { size, addresses, base, enabled, kick, call, error } = ring;
    let places = |at: RingAddresses| [at.descriptors, at.available, at.used];
    let message = Message::Ring {
        size: *size,
        addresses: addresses.map(places),
        base: base.map(|base| base.0),
        enabled: *enabled,
        kick: kick.is_some(),
        call: call.is_some(),
        error: error.is_some(),
    };
    let fds: Vec<BorrowedFd<'_>> =
        [kick, call, error].into_iter().flatten().map(AsFd::as_fd).collect();
    wire.send(&message, &fds)
}

/// Receives all parcels, at most so many, of which the first packet has been waited for
/// ([`FIRST_LIMIT`]). A refusal instead of them is given as its reason.
#[expect(clippy::wildcard_enum_match_arm, reason = "whatever else is said is not due here")]
pub(super) fn receive(wire: &Wire, most: usize) -> Result<Result<Vec<Parcel>, String>, WireError> {
    let mut parcels: Vec<Parcel> = Vec::new();
    loop {
        let (message, fds) = wire.receive(ANSWER_LIMIT)?;
        let mut fds = Descriptors(fds.into());
        match message {
            Message::Refused { reason } => return Ok(Err(reason)),
            Message::End => return Ok(Ok(parcels)),
            Message::Export { socket, writeback, stopped_ns } if parcels.len() < most => {
                let cache = if writeback { CacheMode::WriteBack } else { CacheMode::WriteThrough };
                let stopped = Duration::from_nanos(stopped_ns);
                let listener = fds.next()?;
                parcels.push(Parcel { socket, cache, stopped, listener, session: None });
            }
            Message::Session { features, protocol } => {
                let parcel = parcels.last_mut().filter(|parcel| parcel.session.is_none());
                let parcel = parcel.ok_or_else(|| message.unexpected())?;
                let features = Features(features);
                let state = SessionState { features, protocol, ..SessionState::default() };
                parcel.session = Some((fds.next()?, state));
            }
            other => {
                let session = parcels.last_mut().and_then(|parcel| parcel.session.as_mut());
                let (_, state) = session.ok_or_else(|| other.unexpected())?;
                add(state, other, &mut fds)?;
            }
        }
    }
}

/// Adds what a packet says to a session.
#[expect(clippy::wildcard_enum_match_arm, reason = "whatever else is said is not due here")]
fn add(state: &mut SessionState, message: Message, fds: &mut Descriptors) -> Result<(), WireError> {
    match message {
        Message::Region { guest, bytes, user_address, file_offset }
            if state.regions.len() < REGIONS_MAX =>
        {
            let guest = GuestAddress(guest);
            let spec = RegionSpec { guest, bytes, user_address, file_offset };
            state.regions.push(RegionState { spec, file: fds.next()? });
        }
        Message::Inflight { queues, queue_size, bytes, offset } if state.inflight.is_none() => {
            let file = fds.next()?;
            state.inflight = Some(InflightState { queues, queue_size, bytes, offset, file });
        }
        Message::Channel if state.channel.is_none() => state.channel = Some(fds.next()?),
        Message::Ring { size, addresses, base, enabled, kick, call, error }
            if state.rings.len() < usize::from(INFLIGHT_QUEUES_MAX) =>
        {
            let mut take = |is_there: bool| is_there.then(|| fds.next()).transpose();
            let (kick, call, error) = (take(kick)?, take(call)?, take(error)?);
            let places = |[descriptors, available, used]: [u64; 3]| RingAddresses {
                descriptors,
                available,
                used,
            };
            state.rings.push(SavedRing {
                size,
                addresses: addresses.map(places),
                base: base.map(RingBase),
                enabled,
                kick,
                call,
                error,
            });
        }
        other => return Err(other.unexpected()),
    }
    Ok(())
}

/// The descriptors of a packet, in order.
struct Descriptors(VecDeque<OwnedFd>);

impl Descriptors {
    fn next(&mut self) -> Result<OwnedFd, WireError> {
        let missing = || WireError::Unexpected { what: "a packet without a descriptor".to_owned() };
        self.0.pop_front().ok_or_else(missing)
    }
}
