//! A client's connection, from its first byte to its last: the handshake, the transmission on an iothread, the end.
//!
//! Where it stands in the life of a request: before and after it. The thread of the connection waits while an iothread
//! serves it.
//!
//! Invariants: the thread ends when no request of the client is in flight any more. Limits: the time of a handshake.

use std::error::Error;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};

use host::{chain_of, peer_of};
use iothread::{PlacedFrontEnd, SourceName, SourceObserver};
use kernel_io::Notifier;
use nbd::{
    HeaderStyle, LostConnection, NbdConnection, NbdConnectionSetup, Negotiation, NegotiationFault,
    NegotiationStep, TlsPolicy, TransmissionSettings,
};
use request_path::{Counters, FrontEndSource};

use crate::catalog::ServerCatalog;
use crate::export::ExportShared;
use crate::handshake_stream::HandshakeStream;
use crate::server::ServerPlace;

/// How much is received at once in a handshake.
const RECEIVED_AT_ONCE: usize = 4096;

/// A client that was accepted.
#[derive(Debug)]
pub(crate) struct Connection {
    place: ServerPlace,
    socket: Arc<OwnedFd>,
    peer: String,
}

/// Why a transmission ends.
#[derive(Debug)]
pub(crate) enum ConnectionEnd {
    /// The export or the server ends.
    Stopped,
    /// The client has left, in order or not.
    Client(nbd::ConnectionEnd),
}

/// What a handshake came to.
struct Handshake {
    settings: TransmissionSettings,
    /// What the client has sent behind it.
    received: Vec<u8>,
}

/// Why there is no transmission.
#[derive(Debug, thiserror::Error)]
enum HandshakeError {
    #[error("the connection failed in its handshake")]
    Io(#[from] io::Error),
    #[error("its handshake took too long")]
    Late,
    #[error(transparent)]
    Protocol(#[from] NegotiationFault),
    #[error("export '{0}' is gone")]
    Gone(String),
    #[error("there are as many connections as may be")]
    Full,
    #[error("it cannot be served")]
    Serve(#[source] Box<dyn Error + Send + Sync>),
}

impl Connection {
    pub(crate) fn new(place: ServerPlace, socket: Arc<OwnedFd>, peer: Option<SocketAddr>) -> Self {
        let peer = match peer {
            Some(address) => address.to_string(),
            None => match peer_of(&*socket).ok().and_then(|peer| peer.process) {
                Some(process) => format!("process {process}"),
                None => "a UNIX socket".to_owned(),
            },
        };
        Self { place, socket, peer }
    }

    /// The whole life of the connection.
    pub(crate) fn run(self) {
        let server = Arc::clone(self.place.server());
        let peer = self.peer.clone();
        if let Err(error) = self.serve() {
            server.warn(|| format!("client {peer}: {}", chain_of(&error)));
        }
    }

    fn serve(mut self) -> Result<(), HandshakeError> {
        let Some(Handshake { settings, received }) = self.shake_hands()? else { return Ok(()) };
        let name = settings.export.as_str().to_owned();
        let export = self.place.server().catalog.get(&name);
        let export = export.ok_or_else(|| HandshakeError::Gone(name.clone()))?;
        if !self.place.connect() {
            return Err(HandshakeError::Full);
        }
        let (sender, ends) = channel();
        let number = export.enter(sender.clone()).ok_or(HandshakeError::Gone(name))?;
        let how = TransmissionText::of(&settings);
        let failed = |error: Box<dyn Error + Send + Sync>| HandshakeError::Serve(error);
        let socket = Arc::try_unwrap(self.socket).or_else(|shared| shared.try_clone())?;
        let placed = place(&export, number.get(), socket, (settings, received), sender);
        let placed = placed.map_err(failed)?;
        say(&export, &self.place, || {
            tracing::info!("export {}: NBD client {} has come: {how}", export.disk.id, self.peer);
        });
        let end = ends.recv().unwrap_or(ConnectionEnd::Stopped);
        let source = placed.stop();
        let counters = source.counters();
        drop(source);
        say(&export, &self.place, || say_end(&export, &self.peer, &end, counters));
        Ok(())
    }

    /// Negotiates until the client has chosen an export; `None` if it leaves before.
    fn shake_hands(&self) -> Result<Option<Handshake>, HandshakeError> {
        let server = self.place.server();
        let until = server.handshake_max.map(|limit| server.clock.now() + limit);
        let socket = Arc::clone(&self.socket);
        let mut stream = HandshakeStream::new(socket, until, Arc::clone(&server.clock));
        let catalog =
            ServerCatalog { exports: &server.catalog, multi_conn: server.takes_several() };
        let mut negotiation = Negotiation::new(TlsPolicy::None);
        let late = |error: io::Error| {
            let is_late = error.kind() == io::ErrorKind::TimedOut;
            if is_late { HandshakeError::Late } else { HandshakeError::Io(error) }
        };
        stream.write_all(&negotiation.greeting()).map_err(late)?;
        let mut room = [0; RECEIVED_AT_ONCE];
        loop {
            let count = stream.read(&mut room).map_err(late)?;
            if count == 0 {
                return Ok(None);
            }
            let progress = negotiation.receive(&room[..count], &catalog);
            stream.write_all(&progress.output).map_err(late)?;
            match progress.step {
                NegotiationStep::More => {}
                NegotiationStep::StartTls => unreachable!("TLS is not offered"),
                NegotiationStep::Aborted => return Ok(None),
                NegotiationStep::Failed(fault) => return Err(fault.into()),
                NegotiationStep::Transmission { settings, received } => {
                    return Ok(Some(Handshake { settings, received }));
                }
            }
        }
    }
}

/// Has an iothread serve a transmission.
fn place(
    export: &ExportShared,
    number: u16,
    socket: OwnedFd,
    (settings, received): (TransmissionSettings, Vec<u8>),
    ends: Sender<ConnectionEnd>,
) -> Result<PlacedFrontEnd<NbdConnection>, Box<dyn Error + Send + Sync>> {
    let ExportShared { disk, durability, .. } = export;
    let durability = *durability;
    // What the disk has become since the last client came.
    disk.size.review();
    // The mailbox needs somebody to wake before the connection is placed.
    let nobody = Arc::new(Notifier::new()?);
    let size = Arc::clone(disk.size.capacity());
    let setup = NbdConnectionSetup { socket, settings, received, size, durability };
    let front = NbdConnection::new(setup)?;
    let source = FrontEndSource::new(front, vec![Arc::clone(&disk.node)], nobody);
    let name = SourceName { export: disk.id.clone(), queue: number };
    let observer = Arc::new(EndObserver { ends: Mutex::new(ends) });
    let iothread = disk.iothreads().of_queue(number);
    let placed = PlacedFrontEnd::on(&iothread, name, source, observer);
    // The connection goes with the refusal.
    placed.map_err(|refusal| Box::new(refusal.source) as Box<_>)
}

/// Says something about the clients of an export, if it is not said too often.
fn say(export: &ExportShared, place: &ServerPlace, sentence: impl FnOnce()) {
    let now = place.server().clock.now();
    let mut rate = export.rate.lock().expect("no holder of this lock panics");
    if rate.admit(now).is_some() {
        sentence();
    }
}

fn say_end(export: &ExportShared, peer: &str, end: &ConnectionEnd, counters: Counters) {
    let id = &export.disk.id;
    let Counters { reads, writes, flushes, discards, write_zeroes, errors, .. } = counters;
    let done = format!(
        "reads={reads} writes={writes} flushes={flushes} discards={discards} \
         write-zeroes={write_zeroes} errors={errors}"
    );
    match end {
        ConnectionEnd::Stopped => {
            tracing::info!("export {id}: NBD client {peer} was let go: {done}")
        }
        ConnectionEnd::Client(
            nbd::ConnectionEnd::ClientLeft | nbd::ConnectionEnd::Lost(LostConnection::Closed),
        ) => tracing::info!("export {id}: NBD client {peer} has left: {done}"),
        ConnectionEnd::Client(fault) => {
            tracing::warn!("export {id}: NBD client {peer}: {}: {done}", chain_of(fault));
        }
    }
}

/// Tells the connection's thread of its end.
#[derive(Debug)]
struct EndObserver {
    ends: Mutex<Sender<ConnectionEnd>>,
}

impl SourceObserver for EndObserver {
    fn broken(&self, fault: &(dyn Error + 'static)) {
        let end = fault.downcast_ref::<nbd::ConnectionEnd>().copied();
        let end = end.expect("a connection has no other faults");
        let ends = self.ends.lock().expect("no holder of this lock panics");
        // A thread that is told to stop hears nothing more.
        let _stopping = ends.send(ConnectionEnd::Client(end));
    }

    fn kicked_while_empty(&self) {}
}

/// How a transmission reads in the log.
struct TransmissionText {
    style: HeaderStyle,
    contexts: usize,
}

impl TransmissionText {
    fn of(settings: &TransmissionSettings) -> Self {
        Self { style: settings.style, contexts: settings.contexts.iter().count() }
    }
}

impl fmt::Display for TransmissionText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.style {
            HeaderStyle::Simple => "simple replies",
            HeaderStyle::Structured => "structured replies",
            HeaderStyle::Extended => "extended headers",
        })?;
        if self.contexts > 0 {
            f.write_str(", block status")?;
        }
        Ok(())
    }
}
