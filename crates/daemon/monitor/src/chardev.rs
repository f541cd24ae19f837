//! A character device, and the thread that talks to its clients, one at a time.
//!
//! A client that has closed its end for writing is still answered; one that does not read holds up nobody but itself.
//!
//! Threads: one for each character device with a monitor, `monitor ID`; it waits only in poll. It is behind the fences.

use std::borrow::Cow;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use exports::{
    ExportSocket, InterruptibleWait, SocketError, SocketOptions, WaitResult, address, stream_socket,
};
use kernel_io::Notifier;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::SocketFlags;

use crate::client::Client;
use crate::inbox::{InboxSender, Message};
use crate::options::{ChardevKind, ChardevOptions, MonitorOptions, SocketRole};
use crate::session::{Session, SessionOutput};

/// How much is read at once.
const READ_BYTES: usize = 4096;

/// How much is written at once where writing may block: less than a pipe takes as a whole.
const WRITE_BYTES: usize = 512;

/// No more answers are made while so much waits to be written.
const PENDING_BYTES_MAX: usize = 1 << 16;

/// How often is looked for a client that is waited for.
const CLIENT_PAUSE: Duration = Duration::from_millis(100);

/// The rights of a monitor's socket if they are not said: whoever may use it may do whatever the daemon may.
const MODE: u32 = 0o600;

/// A character device could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ChardevError {
    /// Its socket could not be made, or not be connected.
    #[error("chardev {id}")]
    Socket {
        /// Its name.
        id: String,
        /// Why.
        #[source]
        source: SocketError,
    },
    /// A signal came while the first client was waited for.
    #[error("chardev {0}: stopped while it waited for a client")]
    Stopped(String),
    /// Something else could not be had.
    #[error("chardev {id}: cannot {action}")]
    Io {
        /// Its name.
        id: String,
        /// What was tried.
        action: Cow<'static, str>,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// Waits for the first client, until a signal comes.
fn wait_for_client(
    id: &str,
    socket: &ExportSocket,
    wait: &mut dyn InterruptibleWait,
) -> Result<UnixStream, ChardevError> {
    let failed =
        |source| ChardevError::Io { id: id.to_owned(), action: "wait for a client".into(), source };
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    loop {
        let mut fds = [PollFd::new(socket.listener(), PollFlags::IN)];
        poll(&mut fds, Some(&now)).map_err(|errno| failed(errno.into()))?;
        if !fds[0].revents().is_empty() {
            return socket.listener().accept().map(|(stream, _)| stream).map_err(failed);
        }
        if wait.pause(CLIENT_PAUSE) == WaitResult::Stop {
            return Err(ChardevError::Stopped(id.to_owned()));
        }
    }
}

/// An open character device.
#[derive(Debug)]
pub(crate) struct Chardev {
    pub(crate) options: ChardevOptions,
    endpoint: Option<Endpoint>,
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
}

/// Ends the thread, and knows whether there is a client.
#[derive(Debug)]
struct Stop {
    bell: Notifier,
    is_stopped: AtomicBool,
    has_client: AtomicBool,
}

/// What a character device is connected to.
#[derive(Debug)]
enum Endpoint {
    /// Clients connect; the first one may be here.
    Listener(ExportSocket, Option<UnixStream>),
    /// It has connected.
    Stream(UnixStream),
    /// What is read, and what is written.
    Files(Option<OwnedFd>, OwnedFd),
    /// Nothing ever comes.
    Nothing,
}

impl Chardev {
    /// Opens it. Waits for the first client if that was asked for.
    pub(crate) fn open(
        options: &ChardevOptions,
        wait: &mut dyn InterruptibleWait,
    ) -> Result<Self, ChardevError> {
        let id = &options.id;
        let failed = |action: &'static str| {
            move |source| ChardevError::Io { id: id.clone(), action: action.into(), source }
        };
        let failed_at = |action: &str, path: &Path| {
            let action = format!("{action} '{}'", path.display()).into();
            move |source| ChardevError::Io { id: id.clone(), action, source }
        };
        let endpoint = match &options.kind {
            ChardevKind::Null => Endpoint::Nothing,
            ChardevKind::Stdio => {
                let copy = |fd: BorrowedFd<'_>| fd.try_clone_to_owned();
                let input = copy(io::stdin().as_fd()).map_err(failed("read stdin"))?;
                let output = copy(io::stdout().as_fd()).map_err(failed("write stdout"))?;
                Endpoint::Files(Some(input), output)
            }
            ChardevKind::File { path, input, is_appended } => {
                let mut open = OpenOptions::new();
                let open = open.write(true).create(true).append(*is_appended);
                let open = open.truncate(!*is_appended);
                // A FIFO would wait for its other end.
                let is_fifo = |path: &PathBuf| {
                    std::fs::metadata(path).is_ok_and(|it| it.file_type().is_fifo())
                };
                if [Some(path), input.as_ref()].into_iter().flatten().any(is_fifo) {
                    return Err(ChardevError::Io {
                        id: id.clone(),
                        action: "use its file".into(),
                        source: io::Error::other("it is a FIFO"),
                    });
                }
                let output = open.open(path).map_err(failed_at("open", path))?;
                let input = input.as_ref().map(File::open).transpose();
                let input = input.map_err(failed("open what it is to read"))?;
                Endpoint::Files(input.map(Into::into), output.into())
            }
            ChardevKind::Socket { path, descriptor, role, mode, group } => {
                let of_socket = |source| ChardevError::Socket { id: id.clone(), source };
                match role {
                    SocketRole::Server { waits } => {
                        let mode = Some(mode.unwrap_or(MODE));
                        let (path, group) = (path.clone(), group.clone());
                        let descriptor = *descriptor;
                        let options = SocketOptions { path, descriptor, mode, group };
                        let socket = ExportSocket::listen(&options).map_err(of_socket)?;
                        let mut first = None;
                        if *waits {
                            let shown = options.path.display();
                            tracing::info!("chardev {id}: waiting for a client on {shown}");
                            first = Some(wait_for_client(id, &socket, wait)?);
                        }
                        Endpoint::Listener(socket, first)
                    }
                    SocketRole::Client => {
                        let socket =
                            stream_socket(path, SocketFlags::CLOEXEC).map_err(of_socket)?;
                        let to = address(path).map_err(of_socket)?;
                        let connected = rustix::net::connect(&socket, &to);
                        let to_it = |errno: Errno| failed_at("connect to", path)(errno.into());
                        connected.map_err(to_it)?;
                        Endpoint::Stream(socket.into())
                    }
                }
            }
        };
        let bell = Notifier::new().map_err(failed("make a notifier"))?;
        let stop = Stop { bell, is_stopped: false.into(), has_client: false.into() };
        let stop = Arc::new(stop);
        Ok(Self { options: options.clone(), endpoint: Some(endpoint), stop, thread: None })
    }

    /// Starts the thread that serves the monitor. Called once.
    pub(crate) fn serve(&mut self, monitor: &MonitorOptions, inbox: InboxSender) -> io::Result<()> {
        let Some(endpoint) = self.endpoint.take() else { return Ok(()) };
        let id = monitor.id.clone().unwrap_or_else(|| self.options.id.clone());
        let stop = Arc::clone(&self.stop);
        let server = MonitorServer { id: id.clone(), monitor: monitor.clone(), inbox, stop };
        let name = format!("monitor {id}").chars().take(15).collect();
        let work = move || server.live(endpoint);
        self.thread = Some(std::thread::Builder::new().name(name).spawn(work)?);
        Ok(())
    }

    /// Whether a monitor has been started on it.
    pub(crate) fn is_used(&self) -> bool {
        self.thread.is_some()
    }

    /// Whether a client is connected.
    pub(crate) fn is_connected(&self) -> bool {
        self.stop.has_client.load(Ordering::Relaxed)
    }
}

impl Drop for Chardev {
    fn drop(&mut self) {
        self.stop.is_stopped.store(true, Ordering::SeqCst);
        self.stop.bell.wake();
        if let Some(thread) = self.thread.take() {
            thread.join().expect("a panic in a monitor's thread ends the process");
        }
    }
}

/// The thread of a monitor.
struct MonitorServer {
    id: String,
    monitor: MonitorOptions,
    inbox: InboxSender,
    stop: Arc<Stop>,
}

impl MonitorServer {
    fn live(&self, endpoint: Endpoint) {
        let ended = match endpoint {
            Endpoint::Nothing => Ok(()),
            Endpoint::Stream(stream) => self.serve_socket(&stream),
            Endpoint::Files(input, output) => {
                self.serve(input.as_ref().map(AsFd::as_fd), output.as_fd(), WRITE_BYTES)
            }
            Endpoint::Listener(socket, first) => self.accept(&socket, first),
        };
        if let Err(error) = ended {
            tracing::warn!("monitor {}: {error}", self.id);
        }
    }

    fn is_stopped(&self) -> bool {
        self.stop.is_stopped.load(Ordering::SeqCst)
    }

    fn accept(&self, socket: &ExportSocket, mut first: Option<UnixStream>) -> io::Result<()> {
        loop {
            let stream = match first.take() {
                Some(stream) => stream,
                None => {
                    let mut fds = [
                        PollFd::new(socket.listener(), PollFlags::IN),
                        PollFd::new(&self.stop.bell, PollFlags::IN),
                    ];
                    wait(&mut fds)?;
                    if self.is_stopped() {
                        return Ok(());
                    }
                    match socket.listener().accept() {
                        Ok((stream, _)) => stream,
                        // It has left again, or there is no descriptor for it now.
                        Err(error) => {
                            tracing::warn!("monitor {}: cannot accept a client: {error}", self.id);
                            // Not at once again what failed for want of descriptors.
                            let tenth = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
                            poll(&mut [PollFd::new(&self.stop.bell, PollFlags::IN)], Some(&tenth))?;
                            continue;
                        }
                    }
                }
            };
            if let Err(error) = self.serve_socket(&stream) {
                tracing::info!("monitor {}: its client is gone: {error}", self.id);
            }
            if self.is_stopped() {
                return Ok(());
            }
        }
    }

    fn serve_socket(&self, stream: &UnixStream) -> io::Result<()> {
        // The standard library does it by an ioctl, which the fences refuse.
        let flags = rustix::fs::fcntl_getfl(stream)?;
        rustix::fs::fcntl_setfl(stream, flags | rustix::fs::OFlags::NONBLOCK)?;
        match rustix::net::sockopt::socket_peercred(stream) {
            Ok(peer) => tracing::info!(
                "monitor {}: process {} of user {} has connected",
                self.id,
                peer.pid.as_raw_nonzero(),
                peer.uid.as_raw()
            ),
            Err(errno) => tracing::info!("monitor {}: a client has connected ({errno})", self.id),
        }
        let fd = stream.as_fd();
        self.serve(Some(fd), fd, usize::MAX)
    }

    /// Serves one client until it leaves.
    fn serve(
        &self,
        input: Option<BorrowedFd<'_>>,
        output: BorrowedFd<'_>,
        write_bytes: usize,
    ) -> io::Result<()> {
        let MonitorOptions { is_read_only, is_pretty, .. } = self.monitor;
        let client = Client::new(&self.id, is_read_only, is_pretty)?;
        self.inbox.send(Message::Connected(Arc::clone(&client)));
        self.stop.has_client.store(true, Ordering::Relaxed);
        let mut connection = Connection {
            session: Session::new(Arc::clone(&client)),
            client: Arc::clone(&client),
            pending: Vec::new(),
            input,
            output,
            write_bytes,
        };
        let ended = connection.run(self);
        client.set_gone();
        self.stop.has_client.store(false, Ordering::Relaxed);
        ended
    }
}

/// One client while it is connected.
struct Connection<'a> {
    session: Session,
    client: Arc<Client>,
    /// What was not written yet.
    pending: Vec<u8>,
    /// What is read; none when nothing comes any more.
    input: Option<BorrowedFd<'a>>,
    output: BorrowedFd<'a>,
    /// How much may be written at once.
    write_bytes: usize,
}

impl Connection<'_> {
    fn run(&mut self, server: &MonitorServer) -> io::Result<()> {
        self.pending = self.session.greeting();
        loop {
            let is_idle = self.go_on(server);
            if self.input.is_none() && is_idle && self.pending.is_empty() {
                return Ok(());
            }
            let reads = self.input.filter(|_| self.session.takes_more());
            let mut fds = vec![
                PollFd::new(&server.stop.bell, PollFlags::IN),
                PollFd::from_borrowed_fd(self.client.bell().as_fd(), PollFlags::IN),
            ];
            // A client that has gone is heard of in any case.
            let wants = if self.pending.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
            fds.push(PollFd::from_borrowed_fd(self.output, wants));
            fds.extend(reads.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
            wait(&mut fds)?;
            let writes = fds[2].revents();
            let has_come = fds.get(3).is_some_and(|fd| !fd.revents().is_empty());
            if server.is_stopped() {
                return self.write_last();
            }
            if has_come {
                self.read()?;
            } else if writes.intersects(PollFlags::ERR | PollFlags::HUP) && reads.is_none() {
                return Ok(());
            }
            if writes.contains(PollFlags::OUT) {
                self.write_out()?;
            }
        }
    }

    /// Takes answers and events, and has the next requests carried out; whether none is.
    fn go_on(&mut self, server: &MonitorServer) -> bool {
        self.client.bell().clear();
        // Where events are bounded; what waits there is taken when there is room.
        if self.pending.len() >= PENDING_BYTES_MAX {
            return false;
        }
        let contents = self.client.take();
        self.pending.extend_from_slice(&contents.bytes);
        if contents.events_left_out > 0 {
            let (id, count) = (&server.id, contents.events_left_out);
            tracing::warn!("monitor {id}: its client does not read; {count} events were left out");
        }
        if contents.is_answered {
            self.session.answered();
        }
        while self.pending.len() < PENDING_BYTES_MAX {
            match self.session.next() {
                None => return !self.session.is_carried_out(),
                Some(SessionOutput::Line(line)) => self.pending.extend_from_slice(&line),
                Some(SessionOutput::Request(id, request)) => {
                    let client = Arc::clone(&self.client);
                    server.inbox.send(Message::Request { client, id, request });
                    return false;
                }
            }
        }
        false
    }

    fn read(&mut self) -> io::Result<()> {
        let mut bytes = [0; READ_BYTES];
        let Some(input) = self.input else { return Ok(()) };
        match rustix::io::read(input, &mut bytes) {
            Ok(0) => self.input = None,
            Ok(count) => self.session.take(&bytes[..count]),
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(errno) => return Err(errno.into()),
        }
        Ok(())
    }

    /// Writes what was answered, the answer to `quit` too, as far as that can be done at once.
    fn write_last(&mut self) -> io::Result<()> {
        self.pending.extend_from_slice(&self.client.take().bytes);
        while !self.pending.is_empty() {
            // Not what there was to be written when the daemon was waited for.
            let mut fds = [PollFd::from_borrowed_fd(self.output, PollFlags::OUT)];
            poll(&mut fds, Some(&Timespec::default()))?;
            if !fds[0].revents().contains(PollFlags::OUT) {
                break;
            }
            self.write_out()?;
        }
        Ok(())
    }

    fn write_out(&mut self) -> io::Result<()> {
        while !self.pending.is_empty() {
            let count = self.pending.len().min(self.write_bytes);
            match rustix::io::write(self.output, &self.pending[..count]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => drop(self.pending.drain(..written)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(errno) => return Err(errno.into()),
            }
            if self.write_bytes == WRITE_BYTES {
                break;
            }
        }
        Ok(())
    }
}

fn wait(fds: &mut [PollFd<'_>]) -> io::Result<()> {
    match poll(fds, None) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}
