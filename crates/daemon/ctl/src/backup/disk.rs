//! The disks of one backup: what the daemon says of each, and how it is copied.

use std::collections::BTreeSet;

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::{Value, json};

use super::date::BackupDate;
use super::directory::{BackupName, is_disk_name};
use super::plan::{Choice, DiskFacts, bitmap_name, date_of_bitmap};
use crate::client::QmpClient;
use crate::inventory::{Inventory, prefixed, text};
use crate::usage::wrong;

/// For how long a guest's change waits for its copy, in seconds: then the backup fails.
const CBW_TIMEOUT_S: u64 = 30;

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
    /// It has its job, and its bitmap.
    pub(crate) is_begun: bool,
    /// It is finished: nothing of it is taken back.
    pub(crate) is_finished: bool,
    /// What it copies, once it has begun.
    pub(crate) bytes: u64,
}

impl DiskCopy {
    /// The id of its job.
    pub(crate) fn job(&self) -> String {
        job_id(&self.disk.name, self.date, std::process::id())
    }

    /// The bitmaps of backups before. An export that gets a full one holds none of them any more once that begins.
    fn old_bitmaps(&self) -> impl Iterator<Item = &str> {
        self.disk.bitmap_names().filter(|name| date_of_bitmap(&self.label, name).is_some())
    }

    /// Whether they go when it begins, and not when it is whole.
    fn forgets_first(&self) -> bool {
        let is_full = matches!(self.choice, Choice::Full { .. });
        is_full && matches!(self.to, CopyTarget::Export(_))
    }

    fn forget_old(&self) -> Vec<Value> {
        let node = &self.disk.node;
        let action = |name| json!({"type": "block-dirty-bitmap-remove", "data": {"node": node, "name": name}});
        self.old_bitmaps().map(action).collect()
    }

    /// What is to be forgotten when it is whole.
    pub(crate) fn forget_afterwards(&self) -> Vec<Value> {
        if self.forgets_first() { Vec::new() } else { self.forget_old() }
    }

    /// The bitmap that begins with it. That of an export has another name until the copy is whole.
    pub(crate) fn new_bitmap(&self) -> String {
        match self.to {
            CopyTarget::File { .. } => bitmap_name(&self.label, self.date),
            CopyTarget::Export(_) => format!("{}?{}", self.label, self.date),
        }
    }

    /// Has its bitmap and its job begin at one instant.
    pub(crate) fn actions(&self, speed: u64) -> Vec<Value> {
        let node = &self.disk.node;
        let bitmap = json!({
            "node": node, "name": self.new_bitmap(), "persistent": self.disk.keeps_bitmaps,
        });
        let mut job = json!({
            "job-id": self.job(), "device": node, "target": self.target, "sync": "full",
            "speed": speed, "auto-dismiss": false, "on-cbw-error": "break-snapshot",
            "cbw-timeout": CBW_TIMEOUT_S,
        });
        if let Choice::Incremental { bitmap, .. } = &self.choice {
            job["sync"] = "bitmap".into();
            job["bitmap"] = bitmap.as_str().into();
            job["bitmap-mode"] = "never".into();
        }
        let mut actions = if self.forgets_first() { self.forget_old() } else { Vec::new() };
        actions.push(json!({"type": "block-dirty-bitmap-add", "data": bitmap}));
        actions.push(json!({"type": "blockdev-backup", "data": job}));
        actions
    }
}

/// The id of the job of a backup that a process makes.
pub(crate) fn job_id(disk: &str, date: BackupDate, process: u32) -> String {
    format!("backup-{disk}-{date}-{process}")
}

/// The node that a backup is copied to: another process may make one in the same second. Names of nodes have at most 31 bytes.
pub(crate) fn target_node(date: BackupDate, number: usize) -> String {
    format!("backup-{:x}-{:x}-{number}", std::process::id(), date.seconds())
}

/// The process that has made the node of a backup of that date.
pub(crate) fn process_of_target(node: &str, date: BackupDate) -> Option<u32> {
    let (process, rest) = node.strip_prefix("backup-")?.split_once('-')?;
    let (seconds, _) = rest.split_once('-')?;
    let is_of_date = u64::from_str_radix(seconds, 16) == Ok(date.seconds());
    u32::from_str_radix(process, 16).ok().filter(|_| is_of_date)
}

/// The names by which disks were asked for, which files can have.
pub(crate) fn names(targets: &[String]) -> Result<Vec<String>> {
    let mut seen = BTreeSet::new();
    let name = |target: &String| {
        let (_, name) = prefixed(target);
        ensure!(is_disk_name(name), wrong(format!("{name}: no file can be named after it")));
        ensure!(seen.insert(name.to_owned()), wrong(format!("{name}: is named twice")));
        Ok(name.to_owned())
    };
    targets.iter().map(name).collect()
}

/// Checks that bitmaps can be named after a place.
pub(crate) fn check_label(label: &str) -> Result<()> {
    let longest = label.len() + "?YYYYMMDDTHHMMSSZ".len();
    ensure!(
        longest <= BITMAP_NAME_MAX && !label.is_empty(),
        wrong(format!("'{label}': no bitmap can be named so; say --name NAME"))
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
