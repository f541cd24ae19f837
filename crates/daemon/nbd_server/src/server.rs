//! The NBD server: accepts clients and gives each a thread of its own.
//!
//! Invariants: clients that say nothing hold up nobody: of more than [`NEGOTIATING_MAX`] that have not chosen an export,
//! the one that came first is let go.
//! Threads: one accepts, one for each connection. Limits: [`NEGOTIATING_MAX`] handshakes; so many connections as the
//! options say and descriptors allow, further clients wait to be accepted.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use block::{Clock, LogRateLimit};
use credentials::Authorization;
use kernel_io::Notifier;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::Shutdown;
use rustix::process::{Resource, getrlimit};
use rustls::ServerConfig;

use crate::catalog::NbdCatalog;
use crate::connection::Connection;
use crate::listener::{ListenError, NbdListener};
use crate::options::NbdServerOptions;

/// How many clients may be in their handshakes.
const NEGOTIATING_MAX: usize = 64;

/// The descriptors that a connection has: its socket, and two of its front end.
const DESCRIPTORS_OF_CONNECTION: u64 = 3;

/// The part of all descriptors that connections may have: one in so many.
const SHARE_OF_DESCRIPTORS: u64 = 2;

/// What a thread of a connection needs for its stack, TLS included.
const STACK_BYTES: usize = 256 << 10;

/// How long not to try again what failed for want of descriptors or threads.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// An NBD server. Dropped, it accepts nobody any more; exports, which are dropped before, have ended its connections.
#[derive(Debug)]
pub struct NbdServer {
    shared: Arc<ServerShared>,
    options: NbdServerOptions,
    listener: Option<NbdListener>,
    thread: Option<JoinHandle<()>>,
}

/// What a server does TLS with.
#[derive(Debug, Clone)]
pub struct ServerTls {
    /// Its certificate, and whose certificates count.
    pub config: Arc<ServerConfig>,
    /// Which of them may come; all without it.
    pub authorization: Option<Arc<Authorization>>,
}

/// A server could not be started.
#[derive(Debug, thiserror::Error)]
pub enum NbdServerError {
    /// It has no address.
    #[error("NBD server")]
    Listen(#[from] ListenError),
    /// It has no thread or eventfd.
    #[error("NBD server: cannot start its thread")]
    Thread(#[source] io::Error),
}

/// How many clients a server has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NbdLoad {
    /// Those that use exports.
    pub connected: u64,
    /// Those in their handshakes.
    pub negotiating: u64,
    /// How many may use exports.
    pub connected_max: u64,
}

/// What all threads of a server share.
#[derive(Debug)]
pub(crate) struct ServerShared {
    pub(crate) catalog: Arc<NbdCatalog>,
    pub(crate) clock: Arc<dyn Clock>,
    /// What it does TLS with; then everybody has to.
    pub(crate) tls: Option<ServerTls>,
    /// How long a handshake may take.
    pub(crate) handshake_max: Option<Duration>,
    /// How often it is said what strangers cause.
    pub(crate) rate: Mutex<LogRateLimit>,
    connections_max: u64,
    bell: Notifier,
    state: Mutex<ServerState>,
    /// Notified when a connection has ended.
    ended: Condvar,
}

/// Who is there.
#[derive(Debug, Default)]
struct ServerState {
    /// The sockets of those that have not chosen an export, in the order in which they came.
    negotiating: VecDeque<Arc<OwnedFd>>,
    /// How many use an export.
    connected: u64,
    /// How many threads of connections there are.
    threads: usize,
    is_over: bool,
}

impl NbdServer {
    /// Listens. Clients can connect from now on, and wait.
    pub fn listen(
        options: &NbdServerOptions,
        tls: Option<ServerTls>,
        catalog: &Arc<NbdCatalog>,
        clock: &Arc<dyn Clock>,
    ) -> Result<Self, NbdServerError> {
        let listener = NbdListener::open(&options.address)?;
        let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let possible = files / SHARE_OF_DESCRIPTORS / DESCRIPTORS_OF_CONNECTION;
        let seconds = options.handshake_seconds_max;
        let shared = Arc::new(ServerShared {
            catalog: Arc::clone(catalog),
            clock: Arc::clone(clock),
            tls,
            handshake_max: seconds.map(|it| Duration::from_secs(it.into())),
            rate: Mutex::default(),
            connections_max: options.connections_max.map_or(possible, |it| possible.min(it.into())),
            bell: Notifier::new().map_err(NbdServerError::Thread)?,
            state: Mutex::default(),
            ended: Condvar::new(),
        });
        Ok(Self { shared, options: options.clone(), listener: Some(listener), thread: None })
    }

    /// Accepts clients from now on, on a thread that has the fences of this one.
    pub fn start(&mut self) -> Result<(), NbdServerError> {
        let Some(listener) = self.listener.take() else { return Ok(()) };
        tracing::info!("NBD server: listening on {listener}");
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new().name("nbd".to_owned());
        let thread = thread.spawn(move || shared.accept_clients(&listener));
        self.thread = Some(thread.map_err(NbdServerError::Thread)?);
        Ok(())
    }

    /// How many clients it has now.
    pub fn load(&self) -> NbdLoad {
        let state = self.shared.state();
        NbdLoad {
            connected: state.connected,
            negotiating: state.negotiating.len() as u64,
            connected_max: self.shared.connections_max,
        }
    }

    /// What it was made of.
    pub fn options(&self) -> &NbdServerOptions {
        &self.options
    }
}

impl Drop for NbdServer {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.is_over = true;
        state.negotiating.iter().for_each(|socket| hang_up(socket));
        drop(state);
        self.shared.bell.wake();
        if let Some(thread) = self.thread.take() {
            thread.join().expect("a panic in a thread ends the process");
        }
        let is_used = |state: &mut ServerState| state.threads > 0;
        let over = self.shared.ended.wait_while(self.shared.state(), is_used);
        drop(over.expect("no holder of this lock panics"));
    }
}

/// Ends a handshake: its thread reads nothing more.
fn hang_up(socket: &OwnedFd) {
    // One that was never connected, or is not any more, has ended already.
    let _ended = rustix::net::shutdown(socket, Shutdown::Both);
}

impl ServerShared {
    fn accept_clients(self: &Arc<Self>, listener: &NbdListener) {
        while let Some(is_open) = self.wait_for_client(listener) {
            if !is_open {
                continue;
            }
            match listener.accept() {
                Ok((socket, peer)) => self.admit(socket, peer),
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    self.warn(|| format!("cannot accept a client: {error}"));
                    self.pause();
                }
            }
        }
    }

    /// Waits; `None` when all is over, otherwise whether a client has come.
    fn wait_for_client(&self, listener: &NbdListener) -> Option<bool> {
        let state = self.state();
        let is_full = state.connected >= self.connections_max;
        if state.is_over {
            return None;
        }
        drop(state);
        let bell = PollFd::from_borrowed_fd(self.bell.as_fd(), PollFlags::IN);
        let mut fds = [bell, PollFd::new(listener, PollFlags::IN)];
        let watched = if is_full { &mut fds[..1] } else { &mut fds[..] };
        if let Err(errno) = poll(watched, None) {
            // Two descriptors are open and need no memory of the kernel's: only a signal comes between.
            tracing::debug!("poll on descriptors of our own: {errno}");
            return Some(false);
        }
        if !fds[0].revents().is_empty() {
            self.bell.clear();
            return Some(false);
        }
        Some(!fds[1].revents().is_empty())
    }

    /// Gives a client a thread; lets another one go that has said nothing for longer, if there are too many.
    fn admit(self: &Arc<Self>, socket: OwnedFd, peer: Option<SocketAddr>) {
        let socket = Arc::new(socket);
        let mut state = self.state();
        if state.negotiating.len() >= NEGOTIATING_MAX
            && let Some(oldest) = state.negotiating.pop_front()
        {
            hang_up(&oldest);
        }
        state.negotiating.push_back(Arc::clone(&socket));
        state.threads += 1;
        drop(state);
        let place = PlaceState::Negotiating(Arc::clone(&socket));
        let place = ServerPlace { server: Arc::clone(self), state: place };
        let connection = Connection::new(place, socket, peer);
        let thread = std::thread::Builder::new().name("nbd client".to_owned());
        if let Err(error) = thread.stack_size(STACK_BYTES).spawn(move || connection.run()) {
            self.warn(|| format!("cannot start a thread for a client: {error}"));
            self.pause();
        }
    }

    /// Whether several connections may be used at once.
    pub(crate) fn takes_several(&self) -> bool {
        self.connections_max > 1
    }

    /// Says something that strangers can cause.
    pub(crate) fn warn(&self, sentence: impl FnOnce() -> String) {
        let mut rate = self.rate.lock().expect("no holder of this lock panics");
        if rate.admit(self.clock.now()).is_some() {
            tracing::warn!("NBD server: {}", sentence());
        }
    }

    fn pause(&self) {
        let mut fds = [PollFd::from_borrowed_fd(self.bell.as_fd(), PollFlags::IN)];
        if let Err(errno) = poll(&mut fds, Some(&PAUSE)) {
            tracing::debug!("poll on a descriptor of our own: {errno}");
        }
    }

    fn state(&self) -> MutexGuard<'_, ServerState> {
        self.state.lock().expect("no holder of this lock panics")
    }
}

/// A client's place at the server, given back when dropped.
#[derive(Debug)]
pub(crate) struct ServerPlace {
    server: Arc<ServerShared>,
    state: PlaceState,
}

/// Whether a client has chosen an export.
#[derive(Debug)]
enum PlaceState {
    /// It has not, and whoever needs its place hangs up on this socket.
    Negotiating(Arc<OwnedFd>),
    /// It has.
    Connected,
    /// It may not use it.
    Refused,
}

impl ServerPlace {
    pub(crate) fn server(&self) -> &Arc<ServerShared> {
        &self.server
    }

    /// The client has chosen an export. Whether there is room for one more, and it was not let go meanwhile.
    pub(crate) fn connect(&mut self) -> bool {
        let mut state = self.server.state();
        let was_there = self.state.leave(&mut state);
        let is_free = state.connected < self.server.connections_max;
        if was_there && is_free && !state.is_over {
            state.connected += 1;
            self.state = PlaceState::Connected;
            return true;
        }
        self.state = PlaceState::Refused;
        false
    }
}

impl PlaceState {
    /// Whether the client was among those that negotiate. It is not any more.
    fn leave(&self, state: &mut ServerState) -> bool {
        let Self::Negotiating(own) = self else { return false };
        let before = state.negotiating.len();
        state.negotiating.retain(|socket| !Arc::ptr_eq(socket, own));
        state.negotiating.len() < before
    }
}

impl Drop for ServerPlace {
    fn drop(&mut self) {
        let mut state = self.server.state();
        self.state.leave(&mut state);
        let was_full = state.connected >= self.server.connections_max;
        state.connected -= u64::from(matches!(self.state, PlaceState::Connected));
        state.threads -= 1;
        drop(state);
        self.server.ended.notify_all();
        if was_full {
            self.server.bell.wake();
        }
    }
}
