//! QEMU's arguments, and the command line of `ringloom serve`.
//!
//! One option with its value per line, quoted for a shell, all but the last with a backslash at the end: to be pasted
//! into a script, or read by one (docs/configurations.md).

use plan::variant::Device;
use serde_json::{Value, json};
use storage::quote;

use super::wanted::{Backend, Wanted};
use crate::export::{AUTO, Export, named};

/// Requests that a queue has room for, as in the measurements; QEMU's own numbers differ by device.
pub(super) const QUEUE_SIZE: u16 = 256;
/// How soon QEMU looks again for a ringloom that has gone away.
const RECONNECT: &str = "reconnect-ms=1000";
/// The same for a QEMU that counts seconds.
const RECONNECT_OLD: &str = "reconnect=1";
/// The guest's memory, where it is an object.
const MEMORY: &str = "mem0";
/// The device that attaches what ringloom serves, and its socket.
const SERVED: [&str; 2] = ["vda", "char-vda"];
/// QEMU's name of the disk's node.
const NODE: &str = "disk0";

/// How the arguments are used.
const ADD: &str = "Paste behind qemu-system-x86_64, or: \
                   eval \"exec qemu-system-x86_64 YOUR-OTHERS $(grep -v '^#' qemu.args)\"";

/// An option and its value, not yet quoted.
type Argument = (&'static str, String);

/// `qemu.args`.
pub(super) fn args(wanted: &Wanted) -> String {
    let mut lines = wanted.head();
    lines.push(ADD.to_owned());
    if wanted.by == Backend::Ringloom {
        let (reconnect, other) = if wanted.reconnects_in_seconds() {
            (RECONNECT_OLD, format!("QEMU 9.2 and newer says {RECONNECT} instead of"))
        } else {
            (RECONNECT, format!("QEMU before 9.2 says {RECONNECT_OLD} instead of"))
        };
        lines.extend([
            "serve.sh must run before. -m and size are the guest's memory, which must be shared;"
                .to_owned(),
            format!("{other} {reconnect}."),
        ]);
    }
    format!("{}{}\n", quote::hash_comment(&lines), written(&arguments(wanted)).join(" \\\n"))
}

/// The same arguments in one line, without a word on them.
pub(super) fn line(wanted: &Wanted) -> String {
    written(&arguments(wanted)).join(" ")
}

fn arguments(wanted: &Wanted) -> Vec<Argument> {
    let mut arguments = memory(wanted);
    match wanted.by {
        Backend::QemuIothreads => {
            arguments.extend((0..wanted.mapped()).map(iothread));
            let mut node = wanted.disk_files().qemu_blockdev(wanted.aio, false);
            node["node-name"] = NODE.into();
            arguments.push(("-blockdev", quote::json(&node)));
            arguments.extend(devices(wanted).iter().map(device));
        }
        Backend::Ringloom => {
            let reconnect = if wanted.reconnects_in_seconds() { RECONNECT_OLD } else { RECONNECT };
            let socket = quote::keyval(&wanted.socket.to_string_lossy());
            let [id, chardev] = SERVED;
            let socket = format!("socket,id={chardev},path={socket},{reconnect}");
            arguments.push(("-chardev", socket));
            arguments.push(device(&json!({
                "driver": "vhost-user-blk-pci", "id": id, "chardev": chardev,
                "num-queues": wanted.queues, "queue-size": QUEUE_SIZE,
            })));
        }
    }
    arguments
}

/// The ids of `qemu.args`, which must be free in the guest that takes them.
pub(super) fn ids(wanted: &Wanted) -> Vec<String> {
    let mut ids: Vec<String> = match wanted.mapped() {
        0 => Vec::new(),
        1 => vec![iothread_id(0)],
        several => vec![format!("{} to {}", iothread_id(0), iothread_id(several - 1))],
    };
    match wanted.by {
        Backend::QemuIothreads => {
            ids.push(NODE.to_owned());
            let devices = devices(wanted);
            ids.extend(devices.iter().filter_map(|it| it["id"].as_str()).map(str::to_owned));
        }
        Backend::Ringloom => ids.extend(SERVED.map(str::to_owned)),
    }
    if !memory(wanted).is_empty() {
        ids.push(MEMORY.to_owned());
    }
    ids
}

/// `serve.sh`, which passes on what it is given.
pub(super) fn serve(wanted: &Wanted) -> String {
    let mut lines = wanted.head();
    let socket = wanted.socket.display();
    lines.push(format!(
        "Serves the disk on {socket}: start it before the guest. What it is given is"
    ));
    lines.push("passed on to ringloom serve: serve.sh --daemonize".to_owned());
    let mut arguments: Vec<Argument> = (0..named(wanted.iothreads))
        .map(|number| ("--object", format!("iothread,id={}", iothread_id(number))))
        .collect();
    let options = wanted.disk_files().daemon_options(NODE, wanted.aio, false);
    arguments.extend(options.into_iter().map(|(_, value)| ("--blockdev", value)));
    arguments.push(("--export", export(wanted)));
    let bound = match &wanted.pin_iothreads {
        Some(cpus) => format!("taskset -c {cpus} "),
        None => String::new(),
    };
    let arguments = written(&arguments).join(" \\\n  ");
    let comment = quote::hash_comment(&lines);
    format!("#!/bin/sh\n{comment}exec {bound}ringloom serve \\\n  {arguments} \\\n  \"$@\"\n")
}

fn export(wanted: &Wanted) -> String {
    Export {
        id: "vda",
        node: NODE,
        writable: true,
        socket: &wanted.socket,
        queues: wanted.queues,
        iothreads: if wanted.iothreads.is_auto() {
            vec![AUTO.to_owned()]
        } else {
            (0..wanted.iothreads.count()).map(iothread_id).collect()
        },
    }
    .option()
}

fn iothread_id(number: u16) -> String {
    format!("iothread{number}")
}

/// The guest's memory, where it must be shared or lie on a node.
fn memory(wanted: &Wanted) -> Vec<Argument> {
    let shared = wanted.by == Backend::Ringloom;
    if !shared && wanted.numa_node.is_none() {
        return Vec::new();
    }
    let mut object = json!({
        "qom-type": "memory-backend-memfd", "id": MEMORY,
        "size": u64::from(wanted.memory_mib) << 20, "share": shared,
    });
    if let Some(node) = wanted.numa_node {
        object["host-nodes"] = json!([node]);
        object["policy"] = "bind".into();
    }
    vec![
        ("-m", format!("{}M", wanted.memory_mib)),
        ("-object", quote::json(&object)),
        ("-machine", format!("q35,memory-backend={MEMORY}")),
    ]
}

fn iothread(number: u16) -> Argument {
    ("-object", quote::json(&json!({"qom-type": "iothread", "id": iothread_id(number)})))
}

fn device(device: &Value) -> Argument {
    ("-device", quote::json(device))
}

/// The disk that QEMU serves, after its controller where it has one of its own.
fn devices(wanted: &Wanted) -> Vec<Value> {
    let queues = wanted.queues;
    match wanted.device {
        Device::VirtioBlk => vec![with_iothreads(
            json!({"driver": "virtio-blk-pci", "id": "vda", "drive": NODE, "num-queues": queues,
                "queue-size": QUEUE_SIZE}),
            wanted.mapped(),
        )],
        Device::VirtioScsi => vec![
            with_iothreads(
                json!({"driver": "virtio-scsi-pci", "id": "scsi0", "num_queues": queues,
                    "virtqueue_size": QUEUE_SIZE}),
                wanted.mapped(),
            ),
            json!({"driver": "scsi-hd", "id": "sda", "bus": "scsi0.0", "drive": NODE}),
        ],
        // One interrupt per queue, and one for the admin queue.
        Device::Nvme => vec![json!({
            "driver": "nvme", "id": "nvme0", "serial": "nvme0", "drive": NODE,
            "max_ioqpairs": queues, "msix_qsize": queues.saturating_add(1),
        })],
        Device::Ide => vec![json!({"driver": "ide-hd", "id": "sda", "drive": NODE})],
    }
}

/// One iothread in the form that every version knows, several as a list.
fn with_iothreads(mut device: Value, iothreads: u16) -> Value {
    match iothreads {
        0 => {}
        1 => device["iothread"] = iothread_id(0).into(),
        several => {
            let thread = |number| json!({"iothread": iothread_id(number)});
            device["iothread-vq-mapping"] = (0..several).map(thread).collect();
        }
    }
    device
}

fn written(arguments: &[Argument]) -> Vec<String> {
    arguments.iter().map(|(option, value)| format!("{option} {}", quote::shell(value))).collect()
}
