//! The kernel's counters as it tells them: /proc/stat and /proc/PID/task (proc(5)).
//!
//! Limits: the times of the CPUs come in hundredths of a second, those of threads in nanoseconds.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use super::HostCpu;
use super::series::{Counters, Position};

/// The times of all CPUs since the start of the system, in ticks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostTimes {
    cpus: Vec<CpuTimes>,
    context_switches: u64,
}

/// One CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct CpuTimes {
    number: u32,
    busy: u64,
    /// Part of `busy`.
    kernel: u64,
    stolen: u64,
    total: u64,
}

/// Reads /proc/stat.
pub fn host() -> Option<HostTimes> {
    parse_host(&fs::read_to_string("/proc/stat").ok()?)
}

fn parse_host(text: &str) -> Option<HostTimes> {
    let mut cpus = Vec::new();
    let mut context_switches = None;
    for line in text.lines() {
        let (name, values) = line.split_once(' ')?;
        if name == "ctxt" {
            context_switches = values.trim().parse().ok();
        } else if let Some(number) = name.strip_prefix("cpu").filter(|number| !number.is_empty()) {
            cpus.push(parse_cpu(number.parse().ok()?, values)?);
        }
    }
    (!cpus.is_empty()).then_some(HostTimes { cpus, context_switches: context_switches? })
}

/// `user nice system idle iowait irq softirq steal`; the time of guests is part of `user`.
fn parse_cpu(number: u32, values: &str) -> Option<CpuTimes> {
    let ticks: Vec<u64> =
        values.split_whitespace().map(|value| value.parse().ok()).collect::<Option<_>>()?;
    let &[user, nice, system, idle, waiting, irq, softirq, stolen, ..] = ticks.as_slice() else {
        return None;
    };
    let kernel = system + irq + softirq;
    let busy = user + nice + kernel;
    Some(CpuTimes { number, busy, kernel, stolen, total: busy + stolen + idle + waiting })
}

/// The times at a moment between two samples; `None` if CPUs came or went.
pub(super) fn blend(before: &HostTimes, after: &HostTimes, at: &Position) -> Option<HostTimes> {
    let cpu = |(before, after): (&CpuTimes, &CpuTimes)| CpuTimes {
        number: before.number,
        busy: at.blend(before.busy * FINER, after.busy * FINER),
        kernel: at.blend(before.kernel * FINER, after.kernel * FINER),
        stolen: at.blend(before.stolen * FINER, after.stolen * FINER),
        total: at.blend(before.total * FINER, after.total * FINER),
    };
    same_cpus(before, after).then(|| HostTimes {
        cpus: before.cpus.iter().zip(&after.cpus).map(cpu).collect(),
        context_switches: at.blend(before.context_switches, after.context_switches),
    })
}

/// Parts of a tick, so that interpolation does not round to hundredths of a second.
const FINER: u64 = 1000;

fn same_cpus(one: &HostTimes, other: &HostTimes) -> bool {
    let numbers = |times: &HostTimes| times.cpus.iter().map(|cpu| cpu.number).collect::<Vec<_>>();
    numbers(one) == numbers(other)
}

/// What was used between two readings.
pub fn host_cpu(open: &HostTimes, close: &HostTimes, elapsed: Duration) -> Option<HostCpu> {
    if !same_cpus(open, close) || elapsed.is_zero() {
        return None;
    }
    let share = |part: fn(&CpuTimes) -> u64| {
        let pairs = open.cpus.iter().zip(&close.cpus);
        pairs
            .map(|(open, close)| {
                // Idle and waiting times of a CPU may go back a little (proc(5)).
                let total = close.total.saturating_sub(open.total).max(1);
                let part = part(close).saturating_sub(part(open));
                (part as f64 / total as f64).min(1.0)
            })
            .collect::<Vec<f64>>()
    };
    let per_cpu_busy = share(|cpu| cpu.busy);
    let switches = close.context_switches.saturating_sub(open.context_switches);
    Some(HostCpu {
        cpus_in_use: per_cpu_busy.iter().sum(),
        cpus_in_kernel: share(|cpu| cpu.kernel).iter().sum(),
        of: per_cpu_busy.len(),
        cpus_stolen: share(|cpu| cpu.stolen).iter().sum(),
        per_cpu_busy,
        context_switches_per_s: switches as f64 / elapsed.as_secs_f64(),
    })
}

/// The counters of all threads of a process; none if it is gone or the kernel does not tell.
pub(super) fn threads(pid: u32) -> Vec<(u32, Counters)> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    // A thread may end between the listing and the reading.
    let read = |tid: u32| Some((tid, counters(pid, tid)?));
    let ids = tasks.flatten().filter_map(|task| task.file_name().to_str()?.parse().ok());
    let mut threads: Vec<_> = ids.filter_map(read).collect();
    threads.sort_unstable_by_key(|&(tid, _)| tid);
    threads
}

fn counters(pid: u32, tid: u32) -> Option<Counters> {
    let cpu_ns = run_time(&fs::read_to_string(file(pid, tid, "schedstat")).ok()?)?;
    let (voluntary, involuntary) = switches(&fs::read_to_string(file(pid, tid, "status")).ok()?)?;
    Some(Counters { cpu_ns, voluntary, involuntary })
}

/// The name of a thread.
pub fn comm(pid: u32, tid: u32) -> Option<String> {
    let text = fs::read_to_string(file(pid, tid, "comm")).ok()?;
    Some(text.trim_end_matches('\n').to_owned())
}

fn file(pid: u32, tid: u32, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/task/{tid}/{name}"))
}

/// The first number of schedstat: nanoseconds on a CPU.
fn run_time(schedstat: &str) -> Option<u64> {
    schedstat.split_whitespace().next()?.parse().ok()
}

/// The last two lines of status.
fn switches(status: &str) -> Option<(u64, u64)> {
    let (mut voluntary, mut involuntary) = (None, None);
    for line in status.lines().rev().take(4) {
        match line.split_once(':') {
            Some(("voluntary_ctxt_switches", value)) => voluntary = value.trim().parse().ok(),
            Some(("nonvoluntary_ctxt_switches", value)) => involuntary = value.trim().parse().ok(),
            Some(_) | None => {}
        }
    }
    Some((voluntary?, involuntary?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "cpu  76 0 26 32 24 0 2 42 5 0\ncpu0 35 1 12 18 13 2 3 4 5 0\n\
                        cpu3 40 0 13 14 10 0 4 0 0 0\nintr 37 0 1\nctxt 143\nbtime 17\n";

    #[test]
    fn the_times_of_cpus_are_read() {
        let times = parse_host(STAT).unwrap();
        let expected = [
            CpuTimes { number: 0, busy: 53, kernel: 17, stolen: 4, total: 88 },
            CpuTimes { number: 3, busy: 57, kernel: 17, stolen: 0, total: 81 },
        ];
        assert_eq!((times.cpus.as_slice(), times.context_switches), (expected.as_slice(), 143));
    }

    #[test]
    fn damaged_times_are_none() {
        for text in ["", "ctxt 5\n", "cpu0 1 2 3 4 5 6 7 8\n", "cpu0 1 2 x\nctxt 5\n"] {
            assert_eq!(parse_host(text), None, "{text}");
        }
    }

    fn times(numbers: &[(u32, u64, u64, u64)], context_switches: u64) -> HostTimes {
        let cpu = |&(number, busy, stolen, total)| CpuTimes {
            number,
            busy,
            kernel: busy / 2,
            stolen,
            total,
        };
        HostTimes { cpus: numbers.iter().map(cpu).collect(), context_switches }
    }

    #[test]
    fn shares_are_differences() {
        let open = times(&[(0, 10, 0, 100), (1, 10, 5, 100)], 1000);
        let close = times(&[(0, 60, 0, 200), (1, 110, 5, 200)], 1500);
        let cpu = host_cpu(&open, &close, Duration::from_millis(500)).unwrap();
        assert_eq!((cpu.cpus_in_use, cpu.of, cpu.cpus_stolen), (1.5, 2, 0.0));
        assert_eq!(cpu.cpus_in_kernel, 0.75);
        assert_eq!(cpu.per_cpu_busy, [0.5, 1.0]);
        assert_eq!(cpu.context_switches_per_s, 1000.0);
    }

    #[test]
    fn cpus_that_come_or_go_leave_no_figure() {
        let (two, one) = (times(&[(0, 1, 0, 2), (1, 1, 0, 2)], 0), times(&[(0, 9, 0, 20)], 9));
        assert_eq!(host_cpu(&two, &one, Duration::from_secs(1)), None);
    }

    #[test]
    fn schedstat_begins_with_the_run_time() {
        assert_eq!(run_time("169052273 10772266 408\n"), Some(169_052_273));
        assert_eq!(run_time(""), None);
    }

    #[test]
    fn switches_are_the_end_of_status() {
        let status = "Name:\tsh\nvoluntary_ctxt_switches:\t7\nnonvoluntary_ctxt_switches:\t2\n";
        assert_eq!(switches(status), Some((7, 2)));
        assert_eq!(switches("Name:\tsh\n"), None);
    }
}
