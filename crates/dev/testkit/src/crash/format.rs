//! What a disk of the campaign lies in: its bytes as they are, or a qcow2 image of them.
//!
//! Invariants: qemu-img makes the image and judges it: after a kill clusters may leak, and nothing else may be wrong.

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::campaign::Locking;
use crate::deadline::poll_until;

/// What qemu-img's check ends with if clusters leak and nothing else is wrong.
const LEAKS: i32 = 3;
/// How long the I/O of a killed server may take.
const LOCK_LIMIT: Duration = Duration::from_secs(20);
/// How far an image in a block device may grow.
const DEVICE_BYTES: u64 = 32 << 20;

/// What the server is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The bytes of the disk.
    Raw,
    /// A qcow2 image that has all of them.
    Qcow2,
    /// A qcow2 image that has none of them, on a raw one.
    Overlay,
}

/// The keys of the node that has it, without a name.
pub(super) fn file(driver: &str, disk: &Path, aio: &str, locking: Locking) -> String {
    let locking = match locking {
        Locking::Usual => "",
        Locking::Off => ",locking=off",
    };
    format!("driver={driver},filename={},aio={aio}{locking}", disk.display())
}

impl Format {
    /// Makes what is served, beside the file with the bytes.
    pub(super) fn make(self, bytes: &Path) -> Result<PathBuf> {
        let image = bytes.with_extension("qcow2");
        match self {
            Self::Raw => return Ok(bytes.to_path_buf()),
            Self::Qcow2 => {
                qemu_img(&["convert", "-f", "raw", "-O", "qcow2"], &[bytes, &image])?;
            }
            Self::Overlay => {
                let options = ["create", "-q", "-f", "qcow2", "-F", "raw", "-b"];
                qemu_img(&options, &[bytes, &image])?;
            }
        }
        Ok(image)
    }

    /// Gives an image room to grow that is to lie on a block device.
    pub(super) fn make_room(self, image: &Path) -> Result<()> {
        if self == Self::Raw {
            return Ok(());
        }
        let file = File::options().write(true).open(image).context("open the image")?;
        file.set_len(DEVICE_BYTES).context("make room for the image")
    }

    /// The keys of the node `disk`, whose bytes or image are in a node with these keys.
    pub(super) fn node(self, file: &str, bytes: &Path) -> String {
        let below = || file.split(',').map(|pair| format!("file.{pair}")).collect::<Vec<_>>();
        let image = || format!("driver=qcow2,node-name=disk,cache.direct=on,{}", below().join(","));
        match self {
            Self::Raw => format!("{file},node-name=disk,cache.direct=on"),
            Self::Qcow2 => image(),
            Self::Overlay => {
                let backing = "backing.driver=raw,backing.file.driver=file,backing.file.filename";
                format!("{},{backing}={}", image(), bytes.display())
            }
        }
    }

    /// Checks the tables of an image that nobody serves.
    pub(super) fn check(self, image: &Path) -> Result<()> {
        if self == Self::Raw {
            return Ok(());
        }
        // The requests of a killed server hold its lock for a moment.
        let output = poll_until("the lock of a killed server", LOCK_LIMIT, || {
            let output = run(&["check", "-q", "-f", "qcow2"], &[image])?;
            let is_locked = String::from_utf8_lossy(&output.stderr).contains("lock");
            Ok((!is_locked).then_some(output))
        })?;
        let is_right = output.status.success() || output.status.code() == Some(LEAKS);
        ensure!(is_right, "qemu-img check: {output:?}");
        Ok(())
    }

    /// The bytes of the disk, of an image whose tables are right.
    pub(crate) fn read(self, image: &Path) -> Result<Vec<u8>> {
        self.check(image)?;
        let found = match self {
            Self::Raw => image.to_path_buf(),
            Self::Qcow2 | Self::Overlay => {
                let found = image.with_extension("found");
                qemu_img(&["convert", "-f", "qcow2", "-O", "raw"], &[image, &found])?;
                found
            }
        };
        std::fs::read(found).context("read the image")
    }
}

/// Runs qemu-img, which must succeed.
pub(crate) fn qemu_img(options: &[&str], paths: &[&Path]) -> Result<()> {
    let output = run(options, paths)?;
    ensure!(output.status.success(), "qemu-img {options:?}: {output:?}");
    Ok(())
}

fn run(options: &[&str], paths: &[&Path]) -> Result<Output> {
    let words = options.iter().map(OsStr::new).chain(paths.iter().map(|path| path.as_os_str()));
    Command::new("qemu-img").args(words).output().context("run qemu-img")
}
