//! What all connections of a node share: how they are made, what was agreed on with the first one, the medium, connections
//! that nobody uses now.
//!
//! Threads: shared by all iothreads and control threads. Limits: [`SPARES_MAX`] connections that nobody uses.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use block::{Alignments, Clock, DurableWriteMethod, Medium, SystemClock};
use nbd_wire::transmission;

use crate::address::{ServerAddress, ServerEndpoint};
use crate::connector::{ClientTls, ConnectError, Connected, Connector};
use crate::flush_coverage::FlushCoverage;
use crate::handshake::HandshakeError;
use crate::known_hosts::KnownHosts;
use crate::shared_line::SharedLine;
use crate::terms::Terms;
use crate::unknown_outcomes::UnknownOutcomes;

/// The most bytes of a read or a write, whatever the server takes: it bounds what is kept of one.
const TRANSFER_BYTES_MAX: u32 = 1 << 20;

/// The most connections that are kept for whoever opens a lane next.
const SPARES_MAX: usize = 16;

/// How long after a failed attempt at the start the next one is made.
const OPEN_PAUSE: Duration = Duration::from_secs(1);

/// Where an export is, and how long is waited for it.
#[derive(Debug)]
pub struct RemoteOptions {
    /// The server.
    pub address: ServerAddress,
    /// The connection that the process was started with, if that is the address: a stream socket.
    pub given: Option<OwnedFd>,
    /// The name of the export.
    pub export: String,
    /// With what TLS is done, if it is.
    pub tls: Option<ClientTls>,
    /// How long the first connection is tried for; once in any case.
    pub open_timeout: Duration,
    /// How long requests wait for another connection.
    pub reconnect_delay: Duration,
}

/// An export of a server, as all users of a node share it.
#[derive(Debug)]
pub(crate) struct Remote {
    connector: Connector,
    pub(crate) reconnect_delay: Duration,
    pub(crate) terms: Terms,
    pub(crate) medium: Arc<Medium>,
    pub(crate) unknown: UnknownOutcomes,
    /// Which changes are durable.
    pub(crate) coverage: FlushCoverage,
    /// How many claims there are under which it may be changed.
    pub(crate) writers: AtomicUsize,
    /// The connection that all lanes share, if the server allows only one.
    pub(crate) shared: Option<SharedLine>,
    spares: Mutex<Vec<Connected>>,
    lines: AtomicU64,
    lost: Mutex<LostLines>,
}

/// Connections of a node that were lost, or could not be made, and are not there again.
#[derive(Debug, Default)]
struct LostLines {
    count: usize,
    /// Since when there are some.
    since: Option<Instant>,
}

impl Remote {
    /// Makes the first connection. Blocks.
    pub(crate) fn open(
        options: RemoteOptions,
        hosts: &KnownHosts,
    ) -> Result<Arc<Self>, ConnectError> {
        let RemoteOptions { address, given, export, tls, open_timeout, reconnect_delay } = options;
        let name = address.uri(&export);
        let endpoint = address.resolve(hosts).map_err(ConnectError::Resolve)?;
        let is_given = endpoint == ServerEndpoint::Given;
        let connector = Connector { endpoint, export, tls, given: Mutex::new(given) };
        let first = connect_within(&connector, open_timeout)?;
        let terms = first.terms;
        let is_shared = is_given || !terms.has(transmission::CAN_MULTI_CONN);
        Ok(Arc::new(Self {
            connector,
            reconnect_delay,
            terms,
            medium: Arc::new(medium(name, &terms)),
            unknown: UnknownOutcomes::default(),
            coverage: FlushCoverage::default(),
            writers: AtomicUsize::new(0),
            shared: is_shared.then(SharedLine::default),
            spares: Mutex::new(vec![first]),
            lines: AtomicU64::new(0),
            lost: Mutex::default(),
        }))
    }

    /// A number for a line, which no other one has.
    pub(crate) fn line_number(&self) -> u64 {
        self.lines.fetch_add(1, Ordering::Relaxed)
    }

    /// A line has no connection any more, of which that was not said yet.
    pub(crate) fn line_lost(&self, now: Instant) {
        let mut lost = self.lost();
        lost.count += 1;
        lost.since.get_or_insert(now);
    }

    /// One of which that was said has a connection again, or is gone.
    pub(crate) fn line_found(&self) {
        let mut lost = self.lost();
        lost.count -= 1;
        if lost.count == 0 {
            lost.since = None;
        }
    }

    /// For how long there have been lines without a connection.
    pub(crate) fn disconnected(&self, now: Instant) -> Duration {
        self.lost().since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }

    fn lost(&self) -> MutexGuard<'_, LostLines> {
        self.lost.lock().expect("no holder of this lock panics")
    }

    /// Whether there are changes that only a flush makes durable.
    pub(crate) fn needs_flush(&self) -> bool {
        self.terms.has(transmission::SEND_FLUSH) && !self.coverage.is_complete()
    }

    fn spares(&self) -> MutexGuard<'_, Vec<Connected>> {
        self.spares.lock().expect("no holder of this lock panics")
    }

    /// A connection that nobody uses, if there is one that works.
    pub(crate) fn take_spare(&self) -> Option<Connected> {
        let mut spares = self.spares();
        while let Some(spare) = spares.pop() {
            if spare.link.is_alive() {
                return Some(spare);
            }
        }
        None
    }

    /// Keeps a connection on which nothing is under way, for whoever needs one; or hands it back.
    pub(crate) fn keep_spare(&self, connected: Connected) -> Option<Connected> {
        let mut spares = self.spares();
        if spares.len() >= SPARES_MAX {
            return Some(connected);
        }
        spares.push(connected);
        None
    }

    /// Makes another connection to the same disk. Blocks.
    pub(crate) fn connect(&self) -> Result<Connected, ConnectError> {
        let connected = self.connector.connect()?;
        let (before, now) = (&self.terms, &connected.terms);
        if !before.is_same_disk(now) {
            return Err(ConnectError::OtherDisk {
                before: before.size,
                flags_before: before.flags,
                now: now.size,
                flags_now: now.flags,
            });
        }
        Ok(connected)
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        for mut spare in self.spares().drain(..) {
            crate::line::leave(&mut spare);
        }
    }
}

/// What the engine has to know of the disk.
fn medium(name: String, terms: &Terms) -> Medium {
    let Terms { minimum, maximum, .. } = *terms;
    let alignments = Alignments { memory: 1, offset: minimum, allocation: minimum };
    let stable_writes = if terms.has(transmission::SEND_FUA) {
        DurableWriteMethod::ByThemselves
    } else {
        DurableWriteMethod::BySync
    };
    let most = maximum.min(TRANSFER_BYTES_MAX.max(minimum));
    let medium = Medium::new(name, alignments, stable_writes);
    medium.with_transfer_max((most - most % minimum).into())
}

/// Tries until it succeeds, or the time is over; once in any case. What the server says of itself is final.
fn connect_within(connector: &Connector, limit: Duration) -> Result<Connected, ConnectError> {
    let end: Instant = SystemClock.now() + limit;
    loop {
        let error = match connector.connect() {
            Ok(connected) => return Ok(connected),
            Err(error) => error,
        };
        let may_pass = matches!(
            error,
            ConnectError::Connect(_)
                | ConnectError::Handshake(
                    HandshakeError::Connection(_) | HandshakeError::NoExport { .. }
                )
        );
        let left = end.saturating_duration_since(SystemClock.now());
        if left.is_zero() || !may_pass {
            return Err(error);
        }
        let (nobody, never) = (Mutex::new(()), Condvar::new());
        let waits = nobody.lock().expect("it is this thread's own");
        drop(never.wait_timeout(waits, left.min(OPEN_PAUSE)));
    }
}
