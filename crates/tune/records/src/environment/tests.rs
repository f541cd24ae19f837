//! Tests of the environment on trees of files, and on this host.

use std::fs;
use std::os::unix::fs::symlink;

use tempfile::TempDir;

use super::disk::MountedOn;
use super::*;

/// A tree of files as procfs and sysfs have them.
struct Fixture(TempDir);

impl Fixture {
    fn new(files: &[(&str, &str)]) -> Self {
        let fixture = Self(tempfile::tempdir().unwrap());
        fixture.write(files);
        fixture
    }

    fn write(&self, files: &[(&str, &str)]) {
        for (path, text) in files {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
        }
    }

    /// A device with its links from /sys/class/block and /sys/dev/block.
    fn device(&self, number: &str, directory: &str, files: &[(&str, &str)]) {
        let root = self.0.path();
        let directory = format!("sys/devices/{directory}");
        self.write(&[(&format!("{directory}/dev"), number)]);
        for (path, text) in files {
            self.write(&[(&format!("{directory}/{path}"), text)]);
        }
        let name = Path::new(&directory).file_name().unwrap();
        for links in ["sys/class/block", "sys/dev/block"] {
            fs::create_dir_all(root.join(links)).unwrap();
        }
        symlink(root.join(&directory), root.join("sys/class/block").join(name)).unwrap();
        symlink(root.join(&directory), root.join("sys/dev/block").join(number)).unwrap();
    }

    fn tree(&self) -> Tree {
        Tree::below(self.0.path())
    }

    fn read(&self, place: &DiskPlace) -> Environment {
        Environment::read_from(&self.tree(), place)
    }
}

/// Two sockets with two cores of two threads each.
fn server() -> Fixture {
    let fixture = Fixture::new(&[
        ("proc/cpuinfo", "processor\t: 0\nmodel name\t: Fast CPU\nflags\t\t: fpu vme sse2\n"),
        ("proc/meminfo", "MemTotal:       65536 kB\nMemFree: 1 kB"),
        ("proc/cmdline", "ro quiet mitigations=off root=/dev/sda isolcpus=1"),
        ("proc/sys/kernel/osrelease", "6.1.0"),
        ("proc/sys/kernel/arch", "x86_64"),
        ("proc/sys/kernel/io_uring_disabled", "2"),
        ("proc/self/limits", "Max locked memory         8388608  unlimited  bytes"),
        ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never"),
        ("sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc"),
        ("sys/devices/system/cpu/online", "0-7"),
        ("sys/devices/system/cpu/smt/active", "1"),
        ("sys/devices/system/cpu/intel_pstate/no_turbo", "0"),
        ("sys/devices/system/cpu/cpuidle/current_driver", "intel_idle"),
        ("sys/devices/system/cpu/cpuidle/current_governor_ro", "menu"),
        ("sys/devices/system/cpu/vulnerabilities/meltdown", "Not affected"),
        ("sys/devices/system/cpu/vulnerabilities/spectre_v2", "Mitigation: IBRS"),
        ("sys/devices/system/node/node0/cpulist", "0-3"),
        ("sys/devices/system/node/node0/meminfo", "Node 0 MemTotal:       32768 kB"),
        ("sys/devices/system/node/node1/cpulist", "4-7"),
        ("sys/devices/system/node/node2/cpulist", ""),
    ]);
    for cpu in 0..8 {
        let directory = format!("sys/devices/system/cpu/cpu{cpu}");
        let first = cpu / 2 * 2;
        let governor = if cpu == 7 { "performance" } else { "powersave" };
        fixture.write(&[
            (&format!("{directory}/topology/physical_package_id"), &format!("{}", cpu / 4)),
            (&format!("{directory}/topology/core_id"), &format!("{}", cpu / 2 % 2)),
            (
                &format!("{directory}/topology/thread_siblings_list"),
                &format!("{first}-{}", first + 1),
            ),
            (&format!("{directory}/cpufreq/scaling_governor"), governor),
            (&format!("{directory}/cpufreq/scaling_driver"), "intel_pstate"),
        ]);
    }
    fixture
}

#[test]
fn the_cpus_are_read() {
    let Environment { cpu, numa, memory_kib, .. } = server().read(&DiskPlace::Nowhere);
    assert_eq!(cpu.model.as_deref(), Some("Fast CPU"));
    assert_eq!((cpu.sockets, cpu.cores, cpu.threads), (Some(2), Some(4), Some(8)));
    assert_eq!((cpu.smt, cpu.virtualised, cpu.turbo), (Some(true), Some(false), Some(true)));
    assert_eq!(cpu.governors, ["performance", "powersave"]);
    assert_eq!(cpu.frequency_driver.as_deref(), Some("intel_pstate"));
    assert_eq!(cpu.idle_driver.as_deref(), Some("intel_idle"));
    assert_eq!(cpu.idle_governor.as_deref(), Some("menu"));
    assert_eq!(cpu.vulnerabilities.len(), 2);
    assert_eq!(cpu.vulnerabilities["spectre_v2"], "Mitigation: IBRS");
    let nodes: Vec<_> =
        numa.iter().map(|it| (it.node, it.cpus.as_ref().map(ToString::to_string))).collect();
    let expected = [(0, Some("0-3".to_owned())), (1, Some("4-7".to_owned())), (2, None)];
    assert_eq!(nodes, expected);
    assert_eq!((numa[0].memory_kib, numa[1].memory_kib), (Some(32_768), None));
    assert_eq!(memory_kib, Some(65_536));
}

#[test]
fn the_kernel_is_read() {
    let kernel = server().read(&DiskPlace::Nowhere).kernel;
    let expected = Kernel {
        release: Some("Linux 6.1.0 x86_64".to_owned()),
        flags: vec!["mitigations=off".to_owned(), "isolcpus=1".to_owned()],
        transparent_hugepages: Some("madvise".to_owned()),
        clock_source: Some("tsc".to_owned()),
        io_uring_disabled: Some(2),
        locked_memory: Some("8388608".to_owned()),
    };
    assert_eq!(kernel, expected);
}

#[test]
fn what_is_not_told_is_missing() {
    let fixture = Fixture::new(&[]);
    assert_eq!(fixture.read(&DiskPlace::Nowhere), Environment::default());
    assert_eq!(fixture.read(&DiskPlace::Device(8, 0)), Environment::default());
    assert_eq!(fixture.read(&DiskPlace::Path("/srv/disk".into())), Environment::default());
}

/// A file on ext4 on a loop device on xfs on encryption on a RAID of two partitions.
fn tower() -> Fixture {
    let fixture = Fixture::new(&[(
        "proc/self/mountinfo",
        "1 0 252:3 / / rw - xfs /dev/mapper/crypt rw\n\
         2 1 7:4 / /mnt rw,noatime - ext4 /dev/loop4 rw,discard\n\
         3 1 0:40 / /pool rw - btrfs /dev/mapper/crypt rw,ssd",
    )]);
    let none = ("queue/scheduler", "[none] mq-deadline");
    fixture.device("7:4", "virtual/block/loop4", &[("loop/backing_file", "/srv/a file"), none]);
    let crypt = [("dm/uuid", "CRYPT-LUKS2-1"), ("slaves/md0/dev", "9:0")];
    fixture.device("252:3", "virtual/block/dm-3", &crypt);
    let raid =
        [("md/level", "raid0"), ("slaves/nvme0n1p2/dev", "259:2"), ("slaves/sda1/dev", "8:1")];
    fixture.device("9:0", "virtual/block/md0", &raid);
    fixture.device(
        "259:0",
        "pci/nvme/nvme0n1",
        &[
            ("device/model", "Fast SSD   "),
            ("queue/rotational", "0"),
            ("queue/scheduler", "none [kyber] mq-deadline"),
            ("queue/nr_requests", "1023"),
            ("queue/write_cache", "write back"),
            ("queue/logical_block_size", "512"),
            ("queue/physical_block_size", "4096"),
            ("mq/0/cpu_list", "0"),
            ("mq/1/cpu_list", "1"),
        ],
    );
    fixture.device("259:2", "pci/nvme/nvme0n1/nvme0n1p2", &[("partition", "2")]);
    let turning = [("queue/rotational", "1"), ("device/queue_depth", "32")];
    fixture.device("8:0", "pci/ata/sda", &turning);
    fixture.device("8:1", "pci/ata/sda/sda1", &[("partition", "1")]);
    fs::create_dir_all(fixture.0.path().join("dev/mapper")).unwrap();
    fs::write(fixture.0.path().join("dev/dm-3"), "").unwrap();
    symlink("../dm-3", fixture.0.path().join("dev/mapper/crypt")).unwrap();
    fixture
}

fn names(disk: &DiskBelow) -> Vec<&str> {
    disk.devices.iter().map(|device| device.name.as_str()).collect()
}

#[test]
fn the_walk_goes_down_to_the_disks() {
    let disk = tower().read(&DiskPlace::Path("/mnt/disk".into())).disk;
    assert_eq!(names(&disk), ["loop4", "dm-3", "md0", "nvme0n1", "sda"]);
    assert_eq!(disk.mounted_on.unwrap().to_string(), "ext4 (rw,noatime,discard)");
    let layers: Vec<_> = disk.devices.iter().map(|device| device.layer.as_deref()).collect();
    assert_eq!(layers, [Some("loop"), Some("dm CRYPT"), Some("md raid0"), None, None]);
    let expected = BlockDevice {
        name: "nvme0n1".to_owned(),
        model: Some("Fast SSD".to_owned()),
        layer: None,
        rotational: Some(false),
        scheduler: Some("kyber".to_owned()),
        nr_requests: Some(1023),
        queue_depth: None,
        hardware_queues: Some(2),
        write_cache: Some("write back".to_owned()),
        logical_block_bytes: Some(512),
        physical_block_bytes: Some(4096),
    };
    assert_eq!(disk.devices[3], expected);
    assert_eq!(disk.devices[4].queue_depth, Some(32));
}

#[test]
fn the_walk_begins_anywhere() {
    let fixture = tower();
    let disk = fixture.read(&DiskPlace::Path("/pool/disk".into())).disk;
    assert_eq!(names(&disk), ["dm-3", "md0", "nvme0n1", "sda"]);
    let disk = fixture.read(&DiskPlace::Device(8, 1)).disk;
    assert_eq!((names(&disk), &disk.mounted_on), (vec!["sda"], &None));
}

#[test]
fn a_circle_ends_the_walk() {
    let fixture = Fixture::new(&[]);
    fixture.device("9:0", "virtual/block/md0", &[("slaves/md1/dev", "9:1")]);
    fixture.device("9:1", "virtual/block/md1", &[("slaves/md0/dev", "9:0")]);
    assert_eq!(names(&fixture.read(&DiskPlace::Device(9, 0)).disk), ["md0", "md1"]);
}

#[track_caller]
fn check_warned(environment: &Environment, expected: &[&str]) {
    let warnings = environment.warnings();
    assert_eq!(warnings.len(), expected.len(), "{warnings:#?}");
    for (warning, expected) in warnings.iter().zip(expected) {
        assert!(warning.contains(expected), "'{warning}' lacks '{expected}'");
    }
}

#[test]
fn what_bends_figures_is_said() {
    let mut environment = server().read(&DiskPlace::Nowhere);
    environment.cpu.allowed = Some(3);
    check_warned(
        &environment,
        &[
            "io_uring_disabled is 2",
            "only 3 of 8 CPUs",
            "governor is performance and powersave",
            "turbo is on",
            "8 CPUs are 4 cores",
            "3 NUMA nodes",
        ],
    );
    let tower = tower().read(&DiskPlace::Path("/mnt/disk".into()));
    check_warned(
        &tower,
        &["unknown whether turbo", "loop4 is a file", "nvme0n1 is kyber", "sda is a turning disk"],
    );
}

#[test]
fn a_quiet_host_is_not_warned_about() {
    let mut environment = Environment::default();
    environment.cpu.turbo = Some(false);
    environment.cpu.governors = vec!["performance".to_owned()];
    check_warned(&environment, &[]);
    environment.cpu.virtualised = Some(true);
    environment.cpu.turbo = None;
    environment.disk.devices =
        vec![BlockDevice { rotational: Some(true), ..BlockDevice::default() }];
    check_warned(&environment, &["itself a virtual machine"]);
}

#[test]
fn file_systems_that_are_no_disks_are_told() {
    for (kind, expected) in
        [("tmpfs", "is memory"), ("nfs4", "another machine"), ("overlay", "containers")]
    {
        let mounted_on = Some(MountedOn { kind: kind.to_owned(), options: String::new() });
        let mut environment = Environment::default();
        environment.cpu.turbo = Some(false);
        environment.disk.mounted_on = mounted_on;
        check_warned(&environment, &[expected]);
    }
}

#[test]
fn results_of_the_same_host_may_be_mixed() {
    let one = tower().read(&DiskPlace::Path("/mnt/disk".into()));
    let mut again = one.clone();
    // A loop device that is made again has another number.
    again.disk.devices[0].name = "loop9".to_owned();
    assert!(one.differences(&again).is_empty());
}

#[test]
fn each_difference_is_named() {
    let old = server().read(&DiskPlace::Nowhere);
    let mut new = old.clone();
    new.cpu.model = None;
    new.cpu.allowed = Some(2);
    new.kernel.flags.pop();
    new.programs.fio = Some("3.33".to_owned());
    new.disk = tower().read(&DiskPlace::Path("/mnt/disk".into())).disk;
    new.disk.devices.truncate(1);
    let expected = [
        "CPU is unknown, was Fast CPU",
        "number of usable CPUs is 2, was unknown",
        "list of kernel flags is mitigations=off, was mitigations=off, isolcpus=1",
        "fio is 3.33, was unknown",
        "file system is ext4 (rw,noatime,discard), was unknown",
        "storage is loop (scheduler none, unknown requests, unknown queues, blocks of unknown bytes, write cache \
         unknown), was unknown",
    ];
    assert_eq!(new.differences(&old), expected);
}

#[track_caller]
fn check_difference(change: impl FnOnce(&mut Environment), expected: &[&str]) {
    let old = tower().read(&DiskPlace::Path("/mnt/disk".into()));
    let old = Environment { disk: old.disk, ..server().read(&DiskPlace::Nowhere) };
    let mut new = old.clone();
    change(&mut new);
    let found = new.differences(&old);
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for (found, expected) in found.iter().zip(expected) {
        assert!(found.contains(expected), "'{found}' lacks '{expected}'");
    }
}

#[test]
fn whatever_bends_figures_must_be_the_same() {
    check_difference(|it| it.memory_kib = Some(32_768), &["memory is 32 MiB, was 64 MiB"]);
    check_difference(|it| it.memory_kib = None, &["memory is unknown, was 64 MiB"]);
    let nodes =
        "list of NUMA nodes is 0 (CPUs 0-3), 1 (CPUs 4-7), was 0 (CPUs 0-3), 1 (CPUs 4-7), 2";
    check_difference(|it| it.numa.truncate(2), &[nodes]);
    check_difference(|it| it.cpu.cores = Some(8), &["number of cores is 8, was 4"]);
    check_difference(|it| it.cpu.turbo = Some(false), &["turbo is off, was on"]);
    check_difference(
        |it| it.cpu.frequency_driver = Some("acpi-cpufreq".to_owned()),
        &["CPU frequency driver is acpi-cpufreq, was intel_pstate"],
    );
    check_difference(
        |it| (it.cpu.idle_driver, it.cpu.idle_governor) = (None, Some("haltpoll".to_owned())),
        &["CPU idle driver is unknown, was intel_idle", "CPU idle governor is haltpoll, was menu"],
    );
    check_difference(
        |it| it.kernel.transparent_hugepages = Some("never".to_owned()),
        &["transparent huge pages is never, was madvise"],
    );
    check_difference(
        |it| it.kernel.clock_source = Some("hpet".to_owned()),
        &["clock source is hpet, was tsc"],
    );
    check_difference(
        |it| it.kernel.io_uring_disabled = Some(0),
        &["io_uring_disabled is 0, was 2"],
    );
    check_difference(
        |it| it.disk.devices[3].hardware_queues = Some(1),
        &["Fast SSD (scheduler kyber, 1023 requests, 1 queues"],
    );
    check_difference(
        |it| it.disk.devices[3].logical_block_bytes = Some(4096),
        &["blocks of 4096 bytes"],
    );
}

#[test]
fn mitigations_are_compared_by_what_they_are() {
    let set = |name: &'static str, text: &'static str| {
        move |it: &mut Environment| {
            it.cpu.vulnerabilities.insert(name.to_owned(), text.to_owned());
        }
    };
    let vulnerable = "spectre_v2 is Vulnerable, was Mitigation: IBRS";
    check_difference(set("spectre_v2", "Vulnerable; STIBP: disabled"), &[vulnerable]);
    check_difference(set("spectre_v2", "Mitigation: IBRS; PBRSB-eIBRS: Not affected"), &[]);
    check_difference(set("mds", "Vulnerable"), &["mds is Vulnerable, was unknown"]);
    check_difference(
        |it| drop(it.cpu.vulnerabilities.remove("meltdown")),
        &["meltdown is unknown, was Not affected"],
    );
    // Changes when the module kvm is loaded.
    check_difference(set("itlb_multihit", "KVM: Mitigation: Split huge pages"), &[]);
}

#[test]
fn what_the_kernel_takes_of_the_memory_makes_no_difference() {
    check_difference(|it| it.memory_kib = Some(65_536 - 1000), &[]);
    check_difference(|it| it.kernel.locked_memory = Some("unlimited".to_owned()), &[]);
    check_difference(|it| it.numa[0].memory_kib = Some(32_000), &[]);
    check_difference(|it| it.disk.devices[4].queue_depth = Some(31), &[]);
}

#[test]
fn an_environment_is_recorded_and_read_again() {
    let environment = server().read(&DiskPlace::Nowhere);
    let text = serde_json::to_string(&environment).unwrap();
    assert_eq!(serde_json::from_str::<Environment>(&text).unwrap(), environment);
    // A field that a later version adds is missing in an older file.
    assert_eq!(serde_json::from_str::<Environment>("{}").unwrap(), Environment::default());
}

#[test]
fn this_host_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let programs = Programs { ringloom: Some("0.1.0".to_owned()), ..Programs::default() };
    let environment = Environment::read(directory.path(), programs.clone());
    let Environment { cpu, memory_kib, kernel, disk, .. } = &environment;
    assert!(cpu.threads.unwrap() >= 1 && cpu.allowed.unwrap() >= 1);
    assert!(memory_kib.unwrap() > 0);
    assert!(kernel.release.as_ref().unwrap().starts_with("Linux "));
    assert!(disk.mounted_on.is_some());
    assert_eq!(environment.programs, programs);
    assert!(environment.differences(&environment.clone()).is_empty());
    assert_eq!(
        cpu.virtualised == Some(true),
        environment.warnings()[..].iter().any(|it| it.contains("virtual machine"))
    );
}
