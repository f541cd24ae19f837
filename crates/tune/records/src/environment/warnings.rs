//! Sentences about what bends figures on this host. Pure functions.

use super::{BlockDevice, Cpu, Environment, Kernel};

/// All that apply, the weightiest first.
pub(super) fn of(environment: &Environment) -> Vec<String> {
    let Environment { cpu, numa, kernel, disk, .. } = environment;
    let virtualised = cpu.virtualised == Some(true);
    let mut warnings = Vec::new();
    if virtualised {
        warnings.push(
            "this host is itself a virtual machine: its neighbours and its hypervisor take part in \
             the figures, and guests in it are slower than on real hardware"
                .to_owned(),
        );
    }
    let file_system = disk.mounted_on.as_ref().map(|mounted| mounted.kind.as_str());
    warnings.extend(file_system.and_then(of_file_system));
    warnings.extend(of_kernel(kernel));
    warnings.extend(of_cpu(cpu, virtualised));
    if numa.len() > 1 {
        warnings.push(format!(
            "there are {} NUMA nodes: figures depend on the node on which threads and memory lie; \
             bind them to one",
            numa.len()
        ));
    }
    warnings.extend(disk.devices.iter().flat_map(|device| of_device(device, virtualised)));
    warnings
}

fn of_file_system(kind: &str) -> Option<String> {
    match kind {
        "tmpfs" | "ramfs" => Some(format!("{kind} is memory: the figures are not those of a disk")),
        "nfs" | "nfs4" | "cifs" | "smb3" | "9p" | "ceph" | "virtiofs" => {
            Some(format!("{kind} reaches another machine: the figures are those of its way there"))
        }
        "overlay" => Some(
            "the disk lies on overlay, a file system of containers: measure on the file system \
             that is used later"
                .to_owned(),
        ),
        _ => None,
    }
}

fn of_kernel(kernel: &Kernel) -> Option<String> {
    let limit = kernel.io_uring_disabled.filter(|&limit| limit > 0)?;
    let whom = if limit == 1 { "all but a few" } else { "everybody" };
    Some(format!(
        "kernel.io_uring_disabled is {limit}: io_uring is denied to {whom}, and what falls back to \
         other ways is slower"
    ))
}

fn of_cpu(cpu: &Cpu, virtualised: bool) -> Vec<String> {
    let mut warnings = Vec::new();
    if let (Some(allowed), Some(threads)) = (cpu.allowed, cpu.threads)
        && allowed < threads
    {
        warnings.push(format!("this process may use only {allowed} of {threads} CPUs"));
    }
    if cpu.governors.iter().any(|governor| governor != "performance") {
        warnings.push(format!(
            "the CPU frequency governor is {}: CPUs slow down when they wait for the disk; set \
             performance for steady figures",
            cpu.governors.join(" and ")
        ));
    }
    match cpu.turbo {
        Some(true) => warnings.push(
            "turbo is on: few busy CPUs run faster than many, which favours few threads".to_owned(),
        ),
        None if !virtualised => warnings.push(
            "it is unknown whether turbo is on: few busy CPUs may run faster than many".to_owned(),
        ),
        Some(false) | None => {}
    }
    if cpu.smt == Some(true)
        && let (Some(threads), Some(cores)) = (cpu.threads, cpu.cores)
    {
        warnings.push(format!(
            "SMT is on: {threads} CPUs are {cores} cores, and two busy CPUs of a core are slower \
             than two cores"
        ));
    }
    warnings
}

fn of_device(device: &BlockDevice, virtualised: bool) -> Vec<String> {
    let BlockDevice { name, scheduler, .. } = device;
    let mut warnings = Vec::new();
    if name.starts_with("nvme")
        && let Some(scheduler) = scheduler.as_ref().filter(|scheduler| *scheduler != "none")
    {
        warnings.push(format!(
            "the scheduler of {name} is {scheduler}: on NVMe it costs more than it brings; set none"
        ));
    }
    // Virtual disks say so whatever they are.
    if device.rotational == Some(true) && device.layer.is_none() && !virtualised {
        warnings.push(format!(
            "{name} is a turning disk: its arm limits the figures, not the threads that serve it"
        ));
    }
    if device.layer.as_deref() == Some("loop") {
        warnings
            .push(format!("{name} is a file that looks like a disk: each request passes twice"));
    }
    if name.starts_with("zram") || name.starts_with("ram") {
        warnings.push(format!("{name} is memory: the figures are not those of a disk"));
    }
    warnings
}
