//! The process that looks at descriptors: what it does, and what becomes of those that are not to be closed.
//!
//! Invariants: nothing is asked of a descriptor that its file system answers: seals, which only memory has; of which
//! family a socket is; where a link in /proc leads; and what the kernel remembers of a file (`virtio::GuestMemoryFilePolicy`).
//! The first thread closes only what was found to ask nobody, and never is the last to have a connection, so it waits
//! for nothing but questions. All others are closed by another thread, which may never come back. Threads: the first
//! one, and for each export that has sent such descriptors one that closes them. Limits: [`KEPT_MAX`] of an export, and
//! what the limit of open files has room for; what an export sends that has more is not looked at.

use std::collections::BTreeMap;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::fs::{Mode, OFlags, readlinkat};
use rustix::io::retry_on_intr;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags,
    recvmsg, send, sockopt,
};
use rustix::process::{Resource, getrlimit};
use sandbox::{self, SandboxMode};
use vhost_user::{DESCRIPTORS_PER_MESSAGE, HEADER_BYTES};
use virtio::GuestMemoryFilePolicy;

use super::{ASKS_NOBODY, CONFINED, MAY_WAIT, NO_ROOM};

/// How many of an export are being closed, or wait for that.
pub(super) const KEPT_MAX: usize = 64;

/// What the process needs besides what it keeps: its own, and a question with what it is about.
const OWN: usize = 16 + DESCRIPTORS_PER_MESSAGE;

/// The stack of a thread that does nothing but close.
const STACK_BYTES: usize = 128 << 10;

/// Answers until the daemon is gone.
pub(super) fn run(socket: &OwnedFd, memory_files: &GuestMemoryFilePolicy, sandbox: SandboxMode) {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(links) = rustix::fs::open("/proc/self/fd", flags, Mode::empty()) else { return };
    // Where a fence cannot be had, the daemon cannot have it either, and says so.
    let is_confined = sandbox != SandboxMode::Off && sandbox::confine_descriptor_check().is_ok();
    let said = if is_confined { CONFINED } else { [0] };
    if retry_on_intr(|| send(socket, &said, SendFlags::NOSIGNAL)).is_err() {
        return;
    }
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let room = usize::try_from(limit).unwrap_or(usize::MAX).saturating_sub(OWN);
    let kept = Arc::new(PendingCloses { room, exports: Mutex::default() });
    let known = DescriptorInspector { memory_files, links };
    loop {
        match receive(socket) {
            CheckInput::Question(question) => question.answer(&known, &kept),
            CheckInput::Nothing => {}
            CheckInput::End => return,
        }
    }
}

/// What the helper process receives: a question, one without its descriptors, or the end.
enum CheckInput {
    Question(CheckQuestion),
    /// There was no room for its descriptors. Whoever has asked gets no answer.
    Nothing,
    /// The daemon is gone.
    End,
}

/// A session's question whether the descriptors that come next on its connection can be closed without blocking.
struct CheckQuestion {
    export: u64,
    connection: OwnedFd,
    answers: OwnedFd,
}

fn receive(socket: &OwnedFd) -> CheckInput {
    let mut export = [0; 8];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut export)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = retry_on_intr(|| recvmsg(socket, &mut parts, &mut control, flags));
    let mut fds = descriptors(&mut control).into_iter();
    match (received.map_or(0, |received| received.bytes), fds.next(), fds.next()) {
        (0, ..) => CheckInput::End,
        (_, Some(connection), Some(answers)) => {
            let export = u64::from_ne_bytes(export);
            CheckInput::Question(CheckQuestion { export, connection, answers })
        }
        (..) => CheckInput::Nothing,
    }
}

fn descriptors(control: &mut RecvAncillaryBuffer<'_>) -> Vec<OwnedFd> {
    let fds = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        RecvAncillaryMessage::ScmCredentials(_) | _ => None,
    });
    fds.flatten().collect()
}

impl CheckQuestion {
    fn answer(self, known: &DescriptorInspector<'_>, kept: &Arc<PendingCloses>) {
        let Self { export, connection, answers } = self;
        let found = if kept.has_room(export) {
            known.look(connection.as_fd())
        } else {
            CheckResult::NoRoom
        };
        // The daemon waits for the answer and has the connection, so this is not its end.
        drop(connection);
        let (answer, foreign) = match found {
            CheckResult::Known => (ASKS_NOBODY, Vec::new()),
            CheckResult::Foreign(foreign) => (MAY_WAIT, foreign),
            CheckResult::NoRoom => (NO_ROOM, Vec::new()),
        };
        // A session that has given up hears nothing; an eventfd of the daemon's own always takes one number.
        let _unheard = rustix::io::write(&answers, &answer.to_ne_bytes());
        if !foreign.is_empty() {
            kept.close(export, foreign);
        }
    }
}

/// What the descriptors of a message are: safe to close, foreign, or too many.
enum CheckResult {
    /// Only what is known to ask nobody when it is closed.
    Known,
    /// These may ask somebody.
    Foreign(Vec<OwnedFd>),
    NoRoom,
}

/// Looks at received descriptors and finds those whose close never blocks.
struct DescriptorInspector<'a> {
    memory_files: &'a GuestMemoryFilePolicy,
    /// The links to this process's descriptors.
    links: OwnedFd,
}

impl DescriptorInspector<'_> {
    fn look(&self, connection: BorrowedFd<'_>) -> CheckResult {
        let mut space =
            [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_PER_MESSAGE))];
        let mut seen = 0;
        // One more each time, or two, as the kernel aligns them: behind the first that is foreign no other one is taken.
        while seen < DESCRIPTORS_PER_MESSAGE {
            let room = rustix::cmsg_space!(ScmRights(seen + 1));
            let mut control = RecvAncillaryBuffer::new(&mut space[..room]);
            let mut header = [0; HEADER_BYTES];
            let mut parts = [IoSliceMut::new(&mut header)];
            let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
            let received = retry_on_intr(|| recvmsg(connection, &mut parts, &mut control, flags));
            let Ok(received) = received else { return CheckResult::NoRoom };
            let mut fds = descriptors(&mut control);
            let count = fds.len();
            let foreign: Vec<OwnedFd> =
                fds.extract_if(seen.min(count).., |fd| !self.has(fd.as_fd())).collect();
            if !foreign.is_empty() {
                return CheckResult::Foreign(foreign);
            }
            match (count > seen, received.flags.contains(ReturnFlags::CTRUNC)) {
                (_, false) => return CheckResult::Known,
                (true, true) => seen = count,
                (false, true) => return CheckResult::NoRoom,
            }
        }
        // The daemon has no room for more.
        CheckResult::Known
    }

    /// Whether closing it asks nobody.
    fn has(&self, fd: BorrowedFd<'_>) -> bool {
        self.memory_files.have(fd) || is_unix_socket(fd) || self.is_eventfd(fd)
    }

    fn is_eventfd(&self, fd: BorrowedFd<'_>) -> bool {
        let link = readlinkat(&self.links, fd.as_raw_fd().to_string(), Vec::new());
        link.is_ok_and(|target| target.to_bytes() == b"anon_inode:[eventfd]")
    }
}

fn is_unix_socket(fd: BorrowedFd<'_>) -> bool {
    sockopt::socket_domain(fd).is_ok_and(|domain| domain == AddressFamily::UNIX)
}

/// Descriptors whose close may block for ever, each export's closed by a thread of its own.
struct PendingCloses {
    /// How many there may be in all.
    room: usize,
    exports: Mutex<BTreeMap<u64, ExportCloses>>,
}

/// Those of one export, and whether a thread is closing them.
#[derive(Default)]
struct ExportCloses {
    fds: Vec<OwnedFd>,
    closing: bool,
}

impl ExportCloses {
    fn count(&self) -> usize {
        self.fds.len() + usize::from(self.closing)
    }
}

impl PendingCloses {
    fn has_room(&self, export: u64) -> bool {
        let exports = self.exports();
        exports.get(&export).map_or(0, ExportCloses::count) < KEPT_MAX
            && exports.values().map(ExportCloses::count).sum::<usize>() < self.room
    }

    /// Has these closed by a thread that may never come back.
    fn close(self: &Arc<Self>, export: u64, fds: Vec<OwnedFd>) {
        let mut exports = self.exports();
        let waiting = exports.entry(export).or_default();
        waiting.fds.extend(fds);
        if waiting.closing {
            return;
        }
        let kept = Arc::clone(self);
        let thread = std::thread::Builder::new().name("close".to_owned()).stack_size(STACK_BYTES);
        // Without a thread they wait for the next ones of this export.
        waiting.closing = thread.spawn(move || kept.close_all(export)).is_ok();
    }

    fn close_all(&self, export: u64) {
        loop {
            let mut exports = self.exports();
            let next = exports.get_mut(&export).and_then(|waiting| waiting.fds.pop());
            let Some(next) = next else {
                exports.remove(&export);
                return;
            };
            drop(exports);
            drop(next);
        }
    }

    fn exports(&self) -> MutexGuard<'_, BTreeMap<u64, ExportCloses>> {
        self.exports.lock().expect("no holder of this lock panics")
    }
}
