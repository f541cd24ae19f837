//! What the images hold: `pause` keeps a pod's namespaces, `agent` measures in pods.
//!
//! Programs of this machine come with their libraries, at the same paths.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::image::write_archive;
use crate::place::Place;
use crate::run::{make_dir, must_succeed, output_of, remove};

/// What keeps a pod's namespaces.
pub(crate) const PAUSE: &str = "ringloom.test/pause:1";
/// ringloom, fio and busybox.
pub(crate) const AGENT: &str = "ringloom.test/agent:1";

/// All of them.
pub(crate) const NAMES: &[&str] = &[PAUSE, AGENT];

/// How the static program is compiled: the agent's image has no loader and no libraries for it.
const STATIC: &str = "-C target-feature=+crt-static -C strip=symbols";
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// The archives of all images.
pub(crate) fn archives(place: &Place) -> Vec<PathBuf> {
    let file = |name: &&str| {
        let (_, rest) = name.split_once('/').expect("images have a registry's name");
        let (name, _) = rest.split_once(':').expect("images have a tag");
        place.images().join(name).with_extension("tar")
    };
    NAMES.iter().map(file).collect()
}

/// Makes all images.
pub(crate) fn make(place: &Place) -> Result<()> {
    make_dir(&place.images())?;
    let ringloom = static_ringloom(place)?;
    let pause = Contents::new(place, "pause")?;
    pause.busybox()?;
    let agent = Contents::new(place, "agent")?;
    agent.busybox()?;
    agent.program("fio")?;
    agent.copy(&ringloom, "bin/ringloom")?;
    pause.finish(PAUSE, &["/bin/busybox", "sleep", "2147483647"])?;
    agent.finish(AGENT, &["/bin/sh"])
}

/// The program `ringloom` that needs no library. Cargo knows what has to be built anew.
fn static_ringloom(place: &Place) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--quiet", "--package", "ringloom", "--target", TARGET]);
    command.arg("--target-dir").arg(place.static_target()).env("RUSTFLAGS", STATIC);
    must_succeed(command.current_dir(&place.workspace))?;
    Ok(place.static_target().join(TARGET).join("debug/ringloom"))
}

/// The files of an image while they are put together.
#[derive(Debug)]
pub(crate) struct Contents {
    root: PathBuf,
    archive: PathBuf,
}

impl Contents {
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
