//! Signals that end what threads wait in, at every moment: every call has to be one that is made again.
//!
//! Invariants: the signal is the one of `kernel_io`'s watchdog, which does nothing where nobody handles it, and is sent to single
//! threads. Threads: one, which ends with [`SignalStorm::finish`].

#![expect(unsafe_code, reason = "signals for threads have no safe form")]

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

const SIGNAL: libc::c_int = libc::SIGURG;

/// Rounds between two looks at which threads there are.
const ROUNDS_PER_LIST: u32 = 50;

/// Signals for threads of a process.
#[derive(Debug)]
pub struct SignalStorm {
    sent: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl SignalStorm {
    /// Signals each thread of a process whose name begins so, again after each pause.
    #[must_use]
    pub fn start(process: u32, name: &'static str, pause: Duration) -> Self {
        let (over, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (theirs, count) = (Arc::clone(&over), Arc::clone(&sent));
        let thread = std::thread::spawn(move || {
            while !theirs.load(Ordering::Relaxed) {
                let threads = threads(process, name);
                for _ in 0..ROUNDS_PER_LIST {
                    threads.iter().for_each(|thread| signal(process, *thread));
                    count.fetch_add(threads.len() as u64, Ordering::Relaxed);
                    rest(pause);
                }
            }
        });
        Self { sent, over, thread }
    }

    /// The same for this process, in which the signal ends calls from now on.
    ///
    /// # Errors
    /// If the signal cannot be handled.
    pub fn in_this_process(name: &'static str, pause: Duration) -> io::Result<Self> {
        extern "C" fn nothing(_signal: libc::c_int) {}
        // SAFETY: all bytes zero is an action: the default one, no flags, an empty mask.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as libc::sighandler_t;
        // SAFETY: the action is whole, and its handler does nothing.
        if unsafe { libc::sigaction(SIGNAL, &raw const action, std::ptr::null_mut()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self::start(std::process::id(), name, pause))
    }

    /// How many signals it has sent so far.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Ends it.
    ///
    /// # Panics
    /// If its thread did.
    pub fn finish(self) {
        self.over.store(true, Ordering::Relaxed);
        self.thread.join().expect("it only sends signals");
    }
}

#[expect(clippy::disallowed_methods, reason = "there is no event to wait for")]
fn rest(pause: Duration) {
    std::thread::sleep(pause);
}

/// The threads of a process whose name begins so.
fn threads(process: u32, name: &str) -> Vec<libc::pid_t> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let named = tasks.filter(|task| {
        let found = std::fs::read_to_string(task.path().join("comm"));
        found.is_ok_and(|found| found.starts_with(name))
    });
    named.filter_map(|task| task.file_name().to_str()?.parse().ok()).collect()
}

fn signal(process: u32, thread: libc::pid_t) {
    // SAFETY: the call takes numbers. A thread that has ended gets nothing.
    unsafe { libc::syscall(libc::SYS_tgkill, process, thread, SIGNAL) };
}
