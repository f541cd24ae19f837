//! Block devices of the host over images: loop devices.
//!
//! Where it stands: a server opens the device, a test changes the image behind it. Needs root.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// A loop device over an image; detached when dropped.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
}

impl LoopDevice {
    /// Why there can be none here, if so.
    pub fn missing() -> Option<&'static str> {
        let is_root = rustix::process::geteuid().is_root();
        (!is_root).then_some("a loop device needs root")
    }

    /// Makes a device with blocks of that size.
    pub fn attach(image: &Path, block_bytes: u32) -> Result<Self> {
        let image = image.to_str().context("a path in text")?;
        let block_bytes = block_bytes.to_string();
        let path = losetup(&["--find", "--show", "--sector-size", &block_bytes, image])?;
        Ok(Self { path: path.into() })
    }

    /// What a server opens.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives the image another size, and the device too.
    pub fn resize(&self, image: &Path, bytes: u64) -> Result<()> {
        let file = std::fs::File::options().write(true).open(image).context("open the image")?;
        file.set_len(bytes).context("change the image's size")?;
        let path = self.path.to_str().context("a path in text")?;
        losetup(&["--set-capacity", path]).map(drop)
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let detached = losetup(&["--detach", &self.path.to_string_lossy()]);
        if !std::thread::panicking() {
            assert!(detached.is_ok(), "{} stays attached: {detached:?}", self.path.display());
        }
    }
}

fn losetup(arguments: &[&str]) -> Result<String> {
    let output = Command::new("losetup").args(arguments).output().context("losetup")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "losetup {arguments:?}: {said}");
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}
