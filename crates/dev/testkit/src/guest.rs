//! Linux guests under QEMU, which find their disk by vhost-user-blk-pci.
//!
//! Where it stands: a test gives a shell script and the server's socket; `run` boots a kernel with a small initramfs,
//! runs the script as root and gives back what it printed. Works without KVM.
//!
//! Invariants: QEMU is ended by its own pid at the deadline and when the test ends; the guest powers off by itself.
//! Limits: a guest has `MEMORY_MIB` of memory unless it says so, and takes the time the test allows.
//! Not here: fetching the kernel. `cargo xtask test` puts it at `target/guest/kernel`.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
pub use guest::{Archive, find_program};
use guest::{Contents, Kernel, KernelSource};

use crate::client::RingLayout;
use crate::deadline::poll_until;
use crate::process::{Bench, Capture};

mod console;
mod halves;
mod migration;
pub mod witness;

pub use console::{Console, Section};
pub use halves::{Course, DiskAddress, Half, Origin, Progress, QEMU_NODE};
pub use migration::MIGRATE_NOW;

/// Memory of a guest; the initramfs with fio and its libraries takes about 90 MiB of it, twice while it is unpacked.
const MEMORY_MIB: u32 = 768;
/// How soon QEMU looks again for a server that has gone away.
const RECONNECT_MS: u32 = 100;
const QEMU: &str = "qemu-system-x86_64";
/// All CPUs share a thread of the host: with one each, QEMU 10.0 now and then aborts at its own assertion while firmware or
/// kernel set up PCI (`msix_table_mmio_write`, `iotlb_to_section`), or loses the wake-up of a CPU that halts. Costs a tenth of
/// the time of the tests with guests.
const ACCELERATOR: &str = "tcg,thread=single";
/// What guests have besides busybox.
const PROGRAMS: [&str; 2] = ["fio", "mkfs.ext4"];
/// The modules of every guest; what is built in is left out.
const MODULES: [&str; 5] = ["virtio_pci", "virtio_blk", "crc32c_generic", "ext4", "crc16"];
/// Modules that lie in `/modules` for scripts that insert them, those that they need before them.
const MODULES_AT_HAND: [&str; 1] = ["raid0"];
/// A kernel that clears a page before it reads into it has QEMU send it again for that reason alone.
const PAGES_AS_THEY_ARE: &str = " init_on_alloc=0";

/// The directory of things guests boot from.
pub fn guest_directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../target/guest")
}

/// Why no guest can run here, if so.
pub fn missing() -> Option<String> {
    let tools = [QEMU, "busybox", "xz", "ldd"].iter().chain(&PROGRAMS);
    for tool in tools {
        if find_program(tool).is_none() {
            return Some(format!("{tool} is not installed"));
        }
    }
    kernel().err().map(|error| format!("{error:#}"))
}

/// The kernel of all guests in tests.
pub fn kernel() -> Result<Kernel> {
    Kernel::open(&KernelSource::Path(guest_directory().join("kernel")))
}

/// Its image without compression, in the same directory: a guest on an emulated processor boots it some seconds sooner.
pub fn uncompressed_kernel() -> Result<PathBuf> {
    uncompressed(&kernel()?)
}

/// What a guest has besides busybox and its script.
#[derive(Clone, Debug)]
pub struct Equipment {
    /// Programs of this machine with their libraries: names, or absolute paths of such that were built just now.
    pub programs: &'static [&'static str],
    /// Modules to be inserted after those of every guest.
    pub modules: &'static [&'static str],
    /// Other programs: where they are in the guest, and here.
    pub files: Vec<(String, PathBuf)>,
    /// Its memory.
    pub memory_mib: u32,
    /// More arguments of QEMU, behind the others.
    pub arguments: Vec<String>,
}

impl Default for Equipment {
    fn default() -> Self {
        let (programs, modules) = (PROGRAMS.as_slice(), [].as_slice());
        let (files, arguments) = (Vec::new(), Vec::new());
        Self { programs, modules, files, memory_mib: MEMORY_MIB, arguments }
    }
}

impl Equipment {
    /// Busybox alone, which is a third of a second faster.
    pub fn bare() -> Self {
        Self { programs: &[], ..Self::default() }
    }

    /// Why no guest with it can run here, if so.
    pub fn missing(&self) -> Option<String> {
        let lacking = self.programs.iter().find(|name| find_program(name).is_none());
        let modules = || kernel().and_then(|kernel| kernel.load(self.modules));
        missing()
            .or_else(|| lacking.map(|name| format!("{name} is not installed")))
            .or_else(|| modules().err().map(|error| format!("{error:#}")))
    }

    /// Where the archive is kept. One with a program that was built just now is of no use to later tests.
    fn cache(&self, bench: &Bench) -> PathBuf {
        if self.programs.iter().any(|name| Path::new(name).is_absolute()) {
            return bench.path("");
        }
        guest_directory()
    }
}

/// Its image without the compression, kept beside it.
fn uncompressed(kernel: &Kernel) -> Result<PathBuf> {
    kernel.uncompressed(kernel.image().parent().context("a kernel's image is in a directory")?)
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
        self.boot_with(&Equipment::default(), bench)
    }

    /// The same for a guest that has other programs.
    pub fn boot_with(&self, equipment: &Equipment, bench: &Bench) -> Result<RunningGuest> {
        let kernel = kernel()?;
        let initramfs = self.initramfs(equipment, &kernel, bench)?;
        let arguments = self.arguments(equipment, &kernel, &initramfs)?;
        Ok(RunningGuest { qemu: Qemu::start(&arguments)? })
    }

    /// The cached archive of programs and modules, followed by one that holds this guest's script.
    fn initramfs(&self, equipment: &Equipment, kernel: &Kernel, bench: &Bench) -> Result<PathBuf> {
        let contents = Contents {
            programs: equipment.programs,
            modules: &[&MODULES, equipment.modules].concat(),
            modules_if_any: &[],
            modules_at_hand: &MODULES_AT_HAND,
            files: &[],
        };
        let base = guest::base(kernel, &contents, &equipment.cache(bench))?;
        let mut own = Archive::default();
        own.file("init", 0o755, init_script(&self.script).as_bytes());
        for (place, file) in &equipment.files {
            let bytes = std::fs::read(file).with_context(|| format!("read {}", file.display()))?;
            own.file(place, 0o755, &bytes);
        }
        let path = bench.path("initramfs.cpio");
        std::fs::copy(&base, &path).with_context(|| format!("copy {}", base.display()))?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))
            .context("make the copy writable")?;
        let mut file =
            std::fs::File::options().append(true).open(&path).context("open the copy")?;
        Write::write_all(&mut file, &own.finish()).context("append the script")?;
        Ok(path)
    }

    fn arguments(
        &self,
        equipment: &Equipment,
        kernel: &Kernel,
        initramfs: &Path,
    ) -> Result<Vec<String>> {
        let image = uncompressed(kernel)?;
        let (Self { queues, .. }, Equipment { memory_mib, .. }) = (self, equipment);
        let words = format!(
            "-accel {ACCELERATOR} -cpu max -smp {queues} -m {memory_mib} -nodefaults -nographic \
             -serial stdio -no-reboot \
             -object memory-backend-memfd,id=mem,size={memory_mib}M,share=on -machine q35,memory-backend=mem"
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
            image.display().to_string(),
            "-initrd".to_owned(),
            initramfs.display().to_string(),
            "-append".to_owned(),
            // The test of the timer fails on a busy host; the kernel's tests of its ciphers take half a second.
            "console=ttyS0 quiet panic=-1 no_timer_check cryptomgr.notests".to_owned(),
        ]);
        arguments.extend_from_slice(&equipment.arguments);
        Ok(arguments)
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

    /// What it has printed so far.
    pub fn console_text(&self) -> String {
        self.qemu.stdout.text()
    }

    /// Types a line on its console.
    pub fn type_line(&mut self, line: &str) -> Result<()> {
        writeln!(self.qemu.stdin, "{line}").context("type on the guest's console")
    }

    /// Waits until it has powered off, and returns its console.
    pub fn wait(self, limit: Duration) -> Result<Console> {
        Ok(Console::new(&self.qemu.end(limit)?))
    }
}

/// A running QEMU, killed on drop.
#[derive(Debug)]
struct Qemu {
    child: Child,
    /// The guest's keyboard.
    stdin: ChildStdin,
    stdout: Capture,
    stderr: Capture,
}

impl Qemu {
    fn start(arguments: &[String]) -> Result<Self> {
        let mut child = Command::new(QEMU)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("start QEMU")?;
        let stdin = child.stdin.take().context("QEMU's stdin")?;
        let stdout = Capture::of(child.stdout.take().context("QEMU's stdout")?);
        let stderr = Capture::of(child.stderr.take().context("QEMU's stderr")?);
        Ok(Self { child, stdin, stdout, stderr })
    }

    /// An error with what it said, if it has ended.
    fn must_run(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait().context("look at QEMU")? {
            bail!("QEMU ended with {status}: {}", self.stderr.text());
        }
        Ok(())
    }

    /// Waits until it has ended, well, and returns what the guest has printed.
    fn end(mut self, limit: Duration) -> Result<String> {
        let ended = poll_until("the guest to power off", limit, || {
            self.child.try_wait().context("wait for QEMU")
        });
        if ended.is_ok() {
            self.stdout.finish()?;
            self.stderr.finish()?;
        }
        let text = self.stdout.text();
        let tail = || Console::new(&text).tail();
        match ended {
            Ok(status) if status.success() => Ok(text),
            Ok(status) => {
                bail!("QEMU ended with {status}: {}\nconsole: {}", self.stderr.text(), tail())
            }
            Err(error) => Err(error.context(format!("console: {}", tail()))),
        }
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
fn init_script(script: &str) -> String {
    format!(
        "#!/bin/busybox sh\n\
         /bin/busybox --install -s /bin\n\
         export PATH=/bin:/sbin:/usr/bin:/usr/sbin\n\
         mkdir -p /proc /sys /dev /tmp /mnt\n\
         mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev\n\
         while read -r module; do insmod /modules/$module.ko; done < /modules/order\n\
         {}\
         ( set -e\n{script}\n)\n\
         section script_status sh -c \"exit $?\"\n\
         sync\n\
         poweroff -f\n",
        console::SECTION_FUNCTION
    )
}
