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

use credentials::{CertificateError, RuleFileError, distinguished_name};
use host::{chain_of, peer_of};
use iothread::{PlacedFrontEnd, SourceName, SourceObserver};
use kernel_io::Notifier;
use nbd::{
    HeaderStyle, LostConnection, NbdConnection, NbdConnectionSetup, NbdTransport, Negotiation,
    NegotiationFault, NegotiationStep, TlsPolicy, TransmissionSettings,
};
use request_path::{Counters, FrontEndSource};
use rustls::{ServerConnection, StreamOwned};

use crate::catalog::ServerCatalog;
use crate::export::ExportShared;
use crate::handshake_stream::HandshakeStream;
use crate::server::{ServerPlace, ServerTls};

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
    transport: NbdTransport,
}

/// Why there is no transmission.
#[derive(Debug, thiserror::Error)]
enum HandshakeError {
    #[error("the connection failed in its handshake")]
    Io(#[source] io::Error),
    #[error("its TLS handshake failed")]
    Tls(#[source] io::Error),
    #[error("it has no certificate, by which tls-authz knows clients")]
    NoCertificate,
    #[error("its certificate cannot be read")]
    Identity(#[source] CertificateError),
    #[error("tls-authz")]
    Rules(#[source] RuleFileError),
    #[error("'{0}' may not come, says tls-authz")]
    Identified(String),
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
        if let Err(error) = self.serve()
            && !error.is_leave()
        {
            server.warn(|| format!("client {peer}: {}", chain_of(&error)));
        }
    }

    fn serve(mut self) -> Result<(), HandshakeError> {
        let Some(handshake) = self.shake_hands()? else { return Ok(()) };
        let name = handshake.settings.export.as_str().to_owned();
        let export = self.place.server().catalog.get(&name);
        let export = export.ok_or_else(|| HandshakeError::Gone(name.clone()))?;
        if !self.place.connect() {
            return Err(HandshakeError::Full);
        }
        let (sender, ends) = channel();
        let number = export.enter(sender.clone()).ok_or(HandshakeError::Gone(name))?;
        let how = TransmissionText::of(&handshake);
        let failed = |error: Box<dyn Error + Send + Sync>| HandshakeError::Serve(error);
        let socket = Arc::try_unwrap(self.socket).or_else(|shared| shared.try_clone())?;
        let placed = place(&export, number.get(), socket, handshake, sender);
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
        let mut stream =
            ClientStream::Plain(HandshakeStream::new(socket, until, Arc::clone(&server.clock)));
        let policy = if server.tls.is_some() { TlsPolicy::Required } else { TlsPolicy::None };
        let catalog =
            ServerCatalog { exports: &server.catalog, multi_conn: server.takes_several() };
        let mut negotiation = Negotiation::new(policy);
        stream.send(&negotiation.greeting())?;
        let mut room = [0; RECEIVED_AT_ONCE];
        loop {
            let count = stream.receive(&mut room)?;
            if count == 0 {
                return Ok(None);
            }
            let progress = negotiation.receive(&room[..count], &catalog);
            stream.send(&progress.output)?;
            match progress.step {
                NegotiationStep::More => {}
                NegotiationStep::StartTls => {
                    let tls = server.tls.as_ref().expect("without it nobody is told to begin");
                    stream = stream.encrypt(tls)?;
                    negotiation.encrypted();
                }
                NegotiationStep::Aborted => return Ok(None),
                NegotiationStep::Failed(fault) => return Err(fault.into()),
                NegotiationStep::Transmission { settings, received } => {
                    return Ok(Some(Handshake {
                        settings,
                        received,
                        transport: stream.transport(),
                    }));
                }
            }
        }
    }
}

/// The client's stream in its handshake.
enum ClientStream {
    Plain(HandshakeStream),
    Tls(Box<StreamOwned<ServerConnection, HandshakeStream>>),
}

impl ClientStream {
    fn receive(&mut self, room: &mut [u8]) -> Result<usize, HandshakeError> {
        match self {
            Self::Plain(stream) => Ok(stream.read(room)?),
            Self::Tls(stream) => match stream.read(room) {
                // As an end without a word on a plain connection: nothing was agreed on yet.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(0),
                other => Ok(other?),
            },
        }
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), HandshakeError> {
        match self {
            Self::Plain(stream) => stream.write_all(bytes)?,
            Self::Tls(stream) => {
                stream.write_all(bytes)?;
                stream.flush()?;
            }
        }
        Ok(())
    }

    /// Does the handshake of TLS, and looks whether the client may come.
    fn encrypt(self, tls: &ServerTls) -> Result<Self, HandshakeError> {
        let Self::Plain(mut stream) = self else { panic!("TLS begins once") };
        let failed = |source| HandshakeError::Tls(io::Error::other(source));
        let mut connection = ServerConnection::new(Arc::clone(&tls.config)).map_err(failed)?;
        while connection.is_handshaking() {
            let (received, _) =
                connection.complete_io(&mut stream).map_err(HandshakeError::of_tls)?;
            if received == 0 && connection.is_handshaking() && !connection.wants_write() {
                return Err(HandshakeError::Tls(io::ErrorKind::UnexpectedEof.into()));
            }
        }
        if let Some(authorization) = &tls.authorization {
            let certificate = connection.peer_certificates().and_then(<[_]>::first);
            let certificate = certificate.ok_or(HandshakeError::NoCertificate)?;
            let identity = distinguished_name(certificate).map_err(HandshakeError::Identity)?;
            if !authorization.allows(&identity).map_err(HandshakeError::Rules)? {
                return Err(HandshakeError::Identified(identity));
            }
        }
        Ok(Self::Tls(Box::new(StreamOwned::new(connection, stream))))
    }

    fn transport(self) -> NbdTransport {
        match self {
            Self::Plain(_) => NbdTransport::Plain,
            Self::Tls(stream) => {
                let StreamOwned { conn, sock: _ } = *stream;
                NbdTransport::Tls(Box::new(conn))
            }
        }
    }
}

impl From<io::Error> for HandshakeError {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::TimedOut { Self::Late } else { Self::Io(error) }
    }
}

impl HandshakeError {
    /// Whether the client has left, which it may do at any time: many do so right after `NBD_OPT_ABORT`.
    fn is_leave(&self) -> bool {
        use io::ErrorKind::{BrokenPipe, ConnectionReset};
        matches!(self, Self::Io(error) if matches!(error.kind(), BrokenPipe | ConnectionReset))
    }

    fn of_tls(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::TimedOut { Self::Late } else { Self::Tls(error) }
    }
}

/// Has an iothread serve a transmission.
fn place(
    export: &ExportShared,
    number: u16,
    socket: OwnedFd,
    Handshake { settings, received, transport }: Handshake,
    ends: Sender<ConnectionEnd>,
) -> Result<PlacedFrontEnd<NbdConnection>, Box<dyn Error + Send + Sync>> {
    let ExportShared { disk, durability, bitmaps, .. } = export;
    let (durability, bitmaps) = (*durability, Arc::clone(bitmaps));
    // What the disk has become since the last client came.
    disk.size.review();
    // The mailbox needs somebody to wake before the connection is placed.
    let nobody = Arc::new(Notifier::new()?);
    let size = Arc::clone(disk.size.capacity());
    let setup =
        NbdConnectionSetup { socket, settings, received, transport, size, durability, bitmaps };
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
        let end = fault.downcast_ref::<nbd::ConnectionEnd>().cloned();
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
    is_encrypted: bool,
}

impl TransmissionText {
    fn of(Handshake { settings, transport, .. }: &Handshake) -> Self {
        let contexts = settings.contexts.iter().count();
        let is_encrypted = matches!(transport, NbdTransport::Tls(_));
        Self { style: settings.style, contexts, is_encrypted }
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
        if self.is_encrypted {
            f.write_str(", TLS")?;
        }
        Ok(())
    }
}
