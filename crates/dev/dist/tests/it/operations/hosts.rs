//! The two hosts that the runbook is carried out on, and what happens to them in between.
//!
//! Limits: `BLOCK_SECONDS` for a block of commands, [`LIMIT`] for what is waited for.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use container_images::output_of;
use dist::debian::{self, PackageInput};
use dist::tree::TreeInput;
use serde_json::Value;
use testkit::deadline::poll_until;
use testkit::fuse_faults::{Effect, Fault, FaultDisk, Operation};
use testkit::process::Bench;
use testkit::systemd::{Setup, Systemd};

use crate::binary;

/// How long one thing is waited for.
const LIMIT: Duration = Duration::from_secs(60);
const BLOCK_SECONDS: &str = "150";
/// Where commands are typed.
const PLACE: &str = "/var/tmp/page";
/// With cgroups of version 1, systemd may hear late that the cgroup of a service is empty and remove it when its restart has
/// begun to use it (step CGROUP). The restart is asked for again then, and only then.
const SYSTEMCTL: &str = "#!/bin/sh
/usr/bin/systemctl \"$@\" && exit
status=$?
[ \"$1\" = restart ] && journalctl --no-pager -o cat -n 20 | grep -q 'Failed at step CGROUP' || exit $status
exec /usr/bin/systemctl \"$@\"
";
/// What was said just now is in the journal a moment later.
const JOURNALCTL: &str = "#!/bin/sh
/usr/bin/journalctl --sync
exec /usr/bin/journalctl \"$@\"
";
/// What the small file system of the first disk holds.
const ROOM: &str = "64m";
/// What is written otherwise in the page than here: this machine need not have KVM, nor that much memory.
const REPLACED: [(&str, &str); 2] =
    [("type='kvm'", "type='qemu'"), ("<memory unit='GiB'>2<", "<memory unit='MiB'>64<")];
/// Writes a sector, reads it and goes on to the next block, about 18 times in a second, whatever comes of it: 16-bit code that
/// asks the firmware, with a packet behind it that says how many sectors (0 is left there after a failure), and which.
const BOOT_SECTOR: [u8; 72] = [
    0x31, 0xc0, 0x8e, 0xd8, 0x8e, 0xd0, 0xbc, 0x00, 0x7c, 0xfb, 0xf4, 0xb8, 0x00, 0x43, 0xc7, 0x06,
    0x3c, 0x7c, 0x00, 0x7c, 0xe8, 0x13, 0x00, 0xb8, 0x00, 0x42, 0xc7, 0x06, 0x3c, 0x7c, 0x00, 0x80,
    0xe8, 0x07, 0x00, 0x83, 0x06, 0x40, 0x7c, 0x08, 0xeb, 0xe0, 0xb2, 0x80, 0xbe, 0x38, 0x7c, 0xc7,
    0x44, 0x02, 0x01, 0x00, 0xcd, 0x13, 0xc3, 0x90, 0x10, 0x00, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
];
const DISK_BYTES: u64 = 2 << 30;

/// What a block of commands has done.
pub(super) struct Done {
    pub(super) succeeded: bool,
    pub(super) printed: String,
}

/// Both, and the storage that they share. What is declared first ends first.
pub(super) struct Hosts {
    first: Systemd,
    _second: Systemd,
    storage: FaultDisk,
    _small: Mount,
    shared: PathBuf,
    _benches: [Bench; 3],
}

/// A file system in memory.
struct Mount(PathBuf);

impl Drop for Mount {
    fn drop(&mut self) {
        let _not_mounted = Command::new("umount").arg("-l").arg(&self.0).output();
    }
}

impl Hosts {
    pub(super) fn start() -> Result<Self> {
        let benches = [Bench::new()?, Bench::new()?, Bench::new()?];
        let shared = benches[0].path("srv");
        let small = shared.join("vm1");
        fs::create_dir_all(&small)?;
        let size = format!("size={ROOM}");
        output_of(Command::new("mount").args(["-t", "tmpfs", "-o", &size, "none"]).arg(&small))?;
        let small = Mount(small);
        let storage = FaultDisk::mount(&shared.join("vm3"), 16 << 20)?;
        let packages = benches[0].path("packages");
        let directories = [(shared.as_path(), "/srv")];
        let boot = |bench: &Bench, name| -> Result<Systemd> {
            let setup = Setup { name, directories: &directories, ..Setup::default() };
            Systemd::boot_with(bench, &setup)
        };
        let (first, second, made) = std::thread::scope(|scope| {
            let first = scope.spawn(|| boot(&benches[1], "a"));
            let second = scope.spawn(|| boot(&benches[2], "b"));
            let made = make_packages(&packages);
            (first.join().expect("no panic"), second.join().expect("no panic"), made)
        });
        let (first, second, [old, new]) = (first?, second?, made?);
        let port = free_port()?;
        let key = benches[0].path("key");
        let mut tool = Command::new("ssh-keygen");
        output_of(tool.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&key))?;
        for (system, name, address) in
            [(&first, "host1", "127.0.1.1"), (&second, "host2", "127.0.1.2")]
        {
            prepare(system, name, address, port, &key)?;
        }
        furnish(&first, &old, &new)?;
        fs::copy(&old, second.path("/var/tmp/ringloom.deb"))?;
        second.succeed(&["dpkg", "-i", "/var/tmp/ringloom.deb"])?;
        second.succeed(&["install", "-d", "-o", "ringloom", "/backup/vm1"])?;
        Ok(Self { first, _second: second, storage, _small: small, shared, _benches: benches })
    }

    /// Commands as an administrator types them.
    pub(super) fn run(&self, script: &str) -> Result<Done> {
        let mut script = script.to_owned();
        for (from, to) in REPLACED {
            script = script.replace(from, to);
        }
        let script = format!("exec 2>&1\ncd {PLACE}\nexport PATH={PLACE}/bin:$PATH\n{script}");
        let output =
            self.first.run(&["timeout", "-k", "5", BLOCK_SECONDS, "sh", "-ec", &script])?;
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok(Done { succeeded: output.status.success(), printed })
    }

    fn succeed(&self, script: &str) -> Result<String> {
        let done = self.run(script)?;
        ensure!(done.succeeded, "{script}: {}", done.printed);
        Ok(done.printed)
    }

    /// What all daemons have said, and libvirt.
    pub(super) fn log(&self) -> String {
        let words = "journalctl --no-pager -o short -n 60; tail -n 3 /var/log/libvirt/qemu/*.log";
        self.run(words).map(|done| done.printed).unwrap_or_default()
    }

    /// The requests of a guest that were answered, and those that failed.
    fn progress(&self, name: &str) -> Result<(u64, u64)> {
        let line =
            format!("ringloom ctl -s /run/ringloom/{name}/qmp.sock qmp query-ringloom-queues");
        let queues: Value = serde_json::from_str(&self.succeed(&line)?)?;
        let count = |key| {
            let of = |queue: &Value| queue[key].as_u64().unwrap_or(0);
            queues.as_array().into_iter().flatten().map(of).sum()
        };
        Ok((count("writes"), count("errors")))
    }

    /// Waits until a guest has written so much more, without an error.
    fn goes_on(&self, name: &str) -> Result<()> {
        let mut since = None;
        poll_until(&format!("guest {name} to write"), LIMIT, || {
            let Ok((writes, errors)) = self.progress(name) else { return Ok(None) };
            let (before, failed) = *since.get_or_insert((writes, errors));
            if failed != errors {
                since = Some((writes, errors));
            }
            Ok((failed == errors && writes > before).then_some(()))
        })
    }

    fn is_said(&self, unit: &str, text: &str) -> Result<()> {
        poll_until(&format!("{text:?}"), LIMIT, || {
            Ok(self.first.journal(unit)?.contains(text).then_some(()))
        })
        .with_context(|| self.log())
    }

    pub(super) fn guest_works(&self) -> Result<()> {
        self.goes_on("vm1")?;
        // The log waits for a moment, since a client may start more queues.
        self.is_said("ringloom@vm1", "the client is served")
    }

    /// Another guest, on a storage of its own, that answers nothing any more.
    pub(super) fn storage_hangs(&self) -> Result<()> {
        let mut sector = vec![0; 512];
        sector[..BOOT_SECTOR.len()].copy_from_slice(&BOOT_SECTOR);
        sector[510..].copy_from_slice(&[0x55, 0xaa]);
        let mut disk = fs::File::options().write(true).open(self.storage.image())?;
        disk.write_all(&sector)?;
        drop(disk);
        self.succeed(
            "sed 's/vm1/vm3/g; s,/disk.img,/disk,; s,\\[\"/srv.*,[],' /etc/ringloom/vm1.toml > /etc/ringloom/vm3.toml
             systemctl start ringloom@vm3
             sed 's/vm1/vm3/g' vm1.xml > vm3.xml
             virsh define vm3.xml
             virsh start vm3",
        )?;
        self.goes_on("vm3")?;
        self.storage.inject(Fault::new(Operation::Write, Effect::Held, u32::MAX));
        self.storage.wait_held(1, LIMIT)
    }

    pub(super) fn storage_answers(&self) -> Result<()> {
        self.storage.release();
        self.goes_on("vm3")?;
        self.succeed("virsh destroy vm3; systemctl stop ringloom@vm3").map(drop)
    }

    pub(super) fn file_system_is_full(&self) -> Result<()> {
        let mut file = fs::File::create(self.filler())?;
        while file.write_all(&[1; 4096]).is_ok() {}
        self.is_said("ringloom@vm1", "No space left on device")
    }

    pub(super) fn there_is_room(&self) -> Result<()> {
        fs::remove_file(self.filler())?;
        self.goes_on("vm1")
    }

    fn filler(&self) -> PathBuf {
        self.shared.join("vm1/filler")
    }

    /// Two guests of a new daemon: one whose memory is not shared, and one that wants the same disk.
    pub(super) fn guests_that_hang(&self) -> Result<()> {
        self.succeed(
            "install -d -o ringloom /srv/vm2
             truncate -s 16M /srv/vm2/disk.img
             chown ringloom: /srv/vm2/disk.img
             cat > /etc/ringloom/vm2.toml <<'END'
image = \"/srv/vm2/disk.img\"
socket = \"/run/ringloom/vm2/disk.sock\"
END
             systemctl start ringloom@vm2",
        )?;
        let guest = "systemd-run -q --unit=guest$N qemu-system-x86_64 -accel tcg -display none -nodefaults -m 64 \
                     -machine q35 -chardev socket,id=c,path=/run/ringloom/vm2/disk.sock,reconnect-ms=1000 \
                     -device vhost-user-blk-pci,chardev=c";
        self.succeed(&format!("N=1; {guest}"))?;
        self.is_said("ringloom@vm2", "shares no memory")?;
        self.succeed(&format!("N=2; {guest}"))?;
        self.is_said("ringloom@vm2", "another client waits")?;
        self.succeed("systemctl stop guest1 guest2").map(drop)
    }

    pub(super) fn image_is_removed(&self) -> Result<()> {
        fs::remove_file(self.shared.join("vm1/disk.img"))?;
        self.is_said("ringloom@vm1", "was removed")
    }

    /// One that was started by hand.
    pub(super) fn somebody_has_the_image(&self) -> Result<()> {
        let line = "ringloom serve /srv/vm2/disk.img --socket /run/by-hand.sock";
        self.succeed(&format!("systemd-run -q --unit=by-hand {line}"))?;
        self.is_said("by-hand", "listening on")
    }

    pub(super) fn nobody_has_the_image(&self) -> Result<()> {
        self.succeed("systemctl stop by-hand").map(drop)
    }

    /// The guest of the beginning is there, and works.
    pub(super) fn end(&self) -> Result<()> {
        self.goes_on("vm1").with_context(|| self.log())?;
        self.succeed("virsh destroy vm1; systemctl stop 'ringloom@*'").map(drop)
    }
}

/// The package of the program that cargo has built for tests, and the next one.
fn make_packages(place: &Path) -> Result<[PathBuf; 2]> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let workspace = own.ancestors().nth(3).context("it is in the workspace")?.to_owned();
    let date = "2026-11-28".to_owned();
    let tree = TreeInput { workspace, binary: binary()?, date };
    let version = "0.1.0".to_owned();
    let old = debian::make(place, &PackageInput { tree, version, compression: &["-Znone"] })?;
    let control = place.join("root/DEBIAN/control");
    let text = fs::read_to_string(&control)?;
    fs::write(&control, text.replace("Version: 0.1.0\n", "Version: 0.1.1\n"))?;
    let new = place.join("next.deb");
    let mut tool = Command::new("dpkg-deb");
    output_of(
        tool.args(["-Znone", "--root-owner-group", "--build"]).arg(place.join("root")).arg(&new),
    )?;
    Ok([old, new])
}

fn free_port() -> Result<u16> {
    let socket = std::net::TcpListener::bind("127.0.1.1:0").context("find a port")?;
    Ok(socket.local_addr()?.port())
}

/// A host that the other one reaches by its name, with ssh, and whose libvirt runs guests here.
fn prepare(system: &Systemd, name: &str, address: &str, port: u16, key: &Path) -> Result<()> {
    let add = |path: &str, text: &str| -> Result<()> {
        let mut file = fs::File::options().create(true).append(true).open(system.path(path))?;
        Ok(file.write_all(text.as_bytes())?)
    };
    add("/etc/hosts", "127.0.1.1 host1\n127.0.1.2 host2\n")?;
    // There are no groups of processes to limit, and both have the identity of one machine.
    add("/etc/libvirt/qemu.conf", "cgroup_controllers = [ ]\n")?;
    let identity = fs::read_to_string("/proc/sys/kernel/random/uuid")?;
    add("/etc/libvirt/libvirtd.conf", &format!("host_uuid = \"{}\"\n", identity.trim()))?;
    let home = system.path("/root/.ssh");
    if home.exists() {
        fs::remove_dir_all(&home)?;
    }
    fs::create_dir_all(&home)?;
    fs::set_permissions(&home, fs::Permissions::from_mode(0o700))?;
    fs::copy(key, home.join("id_ed25519"))?;
    fs::set_permissions(home.join("id_ed25519"), fs::Permissions::from_mode(0o600))?;
    fs::copy(key.with_extension("pub"), home.join("authorized_keys"))?;
    let options = "StrictHostKeyChecking no\n UserKnownHostsFile /dev/null\n LogLevel ERROR";
    fs::write(home.join("config"), format!("Host host*\n Port {port}\n {options}\n"))?;
    // What the manual's index takes after each package is a second that nobody looks at.
    let _not_there = fs::remove_file(system.path("/var/lib/man-db/auto-update"));
    let script = format!(
        "hostname {name}; echo {name} > /etc/hostname; mkdir -p /run/sshd; ssh-keygen -A
         /usr/sbin/sshd -o ListenAddress={address}:{port} -o PermitRootLogin=yes -o UsePAM=no
         systemctl start libvirtd"
    );
    system.succeed(&["sh", "-ec", &script]).map(drop)
}

/// What an administrator has in the directory: packages, a checkout in which cargo makes the same one, and an image.
fn furnish(system: &Systemd, old: &Path, new: &Path) -> Result<()> {
    let place = system.path(PLACE);
    for directory in ["next", "bin", "target/packages"] {
        fs::create_dir_all(place.join(directory))?;
    }
    fs::copy(old, place.join("ringloom_0.1.0_amd64.deb"))?;
    fs::copy(new, place.join("next/ringloom_0.1.1_amd64.deb"))?;
    let cargo = "#!/bin/sh\n[ \"$*\" = 'xtask dist' ] && cp ringloom_*.deb target/packages/\n";
    for (name, script) in [("cargo", cargo), ("systemctl", SYSTEMCTL), ("journalctl", JOURNALCTL)] {
        let program = place.join("bin").join(name);
        fs::write(&program, script)?;
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
    }
    let mut sector = BOOT_SECTOR.to_vec();
    sector.resize(510, 0);
    sector.extend([0x55, 0xaa]);
    let raw = place.join("raw");
    fs::write(&raw, &sector)?;
    fs::File::options().write(true).open(&raw)?.set_len(DISK_BYTES)?;
    let mut tool = Command::new("qemu-img");
    let words = ["convert", "-f", "raw", "-O", "qcow2", "raw", "debian-12.qcow2"];
    output_of(tool.args(words).current_dir(&place)).map(drop)
}
