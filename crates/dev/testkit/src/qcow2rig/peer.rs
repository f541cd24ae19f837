//! What qemu-img says of an image of the rig.
//!
//! Where it stands: asked about a sample of the images, so that the rig's own checker and reader are seen to be right.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Output};

use anyhow::{Context, Result, bail, ensure};

use super::disk::Snapshot;
use super::make::{BACKING_NAME, DATA_NAME};

/// Where qemu-img is found.
const QEMU_IMG: &str = "qemu-img";

/// Why qemu-img cannot be asked, if so.
#[must_use]
pub fn missing() -> Option<String> {
    match Command::new(QEMU_IMG).arg("--version").output() {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(format!("{QEMU_IMG} ends with {}", output.status)),
        Err(error) => Some(format!("{QEMU_IMG}: {error}")),
    }
}

/// Fails unless qemu-img finds no error in the image, and reads this content.
pub fn judge(
    image: &Snapshot,
    data: Option<&Snapshot>,
    backing: Option<&[u8]>,
    content: &[u8],
) -> Result<()> {
    let directory = tempfile::tempdir().context("a directory for qemu-img")?;
    let path = directory.path();
    store(&path.join("image.qcow2"), image)?;
    if let Some(data) = data {
        store(&path.join(DATA_NAME), data)?;
    }
    if let Some(backing) = backing {
        std::fs::write(path.join(BACKING_NAME), backing).context("store the backing file")?;
    }
    let output = qemu_img(path, &["check", "-f", "qcow2", "image.qcow2"])?;
    // 0: all is well; 3: leaks; 2: errors; 1: it could not be checked.
    if !matches!(output.status.code(), Some(0 | 3)) {
        bail!("qemu-img check disagrees: {}", told(&output));
    }
    let output =
        qemu_img(path, &["convert", "-f", "qcow2", "-O", "raw", "image.qcow2", "all.raw"])?;
    ensure!(output.status.success(), "qemu-img convert: {}", told(&output));
    let found = std::fs::read(path.join("all.raw")).context("read what qemu-img has read")?;
    let differs = found.iter().zip(content).position(|(found, ours)| found != ours);
    ensure!(
        found.len() == content.len(),
        "qemu-img reads {} bytes of {}",
        found.len(),
        content.len()
    );
    if let Some(byte) = differs {
        bail!("qemu-img reads another byte {byte:#x} than the rig does");
    }
    Ok(())
}

/// Whether qemu-img check finds errors in an image.
pub fn finds_errors(image: &Snapshot) -> Result<bool> {
    let directory = tempfile::tempdir().context("a directory for qemu-img")?;
    store(&directory.path().join("image.qcow2"), image)?;
    let output = qemu_img(directory.path(), &["check", "-f", "qcow2", "image.qcow2"])?;
    match output.status.code() {
        Some(0 | 3) => Ok(false),
        Some(2) => Ok(true),
        _ => bail!("qemu-img check: {}", told(&output)),
    }
}

fn qemu_img(directory: &Path, arguments: &[&str]) -> Result<Output> {
    let mut command = Command::new(QEMU_IMG);
    command.args(arguments).current_dir(directory);
    command.output().with_context(|| format!("{QEMU_IMG} {arguments:?}"))
}

fn told(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}\n{}{}", output.status, text(&output.stdout), text(&output.stderr))
}

fn store(path: &Path, snapshot: &Snapshot) -> Result<()> {
    let file = File::create(path).with_context(|| format!("create {}", path.display()))?;
    file.set_len(snapshot.bytes()).with_context(|| format!("size {}", path.display()))?;
    for (at, bytes) in snapshot.parts() {
        file.write_all_at(bytes, at).with_context(|| format!("fill {}", path.display()))?;
    }
    Ok(())
}
