//! The disks of one backup: what the daemon says of each, and how it is copied.

use std::collections::BTreeSet;

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::{Value, json};

use super::date::BackupDate;
use super::directory::{BackupName, is_disk_name};
use super::plan::{Choice, DiskFacts, bitmap_name};
use crate::client::QmpClient;
use crate::inventory::{Inventory, prefixed, text};

/// The longest name of a bitmap.
const BITMAP_NAME_MAX: usize = 1023;

/// A disk that is to be backed up.
#[derive(Debug)]
pub(crate) struct Disk {
    /// What files are named after.
    pub(crate) name: String,
    pub(crate) node: String,
    pub(crate) size: u64,
    pub(crate) keeps_bitmaps: bool,
    pub(crate) bitmaps: Vec<Value>,
}

impl Disk {
    /// What is to be known to choose how it is copied.
    pub(crate) fn facts<'a>(&'a self, label: &'a str) -> DiskFacts<'a> {
        let Self { node, size, keeps_bitmaps, bitmaps, .. } = self;
        DiskFacts { node, size: *size, keeps_bitmaps: *keeps_bitmaps, bitmaps, label }
    }

    /// The date of its newest bitmap of that label, also of one that was not finished.
    pub(crate) fn last_date(&self, label: &str) -> Option<BackupDate> {
        let rest = self.bitmap_names().filter_map(|name| name.strip_prefix(label));
        rest.filter_map(|rest| BackupDate::parse(rest.strip_prefix([':', '?'])?)).max()
    }

    /// The names of its bitmaps.
    pub(crate) fn bitmap_names(&self) -> impl Iterator<Item = &str> {
        self.bitmaps.iter().filter_map(|it| it["name"].as_str())
    }
}

/// Where a disk is copied to.
#[derive(Debug)]
pub(crate) enum CopyTarget {
    /// A new file, on that one.
    File { name: BackupName, backing: Option<String> },
    /// A node of an NBD server.
    Export(Value),
}

/// One disk, and how it is copied.
#[derive(Debug)]
pub(crate) struct DiskCopy {
    pub(crate) disk: Disk,
    pub(crate) choice: Choice,
    pub(crate) to: CopyTarget,
    /// The node that it is copied to.
    pub(crate) target: String,
    pub(crate) date: BackupDate,
    pub(crate) label: String,
    /// It is finished: nothing of it is taken back.
    pub(crate) is_finished: bool,
    /// What it copies, once it has begun.
    pub(crate) bytes: u64,
}

impl DiskCopy {
    /// The id of its job.
    pub(crate) fn job(&self) -> String {
        job_id(&self.disk.name, self.date)
    }

    /// The bitmap that begins with it. That of an export has another name until the copy is whole.
    pub(crate) fn new_bitmap(&self) -> String {
        match self.to {
            CopyTarget::File { .. } => bitmap_name(&self.label, self.date),
            CopyTarget::Export(_) => format!("{}?{}", self.label, self.date),
        }
    }

    /// Has its bitmap and its job begin at one instant.
    pub(crate) fn actions(&self, speed: u64) -> [Value; 2] {
        let node = &self.disk.node;
        let bitmap = json!({
            "node": node, "name": self.new_bitmap(), "persistent": self.disk.keeps_bitmaps,
        });
        let mut job = json!({
            "job-id": self.job(), "device": node, "target": self.target, "sync": "full",
            "speed": speed, "auto-dismiss": false, "on-cbw-error": "break-snapshot",
        });
        if let Choice::Incremental { bitmap, .. } = &self.choice {
            job["sync"] = "bitmap".into();
            job["bitmap"] = bitmap.as_str().into();
            job["bitmap-mode"] = "never".into();
        }
        [
            json!({"type": "block-dirty-bitmap-add", "data": bitmap}),
            json!({"type": "blockdev-backup", "data": job}),
        ]
    }
}

/// The id of the job of a backup.
pub(crate) fn job_id(disk: &str, date: BackupDate) -> String {
    format!("backup-{disk}-{date}")
}

/// The node that a backup is copied to.
pub(crate) fn target_node(date: BackupDate, number: usize) -> String {
    format!("backup-{date}-{number}")
}

/// The names by which disks were asked for, which files can have.
pub(crate) fn names(targets: &[String]) -> Result<Vec<String>> {
    let mut seen = BTreeSet::new();
    let name = |target: &String| {
        let (_, name) = prefixed(target);
        ensure!(is_disk_name(name), "{name}: no file can be named after it");
        ensure!(seen.insert(name.to_owned()), "{name}: is named twice");
        Ok(name.to_owned())
    };
    targets.iter().map(name).collect()
}

/// Checks that bitmaps can be named after a place.
pub(crate) fn check_label(label: &str) -> Result<()> {
    let longest = label.len() + "?YYYYMMDDTHHMMSSZ".len();
    ensure!(
        longest <= BITMAP_NAME_MAX && !label.is_empty(),
        "'{label}': no bitmap can be named so; say --name NAME"
    );
    Ok(())
}

/// What the daemon has of these, in the same order.
pub(crate) fn look(client: &mut QmpClient, targets: &[String]) -> Result<Vec<Disk>> {
    let inventory = Inventory::read(client)?;
    let nodes = client.list("query-named-block-nodes", &json!({"flat": true}))?;
    let nodes = nodes.context("the daemon has no query-named-block-nodes")?;
    let mut seen = BTreeSet::new();
    let mut all = Vec::new();
    for (target, name) in targets.iter().zip(names(targets)?) {
        let node = inventory.target(target)?;
        ensure!(seen.insert(node.clone()), "{target}: its node {node} is named twice");
        let found = nodes.iter().find(|it| text(it, "node-name") == node);
        let found = found.ok_or_else(|| anyhow!("node {node} is gone"))?;
        let size = found["image"]["virtual-size"].as_u64();
        let compat = &found["image"]["format-specific"]["data"]["compat"];
        all.push(Disk {
            size: size.with_context(|| format!("node {node}: its size is not known"))?,
            keeps_bitmaps: found["drv"] == "qcow2" && found["ro"] != true && *compat != "0.10",
            bitmaps: found["dirty-bitmaps"].as_array().cloned().unwrap_or_default(),
            name,
            node,
        });
    }
    Ok(all)
}
