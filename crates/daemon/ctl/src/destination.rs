//! Where `move-disk` moves a disk to: a file that the daemon makes, a block device, or a disk of an NBD server.
//!
//! Invariants: what is not made here is only written if `--overwrite` says so. A file is past the page cache if the disk is now.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use convert::node_of_uri;
use serde_json::{Value, json};

use crate::arguments::{Format, MoveDiskArgs};
use crate::client::QmpClient;
use crate::host_path::{absolute_text, is_block_device};
use crate::jobs::{create, remove};

/// Where a disk moves to.
pub(crate) struct Destination {
    storage: Storage,
    format: Format,
}

enum Storage {
    /// A file that is not there yet.
    File(String),
    /// A block device of the host.
    Device(String),
    /// A disk of an NBD server, by its URI, and as a node.
    Export(String, Value),
}

impl Destination {
    /// The one that is asked for; nothing is made.
    pub(crate) fn of(arguments: &MoveDiskArgs) -> Result<Self> {
        let MoveDiskArgs { to, format, overwrite, .. } = arguments;
        let storage = match node_of_uri(to)? {
            Some(node) => Storage::Export(to.clone(), node),
            None => on_host(to)?,
        };
        if !overwrite && !matches!(storage, Storage::File(_)) {
            bail!(
                "{to}: the disk would take the place of all that is there: say --overwrite if that may go"
            );
        }
        let format = match (&storage, format) {
            (Storage::Export(..), Some(Format::Qcow2)) => {
                bail!("{to}: only a raw disk goes to an NBD server")
            }
            (_, Some(format)) => *format,
            (Storage::File(path), None) => of_name(path)?,
            (Storage::Device(_) | Storage::Export(..), None) => Format::Raw,
        };
        Ok(Self { storage, format })
    }

    /// What people call it.
    pub(crate) fn name(&self) -> &str {
        match &self.storage {
            Storage::File(name) | Storage::Device(name) | Storage::Export(name, _) => name,
        }
    }

    /// Makes what is not there, for a disk of that size, and a node of that name, past the page cache or not.
    pub(crate) fn make(
        &self,
        client: &mut QmpClient,
        node: &str,
        size: u64,
        is_direct: bool,
    ) -> Result<()> {
        let id = format!("make-{node}");
        let name = self.name();
        if let Storage::File(path) = &self.storage {
            let length = if self.format == Format::Raw { size } else { 0 };
            let file = json!({"driver": "file", "filename": path, "size": length});
            create(client, &id, &file).with_context(|| format!("{path} cannot be made"))?;
        }
        let bytes = self.bytes(is_direct);
        let mut added = match self.format {
            Format::Raw => bytes,
            Format::Qcow2 => {
                let below = format!("{node}-file");
                let mut named = bytes.clone();
                named["node-name"] = below.as_str().into();
                named["ringloom-volatile"] = true.into();
                client.ask("blockdev-add", &named)?;
                let image = json!({"driver": "qcow2", "file": below, "size": size});
                let made = create(client, &id, &image);
                remove(client, &below);
                made.with_context(|| format!("{name}: no image can be made"))?;
                let cache = json!({"direct": is_direct});
                json!({"driver": "qcow2", "file": bytes, "discard": "unmap", "cache": cache})
            }
        };
        added["node-name"] = node.into();
        // Until an export stands on it a daemon that is started again does not look for it.
        added["ringloom-volatile"] = true.into();
        client.ask("blockdev-add", &added).map(drop)
    }

    /// The node of its bytes, without a name.
    fn bytes(&self, is_direct: bool) -> Value {
        let (driver, path) = match &self.storage {
            Storage::File(path) => ("file", path),
            Storage::Device(path) => ("host_device", path),
            Storage::Export(_, node) => {
                let mut node = node.clone();
                node["discard"] = "unmap".into();
                return node;
            }
        };
        let cache = json!({"direct": is_direct});
        json!({"driver": driver, "filename": path, "discard": "unmap", "cache": cache})
    }

    /// What is left after a move that failed, once nothing in the daemon uses it any more, or not yet.
    pub(crate) fn take_away(&self, is_closed: bool) -> String {
        let name = self.name();
        match &self.storage {
            Storage::File(path) if is_closed && fs::remove_file(path).is_ok() => {
                format!("{name} is gone")
            }
            Storage::File(_) => format!("{name} is no disk"),
            Storage::Device(_) | Storage::Export(..) => {
                format!("{name} may have been written in part")
            }
        }
    }
}

fn on_host(to: &str) -> Result<Storage> {
    let path = absolute_text(to)?;
    if is_block_device(&path) {
        return Ok(Storage::Device(path));
    }
    ensure!(fs::symlink_metadata(&path).is_err(), "{path} exists already");
    Ok(Storage::File(path))
}

/// The format of a file that is made, by the end of its name.
fn of_name(path: &str) -> Result<Format> {
    match Path::new(path).extension().and_then(|end| end.to_str()) {
        Some("qcow2") => Ok(Format::Qcow2),
        Some("raw" | "img") => Ok(Format::Raw),
        Some(_) | None => bail!("{path}: say --format raw or --format qcow2"),
    }
}
