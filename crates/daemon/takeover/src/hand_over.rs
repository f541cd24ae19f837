//! What changes hands, in packets: one for each export, region, ring and file, since a packet has few descriptors.
//!
//! Limits: as many exports as were offered; of each as many regions and rings as a session has; [`FILES_MAX`] and
//! [`RANGES_MAX`]. What an old process says is checked like what a front end says: a guest may have taken it over.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use exports::SocketIdentity;
use graph::GraphPath;
use host::chain_of;
use kernel_io::ImageLocks;
use qcow2::ImageState;
use vhost_user::{SavedLog, SavedRegion, SavedRing, SavedSession};
use virtio::{
    CacheMode, Features, GuestAddress, INFLIGHT_QUEUES_MAX, InflightDescription, REGIONS_MAX,
    RegionSpec, RingAddresses, RingBase,
};

use super::bitmaps::{INHERITED_MAX, InheritedBitmap};
use super::limits::{ANSWER_LIMIT, DRAIN_LIMIT, Deadline, READY_LIMIT};
use super::protocol::{Message, SOCKETS_MAX, TakeoverConnection, WireError};

/// How long the first packet may take: it comes when nothing is in flight any more.
pub(super) const FIRST_LIMIT: Duration = DRAIN_LIMIT.saturating_add(ANSWER_LIMIT);

/// How many files there can be below all exports.
const FILES_MAX: usize = 1 << 14;

/// How many ranges of clusters can be said of all images together.
const RANGES_MAX: usize = 1 << 16;

/// How many of them go into one packet.
const RANGES_OF_PACKET: usize = 1000;

/// Everything that is handed over in a takeover: exports, files, images.
#[derive(Debug, Default)]
pub(super) struct HandOverState {
    pub(super) exports: Vec<ExportHandOver>,
    /// By export and place.
    pub(super) files: BTreeMap<GraphPath, (OwnedFd, ImageLocks)>,
    pub(super) images: BTreeMap<GraphPath, ImageState>,
    pub(super) bitmaps: Vec<InheritedBitmap>,
}

/// Everything that is handed over for one export.
#[derive(Debug)]
pub(super) struct ExportHandOver {
    pub(super) socket: SocketIdentity,
    /// Whether the socket's file is that of whoever started the daemon.
    pub(super) is_given: bool,
    pub(super) cache: CacheMode,
    /// When its queues were to be stopped, on the clock that all processes share.
    pub(super) stopped: Duration,
    pub(super) listener: OwnedFd,
    /// The next client, if it was accepted.
    pub(super) next: Option<OwnedFd>,
    /// The connection and what was said on it, if there is a client.
    pub(super) session: Option<(OwnedFd, SavedSession)>,
    /// Whether its node is claimed.
    pub(super) held: bool,
}

/// Sends an export. The descriptors stay with the caller too.
pub(super) fn send(
    wire: &TakeoverConnection,
    handed_over: &ExportHandOver,
    until: Deadline,
) -> Result<(), WireError> {
    let ExportHandOver { socket, is_given, cache, stopped, listener, next, session, held } =
        handed_over;
    let head = Message::Export {
        socket: *socket,
        writeback: *cache == CacheMode::WriteBack,
        stopped_ns: u64::try_from(stopped.as_nanos()).unwrap_or(u64::MAX),
        held: *held,
        given: *is_given,
    };
    wire.send(&head, &[listener.as_fd()], until)?;
    if let Some(next) = next {
        wire.send(&Message::WaitingClientState, &[next.as_fd()], until)?;
    }
    let Some((connection, state)) = session else { return Ok(()) };
    let SavedSession { features, protocol, regions, inflight, channel, rings, log, is_logging: _ } =
        state;
    let session = Message::Session { features: features.0, protocol: *protocol };
    wire.send(&session, &[connection.as_fd()], until)?;
    for SavedRegion { spec, file } in regions {
        let RegionSpec { guest, bytes, user_address, file_offset } = *spec;
        let region = Message::Region { guest: guest.0, bytes, user_address, file_offset };
        wire.send(&region, &[file.as_fd()], until)?;
    }
    if let Some(InflightDescription { queues, queue_size, bytes, offset, file }) = inflight {
        let (queues, queue_size, bytes, offset) = (*queues, *queue_size, *bytes, *offset);
        let inflight = Message::Inflight { queues, queue_size, bytes, offset };
        wire.send(&inflight, &[file.as_fd()], until)?;
    }
    if let Some(SavedLog { bytes, offset, file }) = log {
        let (bytes, offset) = (*bytes, *offset);
        wire.send(&Message::Log { bytes, offset }, &[file.as_fd()], until)?;
    }
    if let Some(channel) = channel {
        wire.send(&Message::Channel, &[channel.as_fd()], until)?;
    }
    rings.iter().try_for_each(|ring| send_ring(wire, ring, until))
}

/// Sends what an image has in memory alone.
pub(super) fn send_image(
    wire: &TakeoverConnection,
    (export, place): &GraphPath,
    state: &ImageState,
    until: Deadline,
) -> Result<(), WireError> {
    let ImageState { reserved, freed, tables_durable } = state;
    let message = |reserved: &[Range<u64>], freed: &[Range<u64>]| Message::Image {
        export: export.clone(),
        place: place.clone(),
        reserved: reserved.iter().map(|range| [range.start, range.end]).collect(),
        freed: freed.iter().map(|range| [range.start, range.end]).collect(),
        tables_durable: *tables_durable,
    };
    if reserved.len() + freed.len() > RANGES_MAX {
        let what = "more clusters that are not free yet than can be handed over".to_owned();
        return Err(WireError::Unexpected(what));
    }
    wire.send(&message(&[], &[]), &[], until)?;
    for part in reserved.chunks(RANGES_OF_PACKET) {
        wire.send(&message(part, &[]), &[], until)?;
    }
    for part in freed.chunks(RANGES_OF_PACKET) {
        wire.send(&message(&[], part), &[], until)?;
    }
    Ok(())
}

fn send_ring(
    wire: &TakeoverConnection,
    ring: &SavedRing,
    until: Deadline,
) -> Result<(), WireError> {
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
    wire.send(&message, &fds, until)
}

/// Receives everything, of at most so many exports; the first packet has been waited for ([`FIRST_LIMIT`]). A
/// refusal instead of it is given as its reason.
pub(super) fn receive(
    wire: &TakeoverConnection,
    most: usize,
) -> Result<Result<HandOverState, String>, WireError> {
    let (mut transfer, until) = (HandOverState::default(), Deadline::within(READY_LIMIT));
    loop {
        let (message, fds) = wire.receive_with_descriptors(until)?;
        match transfer.add(message, fds, most)? {
            HandOverProgress::More => {}
            HandOverProgress::All => return Ok(Ok(transfer)),
            HandOverProgress::Refused(reason) => return Ok(Err(reason)),
        }
    }
}

/// What an old process says on this connection up to its end: its offers, then everything that changes hands, each up
/// to where it says that this was all. Gives the sessions, none of which has been looked at. For those who try what a
/// hostile one could say; blocks for as long as it may take to say it.
pub fn read_hand_over(connection: OwnedFd) -> Result<Vec<SavedSession>, String> {
    let wire = TakeoverConnection::of(connection);
    let said = |error: WireError| chain_of(&error).to_string();
    wire.receive_offers().map_err(said)?;
    let transfer = receive(&wire, SOCKETS_MAX).map_err(said)??;
    Ok(transfer.exports.into_iter().filter_map(|export| export.session).map(|it| it.1).collect())
}

/// Whether more packets of the old process follow, all have come, or it refuses.
#[derive(Debug)]
pub(super) enum HandOverProgress {
    More,
    All,
    Refused(String),
}

impl HandOverState {
    /// Adds what a packet says.
    #[expect(clippy::wildcard_enum_match_arm, reason = "whatever else is said is not due here")]
    pub(super) fn add(
        &mut self,
        message: Message,
        fds: Vec<OwnedFd>,
        most: usize,
    ) -> Result<HandOverProgress, WireError> {
        let mut fds = PacketDescriptors(fds.into());
        match message {
            Message::Refused { reason } => return Ok(HandOverProgress::Refused(reason)),
            Message::End => return Ok(HandOverProgress::All),
            Message::Export { socket, writeback, stopped_ns, held, given }
                if self.exports.len() < most =>
            {
                let cache = if writeback { CacheMode::WriteBack } else { CacheMode::WriteThrough };
                let stopped = Duration::from_nanos(stopped_ns);
                let listener = fds.next()?;
                let (next, session) = (None, None);
                self.exports.push(ExportHandOver {
                    socket,
                    is_given: given,
                    cache,
                    stopped,
                    listener,
                    next,
                    session,
                    held,
                });
            }
            Message::WaitingClientState => {
                let handed_over =
                    self.exports.last_mut().filter(|handed_over| handed_over.next.is_none());
                handed_over.ok_or_else(|| message.unexpected())?.next = Some(fds.next()?);
            }
            Message::Session { features, protocol } => {
                let handed_over =
                    self.exports.last_mut().filter(|handed_over| handed_over.session.is_none());
                let handed_over = handed_over.ok_or_else(|| message.unexpected())?;
                let features = Features(features);
                let state = SavedSession { features, protocol, ..SavedSession::default() };
                handed_over.session = Some((fds.next()?, state));
            }
            Message::File { export, place, locks } if self.files.len() < FILES_MAX => {
                let known = ImageLocks::from_bits(locks);
                let what = || format!("locks {locks:?} on a file");
                let locks = known.ok_or_else(|| WireError::Unexpected(what()))?;
                self.files.insert((export, place), (fds.next()?, locks));
            }
            Message::Image { export, place, reserved, freed, tables_durable } => {
                let said = |state: &ImageState| state.reserved.len() + state.freed.len();
                let count: usize = self.images.values().map(said).sum();
                if self.images.len() >= FILES_MAX
                    || count + reserved.len() + freed.len() > RANGES_MAX
                {
                    let what = "more of images than can be".to_owned();
                    return Err(WireError::Unexpected(what));
                }
                let state = self.images.entry((export, place)).or_default();
                state.reserved.extend(reserved.into_iter().map(|[start, end]| start..end));
                state.freed.extend(freed.into_iter().map(|[start, end]| start..end));
                state.tables_durable = tables_durable;
            }
            Message::Bitmap(description) if self.bitmaps.len() < INHERITED_MAX => {
                let bits = description.is_consistent.then(|| fds.next()).transpose()?;
                self.bitmaps.push(InheritedBitmap { description, bits });
            }
            other => {
                let session =
                    self.exports.last_mut().and_then(|handed_over| handed_over.session.as_mut());
                let (_, state) = session.ok_or_else(|| other.unexpected())?;
                add(state, other, &mut fds)?;
            }
        }
        Ok(HandOverProgress::More)
    }
}

/// Adds what a packet says to a session.
#[expect(clippy::wildcard_enum_match_arm, reason = "whatever else is said is not due here")]
fn add(
    state: &mut SavedSession,
    message: Message,
    fds: &mut PacketDescriptors,
) -> Result<(), WireError> {
    match message {
        Message::Region { guest, bytes, user_address, file_offset }
            if state.regions.len() < REGIONS_MAX =>
        {
            let guest = GuestAddress(guest);
            let spec = RegionSpec { guest, bytes, user_address, file_offset };
            state.regions.push(SavedRegion { spec, file: fds.next()? });
        }
        Message::Inflight { queues, queue_size, bytes, offset } if state.inflight.is_none() => {
            let file = fds.next()?;
            state.inflight = Some(InflightDescription { queues, queue_size, bytes, offset, file });
        }
        Message::Log { bytes, offset } if state.log.is_none() => {
            state.log = Some(SavedLog { bytes, offset, file: fds.next()? });
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

/// The descriptors that came with a packet, in order.
struct PacketDescriptors(VecDeque<OwnedFd>);

impl PacketDescriptors {
    fn next(&mut self) -> Result<OwnedFd, WireError> {
        let missing = || WireError::Unexpected("a packet without a descriptor".to_owned());
        self.0.pop_front().ok_or_else(missing)
    }
}
