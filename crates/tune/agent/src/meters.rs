//! What CPUs do while something is measured: of the node, of the agent's own control group, and of everybody else.
//!
//! Limits: the kernel counts a node's times in ticks, so a second is right to some percent. Pure but for [`Meters::read`].

use std::fs;

use serde::{Deserialize, Serialize};

use crate::clock;

/// Counters at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Meters {
    /// By the wall clock of the agent.
    pub at_ns: u64,
    /// CPUs that are counted.
    pub cpus: u32,
    /// Of all CPUs, since boot.
    pub node: NodeTimes,
    /// Of the agent's control group.
    pub own: Option<GroupTimes>,
    /// Threads that want to run or wait for disks, over the last minute.
    pub load_average: f64,
}

/// Times of all CPUs of a node together, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeTimes {
    /// Programs and the kernel.
    pub busy_ns: u64,
    /// Nothing to do, or waiting for disks.
    pub idle_ns: u64,
    /// The hypervisor ran something else.
    pub steal_ns: u64,
}

/// Times of a control group, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupTimes {
    /// CPU time.
    pub usage_ns: u64,
    /// Time in which threads were held back by the group's limit.
    pub throttled_ns: u64,
}

/// What happened between two moments, in CPUs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Usage {
    /// By all programs and the kernel.
    pub busy_cores: f64,
    /// What the hypervisor took away.
    pub steal_cores: f64,
    /// By the agent's control group.
    pub own_cores: Option<f64>,
    /// By everybody else.
    pub others_cores: Option<f64>,
    /// How much of the agent's control group was held back.
    pub throttled_cores: Option<f64>,
}

impl Meters {
    /// Reads them from the kernel's tables.
    pub(crate) fn read() -> Self {
        let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
        let (cpus, node) = node_times(&stat, rustix::param::clock_ticks_per_second());
        let average = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let load_average = average.split(' ').next().and_then(|it| it.parse().ok()).unwrap_or(0.0);
        Self { at_ns: clock::wall_ns(), cpus, node, own: own_times(), load_average }
    }

    /// What happened since an earlier moment.
    #[must_use]
    pub fn since(&self, before: &Self) -> Usage {
        let length = self.at_ns.saturating_sub(before.at_ns).max(1);
        let cores = |now: u64, then: u64| now.saturating_sub(then) as f64 / length as f64;
        let busy_cores = cores(self.node.busy_ns, before.node.busy_ns);
        let own = self.own.zip(before.own);
        let own_cores = own.map(|(now, then)| cores(now.usage_ns, then.usage_ns));
        Usage {
            busy_cores,
            steal_cores: cores(self.node.steal_ns, before.node.steal_ns),
            own_cores,
            others_cores: own_cores.map(|own| (busy_cores - own).max(0.0)),
            throttled_cores: own.map(|(now, then)| cores(now.throttled_ns, then.throttled_ns)),
        }
    }
}

/// CPUs and their times, from `/proc/stat`.
fn node_times(stat: &str, ticks_per_second: u64) -> (u32, NodeTimes) {
    let tick_ns = 1_000_000_000 / ticks_per_second.max(1);
    let mut times = NodeTimes::default();
    let mut cpus = 0;
    for line in stat.lines() {
        let mut words = line.split_ascii_whitespace();
        let name = words.next().unwrap_or_default();
        if name != "cpu" {
            cpus += u32::from(name.starts_with("cpu"));
            continue;
        }
        // user, nice, system, idle, iowait, irq, softirq, steal; times of guests are in those of users.
        for (column, word) in words.take(8).enumerate() {
            let time = word.parse().unwrap_or(0_u64).saturating_mul(tick_ns);
            let sum = match column {
                3 | 4 => &mut times.idle_ns,
                7 => &mut times.steal_ns,
                _ => &mut times.busy_ns,
            };
            *sum = sum.saturating_add(time);
        }
    }
    (cpus, times)
}

/// Of the control group at the root of what this process sees: in a container, that of the container.
fn own_times() -> Option<GroupTimes> {
    let read = |path: &str| fs::read_to_string(format!("/sys/fs/cgroup/{path}")).ok();
    if let Some(stat) = read("cpu.stat") {
        let microseconds = |name| Some(number_of(&stat, name)?.saturating_mul(1_000));
        let throttled_ns = microseconds("throttled_usec").unwrap_or(0);
        return Some(GroupTimes { usage_ns: microseconds("usage_usec")?, throttled_ns });
    }
    // The first version of control groups, which has a tree for each controller.
    let usage_ns = read("cpuacct/cpuacct.usage")?.trim().parse().ok()?;
    let throttled = read("cpu/cpu.stat").and_then(|stat| number_of(&stat, "throttled_time"));
    Some(GroupTimes { usage_ns, throttled_ns: throttled.unwrap_or(0) })
}

/// The number behind a name at the begin of a line.
fn number_of(table: &str, name: &str) -> Option<u64> {
    let mut lines = table.lines().filter_map(|line| line.split_once(' '));
    lines.find(|(key, _)| *key == name)?.1.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_all_cpus_counts() {
        let stat = "cpu  10 1 5 100 7 2 3 4 99 99\ncpu0 5 0 0 0\ncpu1 5 0 0 0\nintr 5\nctxt 1\n";
        let (cpus, times) = node_times(stat, 100);
        assert_eq!(cpus, 2);
        let tick = 10_000_000;
        let expected = NodeTimes { busy_ns: 21 * tick, idle_ns: 107 * tick, steal_ns: 4 * tick };
        assert_eq!(times, expected);
        assert_eq!(node_times("cpu x\n", 0), (0, NodeTimes::default()));
    }

    #[test]
    fn what_others_use_is_the_rest() {
        let at = |at_ns, busy_ns, usage_ns| Meters {
            at_ns,
            cpus: 4,
            node: NodeTimes { busy_ns, idle_ns: 0, steal_ns: busy_ns / 10 },
            own: Some(GroupTimes { usage_ns, throttled_ns: 0 }),
            load_average: 0.0,
        };
        let usage = at(2_000, 3_500, 1_000).since(&at(1_000, 1_000, 0));
        assert_eq!((usage.busy_cores, usage.own_cores), (2.5, Some(1.0)));
        assert_eq!((usage.others_cores, usage.throttled_cores), (Some(1.5), Some(0.0)));
        assert_eq!(usage.steal_cores, 0.25);
        let none = Meters { own: None, ..at(1_000, 0, 0) };
        assert_eq!(none.since(&none).others_cores, None);
    }

    #[test]
    fn this_machine_has_meters() {
        let meters = Meters::read();
        assert!(meters.cpus > 0 && meters.node.busy_ns > 0, "{meters:?}");
    }
}
