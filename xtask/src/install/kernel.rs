//! The kernel that guests boot: downloaded as a package, unpacked, never installed.
//!
//! What others rely on: `target/guest/kernel` is a directory (a symbolic link to one) with
//! `boot/vmlinuz-<version>` and `lib/modules/<version>/`.
//!
//! Invariants: that name appears only when everything below it is complete.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::install::apt::{self, Release};
use crate::steps::{must_succeed, output_of};

/// The package that depends on the newest cloud kernel.
pub(crate) const PACKAGE: &str = "linux-image-cloud-amd64";
pub(crate) const WHY: &str = "kernel of the guests, only unpacked below target/guest";

const IMAGE_PREFIX: &str = "linux-image-";

/// Whether a directory holds a kernel and the modules of the same version.
pub(crate) fn is_present(directory: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(directory.join("boot")) else {
        return false;
    };
    entries.filter_map(Result::ok).any(|entry| {
        entry.file_name().to_string_lossy().strip_prefix("vmlinuz-").is_some_and(|version| {
            ["lib/modules", "usr/lib/modules"]
                .iter()
                .any(|modules| directory.join(modules).join(version).join("kernel").is_dir())
        })
    })
}

/// Downloads and unpacks the kernel; hands back where it is. Needs package lists, but no root.
pub(crate) fn fetch(guest_dir: &Path, release: &Release) -> Result<PathBuf> {
    let package = concrete_package(release)?;
    let version = package.trim_start_matches(IMAGE_PREFIX);
    let name = format!("kernel-{version}");
    let place = guest_dir.join(&name);
    if !is_present(&place) {
        download(&package, guest_dir, &place)?;
    }
    // A link is replaced by renaming a new one over it, so that readers always see a kernel.
    let link = guest_dir.join("kernel");
    let new_link = guest_dir.join(format!(".kernel-{}", std::process::id()));
    std::os::unix::fs::symlink(&name, &new_link)
        .with_context(|| format!("{}", new_link.display()))?;
    std::fs::rename(&new_link, &link).with_context(|| format!("{}", link.display()))?;
    ensure!(is_present(&link), "{}: no kernel with its modules", link.display());
    Ok(link)
}

/// Downloads into a directory of its own and moves the unpacked kernel into place at the end.
fn download(package: &str, guest_dir: &Path, place: &Path) -> Result<()> {
    let work_dir = guest_dir.join(format!(".download-{}", std::process::id()));
    std::fs::create_dir_all(&work_dir).with_context(|| format!("{}", work_dir.display()))?;
    let result = unpack(package, &work_dir, place);
    // What is left of a download is of no use, whether it worked or not.
    let cleaned = std::fs::remove_dir_all(&work_dir);
    result?;
    cleaned.with_context(|| format!("{}", work_dir.display()))
}

fn unpack(package: &str, work_dir: &Path, place: &Path) -> Result<()> {
    // Apt would drop to a user of its own, who may not write into this directory.
    let mut command = apt::apt_get();
    must_succeed(
        command.args(["-o", "APT::Sandbox::User=root", "download", package]).current_dir(work_dir),
    )?;
    let archive = std::fs::read_dir(work_dir)
        .with_context(|| format!("{}", work_dir.display()))?
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|it| it == "deb"))
        .with_context(|| format!("apt-get download {package}: no package in the directory"))?;
    let unpacked = work_dir.join("unpacked");
    must_succeed(Command::new("dpkg-deb").arg("--extract").arg(&archive).arg(&unpacked))?;
    ensure!(is_present(&unpacked), "{}: no kernel with its modules", archive.display());
    if place.exists() {
        std::fs::remove_dir_all(place).with_context(|| format!("{}", place.display()))?;
    }
    std::fs::rename(&unpacked, place).with_context(|| format!("{}", place.display()))
}

/// The package with the kernel itself, which `PACKAGE` depends on.
fn concrete_package(release: &Release) -> Result<String> {
    let mut command = Command::new("apt-cache");
    command.arg("depends");
    if let Some(suite) = release.backports() {
        command.args(["--target-release", &suite]);
    }
    let text = output_of(command.arg(PACKAGE))?;
    let package = parse_depends(&text)
        .with_context(|| format!("apt-cache depends {PACKAGE}: names no kernel: {text}"))?;
    Ok(package.to_owned())
}

fn parse_depends(text: &str) -> Option<&str> {
    text.lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "))
        .find(|package| package.starts_with(IMAGE_PREFIX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_package_is_read_from_the_dependencies() {
        let text = "linux-image-cloud-amd64\n  Depends: linux-image-6.12.95+deb12-cloud-amd64\n";
        assert_eq!(parse_depends(text), Some("linux-image-6.12.95+deb12-cloud-amd64"));
        assert_eq!(parse_depends("linux-image-cloud-amd64\n"), None);
    }

    #[test]
    fn a_kernel_without_its_modules_is_not_present() {
        let root = std::env::temp_dir().join(format!("xtask-kernel-{}", std::process::id()));
        std::fs::create_dir_all(root.join("boot")).expect("a temporary directory");
        std::fs::write(root.join("boot/vmlinuz-6.12"), b"").expect("a temporary file");
        assert!(!is_present(&root));
        std::fs::create_dir_all(root.join("lib/modules/6.12/kernel")).expect("a directory");
        assert!(is_present(&root));
        std::fs::remove_dir_all(&root).expect("it can be removed");
        assert!(!is_present(&root));
    }
}
