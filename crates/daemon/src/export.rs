//! A vhost-user-blk export: one thread that accepts clients and serves one at a time.
//!
//! Where it stands in the life of a request: it owns the session that sets rings up. Further
//! clients wait in the socket's backlog until the current one has left, as with
//! qemu-storage-daemon.
//!
//! Invariants: nobody is accepted before [`Export::open`], which comes when the whole daemon is set
//! up and fenced in. Threads: the export's thread blocks in accept and in the session;
//! [`Export::begin_stop`] comes from another one.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use block::{Clock, SentenceRate};
use kernel_io::Notifier;
use rustix::event::{PollFd, PollFlags};

use crate::chain::chain_of;
use crate::connection::Connection;
use crate::device::{BlkDevice, Offer};
use crate::ledger::Ledger;
use crate::socket::Socket;

/// A running export. Dropped, it is stopped.
#[derive(Debug)]
pub(crate) struct Export {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// Whoever waits here gets the socket; gone with it.
    opener: Option<Sender<Socket>>,
}

#[derive(Debug)]
struct Shared {
    offer: Arc<Offer>,
    bell: Notifier,
    state: Mutex<State>,
    clock: Arc<dyn Clock>,
}

#[derive(Debug)]
enum State {
    /// No client.
    Waiting,
    /// A client on this connection.
    Serving(Arc<Connection>),
    /// No client is accepted any more.
    Stopped,
}

/// An export could not be started.
#[derive(Debug, thiserror::Error)]
#[error("export {id}: cannot start its thread")]
pub struct ExportError {
    id: String,
    #[source]
    source: io::Error,
}

impl Export {
    /// Starts the export's thread, which waits for the socket.
    pub(crate) fn start(offer: Offer, clock: Arc<dyn Clock>) -> Result<Self, ExportError> {
        let id = offer.id.clone();
        let failed = |source| ExportError { id: id.clone(), source };
        let shared = Arc::new(Shared {
            offer: Arc::new(offer),
            bell: Notifier::new().map_err(failed)?,
            state: Mutex::new(State::Waiting),
            clock,
        });
        let theirs = Arc::clone(&shared);
        let (opener, opened) = channel();
        let thread = std::thread::Builder::new()
            .name(format!("export {id}").chars().take(15).collect())
            .spawn(move || {
                // An error means that the daemon stops before it has begun.
                if let Ok(socket) = opened.recv() {
                    theirs.accept_clients(&socket);
                }
            })
            .map_err(failed)?;
        Ok(Self { shared, thread: Some(thread), opener: Some(opener) })
    }

    /// Begins to accept clients, once.
    pub(crate) fn open(&mut self, socket: Socket) {
        let opener = self.opener.take().expect("an export is opened once");
        opener.send(socket).expect("the export's thread waits for its socket");
    }

    /// Makes the export stop, without waiting for it: no new client, the current one is hung up
    /// on, its rings are drained.
    pub(crate) fn begin_stop(&self) {
        let state = std::mem::replace(&mut *self.shared.lock(), State::Stopped);
        if let State::Serving(connection) = state {
            connection.hang_up();
        }
        self.shared.bell.wake();
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        self.begin_stop();
        drop(self.opener.take());
        if let Some(thread) = self.thread.take() {
            thread.join().expect("a panic in an export's thread ends the process");
        }
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("no holder of this lock panics")
    }

    fn accept_clients(&self, socket: &Socket) {
        let mut rate = SentenceRate::default();
        while let Some(stream) = self.next_client(socket) {
            let Some(connection) = self.admit(stream) else { return };
            self.serve(&connection, &mut rate);
            if !self.dismiss() {
                return;
            }
        }
    }

    /// Waits for a client; `None` when the export is stopped.
    fn next_client(&self, socket: &Socket) -> Option<UnixStream> {
        loop {
            let mut fds = [
                PollFd::new(socket.listener(), PollFlags::IN),
                PollFd::from_borrowed_fd(self.bell.as_fd(), PollFlags::IN),
            ];
            match rustix::event::poll(&mut fds, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(errno) => panic!("poll on descriptors of our own: {errno}"),
            }
            if !fds[1].revents().is_empty() {
                return None;
            }
            if fds[0].revents().is_empty() {
                continue;
            }
            match socket.listener().accept() {
                Ok((stream, _)) => return Some(stream),
                Err(error) => {
                    // The client is gone, or we are out of descriptors for the moment.
                    tracing::warn!("export {}: cannot accept a client: {error}", self.offer.id);
                    self.pause();
                }
            }
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
        if let State::Stopped = *state {
            return None;
        }
        let connection = Arc::new(Connection::new(stream));
        *state = State::Serving(Arc::clone(&connection));
        Some(connection)
    }

    /// The client has left; whether the export goes on.
    fn dismiss(&self) -> bool {
        let mut state = self.lock();
        match *state {
            State::Stopped => false,
            State::Waiting | State::Serving(_) => {
                *state = State::Waiting;
                true
            }
        }
    }

    fn serve(&self, connection: &Arc<Connection>, rate: &mut SentenceRate) {
        let id = &self.offer.id;
        let ledger = Arc::new(Mutex::new(Ledger::default()));
        let device =
            BlkDevice::new(Arc::clone(&self.offer), Arc::clone(connection), Arc::clone(&ledger));
        let end = match connection.stream() {
            Ok(stream) => vhost_user::serve(stream, device),
            Err(source) => Err(vhost_user::SessionError::Socket { source }),
        };
        let lines = ledger.lock().expect("no holder of this lock panics").lines(id);
        let Some(left_out) = rate.admit(self.clock.now()) else { return };
        if left_out > 0 {
            tracing::info!("export {id}: {left_out} more sessions ended");
        }
        match (connection.reason(), end) {
            (Some(reason), _) => tracing::warn!("export {id}: session ended: {reason}"),
            (None, Ok(())) => tracing::info!("export {id}: the client has left"),
            (None, Err(error)) => {
                tracing::warn!("export {id}: session ended: {}", chain_of(&error));
            }
        }
        for line in lines {
            tracing::info!("{line}");
        }
    }
}
