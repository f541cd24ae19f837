//! Signals that ask a process to end: the second one is not asked to wait for what the first has begun.
//!
//! Limits: what comes within [`GRACE`] of the first signal is that signal once more: timeout(1) signals its child and
//! the group that the child is in.

#![expect(unsafe_code, reason = "what a handler may do is for its author to know")]

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// For how long after the first signal another one counts as the same.
const GRACE: Duration = Duration::from_millis(500);

/// Whether the next terminating signal ends the process at once: the second one does.
#[derive(Debug)]
pub struct SignalEscalation {
    /// From when on it does, in milliseconds of the monotonic clock.
    since_ms: AtomicU64,
}

impl SignalEscalation {
    /// The first signal has not come, and is not to end the process at once.
    const NEVER: u64 = u64::MAX;

    /// Every signal ends the process at once.
    pub fn full() -> Self {
        Self { since_ms: AtomicU64::new(0) }
    }

    /// From now on every signal ends the process at once.
    pub fn fill(&self) {
        self.since_ms.store(0, Ordering::SeqCst);
    }

    /// From now on the first signal does not end the process, and the second one does.
    pub fn forget(&self) {
        self.since_ms.store(Self::NEVER, Ordering::SeqCst);
    }

    /// Whether a signal that comes at this time ends the process at once. In one step: several threads may be in a
    /// handler at the same time, each for a signal of its own, and only one of them may have been the first.
    fn is_over_at(&self, now_ms: u64) -> bool {
        let grace_ms = u64::try_from(GRACE.as_millis()).expect("half a second");
        let (order, later) = (Ordering::SeqCst, now_ms.saturating_add(grace_ms));
        match self.since_ms.compare_exchange(Self::NEVER, later, order, order) {
            Ok(_) => false,
            Err(since_ms) => now_ms >= since_ms,
        }
    }
}

/// From now on this signal ends the process at once, with 128 and its number, if the process is impatient; otherwise it
/// makes it so, half a second later.
///
/// # Errors
/// If there is no such signal, or none that can be caught.
pub fn exit_on_second_signal(signal: i32, escalation: &Arc<SignalEscalation>) -> io::Result<()> {
    let escalation = Arc::clone(escalation);
    let handler = move || {
        if escalation.is_over_at(monotonic_ms()) {
            signal_hook::low_level::exit(128 + signal);
        }
    };
    // SAFETY: the handler reads a clock, exchanges an atomic and may call `_exit`, all of which signal-safety(7)
    // allows; none of them panics.
    unsafe { signal_hook::low_level::register(signal, handler) }?;
    Ok(())
}

/// Whether this signal does nothing: whoever started the process wants it so (nohup(1), a shell's `&`).
///
/// # Errors
/// If there is no such signal.
pub fn is_ignored(signal: i32) -> io::Result<bool> {
    let mut found = std::mem::MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: without a new action nothing is changed, and `found` is memory for the one that there is.
    if unsafe { libc::sigaction(signal, std::ptr::null(), found.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: sigaction(2) has filled it, as it said.
    let found = unsafe { found.assume_init() };
    Ok(found.sa_sigaction == libc::SIG_IGN)
}

/// Keeps these signals from the calling thread, and from all that it starts.
///
/// # Errors
/// If there is no such signal.
pub fn block_signals(signals: &[i32]) -> io::Result<()> {
    change_mask(libc::SIG_BLOCK, signals)
}

/// Has the calling thread handle these signals, which others block: they come through also while the process's first
/// thread is in a system call on a disk that hangs, which does not let a handler run.
///
/// # Errors
/// If there is no such signal.
pub fn unblock_signals(signals: &[i32]) -> io::Result<()> {
    change_mask(libc::SIG_UNBLOCK, signals)
}

fn change_mask(how: libc::c_int, signals: &[i32]) -> io::Result<()> {
    let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: it fills the set that it is given.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    for signal in signals {
        // SAFETY: the set is one since it was emptied.
        if unsafe { libc::sigaddset(set.as_mut_ptr(), *signal) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    // SAFETY: the set is read, and the mask before is not asked for.
    match unsafe { libc::pthread_sigmask(how, set.as_ptr(), std::ptr::null_mut()) } {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

fn monotonic_ms() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    // The time since the start of the host is not negative and fits for millions of years; a handler must not panic.
    now.tv_sec
        .cast_unsigned()
        .saturating_mul(1000)
        .saturating_add(now.tv_nsec.cast_unsigned() / 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_within_half_a_second_are_one_and_the_next_is_the_second() {
        let escalation = SignalEscalation::full();
        assert!(escalation.is_over_at(7));
        escalation.forget();
        let heard = [1000, 1000, 1499, 1500, 1501].map(|now| escalation.is_over_at(now));
        assert_eq!(heard, [false, false, false, true, true]);
        escalation.forget();
        assert!(!escalation.is_over_at(9000));
        escalation.fill();
        assert!(escalation.is_over_at(9000));
    }

    #[test]
    fn a_thread_that_blocks_a_signal_leaves_it_to_one_that_does_not() {
        let heard = Arc::new(std::sync::atomic::AtomicBool::new(false));
        signal_hook::flag::register(libc::SIGWINCH, Arc::clone(&heard)).unwrap();
        // SAFETY: it sends this thread a signal that has a handler.
        let raise = || assert_eq!(unsafe { libc::raise(libc::SIGWINCH) }, 0);
        let thread = std::thread::spawn(move || {
            block_signals(&[libc::SIGWINCH]).unwrap();
            raise();
            let before = heard.load(Ordering::SeqCst);
            unblock_signals(&[libc::SIGWINCH]).unwrap();
            [before, heard.load(Ordering::SeqCst)]
        });
        assert_eq!(thread.join().unwrap(), [false, true]);
        assert!(block_signals(&[4711]).is_err());
    }

    #[test]
    fn a_signal_is_ignored_if_somebody_said_so() {
        // Rust's runtime ignores this one; nobody ignores the other.
        assert!(is_ignored(libc::SIGPIPE).unwrap());
        assert!(!is_ignored(libc::SIGURG).unwrap());
        assert!(is_ignored(4711).is_err());
    }
}
