//! What a backup left that was killed: a job, a node, a file without its name, a bitmap. The next one of the disk to the same
//! place takes it away; whoever holds the lock of the disk there knows that nobody is at it any more.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::json;

use super::copies::end_job;
use super::date::BackupDate;
use super::directory::{BackupDirectory, BackupName};
use super::disk::{Disk, job_id, target_node};
use super::plan::date_of_bitmap;
use crate::client::QmpClient;
use crate::inventory::text;
use crate::jobs::remove;

/// Takes away what is left in a directory of backups of these disks, and in the daemon.
pub(crate) fn take_away(
    client: &mut QmpClient,
    directory: &BackupDirectory,
    names: &[String],
) -> Result<()> {
    let mut left: BTreeSet<String> = BTreeSet::new();
    for (_, name) in directory.parts()? {
        left.insert(name.to_string());
    }
    let nodes = client.list("query-named-block-nodes", &json!({"flat": true}))?.unwrap_or_default();
    // A node may be left whose file is gone.
    let parts: Vec<(&str, String)> = nodes
        .iter()
        .filter_map(|node| {
            Some((text(node, "node-name"), part_name(directory, text(node, "file"))?))
        })
        .collect();
    left.extend(parts.iter().map(|(_, name)| name.clone()));
    for file in left {
        let Some(name) = BackupName::parse(&file) else { continue };
        if !names.contains(&name.disk) {
            continue;
        }
        end_job(client, &job_id(&name.disk, name.date));
        // A node that stands below another one goes with it.
        let nodes = parts.iter().filter(|(_, of)| *of == file);
        nodes.for_each(|(node, _)| remove(client, node));
        let part = directory.part(&name);
        if part.symlink_metadata().is_ok() {
            fs::remove_file(&part).with_context(|| part.display().to_string())?;
        }
    }
    Ok(())
}

/// The backup that is made in a file of that path.
fn part_name(directory: &BackupDirectory, path: &str) -> Option<String> {
    let path = Path::new(path);
    let name = path.file_name()?.to_str()?.strip_prefix('.')?.strip_suffix(".part")?;
    (path.parent() == Some(directory.path())).then(|| name.to_owned())
}

/// Removes the bitmaps of a place that belong to no backup that is there: all but that of this date; and those of exports that were
/// not finished, with their jobs.
pub(crate) fn forget_strays(
    client: &mut QmpClient,
    disk: &mut Disk,
    label: &str,
    newest: Option<BackupDate>,
) -> Result<()> {
    let is_stray = |name: &str| match name.strip_prefix(label) {
        Some(rest) if rest.starts_with('?') => BackupDate::parse(&rest[1..]).is_some(),
        _ => date_of_bitmap(label, name).is_some_and(|date| newest.is_some_and(|it| it != date)),
    };
    let strays: Vec<String> =
        disk.bitmap_names().filter(|name| is_stray(name)).map(str::to_owned).collect();
    for name in &strays {
        let unfinished = name.strip_prefix(label).and_then(|rest| rest.strip_prefix('?'));
        if let Some(date) = unfinished.and_then(BackupDate::parse) {
            end_job(client, &job_id(&disk.name, date));
            remove(client, &target_node(date, 0));
        }
        let bitmap = json!({"node": disk.node, "name": name});
        client.ask("block-dirty-bitmap-remove", &bitmap).with_context(|| {
            format!("{}: bitmap '{name}' of a backup that was not finished", disk.name)
        })?;
    }
    disk.bitmaps.retain(|it| !strays.iter().any(|name| it["name"] == name.as_str()));
    Ok(())
}
