//! The program QEMU: which version it is and what it can do, asked of itself.
//!
//! Invariants: each question is put to the program once, also by clones.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context as _, Result, ensure};

use crate::programs::{complaint_of, ending_of, find_program, output_of};

const PROGRAM: &str = "qemu-system-x86_64";

/// A QEMU that can run guests.
#[derive(Debug, Clone)]
pub struct QemuProgram {
    path: PathBuf,
    version: String,
    devices: BTreeSet<String>,
    known: Arc<Mutex<Known>>,
}

/// Properties by what was asked: the option and its value.
type Known = BTreeMap<(&'static str, String), BTreeSet<String>>;

impl QemuProgram {
    /// The QEMU at this path, or else the one in `PATH`. Starts it, to hear what it is.
    pub fn find(path: Option<&Path>) -> Result<Self> {
        let path = match path {
            Some(path) => path.to_path_buf(),
            None => find_program(PROGRAM)
                .with_context(|| format!("{PROGRAM} is not installed: guests run under it"))?,
        };
        let text = output_of(&path, &["--version"])?;
        let version = version_in(&text)
            .with_context(|| format!("{} --version says {:?}", path.display(), text.trim()))?;
        let devices = devices_in(&output_of(&path, &["-device", "help"])?);
        ensure!(!devices.is_empty(), "{} lists no devices", path.display());
        Ok(Self { path, version, devices, known: Arc::default() })
    }

    /// Where the program is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its version, such as `10.0.2`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Whether it has this device.
    pub fn has_device(&self, name: &str) -> bool {
        self.devices.contains(name)
    }

    /// Whether this device has this property; a device that it has not got has none.
    pub fn has_property(&self, device: &str, property: &str) -> Result<bool> {
        Ok(self.has_device(device) && self.knows("-device", device, property)?)
    }

    /// Whether this object (such as `iothread`) has this property. An error if there is no such object.
    pub fn has_object_property(&self, object: &str, property: &str) -> Result<bool> {
        self.knows("-object", object, property)
    }

    /// Whether this option of `-chardev socket` exists.
    pub(crate) fn has_socket_option(&self, option: &str) -> Result<bool> {
        self.knows("-chardev", "socket", option)
    }

    /// Whether it was built with io_uring for files; the kernel may forbid it all the same.
    pub fn has_io_uring(&self) -> Result<bool> {
        let node = "driver=file,node-name=probe,filename=/nonexistent/ringloom,aio=io_uring";
        let words = ["-machine", "none", "-nodefaults", "-display", "none", "-blockdev", node];
        // It opens the file after it has looked at the value.
        Ok(complaint_of(&self.path, &words)?.contains("No such file"))
    }

    fn knows(&self, option: &'static str, value: &str, property: &str) -> Result<bool> {
        let key = (option, value.to_owned());
        if let Some(properties) = self.known().get(&key) {
            return Ok(properties.contains(property));
        }
        // For some options QEMU ends with an error after it has helped.
        let (status, text) = ending_of(&self.path, &[option, &format!("{value},help")])?;
        let properties = properties_in(&text);
        let path = self.path.display();
        ensure!(!properties.is_empty(), "{path} {option} {value},help: {status}");
        let found = properties.contains(property);
        self.known().insert(key, properties);
        Ok(found)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        // What it holds is right at any time.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `10.0.2` of `QEMU emulator version 10.0.2 (Debian …)`.
fn version_in(text: &str) -> Option<String> {
    let word = text.split_once("version ")?.1.split_whitespace().next()?;
    let is_number = word.starts_with(|it: char| it.is_ascii_digit());
    is_number.then(|| word.trim_end_matches(',').to_owned())
}

/// The names in lines such as `name "nvme", bus PCI`, and their aliases.
fn devices_in(text: &str) -> BTreeSet<String> {
    let quoted = |line: &str, key: &str| {
        let value = line.split_once(key)?.1;
        Some(value.split('"').next()?.to_owned())
    };
    let lines = text.lines().filter(|line| line.starts_with("name "));
    lines.flat_map(|line| [quoted(line, "name \""), quoted(line, "alias \"")]).flatten().collect()
}

/// The names in lines such as `  drive=<str>`.
fn properties_in(text: &str) -> BTreeSet<String> {
    let lines = text.lines().filter_map(|line| line.trim_start().split_once("=<"));
    lines.map(|(name, _)| name.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read() {
        for (text, expected) in [
            ("QEMU emulator version 10.0.2 (Debian 1:10.0.2+ds)\nCopyright", Some("10.0.2")),
            ("QEMU emulator version 6.2.0", Some("6.2.0")),
            ("emulator version unknown", None),
            ("busybox", None),
        ] {
            assert_eq!(version_in(text).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn devices_and_properties_are_read() {
        let text = "Storage devices:\nname \"nvme\", bus PCI, desc \"x\"\nname \"virtio-scsi-pci\", bus PCI, alias \"virtio-scsi\"\n";
        let names = devices_in(text).into_iter().collect::<Vec<_>>();
        assert_eq!(names, ["nvme", "virtio-scsi", "virtio-scsi-pci"]);
        let text = "nvme options:\n  drive=<str>            - Node name\n  addr=<str>\n";
        let names = properties_in(text).into_iter().collect::<Vec<_>>();
        assert_eq!(names, ["addr", "drive"]);
    }
}
