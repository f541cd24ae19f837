//! Counters of another process: CPU time, system calls, anonymous memory.
//!
//! Invariants: CPU time is the scheduler's own (`schedstat`), summed over the threads. Threads that
//! start while system calls are counted are counted through inheritance.
//! Limits: system calls need the right to use tracepoints (root) and a mounted tracefs; without
//! them they are not counted.
#![expect(unsafe_code, reason = "perf_event_open has no wrapper")]

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::FromRawFd;

use load::procfs::field;

/// The threads of librbd, by their names or how these begin; the last one is called as the thread that has started it.
const LIBRBD_THREADS: [&str; 10] = [
    "msgr-worker-",
    "ms_dispatch",
    "ms_local",
    "io_context_pool",
    "taskfin_librbd",
    "tp_librbd",
    "safe_timer",
    "ceph_timer",
    "service",
    "rbd open",
];

/// CPU time of all threads of a process since it started, but those of librbd, in nanoseconds.
pub(crate) fn cpu_ns(pid: u32) -> Option<u64> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten();
    let read = |thread: &fs::DirEntry, file: &str| fs::read_to_string(thread.path().join(file));
    let own = threads.filter(|thread| {
        let name = read(thread, "comm").unwrap_or_default();
        !LIBRBD_THREADS.iter().any(|known| name.starts_with(known))
    });
    let texts = own.filter_map(|thread| read(&thread, "schedstat").ok());
    // The first number is the time on a CPU.
    texts.map(|text| text.split_whitespace().next()?.parse::<u64>().ok()).sum()
}

/// Anonymous memory of a process in KiB.
pub(crate) fn anonymous_kib(pid: u32) -> Option<u64> {
    let value = field(&format!("/proc/{pid}/status"), "RssAnon")?;
    value.trim_end_matches(" kB").parse().ok()
}

/// Counts the system calls of a process from its making on.
#[derive(Debug)]
pub(crate) struct SystemCalls {
    events: Vec<File>,
}

const TRACEPOINT: &str = "/sys/kernel/tracing/events/raw_syscalls/sys_enter/id";
const PERF_TYPE_TRACEPOINT: u32 = 2;
/// The bit `inherit` of `perf_event_attr`.
const INHERIT: u64 = 1 << 1;

/// The first published version of `struct perf_event_attr`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct EventAttributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup: u32,
    breakpoint: u32,
    config1: u64,
}

impl SystemCalls {
    /// `None` if this host does not let us count.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        let tracepoint = fs::read_to_string(TRACEPOINT).ok()?.trim().parse().ok()?;
        let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten();
        let events: io::Result<Vec<_>> = threads
            .filter_map(|thread| thread.file_name().to_str()?.parse().ok())
            .map(|thread| open(tracepoint, thread))
            .collect();
        Some(Self { events: events.ok()? })
    }

    pub(crate) fn count(&mut self) -> Option<u64> {
        let mut sum = 0;
        for event in &mut self.events {
            let mut bytes = [0; 8];
            event.read_exact(&mut bytes).ok()?;
            sum += u64::from_ne_bytes(bytes);
        }
        Some(sum)
    }
}

fn open(tracepoint: u64, thread: i32) -> io::Result<File> {
    let size = u32::try_from(size_of::<EventAttributes>()).expect("64 bytes");
    let attributes = EventAttributes {
        kind: PERF_TYPE_TRACEPOINT,
        size,
        config: tracepoint,
        flags: INHERIT,
        ..EventAttributes::default()
    };
    let (any_cpu, no_group, close_on_exec) = (-1, -1, 8_u64);
    // SAFETY: the attributes live during the call and have the size they name.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw const attributes,
            thread,
            any_cpu,
            no_group,
            close_on_exec,
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    let fd = i32::try_from(fd).expect("a descriptor");
    // SAFETY: the descriptor was just made and belongs to nobody else.
    Ok(unsafe { File::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_used_cpu_and_memory() {
        let pid = std::process::id();
        assert!(cpu_ns(pid).unwrap() > 0);
        assert!(anonymous_kib(pid).unwrap() > 0);
        assert_eq!(cpu_ns(u32::MAX), None);
    }

    #[test]
    fn system_calls_are_counted_where_the_host_allows_it() {
        let Some(mut calls) = SystemCalls::of(std::process::id()) else {
            return; // What the bench prints as n/a.
        };
        let before = calls.count().unwrap();
        for _ in 0..100 {
            rustix::thread::sched_yield();
        }
        assert!(calls.count().unwrap() >= before + 100);
    }
}
