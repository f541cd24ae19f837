//! A vhost-user-blk export: one thread that accepts clients and serves one at a time.
//!
//! Where it stands in the life of a request: it owns the session that sets rings up. Further
//! clients wait until the current one has left, as with qemu-storage-daemon.
//!
//! A takeover freezes an export: its rings are stopped and it answers nobody until it is known who
//! goes on, this process or another one.
//!
//! Threads: the export's thread blocks in accept and in the session; [`Export::begin_stop`] and
//! [`Export::freeze`] come from another one.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use block::{Clock, LogRateLimit};
use host::chain_of;
use kernel_io::Notifier;
use rustix::event::{PollFd, PollFlags};
use vhost_user::{
    PauseOutcome, SavedSession, SessionControl, SessionEnd, SessionError, SessionServer,
};

use crate::client_log::{ClientLog, ClientLogRates, ClientOrigin};
use crate::connection::Connection;
use crate::device::{BlkDevice, VhostUserBlkDisk};
use crate::export_error::ExportError;
use crate::exported_disk::ExportedDisk;
use crate::queue_statistics::QueueStatistics;
use crate::socket::ExportSocket;
use crate::socket_identity::SocketIdentity;
use crate::takeover_pause::TakeoverPauseStart;

/// A running export. Dropped, it is stopped.
#[derive(Debug)]
pub struct Export {
    shared: Arc<Shared>,
    socket: Arc<ExportSocket>,
    thread: Option<JoinHandle<()>>,
}

/// A session that this process goes on with after a takeover.
#[derive(Debug)]
pub struct AdoptedSession {
    session: ClientSession,
    server: SessionServer<BlkDevice>,
    resumption: TakeoverPauseStart,
}

/// A client's connection, and what is said of it.
#[derive(Debug)]
struct ClientSession {
    connection: Arc<Connection>,
    statistics: Arc<Mutex<QueueStatistics>>,
    client_log: Arc<ClientLog>,
}

impl ClientSession {
    /// With the device that serves it.
    fn new(
        offer: &Arc<VhostUserBlkDisk>,
        connection: Arc<Connection>,
        origin: ClientOrigin,
    ) -> (Self, BlkDevice) {
        let statistics = Arc::<Mutex<QueueStatistics>>::default();
        let client_log = Arc::new(ClientLog::new(&offer.disk.id, origin, &connection));
        let device = BlkDevice::new(
            Arc::clone(offer),
            Arc::clone(&connection),
            Arc::clone(&statistics),
            Arc::clone(&client_log),
        );
        (Self { connection, statistics, client_log }, device)
    }
}

/// What a frozen export hands over: its listener, the next client, its session.
#[derive(Debug)]
pub struct FrozenExport {
    /// Where clients connect.
    pub listener: OwnedFd,
    /// The next client, if it was accepted.
    pub next: Option<OwnedFd>,
    /// The connection and what was said on it, if there is a client.
    pub session: Option<(OwnedFd, SavedSession)>,
}

/// A request to an export to freeze for a takeover. Dropped, the export goes on.
#[derive(Debug)]
pub struct FreezeRequest {
    /// Gives one answer, or ends without one if the session broke.
    pub frozen: Receiver<io::Result<FrozenExport>>,
    verdict: Sender<PauseOutcome>,
}

/// The export thread's end of a [`FreezeRequest`].
#[derive(Debug)]
struct FreezeResponder {
    frozen: Sender<io::Result<FrozenExport>>,
    verdict: Receiver<PauseOutcome>,
}

/// What the handle and the thread of an export share.
#[derive(Debug)]
struct Shared {
    offer: Arc<VhostUserBlkDisk>,
    bell: Notifier,
    /// Asked after the offer's freezer was rung.
    question: Mutex<Option<FreezeResponder>>,
    state: Mutex<ExportState>,
    clock: Arc<dyn Clock>,
    rates: ClientLogRates,
}

/// Whether an export waits for a client, serves one, or is stopped.
#[derive(Debug)]
enum ExportState {
    /// No client.
    Waiting,
    /// A client on this connection.
    Serving(Arc<Connection>),
    /// No client is accepted any more.
    Stopped,
}

impl Export {
    /// Begins to accept clients, after it has gone on with the one that was taken over.
    pub fn start(
        offer: Arc<VhostUserBlkDisk>,
        socket: ExportSocket,
        adopted: Option<AdoptedSession>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, ExportError> {
        let id = offer.disk.id.clone();
        let failed = |source| ExportError::of(&id, source);
        let state = match &adopted {
            Some(it) => ExportState::Serving(Arc::clone(&it.session.connection)),
            None => ExportState::Waiting,
        };
        let shared = Arc::new(Shared {
            offer,
            bell: Notifier::new().map_err(failed)?,
            question: Mutex::new(None),
            state: Mutex::new(state),
            clock,
            rates: ClientLogRates::default(),
        });
        let theirs = Arc::clone(&shared);
        let socket = Arc::new(socket);
        let ours = Arc::clone(&socket);
        let thread = std::thread::Builder::new()
            .name(format!("export {id}").chars().take(15).collect())
            .spawn(move || theirs.live(&socket, adopted))
            .map_err(failed)?;
        Ok(Self { shared, socket: ours, thread: Some(thread) })
    }

    /// Makes a session of what another process has paused. Nothing is served before the export is
    /// started with it.
    pub fn adopt(
        offer: &Arc<VhostUserBlkDisk>,
        connection: OwnedFd,
        state: SavedSession,
        resumption: TakeoverPauseStart,
    ) -> Result<AdoptedSession, SessionError> {
        let connection = Arc::new(Connection::new(UnixStream::from(connection)));
        let (session, device) = ClientSession::new(offer, connection, ClientOrigin::TakenOver);
        let stream = session.connection.stream().map_err(SessionError::Socket)?;
        let server = SessionServer::restore(&stream, device, state, host::exchange_socket)?;
        Ok(AdoptedSession { session, server, resumption })
    }

    /// What it offers.
    pub fn offer(&self) -> &VhostUserBlkDisk {
        &self.shared.offer
    }

    /// The disk that it offers.
    pub fn disk(&self) -> &Arc<ExportedDisk> {
        &self.shared.offer.disk
    }

    /// Whether a client is connected.
    pub fn has_client(&self) -> bool {
        matches!(*self.shared.lock(), ExportState::Serving(_))
    }

    /// Whether its socket is that of whoever started the daemon, as a service manager.
    pub fn is_socket_given(&self) -> bool {
        self.socket.is_given()
    }

    /// Which socket it listens on.
    pub fn socket(&self) -> SocketIdentity {
        self.socket.identity()
    }

    /// Asks the export to stop its rings and to wait, without waiting for it.
    pub fn freeze(&self) -> FreezeRequest {
        let (frozen_sender, frozen) = channel();
        let (verdict, verdict_receiver) = channel();
        let question = FreezeResponder { frozen: frozen_sender, verdict: verdict_receiver };
        *self.shared.question.lock().expect("no holder of this lock panics") = Some(question);
        self.shared.offer.freeze_notifier.wake();
        FreezeRequest { frozen, verdict }
    }

    /// Another process goes on with the export; here it ends.
    pub fn give_away(&self, freeze: &FreezeRequest) {
        // From now on nobody hangs up on the connection, which is the other process's too.
        *self.shared.lock() = ExportState::Stopped;
        // A thread that is gone touches nothing either.
        let _unheard = freeze.verdict.send(PauseOutcome::HandedOver);
    }

    /// Makes the export stop, without waiting for it: no new client, the current one is hung up
    /// on, its rings are drained.
    pub fn begin_stop(&self) {
        let state = std::mem::replace(&mut *self.shared.lock(), ExportState::Stopped);
        match state {
            // Given away, the socket is another process's.
            ExportState::Stopped => {}
            ExportState::Waiting => self.socket.remove(),
            ExportState::Serving(connection) => {
                self.socket.remove();
                connection.hang_up();
            }
        }
        self.shared.bell.wake();
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        self.begin_stop();
        if let Some(thread) = self.thread.take() {
            thread.join().expect("a panic in an export's thread ends the process");
        }
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, ExportState> {
        self.state.lock().expect("no holder of this lock panics")
    }

    /// The whole life of the export's thread.
    fn live(&self, socket: &ExportSocket, adopted: Option<AdoptedSession>) {
        let end = match adopted {
            Some(adopted) => self.go_on(socket, adopted),
            None => self.accept_clients(socket, &mut LogRateLimit::default()),
        };
        match end {
            SessionEnd::Disconnected => {}
            SessionEnd::HandedOver => socket.leave(),
        }
    }

    /// Goes on with the client that was taken over, then accepts others.
    fn go_on(&self, socket: &ExportSocket, adopted: AdoptedSession) -> SessionEnd {
        let rate = &mut LogRateLimit::default();
        let AdoptedSession { session, server, resumption } = adopted;
        let told = || resumption.tell(&self.offer.disk.id);
        let run = |control: &TakeoverControl<'_>| server.resume(control, told);
        if self.serve(socket, &session, rate, run) == SessionEnd::HandedOver {
            return SessionEnd::HandedOver;
        }
        // Whatever else holds the connection: the front end must hear that nobody serves it.
        session.connection.hang_up();
        if self.dismiss() { self.accept_clients(socket, rate) } else { SessionEnd::Disconnected }
    }

    fn accept_clients(&self, socket: &ExportSocket, rate: &mut LogRateLimit) -> SessionEnd {
        loop {
            let stream = match self.next_client(socket, rate) {
                AcceptResult::Client(stream) => stream,
                AcceptResult::Stop => return SessionEnd::Disconnected,
                AcceptResult::GivenAway => return SessionEnd::HandedOver,
            };
            let Some(connection) = self.admit(stream) else { return SessionEnd::Disconnected };
            let (session, device) =
                ClientSession::new(&self.offer, connection, ClientOrigin::Connected);
            let stream = session.connection.stream();
            let run = |control: &TakeoverControl<'_>| {
                let stream = stream?;
                SessionServer::new(stream, device)?.run(control)
            };
            if self.serve(socket, &session, rate, run) == SessionEnd::HandedOver {
                return SessionEnd::HandedOver;
            }
            if !self.dismiss() {
                return SessionEnd::Disconnected;
            }
        }
    }

    /// Waits for a client.
    fn next_client(&self, socket: &ExportSocket, rate: &mut LogRateLimit) -> AcceptResult {
        if let Some(stream) = socket.take_next() {
            return AcceptResult::Client(stream);
        }
        loop {
            let mut fds = [
                PollFd::new(socket.listener(), PollFlags::IN),
                PollFd::from_borrowed_fd(self.bell.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(self.offer.freeze_notifier.as_fd(), PollFlags::IN),
            ];
            match rustix::event::poll(&mut fds, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                // Three descriptors are all open and need no memory of the kernel's, so this does not happen.
                Err(errno) => {
                    self.say_no_client(&errno.into(), rate);
                    self.pause();
                }
            }
            if !fds[1].revents().is_empty() {
                return AcceptResult::Stop;
            }
            if !fds[2].revents().is_empty() {
                match self.answer(socket, None) {
                    PauseOutcome::Resume => continue,
                    PauseOutcome::HandedOver => return AcceptResult::GivenAway,
                    PauseOutcome::End => return AcceptResult::Stop,
                }
            }
            if fds[0].revents().is_empty() {
                continue;
            }
            match socket.listener().accept() {
                Ok((stream, _)) => return AcceptResult::Client(stream),
                Err(error) => {
                    // The client is gone, or we are out of descriptors for the moment.
                    self.say_no_client(&error, rate);
                    self.pause();
                }
            }
        }
    }

    fn say_no_client(&self, error: &io::Error, rate: &mut LogRateLimit) {
        if rate.admit(self.clock.now()).is_some() {
            tracing::warn!("export {}: cannot accept a client: {error}", self.offer.disk.id);
        }
    }

    /// Does not try again at once what failed for want of descriptors.
    fn pause(&self) {
        let tenth = rustix::event::Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        let mut fds = [PollFd::from_borrowed_fd(self.bell.as_fd(), PollFlags::IN)];
        if let Err(errno) = rustix::event::poll(&mut fds, Some(&tenth)) {
            tracing::debug!("poll on a descriptor of our own: {errno}");
        }
    }

    fn admit(&self, stream: UnixStream) -> Option<Arc<Connection>> {
        let mut state = self.lock();
        if let ExportState::Stopped = *state {
            return None;
        }
        let connection = Arc::new(Connection::new(stream));
        *state = ExportState::Serving(Arc::clone(&connection));
        Some(connection)
    }

    /// The client has left; whether the export goes on.
    fn dismiss(&self) -> bool {
        let mut state = self.lock();
        match *state {
            ExportState::Stopped => false,
            ExportState::Waiting | ExportState::Serving(_) => {
                *state = ExportState::Waiting;
                true
            }
        }
    }

    /// Says how the export stands, and waits for what becomes of it. The rings are stopped.
    fn answer(
        &self,
        socket: &ExportSocket,
        session: Option<(&Connection, SavedSession)>,
    ) -> PauseOutcome {
        self.offer.freeze_notifier.clear();
        let question = self.question.lock().expect("no holder of this lock panics").take();
        let Some(question) = question else { return PauseOutcome::Resume };
        let frozen = || {
            let listener = socket.listener().as_fd().try_clone_to_owned()?;
            let copy = |(connection, state): (&Connection, _)| {
                connection.as_fd().try_clone_to_owned().map(|fd| (fd, state))
            };
            Ok(FrozenExport {
                listener,
                next: socket.share_next()?,
                session: session.map(copy).transpose()?,
            })
        };
        // Whoever has asked may have given up; then there is no verdict either.
        drop(question.frozen.send(frozen()));
        match (question.verdict.recv().unwrap_or(PauseOutcome::Resume), &*self.lock()) {
            // What it needs could not be had again.
            (PauseOutcome::Resume, ExportState::Stopped) => PauseOutcome::End,
            (verdict, _) => verdict,
        }
    }

    /// Serves a client until the end of its session.
    fn serve(
        &self,
        socket: &ExportSocket,
        session: &ClientSession,
        rate: &mut LogRateLimit,
        run: impl FnOnce(&TakeoverControl<'_>) -> Result<SessionEnd, SessionError>,
    ) -> SessionEnd {
        session.client_log.begin(socket);
        let end = run(&TakeoverControl { export: self, socket, session });
        let is_away = matches!(end, Ok(SessionEnd::HandedOver));
        self.say_end(session, end, rate);
        if is_away { SessionEnd::HandedOver } else { SessionEnd::Disconnected }
    }

    fn say_end(
        &self,
        session: &ClientSession,
        end: Result<SessionEnd, SessionError>,
        rate: &mut LogRateLimit,
    ) {
        let id = &self.offer.disk.id;
        let ClientSession { connection, statistics, client_log } = session;
        let lines = statistics.lock().expect("no holder of this lock panics").lines(id);
        if matches!(end, Ok(SessionEnd::Disconnected))
            && connection.reason().is_none()
            && client_log.was_in_vain()
        {
            tracing::debug!("export {id}: somebody has connected and left");
            return;
        }
        let Some(left_out) = rate.admit(self.clock.now()) else { return };
        if left_out > 0 {
            tracing::info!("export {id}: {left_out} more sessions ended");
        }
        client_log.say_before_end();
        match (connection.reason(), end) {
            (Some(reason), _) => tracing::warn!("export {id}: session ended: {reason}"),
            (None, Ok(SessionEnd::Disconnected)) => {
                tracing::info!("export {id}: the client has left")
            }
            (None, Ok(SessionEnd::HandedOver)) => {
                tracing::info!("export {id}: another process goes on with the client");
            }
            (None, Err(error)) => {
                tracing::warn!("export {id}: session ended: {}", chain_of(&error));
            }
        }
        for line in lines {
            tracing::info!("{line}");
        }
    }
}

/// What an export's thread got while it waited for a client: one, a stop, or a hand-over.
enum AcceptResult {
    Client(UnixStream),
    Stop,
    GivenAway,
}

/// The `SessionControl` of an export's sessions: pauses them for a takeover.
struct TakeoverControl<'a> {
    export: &'a Shared,
    socket: &'a ExportSocket,
    session: &'a ClientSession,
}

impl SessionControl for TakeoverControl<'_> {
    fn bell(&self) -> Option<BorrowedFd<'_>> {
        Some(self.export.offer.freeze_notifier.as_fd())
    }

    fn background(&self) -> Option<BorrowedFd<'_>> {
        self.session.client_log.as_fd()
    }

    fn run_background(&self) {
        self.session.client_log.look(self.socket, &self.export.rates, self.export.clock.now());
    }

    fn paused(&self, state: SavedSession) -> PauseOutcome {
        self.export.answer(self.socket, Some((&self.session.connection, state)))
    }
}
