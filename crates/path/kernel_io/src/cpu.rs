//! CPU time: what the threads of this process used, how long they waited for a CPU, and what nobody used.

use std::fs::File;
use std::io;
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

/// The CPUs that the process may use, and how long they were idle (`/proc/stat`).
#[derive(Debug)]
pub struct ProcessCpus {
    numbers: Vec<usize>,
    tick: Duration,
    /// `/proc/stat`, opened once: a daemon behind its fences opens nothing.
    stat: Option<File>,
}

/// What is read of `/proc/stat` at once.
const STAT_BYTES: usize = 16 << 10;

impl ProcessCpus {
    /// Asks the kernel.
    pub fn of_process() -> io::Result<Self> {
        let set = rustix::thread::sched_getaffinity(None)?;
        let numbers = (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect();
        let ticks = rustix::param::clock_ticks_per_second().max(1);
        let tick = Duration::from_secs(1) / u32::try_from(ticks).unwrap_or(100);
        Ok(Self { numbers, tick, stat: File::open("/proc/stat").ok() })
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.numbers.len()
    }

    /// How long they were idle since the host was started; `None` if the kernel does not say.
    pub fn idle_time(&self) -> Option<Duration> {
        let stat = read_whole(self.stat.as_ref()?).ok()?;
        let ticks = idle_ticks(str::from_utf8(&stat).ok()?, &self.numbers);
        Some(self.tick * u32::try_from(ticks % u64::from(u32::MAX)).ok()?)
    }
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

/// What the file says now. The kernel writes it anew for whoever begins at the beginning.
fn read_whole(file: &File) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    loop {
        let place = content.len();
        content.resize(place + STAT_BYTES, 0);
        let offset = u64::try_from(place).expect("64-bit host");
        let count = file.read_at(&mut content[place..], offset)?;
        content.truncate(place + count);
        if count == 0 {
            return Ok(content);
        }
    }
}

/// Ticks idle or waiting for I/O, of these CPUs, in the text of `/proc/stat` (proc(5)).
fn idle_ticks(stat: &str, cpus: &[usize]) -> u64 {
    let of_line = |line: &str| {
        let mut words = line.strip_prefix("cpu")?.split_ascii_whitespace();
        let cpu: usize = words.next()?.parse().ok()?;
        if !cpus.contains(&cpu) {
            return None;
        }
        let idle: u64 = words.nth(3)?.parse().ok()?;
        let waiting: u64 = words.next()?.parse().ok()?;
        Some(idle + waiting)
    };
    stat.lines().filter_map(of_line).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_ticks_are_those_of_the_named_cpus() {
        let stat = "cpu  9 9 9 9 9 9 9\ncpu0 1 2 3 40 5 6 7\ncpu1 1 1 1 100 10 1 1\nintr 5\n";
        assert_eq!(idle_ticks(stat, &[0]), 45);
        assert_eq!(idle_ticks(stat, &[0, 1]), 155);
        assert_eq!(idle_ticks(stat, &[7]), 0);
    }

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

    #[test]
    fn the_host_says_how_idle_it_is() {
        let cpus = ProcessCpus::of_process().unwrap();
        assert!(cpus.count() > 0);
        let before = cpus.idle_time().unwrap();
        assert!(before > Duration::ZERO);
        assert!(cpus.idle_time().unwrap() >= before);
    }
}
