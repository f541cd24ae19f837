//! What a running process holds: descriptors, threads, mappings, memory.
//!
//! Where it stands: tests that have clients come and go look at a server before and after.

use std::path::PathBuf;

use anyhow::{Context, Result};

/// What a process holds because of its clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holdings {
    /// Open descriptors.
    pub descriptors: usize,
    /// Threads, without the kernel's workers for io_uring and an iothread's for calls that may wait, which have bounds of their own,
    /// and without the one of the process that looks on interrupts, which is there from the first busy client on.
    pub threads: usize,
    /// Mappings of memory that came from clients.
    pub guest_mappings: usize,
}

impl Holdings {
    /// What this process holds now.
    pub fn of(pid: u32) -> Result<Self> {
        let count = |name: &str| -> Result<Vec<PathBuf>> {
            let directory = format!("/proc/{pid}/{name}");
            let entries = std::fs::read_dir(&directory).with_context(|| directory.clone())?;
            // An entry that goes away while it is listed is not held.
            Ok(entries.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect())
        };
        // Both kinds of workers come and go with everybody's requests.
        let is_worker = |task: &PathBuf| {
            let name = std::fs::read_to_string(task.join("comm")).unwrap_or_default();
            name.starts_with("iou-") || ["IO worker", "interrupt watch"].contains(&name.trim_end())
        };
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).context("read maps")?;
        Ok(Self {
            descriptors: count("fd")?.len(),
            threads: count("task")?.iter().filter(|task| !is_worker(task)).count(),
            guest_mappings: maps.lines().filter(|line| line.contains("memfd:")).count(),
        })
    }

    /// Whether it is no more than that, of anything.
    pub fn is_within(&self, other: &Self) -> bool {
        self.descriptors <= other.descriptors
            && self.threads <= other.threads
            && self.guest_mappings <= other.guest_mappings
    }
}

/// The memory of its own that a process has touched, in KiB: not what it shares with its clients, which is theirs.
pub fn anonymous_kib(pid: u32) -> Result<u64> {
    status_kib(pid, "RssAnon:")
}

/// The addresses that a process has mapped anything at, in KiB.
pub fn mapped_kib(pid: u32) -> Result<u64> {
    status_kib(pid, "VmSize:")
}

fn status_kib(pid: u32, key: &str) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).context("read status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(key)).context(key.to_owned())?;
    let number = line.trim().strip_suffix(" kB").with_context(|| format!("{key}{line}"))?;
    number.parse().with_context(|| format!("{key}{line}"))
}
