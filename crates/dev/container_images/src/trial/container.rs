//! Programs of an image, run as a careful runtime would: files that cannot be changed but `/tmp`, no network, the image's user.

use std::path::Path;
use std::process::{Command, Output};

use anyhow::{Context as _, Result};

use crate::archive::Archive;
use crate::run::text;
use crate::store::{Container, Store};

/// Prepares the mounts of a new namespace and becomes the program.
const ENTER: &str = r#"
root=$1 user=$2
shift 2
mount --make-rprivate /
mount --bind "$root" "$root"
mount --options remount,bind,ro "$root"
mount --types proc proc "$root/proc"
mount --bind /dev "$root/dev"
mount --types tmpfs tmpfs "$root/tmp"
exec chroot --userspec="$user" "$root" "$@"
"#;
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// An image, unpacked.
#[derive(Debug)]
pub(super) struct Unpacked<'a> {
    /// Keeps the files.
    _container: Container<'a>,
    root: String,
    user: String,
}

impl<'a> Unpacked<'a> {
    pub(super) fn new(store: &'a Store, archive: &Archive) -> Result<Self> {
        let container = store.container(archive)?;
        let root = text(&container.root()?)?.to_owned();
        let config = archive.config()?;
        let user = config["User"].as_str().filter(|it| !it.is_empty()).unwrap_or("0:0").to_owned();
        Ok(Self { _container: container, root, user })
    }

    /// The user that its programs run as.
    pub(super) fn user(&self) -> &str {
        &self.user
    }

    /// One of its programs.
    pub(super) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("unshare");
        command.args([
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--ipc",
            "--uts",
            "--net",
            "--",
        ]);
        command.args(["sh", "-e", "-c", ENTER, "sh", &self.root, &self.user]).args(words);
        command.env_clear().env("PATH", PATH);
        command
    }

    /// What one of its programs said, however it ended: its output, its errors.
    pub(super) fn said(&self, words: &[&str]) -> Result<(Output, String)> {
        let output = self.command(words).output().context("start unshare")?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let said = format!("{}{}", text(&output.stdout), text(&output.stderr));
        Ok((output, said))
    }

    /// Whether it has this file.
    pub(super) fn has(&self, name: &str) -> bool {
        Path::new(&self.root).join(name).exists()
    }
}
