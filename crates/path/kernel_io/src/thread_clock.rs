//! How long another thread was on a CPU, without a file.
//!
//! Where it stands: beside the request path, for iothreads that start behind the fences, where `/proc` cannot be opened.

#![expect(unsafe_code, reason = "the clock of another thread has no safe form")]

use std::time::Duration;

/// The clock of a thread's CPU time, read from any thread of its process.
#[derive(Debug)]
pub struct ThreadClock(Option<libc::clockid_t>);

impl ThreadClock {
    /// Of the calling thread.
    pub fn of_this() -> Self {
        let mut clock = 0;
        // SAFETY: it takes nothing and cannot fail.
        let this = unsafe { libc::pthread_self() };
        // SAFETY: the calling thread has not ended, and the number is written to a variable of ours.
        let failed = unsafe { libc::pthread_getcpuclockid(this, &raw mut clock) };
        Self((failed == 0).then_some(clock))
    }

    /// What it says now; `None` if the thread has ended.
    pub fn read(&self) -> Option<Duration> {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the time is written to a variable of ours; a clock that is gone is an error.
        let failed = unsafe { libc::clock_gettime(self.0?, &raw mut time) };
        let seconds = u64::try_from(time.tv_sec).ok().filter(|_| failed == 0)?;
        Some(Duration::new(seconds, u32::try_from(time.tv_nsec).ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::thread_cpu_time;

    #[test]
    fn another_thread_reads_it_until_the_thread_has_ended() {
        let (give, take) = std::sync::mpsc::channel();
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let worker = std::thread::spawn(move || {
            while thread_cpu_time() < Duration::from_millis(20) {}
            give.send((ThreadClock::of_this(), thread_cpu_time())).unwrap();
            stopped.recv().unwrap_err();
        });
        let (clock, told) = take.recv().unwrap();
        let read = clock.read().unwrap();
        assert!(read >= told && read < told + Duration::from_millis(20), "{read:?} of {told:?}");
        drop(stop);
        worker.join().unwrap();
    }
}
