//! What a directory of backups has: `ringloom ctl backup --list DIR`.

use std::path::Path;

use anyhow::Result;
use serde_json::json;

use super::directory::{Backup, BackupDirectory};
use crate::table::Answer;

const COLUMNS: &str = "DISK=disk DATE=date KIND=kind SIZE=size USED=used STATE=state";

/// All backups, whether they are whole, and what is not finished.
pub(crate) fn list(directory: &Path) -> Result<Answer> {
    let directory = BackupDirectory::open(directory)?;
    let all = directory.scan()?;
    let mut rows: Vec<_> = all.iter().map(row).collect();
    let is_whole = all.iter().all(|it| it.damage.is_none());
    for (path, name) in directory.parts()? {
        rows.push(json!({
            "disk": name.disk, "date": name.date.to_string(), "kind": null, "size": null,
            "used": null, "file": path, "whole": false,
            "state": "not finished: it is being made, or was cut off",
        }));
    }
    let what = format!("backups in {}", directory.path().display());
    let mut answer = Answer::table(COLUMNS, rows, &what);
    if !is_whole {
        answer.warnings.push("not all of them are whole".to_owned());
    }
    Ok(answer)
}

fn row(backup: &Backup) -> serde_json::Value {
    let state = match (&backup.damage, backup.is_merging) {
        (Some(damage), _) => format!("broken: {damage}"),
        (None, true) => "is merged into the next one (--keep goes on with it)".to_owned(),
        (None, false) if backup.depth == 1 => "whole".to_owned(),
        (None, false) => format!("whole, of {} files", backup.depth),
    };
    let kind = if backup.backing.is_some() { "incremental" } else { "full" };
    json!({
        "disk": backup.name.disk, "date": backup.name.date.to_string(), "kind": kind,
        "size": backup.size, "used": backup.used, "state": state,
        "file": backup.path, "whole": backup.is_whole(), "backing": backup.backing,
        "files": backup.depth,
    })
}
