//! CPU time: what the threads of this process used, and how long they waited for a CPU.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// CPU time of the calling thread, in the kernel as well.
pub fn thread_cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).expect("CPU time is not negative");
    Duration::from_secs(seconds)
        + Duration::from_nanos(u64::try_from(time.tv_nsec).expect("nanoseconds are not negative"))
}

/// How long a thread ran on a CPU, and how long it waited for one (run_delay of schedstat).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadSchedulerTimes {
    /// On a CPU, in the kernel as well.
    pub cpu: Duration,
    /// Ready to run, while others had the CPU.
    pub run_delay: Duration,
}

/// A thread's `/proc/thread-self/schedstat`, opened once and read from any thread.
#[derive(Debug)]
pub struct SchedstatFile {
    file: Option<File>,
}

/// Three numbers of at most 20 digits.
const THREAD_STAT_BYTES: usize = 64;

impl SchedstatFile {
    /// Of the calling thread. Call it before the thread is fenced off from files.
    pub fn of_this() -> Self {
        Self { file: File::open("/proc/thread-self/schedstat").ok() }
    }

    /// What it says now, from any thread; `None` if the kernel does not say (CONFIG_SCHED_INFO).
    pub fn read(&self) -> Option<ThreadSchedulerTimes> {
        let mut text = [0; THREAD_STAT_BYTES];
        let count = self.file.as_ref()?.read_at(&mut text, 0).ok()?;
        let text = str::from_utf8(text.get(..count)?).ok()?;
        let mut numbers = text.split_ascii_whitespace().map(|word| word.parse().ok());
        let mut next = || Some(Duration::from_nanos(numbers.next()??));
        Some(ThreadSchedulerTimes { cpu: next()?, run_delay: next()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_thread_reads_how_long_a_thread_ran() {
        let stat = SchedstatFile::of_this();
        let before = stat.read().unwrap();
        let used = thread_cpu_time() + Duration::from_millis(20);
        while thread_cpu_time() < used {}
        let after = std::thread::scope(|scope| scope.spawn(|| stat.read()).join().unwrap());
        // What the current slice has used is added at its next tick, 10 ms at most.
        assert!(
            after.unwrap().cpu >= before.cpu + Duration::from_millis(5),
            "{after:?} {before:?}"
        );
    }
}
