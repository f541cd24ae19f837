//! The kernel and those of its settings that bend figures.

use serde::{Deserialize, Serialize};

use super::tree::Tree;

/// Flags of the kernel's command line that are recorded; a name that ends with `.`, `-` or `_`
/// stands for all flags that begin with it.
const FLAGS: &str = "\
    amd_iommu amd_pstate audit clocksource cpufreq. cpuidle. cpuidle_haltpoll. \
    default_hugepagesz elevator gather_data_sampling haltpoll. hugepages hugepagesz idle \
    intel_idle. intel_iommu intel_pstate iommu iommu. irqaffinity isolcpus kvm- kvm. kvm_ \
    l1tf maxcpus mds mitigations nohz nohz_full nokaslr nopti nosmt numa_balancing nvme. \
    nvme_core. preempt processor. pti rcu_nocbs retbleed spec_ spectre_ swiotlb threadirqs \
    transparent_hugepage";

/// The running kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Kernel {
    /// `Linux 6.12.95 x86_64`.
    pub release: Option<String>,
    /// The flags of its command line that bend figures, as they are written there.
    pub flags: Vec<String>,
    /// `always`, `madvise` or `never`.
    pub transparent_hugepages: Option<String>,
    /// Where the kernel takes the time from.
    pub clock_source: Option<String>,
    /// kernel.io_uring_disabled: 0 all may use it, 1 some, 2 nobody.
    pub io_uring_disabled: Option<u32>,
    /// The limit of locked memory in bytes, or `unlimited`.
    pub locked_memory: Option<String>,
}

impl Kernel {
    pub(super) fn read(tree: &Tree) -> Self {
        const HUGEPAGES: &str = "sys/kernel/mm/transparent_hugepage/enabled";
        const CLOCK: &str = "sys/devices/system/clocksource/clocksource0/current_clocksource";
        let release = tree.text("proc/sys/kernel/osrelease");
        let machine = tree.text("proc/sys/kernel/arch");
        let command_line = tree.text("proc/cmdline").unwrap_or_default();
        Self {
            release: release.map(|release| match machine {
                Some(machine) => format!("Linux {release} {machine}"),
                None => format!("Linux {release}"),
            }),
            flags: flags(&command_line),
            transparent_hugepages: tree.text(HUGEPAGES).and_then(|text| chosen(&text)),
            clock_source: tree.text(CLOCK),
            io_uring_disabled: tree.value("proc/sys/kernel/io_uring_disabled"),
            locked_memory: tree.text("proc/self/limits").and_then(|text| locked_memory(&text)),
        }
    }
}

/// The flags of the list; what follows `--` is for the first process.
fn flags(command_line: &str) -> Vec<String> {
    let words = command_line.split_whitespace().take_while(|&word| word != "--");
    words.filter(|word| bends(word)).map(str::to_owned).collect()
}

fn bends(word: &str) -> bool {
    let name = word.split('=').next().unwrap_or(word);
    FLAGS.split_whitespace().any(|flag| match flag.strip_suffix(['.', '-', '_']) {
        Some(_) => name.starts_with(flag),
        None => name == flag,
    })
}

/// `always [madvise] never`: the word in brackets.
pub fn chosen(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('[')?;
    Some(rest.split_once(']')?.0.to_owned())
}

/// The soft limit.
fn locked_memory(limits: &str) -> Option<String> {
    let rest = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    rest.split_whitespace().next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_flags_of_the_list_are_kept() {
        let line = "mitigations=off root=/dev/vda secret=1 isolcpus=2-3 intel_idle.max_cstate=1 \
                    nosmt nosmtx quiet spectre_v2=off kvm.halt_poll_ns=0 -- nohz_full=1";
        let expected = [
            "mitigations=off",
            "isolcpus=2-3",
            "intel_idle.max_cstate=1",
            "nosmt",
            "spectre_v2=off",
            "kvm.halt_poll_ns=0",
        ];
        assert_eq!(flags(line), expected);
        assert!(flags("").is_empty());
    }

    #[test]
    fn the_word_in_brackets_is_chosen() {
        assert_eq!(chosen("always [madvise] never").as_deref(), Some("madvise"));
        assert_eq!(chosen("none"), None);
    }

    #[test]
    fn the_soft_limit_of_locked_memory_is_read() {
        let text = "Limit  Soft Limit  Hard Limit  Units\n\
                    Max locked memory         8388608              unlimited            bytes\n";
        assert_eq!(locked_memory(text).as_deref(), Some("8388608"));
        assert_eq!(locked_memory("Max stack size 5 5 bytes"), None);
    }
}
