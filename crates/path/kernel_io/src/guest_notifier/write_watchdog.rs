//! Writes to other processes' eventfds that end within [`HELD_MAX`], whatever those processes do: a thread looks on, and ends by
//! a signal what does not end by itself.
//!
//! Where it stands in the life of a request: at its end, under [`super::GuestNotifier`].
//!
//! Invariants:
//! - Nobody writes unseen. A write is announced before its thread asks whether the watchdog is awake; the watchdog says that it
//!   sleeps before it looks for announced writes, and stays awake if there is one. In one order of all four (SeqCst) one of the
//!   two sees the other.
//! - No signal is lost for good. One that comes before its thread sleeps in the kernel is followed by another at the next look.
//! - The signal goes to a thread that was in the same write at two looks, or has just left it, and to no other: threads take
//!   themselves off the list before they end. Its handler does nothing. It is one of those that need no memory to be sent.
//! - It ends calls that wait with EINTR (no SA_RESTART). So whatever an iothread waits in goes on after EINTR.
//! - Where such a signal cannot be sent, nothing is written here: it is tried at the start.
//!
//! Threads: one for the process, started by the first iothread that is busy, behind its fences and on its CPUs.
//! Limits: a look every [`LOOK`] while at least [`WRITES_MIN`] writes come between two looks; no wake-up otherwise.

use std::io;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::thread::Thread;
use std::time::Duration;

use rustix::io::Errno;

/// From one look of the watchdog to the next.
const LOOK: Duration = Duration::from_millis(10);

/// For how long a write can be held, if the watchdog gets its CPU in time.
pub(super) const HELD_MAX: Duration = Duration::from_millis(20);

/// The watchdog sleeps if fewer writes than this were made between two looks: a look costs as much as they save.
const WRITES_MIN: u64 = 32;

/// Urgent data on sockets, which nobody asks to be told of. Without a handler it does nothing.
const SIGNAL: libc::c_int = libc::SIGURG;

static WATCHDOG: WriteWatchdog = WriteWatchdog::new();

/// Interrupts writes that do not end.
#[derive(Debug)]
struct WriteWatchdog {
    is_awake: AtomicBool,
    threads: Mutex<Vec<WatchedThread>>,
    /// Its own thread; `None` if there is none to be had.
    thread: OnceLock<Option<Thread>>,
}

/// A thread that writes, as the watchdog sees it.
#[derive(Debug)]
struct WatchedThread {
    id: libc::pid_t,
    writes: Arc<AtomicU64>,
    /// What `writes` was at the last look.
    seen: u64,
}

/// The calling thread's writes, which the watchdog sees.
#[derive(Debug)]
pub(super) struct WatchedWrites {
    /// Two for each, and odd during one. Only the thread itself changes it.
    writes: Arc<AtomicU64>,
    /// A signal has to find the thread that writes.
    on_one_thread: PhantomData<*const ()>,
}

/// What became of a write.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum WatchedWrite {
    /// The counter was added to, or is full and does not hold up writers.
    Done,
    /// The counter is full and held the thread up until the watchdog came.
    HeldUp,
    /// Nobody looks on: nothing was written.
    Unwatched,
}

impl WatchedWrites {
    /// Of the calling thread.
    pub(super) fn of_this_thread() -> Self {
        let writes = Arc::new(AtomicU64::new(0));
        // Whoever started the process may have blocked it.
        change_mask(libc::SIG_UNBLOCK);
        let id = this_thread();
        WATCHDOG.lock().push(WatchedThread { id, writes: Arc::clone(&writes), seen: 0 });
        Self { writes, on_one_thread: PhantomData }
    }

    /// Has the watchdog look on, until there is little to see; whether it does.
    pub(super) fn wake_watchdog(&self) -> bool {
        WATCHDOG.wake()
    }

    /// Adds one to the counter of an eventfd, if the watchdog is awake.
    #[inline]
    pub(super) fn write(&self, fd: BorrowedFd<'_>) -> io::Result<WatchedWrite> {
        let writes = self.writes.load(Ordering::Relaxed);
        self.writes.store(writes + 1, Ordering::SeqCst);
        let result = if WATCHDOG.is_awake.load(Ordering::SeqCst) {
            add_one(fd)
        } else {
            Ok(WatchedWrite::Unwatched)
        };
        self.writes.store(writes + 2, Ordering::Release);
        result
    }
}

impl Drop for WatchedWrites {
    fn drop(&mut self) {
        WATCHDOG.lock().retain(|thread| !Arc::ptr_eq(&thread.writes, &self.writes));
    }
}

/// Adds one to the counter of an eventfd, however long that takes.
pub(super) fn add_one(fd: BorrowedFd<'_>) -> io::Result<WatchedWrite> {
    match rustix::io::write(fd, &1_u64.to_ne_bytes()) {
        Ok(_) | Err(Errno::AGAIN) => Ok(WatchedWrite::Done),
        Err(Errno::INTR) => Ok(WatchedWrite::HeldUp),
        Err(errno) => Err(errno.into()),
    }
}

impl WriteWatchdog {
    const fn new() -> Self {
        Self {
            is_awake: AtomicBool::new(false),
            threads: Mutex::new(Vec::new()),
            thread: OnceLock::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<WatchedThread>> {
        self.threads.lock().expect("no holder of this lock panics")
    }

    fn wake(&'static self) -> bool {
        let thread = self.thread.get_or_init(|| match self.start() {
            Ok(thread) => Some(thread),
            Err(error) => {
                tracing::warn!("nobody can watch writes of interrupts: {error}");
                None
            }
        });
        let Some(thread) = thread else { return false };
        if !self.is_awake.swap(true, Ordering::SeqCst) {
            thread.unpark();
        }
        true
    }

    fn start(&'static self) -> io::Result<Thread> {
        handle_signal()?;
        interrupt(this_thread())?;
        let thread = std::thread::Builder::new().name("interrupt watch".to_owned());
        Ok(thread.spawn(|| self.run())?.thread().clone())
    }

    fn run(&self) {
        loop {
            while !self.is_awake.load(Ordering::SeqCst) {
                std::thread::park();
            }
            // An early end, if it was woken in the meantime, makes a look early.
            std::thread::park_timeout(LOOK);
            if self.look() < WRITES_MIN {
                self.go_to_sleep();
            }
        }
    }

    /// Interrupts writes that were there at the last look; returns how many began since then.
    fn look(&self) -> u64 {
        let mut count = 0;
        for thread in self.lock().iter_mut() {
            let writes = thread.writes.load(Ordering::Acquire);
            if writes == thread.seen && is_writing(writes) {
                let sent = interrupt(thread.id);
                sent.expect("a thread that is on the list gets what another one got");
            }
            count += (writes - thread.seen) / 2;
            thread.seen = writes;
        }
        count
    }

    /// Looks on no more, unless somebody is writing.
    fn go_to_sleep(&self) {
        self.is_awake.store(false, Ordering::SeqCst);
        let is_seen = |thread: &WatchedThread| is_writing(thread.writes.load(Ordering::SeqCst));
        if self.lock().iter().any(is_seen) {
            self.is_awake.store(true, Ordering::SeqCst);
        }
    }
}

fn is_writing(writes: u64) -> bool {
    writes % 2 == 1
}

fn this_thread() -> libc::pid_t {
    rustix::thread::gettid().as_raw_pid()
}

/// Blocks or unblocks the signal for the calling thread.
fn change_mask(how: libc::c_int) {
    // SAFETY: all bytes zero is a set of signals.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is ours, and the signal exists.
    unsafe { libc::sigaddset(&raw mut set, SIGNAL) };
    // SAFETY: the set is only read; nothing here counts on the signal being blocked.
    let failed = unsafe { libc::pthread_sigmask(how, &raw const set, std::ptr::null_mut()) };
    assert!(failed == 0, "a thread's own signals are its own to choose");
}

/// From now on the signal ends calls that wait, and does nothing else.
fn handle_signal() -> io::Result<()> {
    extern "C" fn nothing(_signal: libc::c_int) {}
    // SAFETY: all bytes zero is an action: the default one, no flags, an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as libc::sighandler_t;
    // SAFETY: the action is whole, and its handler may run at any time, since it does nothing.
    match unsafe { libc::sigaction(SIGNAL, &raw const action, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Ends what a thread of this process waits in.
fn interrupt(thread: libc::pid_t) -> io::Result<()> {
    let process = rustix::process::getpid().as_raw_pid();
    // SAFETY: the call takes numbers; the signal has a handler that does nothing.
    match unsafe { libc::syscall(libc::SYS_tgkill, process, thread, SIGNAL) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{EventfdFlags, eventfd};
    use std::os::fd::AsFd;

    use super::*;

    /// A watchdog without a thread, and a thread that it watches: this one.
    fn rig() -> (WriteWatchdog, Arc<AtomicU64>) {
        let (watchdog, writes) = (WriteWatchdog::new(), Arc::new(AtomicU64::new(0)));
        let id = this_thread();
        watchdog.lock().push(WatchedThread { id, writes: Arc::clone(&writes), seen: 0 });
        watchdog.is_awake.store(true, Ordering::SeqCst);
        (watchdog, writes)
    }

    #[test]
    fn it_counts_what_was_written_since_it_looked() {
        let (watchdog, writes) = rig();
        assert_eq!(watchdog.look(), 0);
        writes.store(2 * 7, Ordering::SeqCst);
        assert_eq!(watchdog.look(), 7);
        assert_eq!(watchdog.look(), 0);
    }

    #[test]
    fn it_stays_awake_while_somebody_writes() {
        let (watchdog, writes) = rig();
        writes.store(1, Ordering::SeqCst);
        watchdog.go_to_sleep();
        assert!(watchdog.is_awake.load(Ordering::SeqCst));
        writes.store(2, Ordering::SeqCst);
        watchdog.go_to_sleep();
        assert!(!watchdog.is_awake.load(Ordering::SeqCst));
    }

    #[test]
    fn a_thread_that_ends_is_watched_no_more() {
        let writes = std::thread::spawn(|| Arc::downgrade(&WatchedWrites::of_this_thread().writes));
        assert!(writes.join().unwrap().upgrade().is_none());
    }

    #[test]
    fn a_starter_that_has_blocked_the_signal_changes_nothing() {
        let is_blocked = || {
            // SAFETY: all bytes zero is a set of signals.
            let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
            // SAFETY: without a new set the present one is stored, and nothing else happens.
            unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut set) };
            // SAFETY: the set is whole, and the signal exists.
            unsafe { libc::sigismember(&raw const set, SIGNAL) == 1 }
        };
        let blocked = std::thread::spawn(move || {
            change_mask(libc::SIG_BLOCK);
            assert!(is_blocked());
            let _writes = WatchedWrites::of_this_thread();
            is_blocked()
        });
        assert!(!blocked.join().unwrap());
    }

    /// A write that is held up begins at every moment of the watchdog's round: it is never one that nobody sees.
    #[test]
    fn a_write_is_seen_or_not_made_when_the_watchdog_falls_asleep() {
        let writes = WatchedWrites::of_this_thread();
        let full = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        for round in 0..40 {
            assert!(writes.wake_watchdog());
            std::thread::park_timeout(LOOK * round / 20);
            // Either way it comes back.
            assert_ne!(writes.write(full.as_fd()).unwrap(), WatchedWrite::Done);
        }
    }
}
