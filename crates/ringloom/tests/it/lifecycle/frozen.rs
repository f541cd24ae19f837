//! A block device whose writes last as long as the test likes.
//!
//! A file system is frozen, and a loop device lies on a file in it: writes to the device wait in the kernel's loop
//! driver, not in the process that sent them, so that process can still be ended.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use testkit::image;
use testkit::process::Bench;

/// The device; thawed and taken apart when dropped.
pub(super) struct FreezableDevice {
    // Dropped in this order: the device lies on a file of the mount.
    device: LoopDevice,
    mount: Mount,
}

impl FreezableDevice {
    /// A device of this size, not frozen. Needs root.
    pub(super) fn new(bench: &Bench, bytes: usize) -> Result<Self> {
        let outer = bench.path("outer.img");
        image::create_sparse(&outer, 64 << 20)?;
        run("mkfs.ext4", &["-q", path(&outer)])?;
        let mount = Mount::new(&outer, bench.path("mount"))?;
        let inner = mount.directory.join("inner.img");
        image::create_with(&inner, &vec![0; bytes])?;
        let name = run("losetup", &["--find", "--show", path(&inner)])?;
        Ok(Self { device: LoopDevice { path: name.trim().to_owned() }, mount })
    }

    pub(super) fn path(&self) -> &str {
        &self.device.path
    }

    /// From now on writes wait.
    pub(super) fn freeze(&mut self) -> Result<()> {
        run("fsfreeze", &["--freeze", path(&self.mount.directory)])?;
        self.mount.frozen = true;
        Ok(())
    }

    /// The writes that wait go on.
    pub(super) fn thaw(&mut self) -> Result<()> {
        self.mount.thaw()
    }
}

impl Drop for FreezableDevice {
    fn drop(&mut self) {
        // Nothing can be detached or unmounted before.
        self.thaw().expect("what was frozen can be thawed");
    }
}

struct LoopDevice {
    path: String,
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        run("losetup", &["--detach", &self.path]).expect("an attached device can be detached");
    }
}

struct Mount {
    directory: PathBuf,
    frozen: bool,
}

impl Mount {
    fn new(image: &Path, directory: PathBuf) -> Result<Self> {
        std::fs::create_dir(&directory).context("make the mount point")?;
        run("mount", &["-o", "loop", path(image), path(&directory)])?;
        let mount = Self { directory, frozen: false };
        // Freezing anything else would stop the machine.
        let device = |path: &Path| -> Result<u64> {
            let metadata = path.metadata().context("look at the mount point")?;
            Ok(std::os::unix::fs::MetadataExt::dev(&metadata))
        };
        let above = mount.directory.parent().context("a mount point has a parent")?;
        ensure!(device(&mount.directory)? != device(above)?, "nothing is mounted");
        Ok(mount)
    }

    fn thaw(&mut self) -> Result<()> {
        if std::mem::take(&mut self.frozen) {
            run("fsfreeze", &["--unfreeze", path(&self.directory)])?;
        }
        Ok(())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // The device on it is detached, but the kernel may hold its file a moment longer.
        run("umount", &["--lazy", path(&self.directory)]).expect("a mount can be taken away");
    }
}

fn path(path: &Path) -> &str {
    path.to_str().expect("a test's paths are plain ASCII")
}

/// Runs an administrator's program, and gives what it printed.
fn run(program: &str, arguments: &[&str]) -> Result<String> {
    // Where root's programs are, whatever the test's search path is.
    let search = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let output = Command::new("env")
        .arg(format!("PATH={search}"))
        .arg(program)
        .args(arguments)
        .output()
        .with_context(|| format!("start {program}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} {arguments:?}: {said}");
    String::from_utf8(output.stdout).context("the output is text")
}
