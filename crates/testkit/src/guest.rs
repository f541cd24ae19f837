//! Linux guests under QEMU, which find their disk by vhost-user-blk-pci.
//!
//! Where it stands: a test gives a shell script and the server's socket; `run` boots a kernel with a small initramfs,
//! runs the script as root and gives back what it printed. Works without KVM.
//!
//! Invariants: QEMU is ended by its own pid at the deadline and when the test ends; the guest powers off by itself.
//! Limits: one guest needs `MEMORY_MIB` of memory and takes the time the test allows.
//! Not here: fetching the kernel. `cargo xtask test` puts it at `target/guest/kernel`.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::client::RingLayout;
use crate::deadline::poll_until;
use crate::process::{Bench, Capture};

mod console;
mod initramfs;
mod kernel;

pub use console::{Console, Section};
pub use initramfs::Archive;
pub use kernel::Kernel;

/// Memory of a guest; the initramfs with fio and its libraries takes about 90 MiB of it, twice while it is unpacked.
const MEMORY_MIB: u32 = 768;
/// How soon QEMU looks again for a server that has gone away.
const RECONNECT_MS: u32 = 100;
const QEMU: &str = "qemu-system-x86_64";
/// What every guest has besides busybox.
const PROGRAMS: [&str; 2] = ["fio", "mkfs.ext4"];

/// The directory of things guests boot from.
pub fn guest_directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/guest")
}

/// Why no guest can run here, if so.
pub fn missing() -> Option<String> {
    let tools = [QEMU, "busybox", "xz", "ldd"].iter().chain(&PROGRAMS);
    for tool in tools {
        if find_program(tool).is_none() {
            return Some(format!("{tool} is not installed"));
        }
    }
    Kernel::find(&guest_directory().join("kernel")).err().map(|error| format!("{error:#}"))
}

/// A guest to be run. If a server goes away, QEMU waits for the next one on its socket.
#[derive(Clone, Debug)]
pub struct Guest {
    /// vhost-user-blk sockets, in the order of /dev/vda, /dev/vdb …
    pub disks: Vec<PathBuf>,
    /// Queues of each disk; also the number of CPUs, so that each CPU has a queue of its own.
    pub queues: usize,
    /// The rings of each disk. A driver is free to take split ones although packed ones are offered; Linux takes packed.
    pub layout: RingLayout,
    /// Shell commands for busybox' sh, run as root after the disks are there. The function
    /// `section NAME COMMAND…` runs a command and reports its output and status as `Console::section`.
    pub script: String,
}

impl Guest {
    /// Boots the guest, waits until it has powered off, and returns its console.
    pub fn run(&self, bench: &Bench, limit: Duration) -> Result<Console> {
        self.boot(bench)?.wait(limit)
    }

    /// Boots the guest and does not wait for it.
    pub fn boot(&self, bench: &Bench) -> Result<RunningGuest> {
        let kernel = Kernel::find(&guest_directory().join("kernel"))?;
        let initramfs = self.initramfs(&kernel, bench)?;
        Ok(RunningGuest { qemu: Qemu::start(&self.arguments(&kernel, &initramfs))? })
    }

    /// The cached archive of programs and modules, followed by one that holds this guest's script.
    fn initramfs(&self, kernel: &Kernel, bench: &Bench) -> Result<PathBuf> {
        let (base, modules) = initramfs::base(kernel, &PROGRAMS, &guest_directory())?;
        let mut own = Archive::default();
        own.file("init", 0o755, init_script(&modules, &self.script).as_bytes());
        let path = bench.path("initramfs.cpio");
        std::fs::copy(&base, &path).with_context(|| format!("copy {}", base.display()))?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))
            .context("make the copy writable")?;
        let mut file =
            std::fs::File::options().append(true).open(&path).context("open the copy")?;
        std::io::Write::write_all(&mut file, &own.finish()).context("append the script")?;
        Ok(path)
    }

    fn arguments(&self, kernel: &Kernel, initramfs: &Path) -> Vec<String> {
        let Self { queues, .. } = self;
        let words = format!(
            "-accel tcg,thread=multi -cpu max -smp {queues} -m {MEMORY_MIB} -nodefaults -nographic \
             -serial stdio -no-reboot \
             -object memory-backend-memfd,id=mem,size={MEMORY_MIB}M,share=on -machine q35,memory-backend=mem"
        );
        let packed = match self.layout {
            RingLayout::Split => "off",
            RingLayout::Packed => "on",
        };
        let mut arguments: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
        for (index, socket) in self.disks.iter().enumerate() {
            arguments.extend([
                "-chardev".to_owned(),
                format!("socket,id=c{index},path={},reconnect-ms={RECONNECT_MS}", socket.display()),
                "-device".to_owned(),
                format!("vhost-user-blk-pci,chardev=c{index},num-queues={queues},packed={packed}"),
            ]);
        }
        arguments.extend([
            "-kernel".to_owned(),
            kernel.image().display().to_string(),
            "-initrd".to_owned(),
            initramfs.display().to_string(),
            "-append".to_owned(),
            "console=ttyS0 quiet panic=-1".to_owned(),
        ]);
        arguments
    }
}

/// A guest that was booted; ended when dropped.
#[derive(Debug)]
pub struct RunningGuest {
    qemu: Qemu,
}

impl RunningGuest {
    /// Waits until its console holds `text`.
    pub fn wait_for(&self, text: &str, limit: Duration) -> Result<()> {
        let seen = poll_until(&format!("{text:?} on the guest's console"), limit, || {
            Ok(self.qemu.stdout.text().contains(text).then_some(()))
        });
        seen.with_context(|| Console::new(&self.qemu.stdout.text()).tail())
    }

    /// Waits until it has powered off, and returns its console.
    pub fn wait(mut self, limit: Duration) -> Result<Console> {
        let qemu = &mut self.qemu;
        let ended = poll_until("the guest to power off", limit, || {
            qemu.child.try_wait().context("wait for QEMU")
        });
        if ended.is_ok() {
            qemu.stdout.finish()?;
            qemu.stderr.finish()?;
        }
        let console = Console::new(&qemu.stdout.text());
        match ended {
            Ok(status) if status.success() => Ok(console),
            Ok(status) => bail!(
                "QEMU ended with {status}: {}\nconsole: {}",
                qemu.stderr.text(),
                console.tail()
            ),
            Err(error) => Err(error.context(format!("console: {}", console.tail()))),
        }
    }
}

/// A running QEMU, killed on drop.
#[derive(Debug)]
struct Qemu {
    child: Child,
    stdout: Capture,
    stderr: Capture,
}

impl Qemu {
    fn start(arguments: &[String]) -> Result<Self> {
        let mut child = Command::new(QEMU)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("start QEMU")?;
        let stdout = Capture::of(child.stdout.take().context("QEMU's stdout")?);
        let stderr = Capture::of(child.stderr.take().context("QEMU's stderr")?);
        Ok(Self { child, stdout, stderr })
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        // An error means that it has ended already, which is what is wanted.
        let _already_ended = self.child.kill();
        let _already_reaped = self.child.wait();
    }
}

/// The first process of the guest: it prepares the system, runs the script and powers off in any case.
fn init_script(modules: &[String], script: &str) -> String {
    let insert: String =
        modules.iter().map(|module| format!("insmod /modules/{module}.ko\n")).collect();
    format!(
        "#!/bin/busybox sh\n\
         /bin/busybox --install -s /bin\n\
         export PATH=/bin:/sbin:/usr/bin:/usr/sbin\n\
         mkdir -p /proc /sys /dev /tmp /mnt\n\
         mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev\n\
         {insert}\
         {}\
         ( set -e\n{script}\n)\n\
         section script_status sh -c \"exit $?\"\n\
         sync\n\
         poweroff -f\n",
        console::SECTION_FUNCTION
    )
}

/// Where a program is, looking also where root finds its own.
fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    path.split(':')
        .chain(["/usr/sbin", "/sbin"])
        .map(|directory| Path::new(directory).join(name))
        .find(|candidate| candidate.is_file())
}
