//! Disks that are plugged into running guests: what they are, and what QEMU is told of them.
//!
//! Invariants: pure. The disks of a guest share its iothreads evenly: each begins with the one after the last of
//! the disk before.
//! Not here: carrying it out (`disks`).

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use crate::QemuProgram;
use crate::machine::port;

/// Requests that a queue has room for, of all virtio disks alike; QEMU's own numbers differ by device.
const QUEUE_SIZE: u16 = 256;
/// How soon QEMU looks again for a server that has gone away.
const RECONNECT_MS: u32 = 100;

/// What the guest sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Controller {
    /// virtio-blk, served by QEMU.
    VirtioBlk,
    /// A disk on a virtio-scsi controller of its own, served by QEMU.
    VirtioScsi,
    /// An NVMe controller with one namespace, served by QEMU.
    Nvme,
    /// virtio-blk, served by another process over vhost-user.
    VhostUserBlk,
}

impl Controller {
    /// QEMU's name of the device.
    pub fn device(self) -> &'static str {
        match self {
            Self::VirtioBlk => "virtio-blk-pci",
            Self::VirtioScsi => "virtio-scsi-pci",
            Self::Nvme => "nvme",
            Self::VhostUserBlk => "vhost-user-blk-pci",
        }
    }

    /// The drivers that the guest needs for it.
    pub(crate) fn drivers(self) -> &'static [&'static str] {
        match self {
            Self::VirtioBlk | Self::VhostUserBlk => &["virtio_blk"],
            Self::VirtioScsi => &["virtio_scsi", "sd_mod"],
            Self::Nvme => &["nvme"],
        }
    }
}

/// Where a disk's bytes are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// In QEMU's block layer: the graph as one `blockdev` object, its children inline, without `node-name`.
    Blockdev(Value),
    /// Behind the socket of a vhost-user-blk server.
    Socket(PathBuf),
}

/// A disk to be plugged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plug {
    /// What the guest sees.
    pub controller: Controller,
    /// Where its bytes are; a socket if and only if the controller is `VhostUserBlk`.
    pub source: Source,
    /// Queues, at least 1. A guest uses no more than it has processors.
    pub queues: u16,
    /// QEMU's iothreads that the disks of this guest share; 0 for its main loop.
    pub iothreads: u16,
    /// Whether the guest is kept from writing.
    pub read_only: bool,
    /// Where it is plugged: below [`crate::MachineSpec::slots`].
    pub slot: u16,
}

/// What this QEMU knows of a controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Facts {
    version: String,
    has_device: bool,
    iothreads: Iothreads,
    has_reconnect_ms: bool,
}

/// How many iothreads may serve one disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Iothreads {
    None,
    One,
    Any,
}

impl Facts {
    pub(crate) fn of(qemu: &QemuProgram, controller: Controller) -> Result<Self> {
        let device = controller.device();
        let iothreads = if qemu.has_property(device, "iothread-vq-mapping")? {
            Iothreads::Any
        } else if qemu.has_property(device, "iothread")? {
            Iothreads::One
        } else {
            Iothreads::None
        };
        Ok(Self {
            version: qemu.version().to_owned(),
            has_device: qemu.has_device(device),
            iothreads,
            has_reconnect_ms: qemu.has_socket_option("reconnect-ms")?,
        })
    }
}

/// A command with its arguments.
pub(crate) type Command = (&'static str, Value);

/// What QEMU is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Steps {
    /// Brings in the bytes.
    pub(crate) backend: Command,
    /// Lets them go again.
    pub(crate) end_backend: Command,
    /// Devices to add, one after the other.
    pub(crate) devices: Vec<Value>,
    /// The device whose end is the end of all.
    pub(crate) device: String,
}

/// QEMU's name of an iothread.
pub(crate) fn iothread(index: u16) -> String {
    format!("iothread{index}")
}

/// The steps that plug a disk, or why it cannot be.
pub(crate) fn steps(plug: &Plug, serial: &str, facts: &Facts) -> Result<Steps> {
    let (name, version) = (plug.controller.device(), &facts.version);
    ensure!(facts.has_device, "QEMU {version} has no device {name}");
    ensure!(plug.queues > 0, "{name}: a disk needs a queue");
    let slot = plug.slot;
    let (device, backend) = (format!("disk{slot}"), format!("bytes{slot}"));
    let (begin, end) = match (&plug.source, plug.controller) {
        (
            Source::Blockdev(node),
            Controller::VirtioBlk | Controller::VirtioScsi | Controller::Nvme,
        ) => {
            let mut node = node.clone();
            let graph = node.as_object_mut().context("a disk's blockdev is no JSON object")?;
            graph.insert("node-name".to_owned(), backend.as_str().into());
            if plug.read_only {
                graph.insert("read-only".to_owned(), true.into());
            }
            (("blockdev-add", node), ("blockdev-del", json!({"node-name": backend})))
        }
        (Source::Socket(path), Controller::VhostUserBlk) => {
            let path = path.to_str().context("a socket's path is text")?;
            (
                ("chardev-add", socket(&backend, path, facts)),
                ("chardev-remove", json!({"id": backend})),
            )
        }
        (Source::Blockdev(_), Controller::VhostUserBlk) => bail!("{name} needs a server's socket"),
        (Source::Socket(_), Controller::VirtioBlk | Controller::VirtioScsi | Controller::Nvme) => {
            bail!("{name} cannot be behind a server's socket")
        }
    };
    let devices = devices(plug, serial, facts, &device, &backend)?;
    Ok(Steps { backend: begin, end_backend: end, devices, device })
}

fn socket(id: &str, path: &str, facts: &Facts) -> Value {
    let address = json!({"type": "unix", "data": {"path": path}});
    let mut data = json!({"addr": address, "server": false});
    if facts.has_reconnect_ms {
        data["reconnect-ms"] = RECONNECT_MS.into();
    } else {
        // In whole seconds before QEMU 9.2.
        data["reconnect"] = RECONNECT_MS.div_ceil(1000).into();
    }
    json!({"id": id, "backend": {"type": "socket", "data": data}})
}

fn devices(
    plug: &Plug,
    serial: &str,
    facts: &Facts,
    id: &str,
    backend: &str,
) -> Result<Vec<Value>> {
    let Plug { controller, queues, .. } = plug;
    let mut device = json!({"driver": controller.device(), "id": id, "bus": port(plug.slot)});
    let (properties, second) = match controller {
        Controller::VirtioBlk => (
            json!({"drive": backend, "serial": serial, "num-queues": queues, "queue-size": QUEUE_SIZE}),
            None,
        ),
        Controller::VirtioScsi => (
            json!({"num_queues": queues, "virtqueue_size": QUEUE_SIZE}),
            Some(json!({
                "driver": "scsi-hd", "id": format!("{id}-lun"), "bus": format!("{id}.0"),
                "drive": backend, "serial": serial,
            })),
        ),
        // One interrupt per queue, and one for the admin queue.
        Controller::Nvme => (
            json!({
                "drive": backend, "serial": serial, "max_ioqpairs": queues,
                "msix_qsize": queues.saturating_add(1),
            }),
            None,
        ),
        Controller::VhostUserBlk => {
            (json!({"chardev": backend, "num-queues": queues, "queue-size": QUEUE_SIZE}), None)
        }
    };
    let known = device.as_object_mut().context("a device is an object")?;
    known.extend(properties.as_object().cloned().unwrap_or_default());
    known.extend(threads(plug, facts)?);
    Ok([Some(device), second].into_iter().flatten().collect())
}

/// The property that gives a disk its iothreads, if it has any.
fn threads(plug: &Plug, facts: &Facts) -> Result<Option<(String, Value)>> {
    let (name, count) = (plug.controller.device(), plug.iothreads);
    if count == 0 {
        return Ok(None);
    }
    let ids: Vec<String> = share(plug.slot, plug.queues, count).into_iter().map(iothread).collect();
    match (facts.iothreads, &ids[..]) {
        (Iothreads::Any, ids) => {
            let list: Vec<Value> = ids.iter().map(|id| json!({"iothread": id})).collect();
            Ok(Some(("iothread-vq-mapping".to_owned(), list.into())))
        }
        (Iothreads::One, [id]) => Ok(Some(("iothread".to_owned(), id.as_str().into()))),
        (Iothreads::One, _) => {
            bail!("QEMU {} gives {name} one iothread, not {count}", facts.version)
        }
        (Iothreads::None, _) => bail!("QEMU {} gives {name} no iothreads", facts.version),
    }
}

/// The iothreads of a disk; QEMU gives them its queues in turns.
fn share(slot: u16, queues: u16, iothreads: u16) -> Vec<u16> {
    let first = u32::from(slot) * u32::from(queues);
    (0..queues.min(iothreads))
        .map(|turn| (first + u32::from(turn)) % u32::from(iothreads))
        .map(|index| u16::try_from(index).expect("less than `iothreads`"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        Facts {
            version: "10.0.2".to_owned(),
            has_device: true,
            iothreads: Iothreads::Any,
            has_reconnect_ms: true,
        }
    }

    fn plug(controller: Controller) -> Plug {
        let source = match controller {
            Controller::VhostUserBlk => Source::Socket(PathBuf::from("/s")),
            Controller::VirtioBlk | Controller::VirtioScsi | Controller::Nvme => {
                Source::Blockdev(json!({"driver": "file", "filename": "f"}))
            }
        };
        Plug { controller, source, queues: 2, iothreads: 0, read_only: false, slot: 3 }
    }

    #[track_caller]
    fn check_threads(iothreads: u16, facts: &Facts, expected: Result<Value, &str>) {
        let plug = Plug { iothreads, ..plug(Controller::VirtioBlk) };
        match (steps(&plug, "s", facts), expected) {
            (Ok(steps), Ok(expected)) => {
                let device = &steps.devices[0];
                let given = [&device["iothread-vq-mapping"], &device["iothread"]];
                assert_eq!(json!(given), expected);
            }
            (Err(error), Err(words)) => assert!(error.to_string().contains(words), "{error}"),
            (steps, expected) => panic!("{steps:?} instead of {expected:?}"),
        }
    }

    #[test]
    fn iothreads_are_given_as_this_qemu_takes_them() {
        let one = Facts { iothreads: Iothreads::One, ..facts() };
        let none = Facts { iothreads: Iothreads::None, ..facts() };
        let id = |index| json!({"iothread": iothread(index)});
        check_threads(0, &none, Ok(json!([null, null])));
        check_threads(1, &facts(), Ok(json!([[id(0)], null])));
        check_threads(2, &facts(), Ok(json!([[id(0), id(1)], null])));
        check_threads(4, &facts(), Ok(json!([[id(2), id(3)], null])));
        check_threads(1, &one, Ok(json!([null, "iothread0"])));
        check_threads(2, &one, Err("QEMU 10.0.2 gives virtio-blk-pci one iothread, not 2"));
        check_threads(1, &none, Err("QEMU 10.0.2 gives virtio-blk-pci no iothreads"));
    }

    #[test]
    fn disks_share_iothreads_evenly() {
        for (queues, iothreads, expected) in [
            (1, 2, [vec![0], vec![1], vec![0]]),
            (2, 4, [vec![0, 1], vec![2, 3], vec![0, 1]]),
            (2, 3, [vec![0, 1], vec![2, 0], vec![1, 2]]),
            (4, 2, [vec![0, 1], vec![0, 1], vec![0, 1]]),
        ] {
            let all: Vec<_> = (0..3).map(|slot| share(slot, queues, iothreads)).collect();
            assert_eq!(all, expected, "{queues} queues, {iothreads} iothreads");
        }
    }

    #[test]
    fn every_controller_has_its_queues_on_its_port() {
        for (controller, property) in [
            (Controller::VirtioBlk, "num-queues"),
            (Controller::VirtioScsi, "num_queues"),
            (Controller::Nvme, "max_ioqpairs"),
            (Controller::VhostUserBlk, "num-queues"),
        ] {
            let steps = steps(&plug(controller), "s", &facts()).expect("steps");
            assert_eq!(steps.devices[0][property], 2, "{controller:?}");
            assert_eq!(steps.devices[0]["bus"], "port3");
            assert_eq!(steps.devices[0]["id"], steps.device.as_str());
        }
    }

    #[test]
    fn what_is_read_only_is_so_in_the_block_layer() {
        let plug = Plug { read_only: true, ..plug(Controller::Nvme) };
        let steps = steps(&plug, "s", &facts()).expect("steps");
        assert_eq!(steps.backend.1["read-only"], true);
        assert_eq!(steps.backend.1["node-name"], "bytes3");
    }

    #[test]
    fn a_server_that_has_gone_is_looked_for_again() {
        let ask = |facts: &Facts| {
            let steps = steps(&plug(Controller::VhostUserBlk), "s", facts).expect("steps");
            steps.backend.1["backend"]["data"].clone()
        };
        assert_eq!(ask(&facts())["reconnect-ms"], 100);
        let old = Facts { has_reconnect_ms: false, ..facts() };
        assert_eq!(ask(&old)["reconnect"], 1);
    }

    #[test]
    fn disks_that_cannot_be_are_refused() {
        let source = Source::Socket(PathBuf::from("/s"));
        let text = Source::Blockdev(json!("text"));
        let node = Source::Blockdev(json!({}));
        let absent = Facts { has_device: false, ..facts() };
        for (plug, facts, words) in [
            (Plug { source, ..plug(Controller::Nvme) }, facts(), "nvme cannot be behind"),
            (Plug { source: node, ..plug(Controller::VhostUserBlk) }, facts(), "needs a server"),
            (Plug { source: text, ..plug(Controller::VirtioBlk) }, facts(), "no JSON object"),
            (Plug { queues: 0, ..plug(Controller::VirtioBlk) }, facts(), "needs a queue"),
            (plug(Controller::Nvme), absent, "QEMU 10.0.2 has no device nvme"),
        ] {
            let error = steps(&plug, "s", &facts).expect_err(words).to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
