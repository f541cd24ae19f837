//! Which CPUs the servers and the client run on.

use anyhow::{Context, Result, bail, ensure};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The CPUs of both sides. Disjoint unless there is only one, or the user says otherwise.
#[derive(Debug, Clone)]
pub(crate) struct ProcessCpus {
    all: CpuSet,
    pub(crate) server: Vec<usize>,
    pub(crate) client: Vec<usize>,
}

impl ProcessCpus {
    /// Splits the CPUs this process may use, or takes the lists of the user.
    pub(crate) fn split(server: Option<&str>, client: Option<&str>) -> Result<Self> {
        let all = sched_getaffinity(None).context("ask for the CPUs of this process")?;
        let allowed: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&cpu| all.is_set(cpu)).collect();
        let (lower, upper) = allowed.split_at(allowed.len() / 2);
        // With one CPU both share it.
        let lower = if lower.is_empty() { upper } else { lower };
        let chosen = |list: Option<&str>, default: &[usize]| match list {
            Some(list) => parse(list),
            None => Ok(default.to_vec()),
        };
        let cpus = Self { all, server: chosen(server, upper)?, client: chosen(client, lower)? };
        for cpu in cpus.server.iter().chain(&cpus.client) {
            ensure!(all.is_set(*cpu), "CPU {cpu} may not be used by this process");
        }
        Ok(cpus)
    }

    /// All CPUs for both sides.
    pub(crate) fn shared(&self) -> Self {
        let all: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&cpu| self.all.is_set(cpu)).collect();
        Self { all: self.all, server: all.clone(), client: all }
    }

    /// Has the calling thread, and what it starts, run on the client's CPUs.
    pub(crate) fn be_client(&self) -> Result<()> {
        set(&self.client)
    }

    /// Starts a process on the servers' CPUs.
    pub(crate) fn as_server<T>(&self, start: impl FnOnce() -> T) -> Result<T> {
        set(&self.server)?;
        let started = start();
        self.be_client()?;
        Ok(started)
    }

    /// Runs something on all CPUs.
    pub(crate) fn on_all<T>(&self, run: impl FnOnce() -> T) -> Result<T> {
        sched_setaffinity(None, &self.all).context("use all CPUs")?;
        let value = run();
        self.be_client()?;
        Ok(value)
    }
}

fn set(cpus: &[usize]) -> Result<()> {
    let mut set = CpuSet::new();
    cpus.iter().for_each(|&cpu| set.set(cpu));
    sched_setaffinity(None, &set).with_context(|| format!("run on the CPUs {cpus:?}"))
}

/// `0`, `0,2` or `0-3,8`.
fn parse(list: &str) -> Result<Vec<usize>> {
    let number = |text: &str| -> Result<usize> {
        let cpu = text.parse().with_context(|| format!("CPU list {list:?}: {text:?}"))?;
        ensure!(cpu < CpuSet::MAX_CPU, "CPU list {list:?}: at most {}", CpuSet::MAX_CPU - 1);
        Ok(cpu)
    };
    let mut cpus = Vec::new();
    for part in list.split(',') {
        match part.split_once('-') {
            None => cpus.push(number(part)?),
            Some((first, last)) => cpus.extend(number(first)?..=number(last)?),
        }
    }
    if cpus.is_empty() {
        bail!("CPU list {list:?} is empty");
    }
    Ok(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_have_numbers_and_ranges() {
        assert_eq!(parse("3").unwrap(), [3]);
        assert_eq!(parse("0-2,5").unwrap(), [0, 1, 2, 5]);
        for wrong in ["", "a", "1-", "3-1", "99999"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
