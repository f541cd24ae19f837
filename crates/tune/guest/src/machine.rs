//! The machine that a guest is: processors, memory, slots for disks, as QEMU's command line.
//!
//! Invariants: pure. Every machine of the same numbers is the same, whatever its disks will be: memory is shared
//! because vhost-user needs it. Limits: `SLOTS_MAX` disks.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::Value;

use crate::agent::PORT;

/// Each slot is a port of its own; more of them than disks that were ever compared at once.
const SLOTS_MAX: u16 = 64;
/// Slots begin behind the host bridge and the agent's controller.
const FIRST_PCI_DEVICE: u16 = 2;
const PCI_FUNCTIONS: u16 = 8;
/// The least memory of a guest: its programs lie in it, twice while they are unpacked.
pub const MEMORY_MIB_MIN: u32 = 384;
/// Name of the node that a cold disk reads and writes.
const COLD_NODE: &str = "cold";
/// Where q35 has its AHCI controller.
pub(crate) const AHCI_ADDRESS: &str = "0000:00:1f.2";

/// What executes the guest's instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accelerator {
    /// The processor, by the kernel's virtual machines.
    Kvm,
    /// QEMU's translator: works everywhere, some ten times slower. All CPUs share one thread of the host: with a thread each,
    /// QEMU 10.0 may lose the wake-up of a CPU that halts, and the guest then hangs (seen on busy machines).
    Tcg,
}

impl Accelerator {
    /// How long a guest may take to come up on a busy machine.
    pub(crate) fn boot_limit(self) -> Duration {
        match self {
            Self::Kvm => Duration::from_secs(60),
            Self::Tcg => Duration::from_secs(180),
        }
    }

    fn option(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Tcg => "tcg,thread=single",
        }
    }
}

/// A disk that is there from the beginning because it cannot be plugged: an `ide-hd` on the machine's AHCI.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColdDisk {
    /// The graph as one `blockdev` object without `node-name`.
    pub blockdev: Value,
}

/// What the kernel is told. It panics if it sees no tick of the timer in a tenth of a second, which an emulated one misses
/// on a busy host: that test is left out, as Linux itself does under KVM. Its tests of its ciphers would take half a second.
const KERNEL_WORDS: &str = "console=ttyS0 quiet panic=-1 no_timer_check cryptomgr.notests";

/// What a guest's machine is like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineSpec {
    /// Processors.
    pub cpus: u16,
    /// Memory in MiB; at least 384, and 512 for programs that want some.
    pub memory_mib: u32,
    /// What runs them.
    pub accelerator: Accelerator,
    /// Disks that can be plugged at the same time; at most 64.
    pub slots: u16,
    /// The host's NUMA node that all memory is taken from.
    pub numa_node: Option<u32>,
    /// A disk that is there from the beginning.
    pub cold_disk: Option<ColdDisk>,
    /// Names the guest in messages, its logs (`NAME-console.log`) and QEMU's process: letters, digits, `-`, `_`, `.`.
    pub name: String,
}

/// The files of one guest.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Files<'a> {
    pub(crate) kernel: &'a Path,
    pub(crate) initramfs: &'a Path,
    pub(crate) console: &'a Path,
    pub(crate) control: &'a Path,
    pub(crate) port: &'a Path,
}

impl MachineSpec {
    /// An error, which names the number, if there can be no such machine.
    pub fn check(&self) -> Result<()> {
        let Self { cpus, memory_mib, slots, name, .. } = self;
        let is_plain = |it: char| it.is_ascii_alphanumeric() || "-_.".contains(it);
        ensure!(!name.is_empty() && name.chars().all(is_plain), "{name:?} is no guest's name");
        ensure!(*cpus > 0, "guest {name}: it needs a processor");
        ensure!(
            *memory_mib >= MEMORY_MIB_MIN,
            "guest {name}: {memory_mib} MiB of memory are less than {MEMORY_MIB_MIN}"
        );
        ensure!(*slots <= SLOTS_MAX, "guest {name}: {slots} slots are more than {SLOTS_MAX}");
        if let Some(disk) = &self.cold_disk {
            ensure!(disk.blockdev.is_object(), "guest {name}: its cold disk is no JSON object");
        }
        Ok(())
    }

    /// QEMU's arguments.
    pub(crate) fn arguments(&self, files: &Files<'_>) -> Vec<String> {
        let Self { cpus, memory_mib, name, .. } = self;
        let bound =
            self.numa_node.map_or(String::new(), |node| format!(",host-nodes={node},policy=bind"));
        let words = [
            format!("-name {name},debug-threads=on"),
            format!("-accel {} -cpu max -smp {cpus} -m {memory_mib}", self.accelerator.option()),
            format!(
                "-object memory-backend-memfd,id=memory,size={memory_mib}M,share=on{bound} \
                 -machine q35,memory-backend=memory"
            ),
            // A guest that panics restarts at once, and QEMU ends instead.
            "-nodefaults -no-user-config -display none -no-reboot".to_owned(),
            "-device virtio-serial-pci,id=serial,bus=pcie.0,addr=0x1".to_owned(),
            format!("-device virtserialport,bus=serial.0,chardev=port,name={PORT}"),
            "-serial chardev:console".to_owned(),
        ];
        let mut arguments: Vec<String> =
            words.iter().flat_map(|it| it.split(' ')).map(str::to_owned).collect();
        for slot in 0..self.slots {
            arguments.extend(["-device".to_owned(), root_port(slot)]);
        }
        arguments.extend(self.cold_arguments());
        let pairs = [
            ("-chardev", format!("file,id=console,path={}", escaped(files.console))),
            ("-chardev", format!("socket,id=port,path={},server=on,wait=off", escaped(files.port))),
            ("-qmp", format!("unix:{},server=on,wait=off", escaped(files.control))),
            ("-kernel", files.kernel.display().to_string()),
            ("-initrd", files.initramfs.display().to_string()),
            ("-append", KERNEL_WORDS.to_owned()),
        ];
        arguments.extend(pairs.into_iter().flat_map(|(option, value)| [option.to_owned(), value]));
        arguments
    }

    fn cold_arguments(&self) -> Vec<String> {
        let Some(disk) = &self.cold_disk else { return Vec::new() };
        let mut node = disk.blockdev.clone();
        node["node-name"] = COLD_NODE.into();
        let device = format!("ide-hd,id={COLD_NODE}-disk,drive={COLD_NODE},bus=ide.0");
        vec!["-blockdev".to_owned(), node.to_string(), "-device".to_owned(), device]
    }
}

fn root_port(slot: u16) -> String {
    let (device, function) = pci_place(slot);
    let number = slot + 1;
    format!(
        "pcie-root-port,id={},bus=pcie.0,chassis={number},slot={number},\
         addr={device:#x}.{function:#x},multifunction=on",
        port(slot)
    )
}

/// QEMU's name of a slot's port.
pub(crate) fn port(slot: u16) -> String {
    format!("port{slot}")
}

/// Where the guest sees a slot's port.
pub(crate) fn port_address(slot: u16) -> String {
    let (device, function) = pci_place(slot);
    format!("0000:00:{device:02x}.{function:x}")
}

fn pci_place(slot: u16) -> (u16, u16) {
    (FIRST_PCI_DEVICE + slot / PCI_FUNCTIONS, slot % PCI_FUNCTIONS)
}

/// As a value in one of QEMU's options, where a comma ends a value and two are one.
fn escaped(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn spec() -> MachineSpec {
        MachineSpec {
            cpus: 2,
            memory_mib: 512,
            accelerator: Accelerator::Tcg,
            slots: 2,
            numa_node: None,
            cold_disk: None,
            name: "g0".to_owned(),
        }
    }

    fn line(spec: &MachineSpec) -> String {
        let path = Path::new;
        let files = Files {
            kernel: path("k"),
            initramfs: path("i"),
            console: path("a,b"),
            control: path("c"),
            port: path("p"),
        };
        spec.arguments(&files).join(" ")
    }

    #[test]
    fn the_command_line_says_what_the_machine_is() {
        let bound = MachineSpec { numa_node: Some(1), ..spec() };
        let cold = ColdDisk { blockdev: json!({"driver": "null-co"}) };
        let cold = MachineSpec { cold_disk: Some(cold), accelerator: Accelerator::Kvm, ..spec() };
        for (spec, expected) in [
            (spec(), "-accel tcg,thread=single -cpu max -smp 2 -m 512"),
            (spec(), "size=512M,share=on -machine"),
            (spec(), "path=a,,b"),
            (spec(), "id=port1,bus=pcie.0,chassis=2,slot=2,addr=0x2.0x1,multifunction=on"),
            (spec(), "-name g0,debug-threads=on"),
            (bound, "size=512M,share=on,host-nodes=1,policy=bind -machine"),
            (cold.clone(), "-accel kvm"),
            (cold, r#"{"driver":"null-co","node-name":"cold"} -device ide-hd,"#),
        ] {
            assert!(line(&spec).contains(expected), "{expected} in {}", line(&spec));
        }
        assert!(!line(&spec()).contains("port2"));
    }

    #[test]
    fn machines_that_cannot_be_are_refused() {
        spec().check().expect("it can be");
        let cold = ColdDisk { blockdev: json!("x") };
        for spec in [
            MachineSpec { cpus: 0, ..spec() },
            MachineSpec { memory_mib: 100, ..spec() },
            MachineSpec { slots: 65, ..spec() },
            MachineSpec { name: "a/b".to_owned(), ..spec() },
            MachineSpec { cold_disk: Some(cold), ..spec() },
        ] {
            spec.check().expect_err("it cannot be");
        }
    }

    #[test]
    fn slots_fill_the_functions_of_one_pci_device_after_the_other() {
        for (slot, expected) in [(0, "0000:00:02.0"), (9, "0000:00:03.1"), (63, "0000:00:09.7")] {
            assert_eq!(port_address(slot), expected);
        }
    }
}
