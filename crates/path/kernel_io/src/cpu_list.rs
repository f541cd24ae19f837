//! Lists of CPUs, and which of them lie near what: NUMA nodes and block devices, as sysfs tells.
//!
//! Where it stands: beside the request path, at the start. Behind the fences nothing of this is read.
//!
//! Limits: CPUs are numbered up to what the C library has room for, 1023.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Devices on devices: more than this is no stack that anybody built.
const STACKED_MAX: usize = 8;

/// Some CPUs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CpuList(BTreeSet<usize>);

impl CpuList {
    /// Reads `0-3,8`; `None` if it is no such list or has a CPU that cannot be.
    pub fn parse(text: &str) -> Option<Self> {
        let range = |part: &str| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number = |text: &str| {
                let is_plain = text.bytes().all(|it| it.is_ascii_digit());
                text.parse().ok().filter(|it| is_plain && *it < CpuSet::MAX_CPU)
            };
            let (first, last): (usize, usize) = (number(first)?, number(last)?);
            (first <= last).then_some(first..=last)
        };
        let ranges: Option<Vec<_>> = text.split(',').map(range).collect();
        Some(Self(ranges?.into_iter().flatten().collect()))
    }

    /// Those that the calling thread may use.
    pub fn of_this_thread() -> io::Result<Self> {
        let set = sched_getaffinity(None)?;
        Ok(Self((0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()))
    }

    /// Has the calling thread, and those that it will start, run on these only.
    pub fn bind_this_thread(&self) -> io::Result<()> {
        let mut set = CpuSet::new();
        self.0.iter().for_each(|cpu| set.set(*cpu));
        Ok(sched_setaffinity(None, &set)?)
    }

    /// Those that are in both.
    #[must_use = "it is a new list"]
    pub fn and(&self, other: &Self) -> Self {
        Self(self.0.intersection(&other.0).copied().collect())
    }

    /// Those that are not in the other.
    #[must_use = "it is a new list"]
    pub fn without(&self, other: &Self) -> Self {
        Self(self.0.difference(&other.0).copied().collect())
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }
}

impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ranges: Vec<(usize, usize)> = Vec::new();
        for cpu in &self.0 {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == *cpu => *last = *cpu,
                Some(_) | None => ranges.push((*cpu, *cpu)),
            }
        }
        let words = ranges.iter().map(|(first, last)| match first == last {
            true => first.to_string(),
            false => format!("{first}-{last}"),
        });
        f.write_str(&words.collect::<Vec<_>>().join(","))
    }
}

/// What sysfs tells of the host.
#[derive(Debug, Clone)]
pub struct NumaTopology {
    root: PathBuf,
}

impl Default for NumaTopology {
    fn default() -> Self {
        Self { root: PathBuf::from("/sys") }
    }
}

impl NumaTopology {
    /// The numbers of the host's NUMA nodes; none if the kernel does not tell.
    pub fn nodes(&self) -> Vec<u32> {
        let entries = fs::read_dir(self.root.join("devices/system/node"));
        let number = |entry: io::Result<fs::DirEntry>| {
            entry.ok()?.file_name().to_str()?.strip_prefix("node")?.parse().ok()
        };
        let mut nodes: Vec<u32> = entries.into_iter().flatten().filter_map(number).collect();
        nodes.sort_unstable();
        nodes
    }

    /// The CPUs of a node; `None` if there is no such node.
    pub fn cpus_of(&self, node: u32) -> Option<CpuList> {
        let path = self.root.join(format!("devices/system/node/node{node}/cpulist"));
        let text = fs::read_to_string(path).ok()?;
        // A node of memory alone has none.
        if text.trim().is_empty() { Some(CpuList::default()) } else { CpuList::parse(text.trim()) }
    }

    /// The node of a block device, or of what it stands on, by its numbers; `None` if nothing tells.
    pub fn node_of_device(&self, major: u32, minor: u32) -> Option<u32> {
        let device = self.root.join(format!("dev/block/{major}:{minor}"));
        self.node_below(&device.canonicalize().ok()?, STACKED_MAX)
    }

    fn node_below(&self, device: &Path, depth: usize) -> Option<u32> {
        let inside = device.ancestors().take_while(|it| it.starts_with(&self.root));
        let told = |directory: &Path| {
            let text = fs::read_to_string(directory.join("numa_node")).ok()?;
            text.trim().parse::<u32>().ok()
        };
        // A device is on a bus that is on a bus.
        if let Some(node) = inside.map(told).find_map(|it| it) {
            return Some(node);
        }
        let below = fs::read_dir(device.join("slaves")).ok()?;
        let below = below.filter_map(|entry| entry.ok()?.path().canonicalize().ok());
        below.filter(|_| depth > 0).find_map(|it| self.node_below(&it, depth - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_and_written() {
        let check = |text: &str, written: Option<&str>| {
            assert_eq!(CpuList::parse(text).map(|it| it.to_string()).as_deref(), written, "{text}");
        };
        check("0-3,8", Some("0-3,8"));
        check("8,0,1,2-2", Some("0-2,8"));
        for text in ["", ",", "1,", "3-1", "x", "-1", "+1", "1-", "0-1024", "18446744073709551616"]
        {
            check(text, None);
        }
        let list = |text| CpuList::parse(text).unwrap();
        assert_eq!(list("0-3").and(&list("2-5")), list("2-3"));
        assert_eq!(list("0-3").without(&list("2-5")).count(), 2);
    }

    #[test]
    fn a_thread_and_its_children_run_where_they_are_bound() {
        let all = CpuList::of_this_thread().unwrap();
        let one = CpuList(all.0.iter().copied().take(1).collect());
        let bound = std::thread::scope(|scope| {
            let run = || {
                one.bind_this_thread().unwrap();
                std::thread::spawn(|| CpuList::of_this_thread().unwrap()).join().unwrap()
            };
            scope.spawn(run).join().unwrap()
        });
        assert_eq!((bound, CpuList::of_this_thread().unwrap()), (one, all));
    }

    /// A host of two nodes: a disk on a bus of node 1 with a partition, a mapped device on that, and one of no node.
    fn host() -> (tempfile::TempDir, NumaTopology) {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("devices/system/node/node0/cpulist", "0-1\n");
        write("devices/system/node/node1/cpulist", "2-3\n");
        write("devices/system/node/node2/cpulist", "\n");
        write("devices/system/node/online", "0-2\n");
        write("devices/pci0/0000:01/numa_node", "1\n");
        write("devices/pci0/0000:01/nvme0/block/nvme0n1/p1/partition", "1\n");
        write("devices/virtual/block/dm-0/size", "1\n");
        write("devices/virtual/block/loop0/size", "1\n");
        write("devices/pci1/numa_node", "-1\n");
        write("devices/pci1/sda/size", "1\n");
        let link = |from: &str, to: &str| {
            fs::create_dir_all(root.join(from).parent().unwrap()).unwrap();
            std::os::unix::fs::symlink(root.join(to), root.join(from)).unwrap();
        };
        let disk = "devices/pci0/0000:01/nvme0/block/nvme0n1";
        link("dev/block/259:0", disk);
        link("dev/block/259:1", &format!("{disk}/p1"));
        link("dev/block/253:0", "devices/virtual/block/dm-0");
        link("devices/virtual/block/dm-0/slaves/nvme0n1p1", &format!("{disk}/p1"));
        link("dev/block/7:0", "devices/virtual/block/loop0");
        link("dev/block/8:0", "devices/pci1/sda");
        (directory, NumaTopology { root })
    }

    #[test]
    fn sysfs_tells_where_cpus_and_devices_are() {
        let (_directory, host) = host();
        assert_eq!(host.nodes(), [0, 1, 2]);
        assert_eq!(host.cpus_of(1), CpuList::parse("2-3"));
        assert_eq!(host.cpus_of(2), Some(CpuList::default()));
        assert_eq!(host.cpus_of(3), None);
        let devices = [(259, 0), (259, 1), (253, 0), (7, 0), (8, 0), (99, 0)];
        let nodes = devices.map(|(major, minor)| host.node_of_device(major, minor));
        assert_eq!(nodes, [Some(1), Some(1), Some(1), None, None, None]);
    }
}
