//! The files of an image while they are put together, from programs of this machine, with their libraries at the same paths.

use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::image::write_archive;
use crate::place::Place;
use crate::run::{make_dir, output_of, remove, write};

/// The files of an image while they are put together.
#[derive(Debug)]
pub(crate) struct Contents {
    root: PathBuf,
    archive: PathBuf,
}

impl Contents {
    /// With nothing in it but a directory for temporary files.
    pub(crate) fn new(place: &Place, name: &str) -> Result<Self> {
        let root = place.images().join(name);
        remove(&root)?;
        make_dir(&root.join("tmp"))?;
        Ok(Self { root, archive: place.images().join(format!("{name}.tar")) })
    }

    /// Adds busybox under all its names.
    pub(crate) fn busybox(&self) -> Result<()> {
        let busybox = find("busybox")?;
        self.copy(&busybox, "bin/busybox")?;
        for name in output_of(Command::new(busybox).arg("--list"))?.lines() {
            if name != "busybox" {
                symlink("busybox", self.root.join("bin").join(name)).context("link a name")?;
            }
        }
        Ok(())
    }

    /// Adds a program of this machine with its libraries.
    pub(crate) fn program(&self, name: &str) -> Result<()> {
        let program = find(name)?;
        for file in guest::libraries(&program)?.iter().chain([&program]) {
            let at = file.to_str().context("a program's path is text")?;
            self.copy(file, at.trim_start_matches('/'))?;
        }
        Ok(())
    }

    /// Adds a file.
    pub(crate) fn copy(&self, from: &Path, to: &str) -> Result<()> {
        let path = self.root.join(to);
        make_dir(path.parent().context("it is below the root")?)?;
        std::fs::copy(from, &path)
            .with_context(|| format!("copy {} to {}", from.display(), path.display()))?;
        Ok(())
    }

    /// Adds a program that is text.
    pub(crate) fn script(&self, to: &str, text: &str) -> Result<()> {
        let path = self.root.join(to);
        make_dir(path.parent().context("it is below the root")?)?;
        write(&path, text)?;
        let mode = Permissions::from_mode(0o755);
        std::fs::set_permissions(&path, mode).with_context(|| format!("chmod {}", path.display()))
    }

    /// Adds a link to another of its files.
    pub(crate) fn link(&self, target: &str, name: &str) -> Result<()> {
        let path = self.root.join(name);
        make_dir(path.parent().context("it is below the root")?)?;
        symlink(target, &path).with_context(|| format!("link {}", path.display()))
    }

    /// Writes the archive.
    pub(crate) fn finish(&self, name: &str, command: &[&str]) -> Result<()> {
        let digest = write_archive(&self.root, name, command, &self.archive)?;
        println!("   image {name} {digest}");
        remove(&self.root)
    }
}

/// Where a program of this machine is.
fn find(name: &str) -> Result<PathBuf> {
    guest::find_program(name)
        .with_context(|| format!("{name} is not installed: cargo xtask install brings it"))
}
