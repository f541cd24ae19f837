//! What a backup left that was killed: a job, a node, a file without its name, a bitmap. The next one of the disk to the same
//! place takes it away; whoever holds the lock of the disk there knows that nobody is at it any more.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::copies::end_job;
use super::date::BackupDate;
use super::directory::{BackupDirectory, BackupName};
use super::disk::{Disk, job_id, process_of_target};
use super::plan::date_of_bitmap;
use super::retire::{is_merge_node, merge_id};
use crate::client::QmpClient;
use crate::inventory::text;
use crate::jobs::remove;

/// Takes away what is left in a directory of backups of these disks, and in the daemon; gives which backups were begun and never
/// whole.
pub(crate) fn take_away(
    client: &mut QmpClient,
    directory: &BackupDirectory,
    names: &[String],
) -> Result<Vec<BackupName>> {
    let mut left: BTreeSet<String> = BTreeSet::new();
    for (_, name) in directory.parts()? {
        left.insert(name.to_string());
    }
    let nodes = client.list("query-named-block-nodes", &json!({"flat": true}))?.unwrap_or_default();
    take_away_merges(client, directory, names, &nodes);
    // A node may be left whose file is gone.
    let parts: Vec<(&str, String)> = nodes
        .iter()
        .filter_map(|node| {
            Some((text(node, "node-name"), part_name(directory, text(node, "file"))?))
        })
        .collect();
    left.extend(parts.iter().map(|(_, name)| name.clone()));
    let mut taken = Vec::new();
    for file in left {
        let Some(name) = BackupName::parse(&file) else { continue };
        if !names.contains(&name.disk) {
            continue;
        }
        let nodes: Vec<&str> =
            parts.iter().filter(|(_, of)| *of == file).map(|(node, _)| *node).collect();
        for process in nodes.iter().filter_map(|node| process_of_target(node, name.date)) {
            end_job(client, &job_id(&name.disk, name.date, process));
        }
        // A node that stands below another one goes with it.
        nodes.iter().for_each(|node| remove(client, node));
        let part = directory.part(&name);
        if part.symlink_metadata().is_ok() {
            fs::remove_file(&part).with_context(|| part.display().to_string())?;
        }
        taken.push(name);
    }
    Ok(taken)
}

/// Ends merges of which nobody waits for the end, and closes their images.
fn take_away_merges(
    client: &mut QmpClient,
    directory: &BackupDirectory,
    names: &[String],
    nodes: &[Value],
) {
    let merged = |node: &Value| {
        let path = Path::new(text(node, "file"));
        let name = BackupName::parse(path.file_name()?.to_str()?)?;
        let is_here = path.parent() == Some(directory.path()) && names.contains(&name.disk);
        (is_here && is_merge_node(text(node, "node-name"))).then_some(name)
    };
    let found: Vec<(&str, BackupName)> =
        nodes.iter().filter_map(|node| Some((text(node, "node-name"), merged(node)?))).collect();
    // It is called after what is written, which is one of them.
    found.iter().for_each(|(_, name)| end_job(client, &merge_id(name)));
    found.iter().for_each(|(node, _)| remove(client, node));
}

/// The backup that is made in a file of that path.
fn part_name(directory: &BackupDirectory, path: &str) -> Option<String> {
    let path = Path::new(path);
    let name = path.file_name()?.to_str()?.strip_prefix('.')?.strip_suffix(".part")?;
    (path.parent() == Some(directory.path())).then(|| name.to_owned())
}

/// Removes the bitmaps of a place that belong to no backup that is there: all but that of the newest date, if there is one, and those
/// of backups that were taken away; and those of exports that were not finished, with their jobs.
pub(crate) fn forget_strays(
    client: &mut QmpClient,
    disk: &mut Disk,
    label: &str,
    (newest, taken): (Option<BackupDate>, &[BackupName]),
) -> Result<()> {
    let is_taken =
        |date: BackupDate| taken.iter().any(|it| it.disk == disk.name && it.date == date);
    let is_left = |date| newest.map_or_else(|| is_taken(date), |newest| newest != date);
    let is_stray = |name: &str| match name.strip_prefix(label) {
        Some(rest) if rest.starts_with('?') => BackupDate::parse(&rest[1..]).is_some(),
        _ => date_of_bitmap(label, name).is_some_and(is_left),
    };
    let strays: Vec<String> =
        disk.bitmap_names().filter(|name| is_stray(name)).map(str::to_owned).collect();
    for name in &strays {
        let unfinished = name.strip_prefix(label).and_then(|rest| rest.strip_prefix('?'));
        if let Some(date) = unfinished.and_then(BackupDate::parse) {
            take_away_export(client, &disk.name, date)?;
        }
        let bitmap = json!({"node": disk.node, "name": name});
        client.ask("block-dirty-bitmap-remove", &bitmap).with_context(|| {
            format!("{}: bitmap '{name}' of a backup that was not finished", disk.name)
        })?;
    }
    disk.bitmaps.retain(|it| !strays.iter().any(|name| it["name"] == name.as_str()));
    Ok(())
}

/// Ends what copies to an export, whoever has begun it, and closes that.
fn take_away_export(client: &mut QmpClient, disk: &str, date: BackupDate) -> Result<()> {
    let nodes = client.list("query-named-block-nodes", &json!({"flat": true}))?.unwrap_or_default();
    for node in nodes.iter().map(|node| text(node, "node-name")) {
        if let Some(process) = process_of_target(node, date) {
            end_job(client, &job_id(disk, date, process));
            remove(client, node);
        }
    }
    Ok(())
}
