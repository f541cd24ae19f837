//! The CPU around a run: what the host and the processes under test used between two moments.
//!
//! Whoever runs a load calls `sample` about every 100 ms and `close` when the load has ended, and
//! asks `between` afterwards, when the ends of the measured window are known.
//!
//! Invariants: figures are differences of the kernel's counters, interpolated between two samples.
//! A thread that starts between two samples counts from zero; what a thread uses between its last
//! sample and its end is lost, so a figure is a lower bound. A group of which one process could not
//! be read has no figures. The caller must not have waited for the process, else its id is reused.
//! Limits: sampling uses at most 1/20 of one CPU and keeps at most `SAMPLES_MAX` samples; both make
//! samples rarer. A group names at most `THREADS_MAX` threads.

pub mod reading;
mod series;

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use reading::HostTimes;
use serde::{Deserialize, Serialize};
use series::{Axis, Counters, Series, Window};
use storage::clock;

/// An hour of one sample in 900 ms; odd, so that the newest sample outlives `Axis::thin`.
const SAMPLES_MAX: usize = 4097;
/// A sample that took 1 ms is followed by the next one after 20 ms at the earliest.
const REST: u32 = 20;
/// A result line stays readable; fio may have a thousand threads.
const THREADS_MAX: usize = 64;

/// Which of the processes under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GroupName {
    /// The program that serves the disk over vhost-user.
    Daemon,
    /// The virtual machines.
    Qemu,
    /// What makes the requests on the host.
    Load,
}

/// What a thread is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// It serves queues of disks.
    Iothread,
    /// It runs a CPU of a guest.
    Vcpu,
    /// The first thread of a process.
    Main,
    /// All others: pools, and the kernel's threads of io_uring.
    Worker,
}

/// One process to measure. Processes with the same name give one result.
#[derive(Clone, Debug)]
pub struct Group {
    name: GroupName,
    pid: u32,
    roles: HashMap<u32, Role>,
}

impl Group {
    /// The process `pid`, whose threads are told apart by their names.
    pub fn new(name: GroupName, pid: u32) -> Self {
        Self { name, pid, roles: HashMap::new() }
    }

    /// Roles by thread id, as QMP tells them; they go before the names of the threads.
    pub fn with_roles(mut self, roles: impl IntoIterator<Item = (u32, Role)>) -> Self {
        self.roles.extend(roles);
        self
    }

    fn role(&self, tid: u32, comm: &str) -> Role {
        self.roles.get(&tid).copied().unwrap_or_else(|| role_by_name(self.pid, tid, comm))
    }
}

/// The threads of a process with their roles, by their names.
pub fn threads_by_role(pid: u32) -> Vec<(u32, Role)> {
    let threads = reading::threads(pid).into_iter().map(|(tid, _)| tid);
    threads
        .filter_map(|tid| Some((tid, role_by_name(pid, tid, &reading::comm(pid, tid)?))))
        .collect()
}

/// Threads that serve no disk, though their names begin as those of iothreads do: QEMU's control socket is read by one.
const OTHERS_NAMED_IO: [&str; 2] = ["IO worker", "IO mon_iothread"];

/// As `ringloom serve` and QEMU (with `debug-threads=on`) name their threads.
fn role_by_name(pid: u32, tid: u32, comm: &str) -> Role {
    if tid == pid {
        Role::Main
    } else if OTHERS_NAMED_IO.contains(&comm) {
        Role::Worker
    } else if comm.starts_with("IO ") {
        Role::Iothread
    } else if comm.starts_with("CPU ") {
        Role::Vcpu
    } else {
        Role::Worker
    }
}

/// What was used between two moments.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// The time the figures are about: the window, cut to what was sampled.
    pub covered_ns: u64,
    /// Missing where the kernel does not tell, or CPUs came or went.
    pub host: Option<HostCpu>,
    /// Only groups whose every process could be read.
    pub groups: Vec<GroupCost>,
}

impl Cost {
    /// CPU time of what serves the disk: the daemon, and QEMU without the CPUs of its guest; where neither runs, of the
    /// load.
    pub fn serving_ns(&self) -> Option<u64> {
        let qemu = self.group(GroupName::Qemu).map(GroupCost::without_vcpus_ns);
        let daemon = self.group(GroupName::Daemon).map(|group| group.cpu_ns);
        match (daemon, qemu) {
            (None, None) => self.group(GroupName::Load).map(|group| group.cpu_ns),
            (daemon, qemu) => Some(daemon.unwrap_or_default() + qemu.unwrap_or_default()),
        }
    }

    /// CPU time of the threads of a role in one group or in all; `None` if there are none.
    pub fn ns_of(&self, group: Option<GroupName>, role: Option<Role>) -> Option<u64> {
        let groups = self.groups.iter().filter(|it| group.is_none_or(|name| it.name == name));
        let of_group = |it: &GroupCost| match role {
            None => it.cpu_ns,
            Some(role) => it.threads.iter().filter(|it| it.role == role).map(|it| it.cpu_ns).sum(),
        };
        Some(groups.map(of_group).sum()).filter(|ns| *ns > 0)
    }

    /// CPU time of all groups; `None` if none could be read.
    pub fn of_all_ns(&self) -> Option<u64> {
        (!self.groups.is_empty()).then(|| self.groups.iter().map(|group| group.cpu_ns).sum())
    }

    /// How busy the busiest iothread is that serves the disk, or the first thread where it does: 1 is all the time, looking for
    /// requests included.
    pub fn serving_busy(&self) -> Option<f64> {
        let group = self.group(GroupName::Daemon).or_else(|| self.group(GroupName::Qemu))?;
        let own = group.threads.iter().filter(|it| matches!(it.role, Role::Iothread | Role::Main));
        own.map(|thread| thread.cpu_ns).max().map(|used| self.cpus(used))
    }

    /// How busy the threads are that make the requests, on average over `count` of them: the guests' CPUs, or the load.
    pub fn submitting_busy(&self, count: u16) -> Option<f64> {
        let vcpus = |group: &GroupCost| group.cpu_ns - group.without_vcpus_ns();
        let used = self
            .group(GroupName::Qemu)
            .map(vcpus)
            .or_else(|| Some(self.group(GroupName::Load)?.cpu_ns))?;
        Some(self.cpus(used) / f64::from(count.max(1)))
    }

    fn group(&self, name: GroupName) -> Option<&GroupCost> {
        self.groups.iter().find(|group| group.name == name)
    }

    /// So many CPUs were busy with this.
    fn cpus(&self, used_ns: u64) -> f64 {
        used_ns as f64 / self.covered_ns.max(1) as f64
    }

    /// Context switches of what serves the disk.
    pub fn serving_switches(&self) -> Option<u64> {
        let qemu = self.group(GroupName::Qemu).map(GroupCost::without_vcpus_switches);
        let daemon = self.group(GroupName::Daemon).map(GroupCost::switches);
        match (daemon, qemu) {
            (None, None) => self.group(GroupName::Load).map(GroupCost::switches),
            (daemon, qemu) => Some(daemon.unwrap_or_default() + qemu.unwrap_or_default()),
        }
    }
}

impl GroupCost {
    fn switches(&self) -> u64 {
        self.voluntary + self.involuntary
    }

    fn without_vcpus_switches(&self) -> u64 {
        let vcpus = self.threads.iter().filter(|thread| thread.role == Role::Vcpu);
        let theirs = vcpus.map(|thread| thread.voluntary + thread.involuntary).sum();
        self.switches().saturating_sub(theirs)
    }

    fn without_vcpus_ns(&self) -> u64 {
        let vcpus = self.threads.iter().filter(|thread| thread.role == Role::Vcpu);
        self.cpu_ns.saturating_sub(vcpus.map(|thread| thread.cpu_ns).sum())
    }
}

/// All CPUs of the host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HostCpu {
    /// 1.5: one and a half CPUs were busy on average, whoever used them.
    pub cpus_in_use: f64,
    /// The part of them that ran the kernel, its interrupts included.
    pub cpus_in_kernel: f64,
    /// How many CPUs there are.
    pub of: usize,
    /// CPUs that a hypervisor below withheld, on average.
    pub cpus_stolen: f64,
    /// The busy share of each CPU, 0 to 1, in the order of their numbers.
    pub per_cpu_busy: Vec<f64>,
    /// Of all CPUs.
    pub context_switches_per_s: f64,
}

/// The processes of one name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupCost {
    /// Which processes.
    pub name: GroupName,
    /// CPU time of all its threads.
    pub cpu_ns: u64,
    /// Context switches because a thread waited.
    pub voluntary: u64,
    /// Context switches because another thread took the CPU.
    pub involuntary: u64,
    /// Ordered by role; threads that did nothing are left out.
    pub threads: Vec<ThreadCost>,
}

/// One thread.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ThreadCost {
    /// The kernel's name of the thread, at most 15 bytes; `12 others` when many are merged.
    pub name: String,
    /// What it does.
    pub role: Role,
    /// CPU time.
    pub cpu_ns: u64,
    /// Context switches because it waited.
    pub voluntary: u64,
    /// Those because another thread was to run.
    pub involuntary: u64,
}

/// Collects samples.
#[derive(Debug)]
pub struct Meter {
    axis: Axis,
    host: Vec<Option<HostTimes>>,
    processes: Vec<Process>,
    /// How long the last sample took.
    effort: Duration,
    /// The least distance of samples; grows with the length of the run.
    spacing: Duration,
}

#[derive(Debug)]
struct Process {
    group: Group,
    threads: Vec<Thread>,
    /// The thread that now has an id: its index in `threads`.
    current: HashMap<u32, usize>,
}

#[derive(Debug)]
struct Thread {
    name: String,
    role: Role,
    /// A thread begins with the name of the one that made it, so it is asked twice.
    name_is_final: bool,
    series: Series,
}

impl Meter {
    /// Of these processes, not sampled yet.
    pub fn new(groups: Vec<Group>) -> Self {
        let process = |group| Process { group, threads: Vec::new(), current: HashMap::new() };
        Self {
            axis: Axis::default(),
            host: Vec::new(),
            processes: groups.into_iter().map(process).collect(),
            effort: Duration::ZERO,
            spacing: Duration::ZERO,
        }
    }

    /// Reads the counters, unless it is too early for that. `now` must not go back.
    pub fn sample(&mut self, now: Instant) {
        let rest = (self.effort * REST).max(self.spacing);
        if self.axis.last().is_none_or(|last| now >= last + rest) {
            self.close(now);
        }
    }

    /// Reads the counters in any case: the last sample must not lie before the end of the window.
    pub fn close(&mut self, now: Instant) {
        if self.axis.len() == SAMPLES_MAX {
            self.thin();
        }
        let begun = clock::now();
        let index = self.axis.push(now);
        self.host.push(reading::host());
        for process in &mut self.processes {
            process.sample(index);
        }
        self.effort = clock::now().saturating_duration_since(begun);
    }

    /// What was used from `open` to `close`, as far as it was sampled.
    pub fn between(&self, open: Instant, close: Instant) -> Cost {
        let Some(window) = self.axis.window(open, close) else { return Cost::default() };
        let covered_ns = u64::try_from(window.elapsed.as_nanos()).unwrap_or(u64::MAX);
        Cost { covered_ns, host: self.host_between(&window), groups: self.groups_between(&window) }
    }

    fn host_between(&self, window: &Window) -> Option<HostCpu> {
        let at = |index: usize| self.host[index].as_ref();
        let open = reading::blend(at(window.open.before)?, at(window.open.after)?, &window.open)?;
        let close =
            reading::blend(at(window.close.before)?, at(window.close.after)?, &window.close)?;
        reading::host_cpu(&open, &close, window.elapsed)
    }

    fn groups_between(&self, window: &Window) -> Vec<GroupCost> {
        let mut groups: BTreeMap<GroupName, Option<Vec<ThreadCost>>> = BTreeMap::new();
        for process in &self.processes {
            let threads = groups.entry(process.group.name).or_insert_with(|| Some(Vec::new()));
            match (process.threads.is_empty(), threads.as_mut()) {
                (false, Some(threads)) => threads.extend(process.between(window)),
                (true, _) | (_, None) => *threads = None,
            }
        }
        let read = groups.into_iter().filter_map(|(name, threads)| Some((name, threads?)));
        read.map(|(name, threads)| group_cost(name, threads)).collect()
    }

    fn thin(&mut self) {
        self.spacing = self.axis.thin();
        let mut index = 0..;
        self.host.retain(|_| index.next().is_some_and(|index: usize| index.is_multiple_of(2)));
        for thread in self.processes.iter_mut().flat_map(|process| &mut process.threads) {
            thread.series.thin();
        }
    }
}

impl Process {
    fn sample(&mut self, index: usize) {
        for (tid, counters) in reading::threads(self.group.pid) {
            let known = self.current.get(&tid).map(|&at| &mut self.threads[at]);
            // A counter that fell belongs to a new thread with the id of an old one.
            match known.filter(|thread| thread.series.last().precedes(&counters)) {
                Some(thread) => {
                    thread.series.push(index, counters);
                    thread.ask_name_again(&self.group, tid);
                }
                None => self.add(tid, index, counters),
            }
        }
    }

    fn add(&mut self, tid: u32, index: usize, counters: Counters) {
        // A thread that is gone by now has left no name, and its counters are not lost.
        let name = reading::comm(self.group.pid, tid).unwrap_or_default();
        let role = self.group.role(tid, &name);
        self.current.insert(tid, self.threads.len());
        let series = Series::new(index, counters);
        self.threads.push(Thread { name, role, name_is_final: false, series });
    }

    fn between<'a>(&'a self, window: &'a Window) -> impl Iterator<Item = ThreadCost> + 'a {
        self.threads.iter().filter_map(|thread| {
            let Counters { cpu_ns, voluntary, involuntary } = thread.series.between(window);
            let (name, role) = (thread.name.clone(), thread.role);
            let busy = cpu_ns + voluntary + involuntary > 0;
            busy.then_some(ThreadCost { name, role, cpu_ns, voluntary, involuntary })
        })
    }
}

impl Thread {
    fn ask_name_again(&mut self, group: &Group, tid: u32) {
        if self.name_is_final {
            return;
        }
        if let Some(name) = reading::comm(group.pid, tid) {
            self.role = group.role(tid, &name);
            self.name = name;
        }
        self.name_is_final = true;
    }
}

fn group_cost(name: GroupName, mut threads: Vec<ThreadCost>) -> GroupCost {
    // A stable sort: threads of a role stay in the order in which they started.
    threads.sort_by_key(|thread| thread.role);
    let sum = |part: fn(&ThreadCost) -> u64| threads.iter().map(part).sum();
    let cpu_ns = sum(|thread| thread.cpu_ns);
    let voluntary = sum(|thread| thread.voluntary);
    let involuntary = sum(|thread| thread.involuntary);
    GroupCost { name, cpu_ns, voluntary, involuntary, threads: shorten(threads) }
}

/// Merges the least busy workers when there are too many threads to list.
fn shorten(threads: Vec<ThreadCost>) -> Vec<ThreadCost> {
    if threads.len() <= THREADS_MAX {
        return threads;
    }
    let is_worker = |thread: &ThreadCost| thread.role == Role::Worker;
    let (mut workers, mut kept): (Vec<_>, Vec<_>) = threads.into_iter().partition(is_worker);
    workers.sort_by_key(|thread| std::cmp::Reverse(thread.cpu_ns));
    let named = THREADS_MAX.saturating_sub(kept.len() + 1);
    let others = workers.split_off(named.min(workers.len()));
    kept.append(&mut workers);
    if !others.is_empty() {
        kept.push(ThreadCost {
            name: format!("{} others", others.len()),
            role: Role::Worker,
            cpu_ns: others.iter().map(|thread| thread.cpu_ns).sum(),
            voluntary: others.iter().map(|thread| thread.voluntary).sum(),
            involuntary: others.iter().map(|thread| thread.involuntary).sum(),
        });
    }
    kept
}

#[cfg(test)]
mod tests;
