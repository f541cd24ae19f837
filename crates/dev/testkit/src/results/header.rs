//! The first line: the machine, the programs, the disk and the options.

use serde_json::{Value, json};

use super::{Format, Mode, Plan, iothreads};

/// When the command started.
pub(super) const STARTED_UNIX_S: u64 = 1_795_363_012;
/// What the tuner uses if nothing else is asked for.
pub(super) const VARIANT: [(&str, &str); 6] = [
    ("device", "virtio-blk"),
    ("image", "raw"),
    ("aio", "auto"),
    ("fs", "here"),
    ("stripe", "none"),
    ("delay", "0"),
];

pub(super) fn header(plan: &Plan) -> Value {
    let boots = plan.subjects.iter().any(|it| ["vm:qemu", "vm:ringloom"].contains(it));
    let when = |text: &str| if boots { json!(text) } else { Value::Null };
    json!({
        "format": plan.format.number(),
        "kind": "header",
        "ringloom": "0.1.0",
        "started_unix_s": STARTED_UNIX_S,
        "programs": {
            "daemon": "ringloom 0.1.0",
            "qemu": when("10.0.2"),
            "fio": when("fio-3.33"),
            "guest_kernel": when("6.12.95+deb12-cloud-amd64"),
            "accelerator": when("kvm"),
            "emulated_because": null,
        },
        "machine": {
            "cpu": "Example CPU", "cores": 32, "memory_kib": 131_072_000,
            "kernel": "Linux 6.12.95 x86_64",
        },
        "environment": environment(),
        "load_before": { "load_average": [0.1, 0.2, 0.3], "cpus_in_use": 0.1, "of": 32, "users": [] },
        "disk": disk(plan.format),
        "given": null,
        "settings": settings(plan),
    })
}

/// A block device; how it was opened stands in words only in the older format.
fn disk(format: Format) -> Value {
    let mut disk = json!({
        "origin": "user", "path": "/dev/nvme1n1", "bytes": 1_u64 << 40,
        "description": "1T on block device, O_DIRECT",
    });
    if format >= Format::Three {
        disk["opened"] = json!({ "block_device": true, "direct": true });
        disk["looks_like"] = Value::Null;
    }
    disk
}

fn environment() -> Value {
    let device = json!({
        "name": "nvme1n1", "model": "Example SSD", "layer": null, "rotational": false,
        "scheduler": "none", "nr_requests": 1023, "queue_depth": null, "hardware_queues": 32,
        "write_cache": "write through", "logical_block_bytes": 512, "physical_block_bytes": 512,
    });
    json!({
        "cpu": {
            "model": "Example CPU", "sockets": 1, "cores": 32, "threads": 32, "allowed": 32,
            "smt": false, "virtualised": false, "governors": ["performance"],
            "frequency_driver": "amd-pstate-epp", "turbo": false, "idle_driver": "acpi_idle",
            "idle_governor": "menu", "vulnerabilities": { "meltdown": "Not affected" },
        },
        "numa": [{ "node": 0, "cpus": "0-31", "memory_kib": 131_072_000 }],
        "memory_kib": 131_072_000,
        "kernel": {
            "release": "Linux 6.12.95 x86_64", "flags": [], "transparent_hugepages": "madvise",
            "clock_source": "tsc", "io_uring_disabled": 0, "locked_memory": "unlimited",
        },
        "programs": { "ringloom": "0.1.0", "qemu": null, "fio": null },
        "disk": { "mounted_on": null, "devices": [device] },
    })
}

fn settings(plan: &Plan) -> Value {
    let mode = match plan.mode {
        Mode::Sweep => "sweep",
        Mode::Hysteresis => "hysteresis",
        Mode::Curve => "curve",
    };
    let counts: Vec<Value> = plan.iothreads.iter().map(|&count| iothreads(count)).collect();
    let mut variant = json!({ "vms": 1, "disks": 1 });
    for (name, value) in VARIANT {
        variant[name] = json!(value);
    }
    let mut settings = json!({
        "mode": mode,
        "subject": plan.subjects,
        "iothreads": counts,
        "op": plan.operations,
        "bs": plan.block_sizes,
        "jobs": plan.jobs,
        "iodepth": plan.depths,
        "runtime": plan.seconds,
        "ramp": 0.5,
        "repeats": plan.repeats,
        "load": if plan.subjects.iter().any(|it| it.starts_with("vm:")) { "fio" } else { "own" },
        "engine": "io_uring",
        "verify": false,
        "sentinel": 0,
        "destructive": true,
        "seed": 42,
        "variants": [variant],
        "guest": {
            "guest": null, "vcpus": 16, "queues": 16, "memory-mib": 1024, "accel": "auto",
            "guest-kernel": null, "pin-vcpus": null, "pin-iothreads": null, "numa-node": null,
        },
    });
    if plan.format >= Format::Three {
        settings["repeats"] = json!(plan.repeats.to_string());
        settings["search"] = json!("listed");
        settings["budget"] = Value::Null;
        settings["weights"] = json!([]);
    }
    settings
}
