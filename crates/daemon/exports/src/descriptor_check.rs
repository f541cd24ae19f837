//! What front ends send is looked at by a process apart, before this one has it.
//!
//! Closing a descriptor asks the file system whose file it is (FLUSH), and waits for the answer where no signal wakes
//! anybody. A front end can hand over a file whose server, perhaps itself, never answers: a process that has received
//! it cannot even be killed. What waits in a socket can be looked at only by receiving it. So another process does
//! that, which has nothing else and which nobody waits for: the *descriptor check*.
//!
//! Where it stands: before each message of a session that brings descriptors ([`vhost_user::Device::inspect_descriptors`]).
//! A session sends its connection and an eventfd for the answer; the other process looks at the message that is at the
//! head of the connection, leaves it there, and answers. Made before the first thread.
//!
//! Invariants: this process receives no descriptor from a front end that was not looked at.
//! Threads: any session's. Limits: [`ANSWER_LIMIT`] for an answer; then the session ends.

mod process;

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use block::{Clock, SystemClock};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown,
    SocketFlags, SocketType, recv, sendmsg, shutdown, socketpair,
};
use sandbox::SandboxMode;
use vhost_user::DescriptorCloseRisk;
use virtio::GuestMemoryFilePolicy;

/// How long an answer may take that asks nobody. More than a host takes that is short of CPU.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// The pause before descriptors that the kernel could not take are sent again.
const MOMENT: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// How long it may take to end, once it has nothing more to do. With descriptors whose close never ends it stays.
const END_LIMIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// The other process's name.
const NAME: &std::ffi::CStr = c"descriptorcheck";

/// What the other process says at its start, if it is behind its fences.
const CONFINED: [u8; 1] = [1];

/// The answer that closing asks nobody; every other one is no. An eventfd takes numbers from 1 on.
const ASKS_NOBODY: u64 = 1;
/// The answer that closing may wait.
const MAY_WAIT: u64 = 2;
/// The answer that too many are there already whose close waits, or that there is no room to look.
const NO_ROOM: u64 = 3;

/// The helper process that examines descriptors of front ends before this process receives them.
#[derive(Debug)]
pub struct DescriptorCheck {
    socket: OwnedFd,
    /// What tells of its end, where the kernel does.
    process: Option<OwnedFd>,
    memory_files: Arc<GuestMemoryFilePolicy>,
    /// Whether it has said that it is behind its fences.
    is_confined: bool,
    exports: AtomicU64,
}

/// The descriptor check as the sessions of one export use it.
#[derive(Debug)]
pub(crate) struct ExportDescriptorCheck {
    check: Arc<DescriptorCheck>,
    export: u64,
}

/// The helper process that examines descriptors could not be started.
#[derive(Debug, thiserror::Error)]
pub enum DescriptorCheckStartError {
    /// It could not be made.
    #[error("cannot make a process that looks at descriptors")]
    Make(#[source] io::Error),
    /// It has ended at its start.
    #[error("the process that looks at descriptors has ended at its start; it needs /proc")]
    Ended,
    /// It could not give up what `--sandbox on` demands.
    #[error("the process that looks at descriptors cannot be confined")]
    Unconfined,
}

/// The helper process gave no answer about descriptors.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DescriptorCheckError {
    #[error(
        "the process that looks at descriptors has ended; a new one comes with a new daemon (ringloom serve --takeover)"
    )]
    Ended,
    #[error("the process that looks at descriptors does not answer")]
    Silent,
    #[error(
        "descriptors of this export that are being closed have no end; so many are not looked at"
    )]
    NoRoom,
    #[error("cannot ask the process that looks at descriptors")]
    Kernel(#[source] io::Error),
}

impl From<Errno> for DescriptorCheckError {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::PIPE | Errno::CONNRESET | Errno::CONNREFUSED => Self::Ended,
            errno => Self::Kernel(errno.into()),
        }
    }
}

fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

impl Drop for DescriptorCheck {
    /// The other process ends before this one does: a service manager that counts processes finds none left.
    fn drop(&mut self) {
        let Some(process) = &self.process else { return };
        if shutdown(&self.socket, Shutdown::Both).is_ok() {
            let _in_time = poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&END_LIMIT));
        }
    }
}

impl DescriptorCheck {
    /// Makes the other process. Call it before the first thread.
    pub fn start(
        memory_files: &Arc<GuestMemoryFilePolicy>,
        sandbox: SandboxMode,
    ) -> Result<Arc<Self>, DescriptorCheckStartError> {
        let (ours, theirs) = pair().map_err(DescriptorCheckStartError::Make)?;
        let process = host::start_apart(NAME, theirs, |socket| {
            process::run(&socket, memory_files, sandbox);
        })
        .map_err(DescriptorCheckStartError::Make)?;
        let mut said = [0];
        let (_, bytes) = retry_on_intr(|| recv(&ours, &mut said, RecvFlags::empty()))
            .map_err(|errno| DescriptorCheckStartError::Make(errno.into()))?;
        if bytes != said.len() {
            return Err(DescriptorCheckStartError::Ended);
        }
        let mut check = Self::of(ours, memory_files, said == CONFINED);
        check.process = process;
        Ok(Arc::new(check))
    }

    fn of(socket: OwnedFd, memory_files: &Arc<GuestMemoryFilePolicy>, is_confined: bool) -> Self {
        Self {
            socket,
            process: None,
            memory_files: Arc::clone(memory_files),
            is_confined,
            exports: AtomicU64::new(0),
        }
    }

    /// Whether it is behind the fences that must be there. Where this process cannot have one either, it can say why.
    pub fn judge(&self, sandbox: SandboxMode) -> Result<(), DescriptorCheckStartError> {
        if sandbox == SandboxMode::Required && !self.is_confined {
            return Err(DescriptorCheckStartError::Unconfined);
        }
        Ok(())
    }

    /// One whose process is a thread of this one, for tests.
    ///
    /// # Panics
    /// If the host has no sockets.
    pub fn on_thread() -> Arc<Self> {
        let (ours, theirs) = pair().expect("the host has sockets");
        let memory_files = Arc::default();
        let files = Arc::clone(&memory_files);
        std::thread::spawn(move || process::run(&theirs, &files, SandboxMode::Off));
        recv(&ours, &mut [0], RecvFlags::empty()).expect("the thread says that it runs");
        Arc::new(Self::of(ours, &memory_files, false))
    }

    /// From which files memory is taken.
    pub fn memory_files(&self) -> &Arc<GuestMemoryFilePolicy> {
        &self.memory_files
    }

    /// For another export: what one sends takes no room from the others.
    pub(crate) fn for_export(self: &Arc<Self>) -> ExportDescriptorCheck {
        let export = self.exports.fetch_add(1, Ordering::Relaxed);
        ExportDescriptorCheck { check: Arc::clone(self), export }
    }
}

/// Where answers for a session arrive.
pub(crate) fn answers() -> Result<OwnedFd, DescriptorCheckError> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

impl ExportDescriptorCheck {
    /// Has the descriptors looked at that the message at the head of a connection brings. After an error the session must
    /// end, since an answer may still come.
    pub(crate) fn look(
        &self,
        connection: BorrowedFd<'_>,
        answers: &OwnedFd,
    ) -> Result<DescriptorCloseRisk, DescriptorCheckError> {
        let began = SystemClock.now();
        let left = || ANSWER_LIMIT.saturating_sub(SystemClock.now().duration_since(began));
        self.ask([connection, answers.as_fd()], &left)?;
        self.wait(answers.as_fd(), PollFlags::IN, &left)?;
        let mut answer = [0; 8];
        rustix::io::read(answers, &mut answer)?;
        match u64::from_ne_bytes(answer) {
            ASKS_NOBODY => Ok(DescriptorCloseRisk::None),
            NO_ROOM => Err(DescriptorCheckError::NoRoom),
            _ => Ok(DescriptorCloseRisk::MayBlock),
        }
    }

    fn ask(
        &self,
        fds: [BorrowedFd<'_>; 2],
        left: &dyn Fn() -> Duration,
    ) -> Result<(), DescriptorCheckError> {
        let socket = self.check.socket.as_fd();
        let export = self.export.to_ne_bytes();
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        loop {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            assert!(control.push(SendAncillaryMessage::ScmRights(&fds)), "there is room for two");
            match sendmsg(socket, &[IoSlice::new(&export)], &mut control, flags) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait(socket, PollFlags::OUT, left)?,
                // Too many are under way.
                Err(Errno::TOOMANYREFS) if !left().is_zero() => {
                    poll(&mut [], Some(&MOMENT))?;
                }
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Waits for that, or the end of the other process.
    fn wait(
        &self,
        fd: BorrowedFd<'_>,
        what: PollFlags,
        left: &dyn Fn() -> Duration,
    ) -> Result<(), DescriptorCheckError> {
        loop {
            let limit = Timespec::try_from(left()).expect("limits are short");
            let mut fds = [
                PollFd::from_borrowed_fd(fd, what),
                PollFd::new(&self.check.socket, PollFlags::empty()),
            ];
            match poll(&mut fds, Some(&limit)) {
                Ok(0) => return Err(DescriptorCheckError::Silent),
                Ok(_) if fds[0].revents().contains(what) => return Ok(()),
                Ok(_) => return Err(DescriptorCheckError::Ended),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests;
