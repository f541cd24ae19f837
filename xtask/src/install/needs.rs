//! The table of packages that tests need, and the look whether this machine has them.
//!
//! Invariants: a package counts as present if its commands are, however they came here; QEMU must
//! also be new enough and busybox static.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::steps;

/// A Debian package that tests need.
#[derive(Debug)]
pub(crate) struct Need {
    pub(crate) package: &'static str,
    pub(crate) origin: Origin,
    pub(crate) proof: Proof,
    /// What the tests do with it, and so which tests cannot run without it.
    pub(crate) why: &'static str,
}

/// Where a package comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The release itself.
    Release,
    /// The backports of a release whose own version is too old, with all that they need of there.
    Backports,
    /// The same, but what it needs stays that of the release where it can: libvirt would bring another systemd.
    BackportsAlone,
}

/// What shows that a package is there.
#[derive(Debug)]
pub(crate) enum Proof {
    /// These commands exist.
    Commands(&'static [&'static str]),
    /// These commands exist and report at least this major version.
    Version(&'static [&'static str], u32),
    /// These files exist.
    Files(&'static [&'static str]),
    /// This command exists and needs no dynamic linker.
    Static(&'static str),
}

/// The QEMU whose command line and errors ringloom follows.
const QEMU_MAJOR_MIN: u32 = 10;
/// The libvirt that maps the queues of virtio-scsi too (11.2.0).
const LIBVIRT_MAJOR_MIN: u32 = 11;

pub(crate) const NEEDS: &[Need] = &[
    Need {
        package: "fio",
        origin: Origin::Release,
        proof: Proof::Commands(&["fio"]),
        why: "load with verification inside the guests",
    },
    Need {
        package: "busybox-static",
        origin: Origin::Release,
        proof: Proof::Static("busybox"),
        why: "user space of the guests' initramfs",
    },
    Need {
        package: "e2fsprogs",
        origin: Origin::Release,
        proof: Proof::Commands(&["mkfs.ext4", "e2fsck"]),
        why: "guests make a file system, the host checks it afterwards",
    },
    Need {
        package: "postgresql",
        origin: Origin::Release,
        proof: Proof::Commands(&["pg_ctlcluster", "psql"]),
        why: "a database in a guest whose disk is kept, copied and moved",
    },
    Need {
        package: "mandoc",
        origin: Origin::Release,
        proof: Proof::Commands(&["mandoc"]),
        why: "looks for what is wrong with manual pages",
    },
    Need {
        package: "man-db",
        origin: Origin::Release,
        proof: Proof::Commands(&["man"]),
        why: "the same, as whoever reads them sees them",
    },
    Need {
        package: "dpkg-dev",
        origin: Origin::Release,
        proof: Proof::Commands(&["dpkg-shlibdeps"]),
        why: "which libraries the package of the program needs",
    },
    Need {
        package: "sqlite3",
        origin: Origin::Release,
        proof: Proof::Commands(&["sqlite3"]),
        why: "another one beside it",
    },
    Need {
        package: "prometheus",
        origin: Origin::Release,
        proof: Proof::Commands(&["prometheus", "promtool"]),
        why: "scrapes a daemon, and reads its metrics, alerts and dashboard",
    },
    Need {
        package: "xfsprogs",
        origin: Origin::Release,
        proof: Proof::Commands(&["mkfs.xfs"]),
        why: "the tuner makes an xfs for disks to lie on",
    },
    Need {
        package: "mount",
        origin: Origin::Release,
        proof: Proof::Commands(&["losetup"]),
        why: "loop devices below the tuner's file systems",
    },
    Need {
        package: "dmsetup",
        origin: Origin::Release,
        proof: Proof::Commands(&["dmsetup"]),
        why: "stripes and delays of the kernel, which the tuner puts below its disks in a guest",
    },
    Need {
        package: "openssh-server",
        origin: Origin::Release,
        proof: Proof::Commands(&["sshd", "ssh", "ssh-keygen"]),
        why: "private servers on this host stand for guests that the tuner reaches over ssh",
    },
    Need {
        package: "systemd-container",
        origin: Origin::Release,
        proof: Proof::Commands(&["systemd-nspawn"]),
        why: "a systemd of its own runs the units",
    },
    Need {
        package: "systemd",
        origin: Origin::Release,
        proof: Proof::Commands(&["systemd-analyze", "systemd-sysusers"]),
        why: "the same, and judges them",
    },
    Need {
        package: "strace",
        origin: Origin::Release,
        proof: Proof::Commands(&["strace"]),
        why: "stops and kills a process at a chosen system call",
    },
    Need {
        package: "cpio",
        origin: Origin::Release,
        proof: Proof::Commands(&["cpio"]),
        why: "packs the guests' initramfs",
    },
    Need {
        package: "xz-utils",
        origin: Origin::Release,
        proof: Proof::Commands(&["xz"]),
        why: "unpacks the kernel modules of the guests",
    },
    Need {
        package: "zstd",
        origin: Origin::Release,
        proof: Proof::Commands(&["zstd"]),
        why: "unpacks the kernel modules of the guests",
    },
    Need {
        package: "kmod",
        origin: Origin::Release,
        proof: Proof::Commands(&["modinfo", "depmod"]),
        why: "finds the kernel modules that the guests need",
    },
    Need {
        package: "gnutls-bin",
        origin: Origin::Release,
        proof: Proof::Commands(&["certtool"]),
        why: "certificates for TLS as QEMU's users make them",
    },
    Need {
        package: "nbd-client",
        origin: Origin::Release,
        proof: Proof::Commands(&["nbd-client"]),
        why: "attaches a disk to Linux's own client of NBD, in a guest",
    },
    Need {
        package: "libnbd-bin",
        origin: Origin::Release,
        proof: Proof::Commands(&["nbdinfo", "nbdcopy"]),
        why: "clients of NBD that nobody here wrote",
    },
    Need {
        package: "nbdkit",
        origin: Origin::Release,
        proof: Proof::Commands(&["nbdkit"]),
        why: "a server of NBD that nobody here wrote, with filters that delay and fail",
    },
    Need {
        package: "ceph-mon",
        origin: Origin::Release,
        proof: Proof::Commands(&["ceph-mon", "monmaptool"]),
        why: "the monitor of a Ceph cluster for images of driver=rbd",
    },
    Need {
        package: "ceph-osd",
        origin: Origin::Release,
        proof: Proof::Commands(&["ceph-osd"]),
        why: "the OSD of that cluster",
    },
    Need {
        package: "ceph-common",
        origin: Origin::Release,
        proof: Proof::Commands(&["ceph", "ceph-authtool", "rbd"]),
        why: "makes, checks and exports images there, and brings librbd",
    },
    Need {
        package: "chromium",
        origin: Origin::Release,
        proof: Proof::Commands(&["chromium"]),
        why: "shows the tuner's page as its readers see it",
    },
    Need {
        package: "chromium-driver",
        origin: Origin::Release,
        proof: Proof::Commands(&["chromedriver"]),
        why: "drives chromium",
    },
    Need {
        package: "qemu-system-x86",
        origin: Origin::Backports,
        proof: Proof::Version(&["qemu-system-x86_64"], QEMU_MAJOR_MIN),
        why: "runs the guests",
    },
    Need {
        package: "qemu-utils",
        origin: Origin::Backports,
        proof: Proof::Version(&["qemu-storage-daemon", "qemu-img"], QEMU_MAJOR_MIN),
        why: "the daemon whose command line ringloom takes, and qemu-img to compare images",
    },
    Need {
        package: "qemu-block-extra",
        origin: Origin::Backports,
        proof: Proof::Files(&["/usr/lib/x86_64-linux-gnu/qemu/block-rbd.so"]),
        why: "images of a Ceph cluster in that daemon",
    },
    Need {
        package: "libvirt-clients",
        origin: Origin::BackportsAlone,
        proof: Proof::Version(&["virsh"], LIBVIRT_MAJOR_MIN),
        why: "checks the domains that the tuner writes against libvirt's schema",
    },
    Need {
        package: "libvirt-daemon-driver-qemu",
        origin: Origin::BackportsAlone,
        proof: Proof::Files(&[
            "/usr/lib/x86_64-linux-gnu/libvirt/connection-driver/libvirt_driver_qemu.so",
        ]),
        why: "turns these domains into QEMU's arguments, inside virsh; no service is needed",
    },
    Need {
        package: "libvirt-daemon",
        origin: Origin::BackportsAlone,
        proof: Proof::Files(&["/usr/sbin/libvirtd", "/usr/bin/virt-ssh-helper"]),
        why: "runs the guests of the runbook, in a system of its own",
    },
    Need {
        package: "python3-jsonschema",
        origin: Origin::Release,
        proof: Proof::Files(&["/usr/lib/python3/dist-packages/jsonschema/__init__.py"]),
        why: "checks the tuner's kubevirt.yaml against KubeVirt's schema",
    },
    Need {
        package: "python3-yaml",
        origin: Origin::Release,
        proof: Proof::Files(&["/usr/lib/python3/dist-packages/yaml/__init__.py"]),
        why: "reads the tuner's kubevirt.yaml",
    },
    Need {
        package: "python3-pip",
        origin: Origin::Release,
        proof: Proof::Commands(&["pip3"]),
        why: "fetches KubeVirt's schema and QEMU's client of QMP",
    },
];

impl Need {
    /// The commands of the package, for a message.
    pub(crate) fn commands(&self) -> String {
        match self.proof {
            Proof::Commands(names) => names.join(", "),
            Proof::Version(names, major) => format!("{} (version {major})", names.join(", ")),
            Proof::Files(paths) => paths.join(", "),
            Proof::Static(name) => format!("{name} (static)"),
        }
    }

    fn is_present(&self) -> bool {
        match self.proof {
            Proof::Commands(names) => names.iter().all(|name| find(name).is_some()),
            Proof::Version(names, least) => names.iter().all(|name| {
                find(name).and_then(|it| major_version(&it)).is_some_and(|it| it >= least)
            }),
            Proof::Files(paths) => paths.iter().all(|path| Path::new(path).is_file()),
            Proof::Static(name) => {
                find(name).and_then(|it| std::fs::read(it).ok()).is_some_and(|it| is_static(&it))
            }
        }
    }
}

/// The needs that this machine does not meet.
pub(crate) fn missing() -> Vec<&'static Need> {
    NEEDS.iter().filter(|need| !need.is_present()).collect()
}

/// Looks for a command as a shell does, and where Debian hides root's commands from users.
pub(crate) fn find(command: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/bin", "/bin"].iter().map(PathBuf::from))
        .map(|directory| directory.join(command))
        .find(|it| it.is_file())
}

fn major_version(program: &Path) -> Option<u32> {
    let text = steps::output_of(Command::new(program).arg("--version")).ok()?;
    parse_major(&text)
}

/// Reads the 10 of `QEMU emulator version 10.0.2 (Debian …)`, the 11 of `11.3.0`.
fn parse_major(text: &str) -> Option<u32> {
    let rest = text.split_once("version ").map_or(text, |(_, rest)| rest);
    rest.split('.').next()?.parse().ok()
}

/// Whether a 64-bit little-endian ELF file has no program header of type `PT_INTERP`.
fn is_static(elf: &[u8]) -> bool {
    /// The type of the program header that names the dynamic linker.
    const PT_INTERP: u32 = 3;
    let number = |at: usize, length: usize| -> Option<usize> {
        let bytes = elf.get(at..at.checked_add(length)?)?;
        Some(bytes.iter().rev().fold(0, |sum, &byte| (sum << 8) | usize::from(byte)))
    };
    let headers = || -> Option<Vec<usize>> {
        // Offsets in the ELF header: table of program headers, size and number of entries.
        let (table, size, count) = (number(0x20, 8)?, number(0x36, 2)?, number(0x38, 2)?);
        (0..count).map(|index| number(table.checked_add(index * size)?, 4)).collect()
    };
    elf.starts_with(b"\x7fELF\x02\x01")
        && headers().is_some_and(|types| !types.contains(&(PT_INTERP as usize)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_major_version_is_read_from_qemu_output() {
        let text = "qemu-img version 10.0.2 (Debian 1:10.0.2+ds-2)\nCopyright (c)";
        assert_eq!(parse_major(text), Some(10));
        assert_eq!(parse_major("11.3.0\n"), Some(11));
        assert_eq!(parse_major("BusyBox"), None);
    }

    #[test]
    fn a_program_with_an_interpreter_is_not_static() {
        let mut elf = vec![0_u8; 64 + 56];
        elf[..6].copy_from_slice(b"\x7fELF\x02\x01");
        elf[0x20] = 64;
        elf[0x36] = 56;
        elf[0x38] = 1;
        elf[64] = 1;
        assert!(is_static(&elf));
        elf[64] = 3;
        assert!(!is_static(&elf));
        assert!(!is_static(&elf[..60]));
        assert!(!is_static(b"#!/bin/sh"));
    }

    #[test]
    fn a_command_is_found_by_name_only_if_it_exists() {
        assert!(find("sh").is_some());
        assert_eq!(find("no-such-command-of-ringloom"), None);
    }
}
