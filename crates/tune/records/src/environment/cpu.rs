//! The CPUs of a host: how many, how fast they may run, what protects them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use plan::lists::sorted;
use serde::{Deserialize, Serialize};

use super::kibibytes;
use super::tree::Tree;
use crate::pinning::CpuList;

const CPUS: &str = "sys/devices/system/cpu";
const NODES: &str = "sys/devices/system/node";
/// What the kernel says of it changes when the module kvm is loaded; it bends no figure without that.
const OF_KVM: &str = "itlb_multihit";

/// All CPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cpu {
    /// The name.
    pub model: Option<String>,
    /// How many packages there are.
    pub sockets: Option<usize>,
    /// How many cores all of them have.
    pub cores: Option<usize>,
    /// CPUs as the kernel counts them: online threads of cores.
    pub threads: Option<usize>,
    /// CPUs this process may use.
    pub allowed: Option<usize>,
    /// Whether several threads of a core are in use.
    pub smt: Option<bool>,
    /// Whether the CPUs are those of a virtual machine.
    pub virtualised: Option<bool>,
    /// The different frequency governors in use.
    pub governors: Vec<String>,
    /// What sets frequencies.
    pub frequency_driver: Option<String>,
    /// Whether CPUs may run faster than their nominal frequency for a while.
    pub turbo: Option<bool>,
    /// What puts idle CPUs to sleep.
    pub idle_driver: Option<String>,
    /// What decides how deep they sleep.
    pub idle_governor: Option<String>,
    /// Name of the vulnerability and the kernel's sentence about it.
    pub vulnerabilities: BTreeMap<String, String>,
}

impl Cpu {
    pub(super) fn read(tree: &Tree) -> Self {
        let cpu = |path: &str| tree.text(format!("{CPUS}/{path}"));
        let online: Option<CpuList> = tree.value(format!("{CPUS}/online"));
        let numbers: Vec<u16> = online.iter().flat_map(CpuList::iter).collect();
        let (sockets, cores) = topology(tree, &numbers).unzip();
        let idle_governor = cpu("cpuidle/current_governor");
        Self {
            model: tree.field("proc/cpuinfo", "model name"),
            sockets,
            cores,
            threads: online.map(|online| online.count()),
            allowed: None,
            smt: switch(cpu("smt/active").as_deref()),
            virtualised: tree
                .field("proc/cpuinfo", "flags")
                .map(|flags| flags.split(' ').any(|flag| flag == "hypervisor")),
            governors: governors(tree, &numbers),
            frequency_driver: numbers
                .first()
                .and_then(|number| cpu(&format!("cpu{number}/cpufreq/scaling_driver"))),
            turbo: switch(cpu("cpufreq/boost").as_deref())
                .or_else(|| switch(cpu("intel_pstate/no_turbo").as_deref()).map(|off| !off)),
            idle_driver: cpu("cpuidle/current_driver"),
            idle_governor: idle_governor.or_else(|| cpu("cpuidle/current_governor_ro")),
            vulnerabilities: vulnerabilities(tree),
        }
    }

    /// Which mitigations are not as they were, one sentence each: they cost time in every system call.
    pub(super) fn protection_differs(&self, old: &Self) -> Vec<String> {
        let names: BTreeSet<&String> =
            self.vulnerabilities.keys().chain(old.vulnerabilities.keys()).collect();
        let differ = |name: &String| {
            let [new, old] = [self, old].map(|cpu| cpu.protection(name));
            (new != old).then(|| format!("{name} is {new}, was {old}"))
        };
        names.into_iter().filter(|name| *name != OF_KVM).filter_map(differ).collect()
    }

    /// `Mitigation: IBRS`, without the details that follow and may change while the host runs.
    fn protection(&self, name: &str) -> &str {
        let text = self.vulnerabilities.get(name).map_or("unknown", String::as_str);
        text.split_once(';').map_or(text, |(what, _)| what)
    }
}

/// `1` or `0`.
fn switch(text: Option<&str>) -> Option<bool> {
    match text {
        Some("1") => Some(true),
        Some("0") => Some(false),
        Some(_) | None => None,
    }
}

/// The number of sockets and of cores.
fn topology(tree: &Tree, numbers: &[u16]) -> Option<(usize, usize)> {
    let mut sockets = BTreeSet::new();
    let mut cores = BTreeSet::new();
    for number in numbers {
        let topology = format!("{CPUS}/cpu{number}/topology");
        let socket = tree.text(format!("{topology}/physical_package_id"))?;
        // Core numbers are unique only within a socket, or less; this list is unique anyway.
        cores.insert(tree.text(format!("{topology}/thread_siblings_list"))?);
        sockets.insert(socket);
    }
    (!cores.is_empty()).then_some((sockets.len(), cores.len()))
}

fn governors(tree: &Tree, numbers: &[u16]) -> Vec<String> {
    let governor = |number| tree.text(format!("{CPUS}/cpu{number}/cpufreq/scaling_governor"));
    sorted(numbers.iter().filter_map(governor))
}

fn vulnerabilities(tree: &Tree) -> BTreeMap<String, String> {
    let directory = format!("{CPUS}/vulnerabilities");
    let names = tree.names(&directory).into_iter();
    names
        .filter_map(|name| Some((name.clone(), tree.text(format!("{directory}/{name}"))?)))
        .collect()
}

/// A part of the host with near memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NumaNode {
    /// Its number.
    pub node: u32,
    /// Missing for a node with memory only.
    pub cpus: Option<CpuList>,
    /// Its memory.
    pub memory_kib: Option<u64>,
}

impl fmt::Display for NumaNode {
    /// Without its memory, of which the kernel takes some for itself.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.node)?;
        self.cpus.as_ref().map_or(Ok(()), |cpus| write!(f, " (CPUs {cpus})"))
    }
}

impl NumaNode {
    /// All nodes in order.
    pub(super) fn read_all(tree: &Tree) -> Vec<Self> {
        let number = |name: String| name.strip_prefix("node")?.parse().ok();
        let nodes = sorted(tree.names(NODES).into_iter().filter_map(number));
        nodes.into_iter().map(|node| Self::read(tree, node)).collect()
    }

    fn read(tree: &Tree, node: u32) -> Self {
        let name = format!("Node {node} MemTotal");
        let memory = tree.field(format!("{NODES}/node{node}/meminfo"), &name);
        Self {
            node,
            cpus: tree.value(format!("{NODES}/node{node}/cpulist")),
            memory_kib: memory.and_then(|text| kibibytes(&text)),
        }
    }
}
