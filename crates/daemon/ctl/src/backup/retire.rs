//! Older backups go: `--keep N`.
//!
//! A chain is never broken for that. If all of a chain goes, its files are removed, the newest first. If some of it stays, the
//! oldest image gets what the next one has, and then takes its name: that backup, and all that stand on it, have the same bytes
//! before, in between and afterwards, because the next image covers what is written into the oldest one. Only the oldest
//! backup itself is spoilt, so it is marked first. A merge that was cut off is done again.
//!
//! Deciding ([`plan`]) is apart from doing. A chain with a broken file is left alone, and what of it is whole counts.

use std::fs::{self, File};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Error, Result, bail};
use serde_json::json;

use super::copies::{end_job, open_image};
use super::directory::{Backup, BackupDirectory, BackupName, finish_image};
use super::fault_point::{BackupStep, reached};
use crate::client::QmpClient;
use crate::inventory::text;
use crate::jobs::{LOOK, remove};

/// One step towards fewer backups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RetireStep {
    /// Nothing stands on it.
    Remove(BackupName),
    /// The second one stands on the first one, and is kept.
    Merge(BackupName, BackupName),
}

/// What is to be done, in order, with the backups of one disk, and which files are left alone.
pub(crate) fn plan(all: &[&Backup], keep: usize) -> (Vec<RetireStep>, Vec<String>) {
    let whole = all.iter().filter(|it| it.is_whole()).count();
    let mut surplus = whole.saturating_sub(keep);
    let (mut steps, mut left_alone) = (Vec::new(), Vec::new());
    for chain in chains(all) {
        let is_merging = chain[0].is_merging;
        if surplus == 0 && !is_merging {
            break;
        }
        if chain.iter().any(|it| it.damage.is_some()) || !is_one_line(&chain) {
            left_alone.push(chain[0].file_name());
            surplus = surplus.saturating_sub(chain.iter().filter(|it| it.is_whole()).count());
            continue;
        }
        let points = chain.len() - usize::from(is_merging);
        let going = surplus.min(points);
        surplus -= going;
        if going == points {
            steps.extend(chain.iter().rev().map(|it| RetireStep::Remove(it.name.clone())));
            continue;
        }
        let merges = chain.windows(2).take(going + usize::from(is_merging));
        steps.extend(merges.map(|two| RetireStep::Merge(two[0].name.clone(), two[1].name.clone())));
    }
    (steps, left_alone)
}

/// Those that stand on each other, from the oldest chain to the newest.
fn chains<'a>(all: &[&'a Backup]) -> Vec<Vec<&'a Backup>> {
    let mut chains: Vec<Vec<&Backup>> = Vec::new();
    for &backup in all {
        let below = backup.backing.as_deref();
        let chain = chains.iter_mut().find(|chain| {
            below.is_some_and(|below| chain.iter().any(|it| it.file_name() == below))
        });
        match chain {
            Some(chain) => chain.push(backup),
            None => chains.push(vec![backup]),
        }
    }
    chains
}

/// Whether each stands on the one before it.
fn is_one_line(chain: &[&Backup]) -> bool {
    let stands = |two: &[&Backup]| two[1].backing.as_deref() == Some(&*two[0].file_name());
    chain[0].backing.is_none() && chain.windows(2).all(stands)
}

/// How older backups go.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RetireOrders<'a> {
    /// How many stay.
    pub(crate) keep: usize,
    pub(crate) speed: u64,
    pub(crate) interrupted: &'a AtomicBool,
}

/// Has older backups of a disk go; says how many files are gone, and what was left alone.
pub(crate) fn retire(
    client: &mut QmpClient,
    directory: &BackupDirectory,
    disk: &str,
    orders: &RetireOrders<'_>,
) -> Result<(usize, Vec<String>)> {
    directory.forget_marks()?;
    let all = directory.scan_of(|it| it == disk)?;
    let of_disk: Vec<&Backup> = all.iter().collect();
    let (steps, left_alone) = plan(&of_disk, orders.keep);
    for step in &steps {
        match step {
            RetireStep::Remove(name) => {
                let path = directory.join(&name.to_string());
                fs::remove_file(&path).with_context(|| path.display().to_string())?;
                directory.sync()?;
                unmark(directory, name)?;
            }
            RetireStep::Merge(base, next) => {
                let size = of_disk.iter().find(|it| it.name == *base).and_then(|it| it.size);
                let size = size.with_context(|| format!("{base}: its size is not known"))?;
                merge(client, directory, (base, next), (size, orders))
                    .with_context(|| format!("{base}: merge it into {next}"))?;
            }
        }
    }
    Ok((steps.len(), left_alone))
}

fn unmark(directory: &BackupDirectory, name: &BackupName) -> Result<()> {
    let mark = directory.merging(name);
    if mark.symlink_metadata().is_ok() {
        fs::remove_file(&mark).with_context(|| mark.display().to_string())?;
        directory.sync()?;
    }
    Ok(())
}

/// The id of the job that merges the next backup into that one.
pub(crate) fn merge_id(base: &BackupName) -> String {
    format!("merge-{}-{}", base.disk, base.date)
}

/// A node of a merge.
fn merge_node(of: &str) -> String {
    format!("merge-{}-{of}", std::process::id())
}

/// Whether a node is one of a merge, whoever has begun it.
pub(crate) fn is_merge_node(name: &str) -> bool {
    let parts = name.strip_prefix("merge-").and_then(|it| it.split_once('-'));
    parts.is_some_and(|(process, of)| process.parse::<u32>().is_ok() && matches!(of, "from" | "to"))
}

/// Gives the oldest image what the next one has, and its name.
fn merge(
    client: &mut QmpClient,
    directory: &BackupDirectory,
    (base, next): (&BackupName, &BackupName),
    (size, orders): (u64, &RetireOrders<'_>),
) -> Result<()> {
    let (base_path, next_path) =
        (directory.join(&base.to_string()), directory.join(&next.to_string()));
    let mark = directory.merging(base);
    let marked = File::create(&mark).and_then(|file| file.sync_all());
    marked.with_context(|| mark.display().to_string())?;
    directory.sync()?;
    reached(BackupStep::Marked);
    let (from, to) = (merge_node("from"), merge_node("to"));
    let result = open_image(client, &to, &base_path, None)
        .and_then(|()| open_image(client, &from, &next_path, Some(size)))
        .and_then(|()| copy(client, (&from, &to), &merge_id(base), orders));
    if result.is_err() {
        [&from, &to].iter().for_each(|node| remove(client, node));
    }
    result?;
    for node in [&from, &to] {
        let closed = client.ask("blockdev-del", &json!({"node-name": node}));
        closed.with_context(|| format!("close node {node}"))?;
    }
    finish_image(&base_path, size, None)?;
    reached(BackupStep::Merged);
    fs::rename(&base_path, &next_path).with_context(|| next_path.display().to_string())?;
    directory.sync()?;
    reached(BackupStep::Renamed);
    unmark(directory, base)
}

/// Copies what an image has itself.
fn copy(
    client: &mut QmpClient,
    (from, to): (&str, &str),
    id: &str,
    orders: &RetireOrders<'_>,
) -> Result<()> {
    // It may be left of one that was killed.
    end_job(client, id);
    let job = json!({
        "job-id": id, "device": from, "target": to, "sync": "top", "speed": orders.speed,
        "auto-dismiss": false,
    });
    client.ask("blockdev-backup", &job)?;
    reached(BackupStep::Merging);
    let ended = loop {
        if orders.interrupted.load(Ordering::Relaxed) {
            end_job(client, id);
            bail!("interrupted; the next one with --keep goes on with it");
        }
        let jobs = client.list("query-jobs", &json!({}))?.unwrap_or_default();
        let Some(job) = jobs.iter().find(|it| text(it, "id") == id) else {
            bail!("somebody has ended job {id}")
        };
        match job["error"].as_str() {
            Some(error) => break Err(error.to_owned()),
            None if job["status"] == "concluded" => break Ok(()),
            None => client.wait_event(LOOK)?,
        }
    };
    client.ask("job-dismiss", &json!({"id": id}))?;
    ended.map_err(Error::msg)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Backups of consecutive days: each stands on the one before, but for those at which a chain begins. `!` is broken, `*` is
    /// being merged.
    fn backups(all: &str) -> Vec<Backup> {
        let mut found: Vec<Backup> = Vec::new();
        for (word, day) in all.split_whitespace().zip(1..) {
            let (kind, is_full) =
                if word.starts_with('f') { ("full", true) } else { ("inc", false) };
            let name =
                BackupName::parse(&format!("a-{kind}-202601{day:02}T000000Z.qcow2")).unwrap();
            found.push(Backup {
                path: name.to_string().into(),
                backing: found.last().filter(|_| !is_full).map(Backup::file_name),
                name,
                size: Some(1024),
                used: 0,
                depth: 1,
                damage: word.contains('!').then(|| "broken".to_owned()),
                is_merging: word.contains('*'),
            });
        }
        found
    }

    /// The steps, by the days of the files.
    #[track_caller]
    fn check(all: &str, keep: usize, expected: &str) {
        let all = backups(all);
        let (steps, left_alone) = plan(&all.iter().collect::<Vec<_>>(), keep);
        let day =
            |name: &BackupName| name.date.to_string()[6..8].trim_start_matches('0').to_owned();
        let step = |step: &RetireStep| match step {
            RetireStep::Remove(name) => format!("-{}", day(name)),
            RetireStep::Merge(base, next) => format!("{}>{}", day(base), day(next)),
        };
        let mut said: Vec<String> = steps.iter().map(step).collect();
        said.extend(left_alone.iter().map(|_| "!".to_owned()));
        assert_eq!(said.join(" "), expected);
    }

    #[test]
    fn the_oldest_backups_go() {
        check("f i i", 3, "");
        check("f i i", 2, "1>2");
        check("f i i i", 2, "1>2 2>3");
        check("f i i", 1, "1>2 2>3");
        check("f f f", 1, "-1 -2");
        check("f i f i", 2, "-2 -1");
        check("f i f i", 3, "1>2");
        check("f i f i", 1, "-2 -1 3>4");
        check("", 1, "");
    }

    #[test]
    fn a_merge_that_was_cut_off_is_done_again() {
        check("f* i i", 3, "1>2");
        check("f* i i", 1, "1>2 2>3");
        check("f* i f", 1, "-2 -1");
    }

    #[test]
    fn what_is_broken_is_left_alone() {
        check("f i! i! f i", 1, "4>5 !");
        check("f! f i", 1, "2>3 !");
    }
}
