//! Where an agent is, as the kernel's tables and fio itself tell.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::protocol::Facts;

/// Looks. What cannot be read is absent.
pub(super) fn look(fio: &Path) -> Facts {
    let names = rustix::system::uname();
    let text = |name: &std::ffi::CStr| name.to_string_lossy().into_owned();
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpus = cpuinfo.lines().filter(|line| line.starts_with("processor")).count();
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let memory = field(&meminfo, "MemTotal").and_then(|it| it.split(' ').next()?.parse().ok());
    let is_guest =
        field(&cpuinfo, "flags").is_some_and(|it| it.split(' ').any(|it| it == "hypervisor"));
    Facts {
        ringloom: env!("CARGO_PKG_VERSION").to_owned(),
        fio: version_of(fio),
        kernel: [names.sysname(), names.release(), names.machine()].map(text).join(" "),
        host: text(names.nodename()),
        cpus: u32::try_from(cpus).unwrap_or(u32::MAX).max(1),
        cpu: field(&cpuinfo, "model name"),
        memory_bytes: memory.unwrap_or(0_u64).saturating_mul(1024),
        cpu_limit: cpu_limit(),
        memory_limit: memory_limit(),
        hypervisor: is_guest.then(signature),
        io_uring: io_uring::IoUring::new(2).is_ok(),
    }
}

/// What the hypervisor calls itself where the processor is asked for it (CPUID, leaf 0x40000000): `KVMKVMKVM`, `TCGTCGTCGTCG`.
#[cfg(target_arch = "x86_64")]
fn signature() -> String {
    let answer = std::arch::x86_64::__cpuid(0x4000_0000);
    let bytes = [answer.ebx, answer.ecx, answer.edx].map(u32::to_le_bytes).concat();
    String::from_utf8_lossy(&bytes).trim_end_matches('\0').to_owned()
}

#[cfg(not(target_arch = "x86_64"))]
fn signature() -> String {
    first("/sys/class/dmi/id/sys_vendor").unwrap_or_else(|| "unknown".to_owned())
}

fn version_of(fio: &Path) -> Option<String> {
    let output = Command::new(fio).arg("--version").stdin(Stdio::null()).output().ok()?;
    let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    (output.status.success() && !said.is_empty()).then_some(said)
}

/// The first line of a file.
fn first(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().next()?.trim();
    (!line.is_empty()).then(|| line.to_owned())
}

/// What stands behind a name and a colon.
fn field(table: &str, name: &str) -> Option<String> {
    let mut pairs = table.lines().filter_map(|line| line.split_once(':'));
    let (_, value) = pairs.find(|(key, _)| key.trim() == name)?;
    Some(value.trim().to_owned())
}

fn cpu_limit() -> Option<f64> {
    if let Some(both) = first("/sys/fs/cgroup/cpu.max") {
        return quota(&both);
    }
    let of = |name: &str| first(&format!("/sys/fs/cgroup/cpu/cpu.cfs_{name}_us"));
    quota(&format!("{} {}", of("quota")?, of("period")?))
}

/// From a quota and a period: `max` or -1 is none.
fn quota(both: &str) -> Option<f64> {
    let (quota, period) = both.split_once(' ')?;
    let (quota, period) = (quota.parse::<i64>().ok()?, period.parse::<i64>().ok()?);
    (quota > 0 && period > 0).then(|| quota as f64 / period as f64)
}

fn memory_limit() -> Option<u64> {
    let second = first("/sys/fs/cgroup/memory.max");
    let text = second.or_else(|| first("/sys/fs/cgroup/memory/memory.limit_in_bytes"))?;
    // Without a limit the first version of control groups has the largest number that is whole in pages.
    text.parse().ok().filter(|it| *it < u64::MAX / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_a_share_of_a_period() {
        for (text, expected) in [
            ("200000 100000", Some(2.0)),
            ("50000 100000", Some(0.5)),
            ("max 100000", None),
            ("-1 100000", None),
            ("1 0", None),
            ("", None),
        ] {
            assert_eq!(quota(text), expected, "{text}");
        }
    }

    #[test]
    fn a_name_is_a_whole_name() {
        let table = "processor\t: 0\nflags\t\t: fpu hypervisor\nvmx flags\t: x\n";
        assert_eq!(field(table, "flags").as_deref(), Some("fpu hypervisor"));
        assert_eq!(field(table, "flag"), None);
    }

    #[test]
    fn this_machine_is_known() {
        let facts = look(Path::new("/nonexistent/fio"));
        assert!(
            facts.fio.is_none() && facts.memory_bytes > 0 && facts.kernel.starts_with("Linux ")
        );
    }
}
