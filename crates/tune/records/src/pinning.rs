//! Lists of CPUs as users write them, and threads bound to them.
//!
//! Invariants: a `CpuList` is sorted, has no CPU twice and at least one. A pinned thread has been
//! asked for its CPUs afterwards, since a cpuset narrows them silently.
//! Limits: CPUs 0 to 1023, which is what the kernel's interface in its plain form can name.
//! Not here: where the memory of a guest lies, which QEMU binds.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use plan::units::{BadValue, stored_as_text};
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::{Deserialize, Serialize};

/// Some CPUs by number: `0-3,8`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CpuList(Vec<u16>);

impl CpuList {
    /// The CPUs in order; `None` if there are none.
    pub fn new(cpus: impl IntoIterator<Item = u16>) -> Option<Self> {
        let cpus: BTreeSet<u16> = cpus.into_iter().collect();
        let legal = cpus.last().is_some_and(|&last| usize::from(last) < CpuSet::MAX_CPU);
        legal.then(|| Self(cpus.into_iter().collect()))
    }

    /// The CPUs that run.
    ///
    /// # Errors
    /// If the system does not tell.
    pub fn online() -> Result<Self> {
        const PATH: &str = "/sys/devices/system/cpu/online";
        let text = fs::read_to_string(PATH).with_context(|| format!("read {PATH}"))?;
        text.trim().parse().with_context(|| format!("read {PATH}"))
    }

    /// The CPUs a thread may use; `None` is the calling thread.
    ///
    /// # Errors
    /// If there is no such thread.
    pub fn allowed(tid: Option<u32>) -> Result<Self> {
        let name = || tid.map_or_else(|| "this thread".to_owned(), |tid| format!("thread {tid}"));
        let set = sched_getaffinity(tid.map(thread_id).transpose()?)
            .with_context(|| format!("read the CPUs of {}", name()))?;
        let maximum = u16::try_from(CpuSet::MAX_CPU).expect("1024 fits a u16");
        Self::new((0..maximum).filter(|&cpu| set.is_set(usize::from(cpu))))
            .with_context(|| format!("{} has no CPU", name()))
    }

    /// The CPUs of a NUMA node.
    ///
    /// # Errors
    /// If there is no such node, or it has memory only.
    pub fn of_node(node: u32) -> Result<Self> {
        Self::of_node_below(Path::new("/sys/devices/system/node"), node)
    }

    fn of_node_below(nodes: &Path, node: u32) -> Result<Self> {
        let path = nodes.join(format!("node{node}/cpulist"));
        let Ok(text) = fs::read_to_string(path) else {
            let online = fs::read_to_string(nodes.join("online"));
            let there = online.map_or_else(|_| "none".to_owned(), |text| text.trim().to_owned());
            bail!("NUMA node {node} does not exist: this host has {there}");
        };
        if text.trim().is_empty() {
            bail!("NUMA node {node} has memory only, no CPU");
        }
        text.trim().parse().with_context(|| format!("the CPUs of NUMA node {node}"))
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// All of them, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u16> + Clone + '_ {
        self.0.iter().copied()
    }

    /// Fails with the reason if threads cannot be bound to these CPUs.
    ///
    /// # Errors
    /// If one of them is not among `online` or `allowed`.
    pub fn check(&self, online: &Self, allowed: &Self) -> Result<()> {
        if let Some(cpu) = self.first_not_in(online) {
            bail!("CPU {cpu} of the list {self} does not exist or is off: there are {online}");
        }
        if let Some(cpu) = self.first_not_in(allowed) {
            bail!(
                "CPU {cpu} of the list {self} is not allowed to this process, which may use \
                 {allowed} (see taskset and cpuset)"
            );
        }
        Ok(())
    }

    fn first_not_in(&self, others: &Self) -> Option<u16> {
        self.iter().find(|cpu| others.0.binary_search(cpu).is_err())
    }
}

impl FromStr for CpuList {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, BadValue> {
        let range = |part: &str| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first)?, number(last)?);
            (first <= last).then_some(first..=last)
        };
        let ranges: Option<Vec<_>> = text.split(',').map(range).collect();
        let list = ranges.and_then(|ranges| Self::new(ranges.into_iter().flatten()));
        let valid = "write numbers below 1024 and ranges, such as 0-3,8";
        list.ok_or_else(|| BadValue::new(text, "list of CPUs", valid))
    }
}

/// A number without a sign.
fn number(text: &str) -> Option<u16> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        let mut rest = self.0.as_slice();
        while let Some(&first) = rest.first() {
            let run = rest.iter().zip(first..).take_while(|&(&cpu, expected)| cpu == expected);
            let length = run.count();
            let last = rest[length - 1];
            match length {
                1 => write!(f, "{separator}{first}")?,
                _ => write!(f, "{separator}{first}-{last}")?,
            }
            (separator, rest) = (",", &rest[length..]);
        }
        Ok(())
    }
}

stored_as_text!(CpuList);

/// Binds a thread to some CPUs.
///
/// # Errors
/// If there is no such thread, it belongs to another user, or it got other CPUs than these.
pub fn pin(tid: u32, cpus: &CpuList) -> Result<()> {
    let mut set = CpuSet::new();
    for cpu in cpus.iter() {
        set.set(usize::from(cpu));
    }
    sched_setaffinity(Some(thread_id(tid)?), &set)
        .with_context(|| format!("bind thread {tid} to the CPUs {cpus}"))?;
    let allowed = CpuList::allowed(Some(tid))?;
    if allowed != *cpus {
        bail!("bind thread {tid} to the CPUs {cpus}: a cpuset leaves it only {allowed}");
    }
    Ok(())
}

/// Binds each thread to one CPU, in turn; with more threads than CPUs some share one.
///
/// # Errors
/// As `pin`.
pub fn pin_each(tids: &[u32], cpus: &CpuList) -> Result<()> {
    for (tid, cpu) in in_turn(tids, cpus) {
        pin(tid, &cpu)?;
    }
    Ok(())
}

fn in_turn<'a>(tids: &'a [u32], cpus: &'a CpuList) -> impl Iterator<Item = (u32, CpuList)> + 'a {
    tids.iter().copied().zip(cpus.iter().cycle().map(|cpu| CpuList(vec![cpu])))
}

fn thread_id(tid: u32) -> Result<Pid> {
    let id = i32::try_from(tid).ok().and_then(Pid::from_raw);
    id.with_context(|| format!("{tid} is no id of a thread"))
}

#[cfg(test)]
mod tests;
