//! Carries the copies of one backup out: targets are made, all begin at one instant, and their files get their names when all of
//! them are whole.
//!
//! Invariants: until its file has its name, a copy can be taken back without a trace, and whoever is killed leaves only what
//! `leftovers` finds. A daemon that is started again does not look for these nodes, which its state file leaves out. The bitmap that says what is to be copied stays as it is until then.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Error, Result, bail, ensure};
use serde_json::{Value, json};

use super::directory::{BackupDirectory, finish_image};
use super::disk::{CopyTarget, DiskCopy};
use super::fault_point::{BackupStep, reached};
use super::plan::bitmap_name;
use super::quiet::QuietGuest;
use crate::client::QmpClient;
use crate::inventory::text;
use crate::jobs::{LOOK, create, progress, remove};
use crate::progress::{ProgressLine, now};

/// How often a job is looked at that was cancelled: 25 seconds.
const LOOKS_MAX: usize = 100;

/// What copies are told.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CopyOrders<'a> {
    /// Where files go; nothing if they go to an export.
    pub(crate) directory: Option<&'a BackupDirectory>,
    pub(crate) before: Option<&'a str>,
    pub(crate) after: Option<&'a str>,
    pub(crate) speed: u64,
    pub(crate) interrupted: &'a AtomicBool,
}

/// What there is to say of copies that are whole.
#[derive(Debug, Default)]
pub(crate) struct CopyReport {
    pub(crate) took: Duration,
    /// How long guests held still, if they did.
    pub(crate) quiet: Option<Duration>,
    /// What has to be looked at all the same.
    pub(crate) warnings: Vec<String>,
}

/// Carries them out, all or none. What was published before an error stays.
pub(crate) fn carry_out(
    client: &mut QmpClient,
    copies: &mut [DiskCopy],
    orders: &CopyOrders<'_>,
) -> Result<CopyReport> {
    let result = work(client, copies, orders);
    if result.is_err() {
        copies.iter().filter(|copy| !copy.is_finished).for_each(|copy| undo(client, copy, orders));
    }
    result
}

fn work(
    client: &mut QmpClient,
    copies: &mut [DiskCopy],
    orders: &CopyOrders<'_>,
) -> Result<CopyReport> {
    for copy in copies.iter() {
        check(orders)?;
        make_target(client, copy, orders).with_context(|| copy.disk.name.clone())?;
    }
    reached(BackupStep::Made);
    let began = now();
    let mut report = begin(client, copies, orders)?;
    copies.iter_mut().for_each(|copy| copy.is_begun = true);
    reached(BackupStep::Begun);
    watch(client, copies, orders)?;
    reached(BackupStep::Copied);
    for copy in copies.iter() {
        close(client, copy, orders).with_context(|| copy.disk.name.clone())?;
    }
    for copy in copies.iter_mut() {
        give_name(copy, orders).with_context(|| copy.disk.name.clone())?;
        copy.is_finished = true;
    }
    report.took = now().duration_since(began);
    for copy in copies.iter() {
        report.warnings.extend(forget_old(client, copy).err().map(|error| {
            format!(
                "{}: the bitmap of the backup before stays until the next one: {error:#}",
                copy.disk.name
            )
        }));
    }
    reached(BackupStep::Forgotten);
    Ok(report)
}

/// Goes on unless the user has had enough.
fn check(orders: &CopyOrders<'_>) -> Result<()> {
    ensure!(!orders.interrupted.load(Ordering::Relaxed), "interrupted");
    Ok(())
}

/// Opens an image in a file as a node. What it does not have itself is neither read nor taken for zeroes.
pub(crate) fn open_image(
    client: &mut QmpClient,
    node: &str,
    path: &Path,
    backing_bytes: Option<u64>,
) -> Result<()> {
    let below = backing_bytes.map(|bytes| json!({"driver": "null-co", "size": bytes}));
    let image = json!({
        "driver": "qcow2", "node-name": node, "discard": "unmap", "backing": below,
        "ringloom-volatile": true,
        "file": {"driver": "file", "filename": path, "discard": "unmap"},
    });
    client.ask("blockdev-add", &image).map(drop)
}

fn make_target(client: &mut QmpClient, copy: &DiskCopy, orders: &CopyOrders<'_>) -> Result<()> {
    let node = &copy.target;
    let (name, backing) = match &copy.to {
        CopyTarget::Export(export) => {
            let mut export = export.clone();
            export["node-name"] = node.as_str().into();
            export["ringloom-volatile"] = true.into();
            return client.ask("blockdev-add", &export).map(drop);
        }
        CopyTarget::File { name, backing } => (name, backing),
    };
    let directory = orders.directory.context("a file needs a directory")?;
    let (path, size) = (directory.part(name), copy.disk.size);
    let (below, id) = (format!("{node}-f"), format!("make-{node}"));
    let file = json!({"driver": "file", "filename": path, "size": 0});
    create(client, &id, &file).with_context(|| format!("{} cannot be made", path.display()))?;
    let file = json!({
        "driver": "file", "filename": path, "node-name": below, "discard": "unmap",
        "ringloom-volatile": true,
    });
    client.ask("blockdev-add", &file)?;
    let mut image = json!({"driver": "qcow2", "file": below, "size": size});
    if let Some(backing) = backing {
        image["backing-file"] = backing.as_str().into();
        image["backing-fmt"] = "qcow2".into();
    }
    let made = create(client, &id, &image);
    remove(client, &below);
    made.with_context(|| format!("{}: no image can be made", path.display()))?;
    open_image(client, node, &path, backing.as_ref().map(|_| size))
}

/// Has all begin at one instant, at which guests hold still if they were told to.
fn begin(
    client: &mut QmpClient,
    copies: &[DiskCopy],
    orders: &CopyOrders<'_>,
) -> Result<CopyReport> {
    let actions: Vec<Value> = copies.iter().flat_map(|copy| copy.actions(orders.speed)).collect();
    let holds_still = orders.before.is_some() || orders.after.is_some();
    check(orders)?;
    let guest = match holds_still {
        true => Some(QuietGuest::begin(orders.before, orders.after)?),
        false => None,
    };
    let since = now();
    let began =
        check(orders).and_then(|()| client.ask("transaction", &json!({"actions": actions})));
    let quiet = guest.is_some().then(|| now().duration_since(since));
    let ended: Result<()> = guest.map_or(Ok(()), QuietGuest::end);
    match (began, ended) {
        (Ok(_), Ok(())) => Ok(CopyReport { quiet, ..CopyReport::default() }),
        (Ok(_), Err(error)) => {
            let warnings = vec![format!("{error:#}")];
            Ok(CopyReport { quiet, warnings, ..CopyReport::default() })
        }
        (Err(error), Ok(())) => Err(error),
        (Err(error), Err(also)) => Err(Error::msg(format!("{also:#}; {error:#}"))),
    }
}

/// Looks at the jobs until all are over; fails if one has, or the user has had enough.
fn watch(client: &mut QmpClient, copies: &mut [DiskCopy], orders: &CopyOrders<'_>) -> Result<()> {
    let names: Vec<&str> = copies.iter().map(|copy| copy.disk.name.as_str()).collect();
    let mut line = ProgressLine::new(format!("backup of {}", names.join(", ")));
    let result = loop {
        let sum = match check(orders).and_then(|()| look(client, copies)) {
            Ok(None) => break Ok(()),
            Ok(Some(sum)) => sum,
            Err(error) => break Err(error),
        };
        line.show(sum);
        if let Err(error) = client.wait_event(LOOK) {
            break Err(error);
        }
    };
    line.end();
    result
}

/// How far the jobs are, or nothing if all are over.
fn look(client: &mut QmpClient, copies: &mut [DiskCopy]) -> Result<Option<(u64, u64)>> {
    let jobs = client.list("query-jobs", &json!({}))?.unwrap_or_default();
    let (mut sum, mut is_over) = ((0, 0), true);
    for copy in copies {
        let (id, disk) = (copy.job(), &copy.disk.name);
        let Some(job) = jobs.iter().find(|job| text(job, "id") == id) else {
            bail!("{disk}: somebody has ended job {id}")
        };
        if let Some(error) = job["error"].as_str() {
            bail!("{disk}: {error}");
        }
        let (current, total) = progress(job);
        copy.bytes = total;
        sum = (sum.0 + current, sum.1 + total);
        is_over &= job["status"] == "concluded";
    }
    Ok((!is_over).then_some(sum))
}

/// Closes a target that is whole, and has it durable.
fn close(client: &mut QmpClient, copy: &DiskCopy, orders: &CopyOrders<'_>) -> Result<()> {
    client.ask("job-dismiss", &json!({"id": copy.job()}))?;
    client.ask("blockdev-del", &json!({"node-name": copy.target}))?;
    reached(BackupStep::Closed);
    let CopyTarget::File { name, backing } = &copy.to else { return Ok(()) };
    let directory = orders.directory.context("a file needs a directory")?;
    let path = directory.join(&name.to_string());
    ensure!(path.symlink_metadata().is_err(), "{} is there already", path.display());
    finish_image(&directory.part(name), copy.disk.size, backing.as_deref())
}

/// Gives a file that is closed its name, durably.
fn give_name(copy: &DiskCopy, orders: &CopyOrders<'_>) -> Result<()> {
    let CopyTarget::File { name, .. } = &copy.to else { return Ok(()) };
    let directory = orders.directory.context("a file needs a directory")?;
    let (part, path) = (directory.part(name), directory.join(&name.to_string()));
    let named = fs::rename(&part, &path);
    named.with_context(|| format!("{}: give it its name", path.display()))?;
    reached(BackupStep::Named);
    directory.sync()
}

/// Removes the bitmaps of backups before, which nobody needs any more. That of an export gets its name.
fn forget_old(client: &mut QmpClient, copy: &DiskCopy) -> Result<()> {
    let node = &copy.disk.node;
    let action = |verb: &str, data: Value| json!({"type": format!("block-dirty-bitmap-{verb}"), "data": data});
    let mut actions = Vec::new();
    let new = copy.new_bitmap();
    if let CopyTarget::Export(_) = copy.to {
        let name = bitmap_name(&copy.label, copy.date);
        let persistent = copy.disk.keeps_bitmaps;
        actions.push(action("add", json!({"node": node, "name": name, "persistent": persistent})));
        actions.push(action("merge", json!({"node": node, "target": name, "bitmaps": [new]})));
        actions.push(action("remove", json!({"node": node, "name": new})));
    }
    actions.extend(copy.forget_afterwards());
    if actions.is_empty() {
        return Ok(());
    }
    client.ask("transaction", &json!({"actions": actions})).map(drop)
}

/// Takes back what was begun. What cannot be taken back now is found by the next backup.
fn undo(client: &mut QmpClient, copy: &DiskCopy, orders: &CopyOrders<'_>) {
    end_job(client, &copy.job());
    remove(client, &copy.target);
    remove(client, &format!("{}-f", copy.target));
    if copy.is_begun {
        let bitmap = json!({"node": copy.disk.node, "name": copy.new_bitmap()});
        let _may_be_gone = client.ask("block-dirty-bitmap-remove", &bitmap);
    }
    if let (CopyTarget::File { name, .. }, Some(directory)) = (&copy.to, orders.directory) {
        let _may_be_gone = fs::remove_file(directory.part(name));
    }
}

/// Has a job end without its result, and be forgotten; waits for that.
pub(crate) fn end_job(client: &mut QmpClient, id: &str) {
    let argument = json!({"id": id});
    let _may_be_over = client.ask("job-cancel", &argument);
    for _ in 0..LOOKS_MAX {
        let Ok(Some(jobs)) = client.list("query-jobs", &json!({})) else { return };
        match jobs.iter().find(|job| text(job, "id") == id) {
            None => return,
            Some(job) if job["status"] == "concluded" => {
                let _may_be_gone = client.ask("job-dismiss", &argument);
                return;
            }
            Some(_) => {}
        }
        if client.wait_event(LOOK).is_err() {
            return;
        }
    }
}
