//! Answers scrapes, on a thread of its own.
//!
//! Invariants: the thread waits in poll and nowhere else, but for the first thread a moment; a client that says nothing, or
//! does not read, holds up nobody.
//! Threads: `metrics`; the first one starts and ends it. Limits: [`CONNECTIONS_MAX`] clients; for one more, that is let go
//! whose request has not come, or which has not read its answer, for the longest; if all of these are new it waits to be
//! accepted, for a second at most. See `connection`.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use block::LogRateLimit;
use kernel_io::Notifier;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::connection::{Connection, ConnectionFate, poll_error};
use crate::listener::{MetricsError, MetricsListener};
use crate::options::MetricsOptions;
use crate::reading::MetricsReader;

/// The most clients at a time: each may have an answer in memory.
const CONNECTIONS_MAX: usize = 16;

/// How long not to accept again what failed for want of descriptors.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Serves metrics. Dropped, it ends, and its UNIX socket is removed.
#[derive(Debug)]
pub struct MetricsServer {
    listener: Option<MetricsListener>,
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
}

/// Ends the thread.
#[derive(Debug)]
struct Stop {
    bell: Notifier,
    is_over: AtomicBool,
}

/// What the thread has.
struct ServerThread {
    listener: MetricsListener,
    reader: MetricsReader,
    stop: Arc<Stop>,
    connections: Vec<Connection>,
    rate: LogRateLimit,
}

impl MetricsServer {
    /// Listens. Clients can connect from now on, and wait.
    pub fn listen(options: &MetricsOptions) -> Result<Self, MetricsError> {
        let listener = MetricsListener::open(options)?;
        let bell = Notifier::new().map_err(MetricsError::Thread)?;
        let stop = Arc::new(Stop { bell, is_over: AtomicBool::new(false) });
        Ok(Self { listener: Some(listener), stop, thread: None })
    }

    /// Answers clients from now on, on a thread that has the fences of this one. Called once.
    pub fn start(&mut self, reader: MetricsReader) -> Result<(), MetricsError> {
        let Some(listener) = self.listener.take() else { return Ok(()) };
        tracing::info!("metrics: listening on {listener}");
        let (stop, rate) = (Arc::clone(&self.stop), LogRateLimit::default());
        let thread = ServerThread { listener, reader, stop, connections: Vec::new(), rate };
        let spawned = std::thread::Builder::new().name("metrics".to_owned());
        let spawned = spawned.spawn(move || thread.live());
        self.thread = Some(spawned.map_err(MetricsError::Thread)?);
        Ok(())
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        self.stop.is_over.store(true, Ordering::SeqCst);
        self.stop.bell.wake();
        if let Some(thread) = self.thread.take() {
            thread.join().expect("a panic in a thread ends the process");
        }
    }
}

impl ServerThread {
    fn live(mut self) {
        while !self.stop.is_over.load(Ordering::SeqCst) {
            if let Err(error) = self.serve() {
                tracing::error!("metrics: not served any more: {error}");
                return;
            }
        }
    }

    /// Waits, and does what can be done then.
    fn serve(&mut self) -> io::Result<()> {
        let Some((is_asked, ready)) = self.wait()? else { return Ok(()) };
        let Self { reader, connections, .. } = self;
        let now = reader.clock.now();
        let mut ready = ready.into_iter();
        connections.retain_mut(|connection| {
            let fate = match ready.next() {
                Some(true) => connection.go_on(now, &mut || reader.text()),
                Some(false) | None => ConnectionFate::Stays,
            };
            fate == ConnectionFate::Stays && connection.deadline() > now
        });
        // Those whose requests have come meanwhile may read their answers.
        let has_room = has_room_at(&self.connections).is_none_or(|at| at <= now);
        if is_asked && has_room { self.accept(now) } else { Ok(()) }
    }

    /// Waits for clients; `None` after a signal. Otherwise whether one wants to be accepted, and which of the others can go
    /// on.
    fn wait(&self) -> io::Result<Option<(bool, Vec<bool>)>> {
        let Self { listener, reader, stop, connections, .. } = self;
        let now = reader.clock.now();
        let room = has_room_at(connections).filter(|at| *at > now);
        let accepts = if room.is_some() { PollFlags::empty() } else { PollFlags::IN };
        let mut fds = vec![PollFd::new(&stop.bell, PollFlags::IN), PollFd::new(listener, accepts)];
        fds.extend(connections.iter().map(|it| PollFd::new(it, it.wants())));
        let first = connections.iter().map(Connection::deadline).chain(room).min();
        let left = first.map(|at| at.saturating_duration_since(now));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        if let Err(errno) = poll(&mut fds, left.as_ref()) {
            return poll_error(errno).map(|()| None);
        }
        let mut ready = fds[1..].iter().map(|fd| !fd.revents().is_empty());
        let is_asked = ready.next() == Some(true);
        Ok(Some((is_asked, ready.collect())))
    }

    fn accept(&mut self, now: Instant) -> io::Result<()> {
        match self.listener.accept() {
            Ok(socket) => self.admit(socket, now),
            Err(error) if is_nobody(&error) => {}
            Err(error) => {
                if self.rate.admit(now).is_some() {
                    tracing::warn!("metrics: cannot accept a client: {error}");
                }
                let bell = PollFd::from_borrowed_fd(self.stop.bell.as_fd(), PollFlags::IN);
                poll(&mut [bell], Some(&PAUSE)).map(drop).or_else(poll_error)?;
            }
        }
        Ok(())
    }

    fn admit(&mut self, socket: OwnedFd, now: Instant) {
        let connections = &mut self.connections;
        if let Some(at) = has_room_at(connections)
            && let Some(first) = connections.iter().position(|it| it.sure_until() == at)
        {
            connections.remove(first);
        }
        connections.push(Connection::new(socket, now));
    }
}

/// When one of these clients is let go for another one; `None` if there is room for it anyway.
fn has_room_at(connections: &[Connection]) -> Option<Instant> {
    let first = || connections.iter().map(Connection::sure_until).min();
    (connections.len() >= CONNECTIONS_MAX).then(first).flatten()
}

/// Whether a client has left again before it was accepted.
fn is_nobody(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED))
}

#[cfg(test)]
mod tests;
