//! Headers and runs for tests, of this crate and of those that build on it.

use std::path::PathBuf;

use plan::cell::Cell;
use plan::contender::Contender;
use plan::runs::{CURVE_MAXIMUM, Purpose, RunKey};
use plan::testing::{cell, settings};
use plan::variant::Variant;
use storage::machine::Machine;
use storage::target::Origin;

use crate::environment::Environment;
use crate::meter::{Cost, GroupCost, GroupName, HostCpu};
use crate::results::{Disk, DiskAccess, FORMAT, Header, Host, Programs, Run};

/// The header of a command with these options, on a machine of 4 cores.
pub fn header(line: &str) -> Header {
    let machine = Machine {
        cpu: "Test CPU".to_owned(),
        cores: 4,
        memory_kib: 1 << 20,
        kernel: "Linux 6.1.0 x86_64".to_owned(),
    };
    let disk = Disk {
        origin: Origin::Scratch,
        path: PathBuf::from("/disks/ringloom-scratch-7.img"),
        bytes: 1 << 30,
        description: "1G on ext4, O_DIRECT".to_owned(),
        opened: Some(DiskAccess { block_device: false, direct: true }),
        looks_like: None,
        holes: false,
    };
    let programs = Programs { daemon: "daemon 1.0".to_owned(), ..Programs::default() };
    let mut environment = Environment::default();
    // So that there is nothing to warn of.
    environment.cpu.turbo = Some(false);
    let host = Host { machine, environment, load_before: None };
    let mut header = Header::new(programs, host, disk, settings(line, 4));
    header.started_unix_s = 1_700_000_000;
    header.ringloom = "0.1.0".to_owned();
    header
}

/// A run of one second with `operations` requests of 100 µs each, 10 µs of CPU time per request.
pub fn run(cell: Cell, contender: Contender, repeat: u16, operations: u64) -> Run {
    let purpose = Purpose::Sweep;
    let variant = Variant::default();
    let name = if contender == Contender::HOST { GroupName::Load } else { GroupName::Daemon };
    let cpu_ns = operations * 10_000;
    let group = GroupCost { name, cpu_ns, voluntary: 0, involuntary: 0, threads: Vec::new() };
    Run {
        format: FORMAT,
        key: RunKey { purpose, repeat, step: 0, contender, variant, cell },
        stretched: false,
        round: None,
        queues: 0,
        load: "ringloom".to_owned(),
        kernel: None,
        emulated: false,
        started_unix_s: 1_700_000_001,
        operations,
        bytes: operations * u64::from(cell.shape().block().get()),
        elapsed_ns: 1_000_000_000,
        rate_iops: None,
        latency_ns: vec![(100_000, operations)],
        per_second: Vec::new(),
        windows: Vec::new(),
        parts: Vec::new(),
        disk_parts: Vec::new(),
        cost: Cost { covered_ns: 1_000_000_000, host: None, groups: vec![group] },
        job_files: Vec::new(),
        verified_bytes: None,
        crashes: Vec::new(),
    }
}

/// A host on which so many of its CPUs were in use.
pub fn host_cpu(cpus_in_use: f64, of: usize) -> HostCpu {
    HostCpu {
        cpus_in_use,
        of,
        cpus_stolen: 0.0,
        cpus_in_kernel: 0.3,
        per_cpu_busy: vec![0.5; of],
        context_switches_per_s: 1e3,
    }
}

/// The maximum of 1,000 and its shares, as they were reached.
pub fn curve_runs(contender: Contender, repeat: u16, reached: [u64; 4]) -> Vec<Run> {
    let points = [100, 50, 70, 90].into_iter().zip(reached).map(|(percent, reached)| {
        let mut run = run(cell("randread", 4096, 2, 16), contender, repeat, reached);
        (run.key.purpose, run.key.step) = (Purpose::Curve, percent);
        run.rate_iops = (percent != CURVE_MAXIMUM).then(|| f64::from(percent) * 10.0);
        run
    });
    points.collect()
}

/// Low, high and low again of one repeat, with these IOPS.
pub fn probe_runs(contender: Contender, repeat: u16, iops: [u64; 3]) -> Vec<Run> {
    let phases = (0..).zip(iops).map(|(step, iops)| {
        let jobs = if step == 1 { 40 } else { 4 };
        let mut run = run(cell("randread", 4096, jobs, 1), contender, repeat, iops);
        (run.key.purpose, run.key.step) = (Purpose::Probe, step);
        run
    });
    phases.collect()
}
