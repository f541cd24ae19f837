//! `ringloom ctl backup`: disks are copied as they are at one instant, to a directory or to an NBD export. Full the first time, then
//! what was changed.
//!
//! Where it stands: `plan` says how a disk is copied and why, `copies` has it done, `retire` has older backups go, `directory` knows
//! the files. The daemon makes and writes them; their names are given by this process, when they are whole and durable.
//!
//! Invariants: what has the name of a backup is whole. What is interrupted, killed or fails leaves no such name, and nothing is
//! taken for copied that was not: the next backup copies it.
//! Threads: one. Signals raise a flag; a second one ends the process.

mod arguments;
mod copies;
mod date;
pub(crate) mod directory;
mod disk;
mod fault_point;
mod image_check;
mod leftovers;
mod list;
mod plan;
mod quiet;
mod retire;

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use convert::node_of_uri;
use serde_json::{Value, json};

pub(crate) use arguments::BackupArgs;
pub(crate) use date::BackupDate;
pub(crate) use list::list;

use crate::client::QmpClient;
use crate::signals::interrupts;
use crate::table::Answer;
use crate::units::bytes;
use crate::usage::wrong;
use copies::{CopyOrders, CopyReport};
use directory::{Backup, BackupDirectory, BackupKind, BackupName, DiskLock};
use disk::{CopyTarget, Disk, DiskCopy};
use plan::{Before, Choice, choose};
use retire::RetireOrders;

/// Where backups go.
enum Place {
    Directory(BackupDirectory),
    /// A node of an NBD server, for one disk.
    Export(Value),
}

impl Place {
    fn open(to: &str) -> Result<Self> {
        Ok(match node_of_uri(to)? {
            Some(node) => Self::Export(node),
            None => Self::Directory(BackupDirectory::open(Path::new(to))?),
        })
    }

    fn directory(&self) -> Option<&BackupDirectory> {
        match self {
            Self::Directory(directory) => Some(directory),
            Self::Export(_) => None,
        }
    }

    /// What bitmaps are called if nothing is said.
    fn label(&self, to: &str) -> String {
        match self {
            Self::Directory(directory) => directory.path().display().to_string(),
            Self::Export(_) => to.to_owned(),
        }
    }
}

/// What is known without the daemon: nobody else makes backups of these disks to that place.
pub(crate) struct BackupOrder<'a> {
    arguments: &'a BackupArgs,
    to: &'a str,
    place: Place,
    names: Vec<String>,
    label: String,
    _locks: Vec<DiskLock>,
}

/// Checks what is asked for, and takes the place into use.
pub(crate) fn prepare(arguments: &BackupArgs) -> Result<BackupOrder<'_>> {
    let to = arguments.to.as_deref().context("--to is missing")?;
    let place = Place::open(to)?;
    let names = disk::names(&arguments.targets)?;
    check_usage(&place, &names, arguments)?;
    let label = arguments.name.clone().unwrap_or_else(|| place.label(to));
    disk::check_label(&label)?;
    let _locks = lock(&place, &names)?;
    Ok(BackupOrder { arguments, to, place, names, label, _locks })
}

/// Backs disks up, all or none.
pub(crate) fn backup(client: &mut QmpClient, order: BackupOrder<'_>) -> Result<Answer> {
    let interrupted = interrupts()?;
    let BackupOrder { arguments, to, place, names, label, _locks } = order;
    let taken = match &place {
        Place::Directory(directory) => leftovers::take_away(client, directory, &names)?,
        Place::Export(_) => Vec::new(),
    };
    let disks = disk::look(client, &arguments.targets)?;
    let mut copies = choose_all(client, (&place, &taken), disks, arguments, &label)?;
    let (before, after) = (arguments.before.as_deref(), arguments.after.as_deref());
    let (speed, interrupted) = (arguments.speed.unwrap_or(0), &*interrupted);
    let orders = CopyOrders { directory: place.directory(), before, after, speed, interrupted };
    let done = copies::carry_out(client, &mut copies, &orders);
    let mut report = done.with_context(|| failure(&copies, to))?;
    report.warnings.extend(clock_warning(&copies));
    let mut retired = 0;
    if let (Some(keep), Place::Directory(directory)) = (arguments.keep, &place) {
        let orders = RetireOrders { keep: keep.get(), speed, interrupted };
        for name in &names {
            match retire::retire(client, directory, name, &orders) {
                Ok((gone, left_alone)) => {
                    retired += gone;
                    report.warnings.extend(left_alone.iter().map(|file| {
                        format!("{file}: its chain is broken or branched, and is not made shorter")
                    }));
                }
                Err(error) => report.warnings.push(format!("{name}: --keep: {error:#}")),
            }
        }
    }
    Ok(answer(&copies, &report, (&place, to), retired))
}

fn check_usage(place: &Place, names: &[String], arguments: &BackupArgs) -> Result<()> {
    match place {
        Place::Directory(directory) => {
            ensure!(!arguments.holds_last, wrong("--holds-last is for NBD exports"));
            let path = directory.path();
            let access = rustix::fs::access(path, rustix::fs::Access::WRITE_OK);
            access.with_context(|| format!("{}: no file can be made there", path.display()))
        }
        Place::Export(_) => {
            ensure!(names.len() == 1, wrong("an export takes one disk"));
            let why = "--keep is for directories: an export has one state";
            ensure!(arguments.keep.is_none(), wrong(why));
            Ok(())
        }
    }
}

fn lock(place: &Place, names: &[String]) -> Result<Vec<DiskLock>> {
    let Some(directory) = place.directory() else { return Ok(Vec::new()) };
    names.iter().map(|name| directory.lock(name)).collect()
}

/// How each disk is copied.
fn choose_all(
    client: &mut QmpClient,
    (place, taken): (&Place, &[BackupName]),
    disks: Vec<Disk>,
    arguments: &BackupArgs,
    label: &str,
) -> Result<Vec<DiskCopy>> {
    let is_wanted = |name: &str| disks.iter().any(|disk| disk.name == name);
    let there = match place {
        Place::Directory(directory) => directory.scan_of(is_wanted)?,
        Place::Export(_) => Vec::new(),
    };
    let newest = |disk: &Disk| there.iter().rfind(|it| it.name.disk == disk.name);
    let of_files = disks.iter().filter_map(|disk| newest(disk).map(|it| it.name.date));
    let of_bitmaps = disks.iter().filter_map(|disk| disk.last_date(label));
    let date = BackupDate::now_after(of_files.chain(of_bitmaps).max());
    let mut copies = Vec::new();
    for (mut disk, number) in disks.into_iter().zip(0..) {
        let newest = newest(&disk);
        let known = (newest.map(|it| it.name.date), taken);
        leftovers::forget_strays(client, &mut disk, label, known)?;
        let before = match (place, newest) {
            (Place::Export(_), _) if arguments.holds_last => Before::Held,
            (Place::Export(_), _) => Before::Unknown,
            (Place::Directory(_), Some(newest)) => Before::File(newest),
            (Place::Directory(directory), None) => {
                check_is_new(directory, &disk, label, arguments.full)?;
                Before::Nothing
            }
        };
        let choice = choose(&disk.facts(label), before, arguments.full);
        let to = target(place, &disk, &choice, newest, date);
        let target = disk::target_node(date, number);
        let label = label.to_owned();
        copies.push(DiskCopy {
            disk,
            choice,
            to,
            target,
            date,
            label,
            is_begun: false,
            is_finished: false,
            bytes: 0,
        });
    }
    Ok(copies)
}

/// Checks that a directory has no backup because there never was one, unless a new chain is asked for.
fn check_is_new(
    directory: &BackupDirectory,
    disk: &Disk,
    label: &str,
    is_asked_for: bool,
) -> Result<()> {
    match disk.last_date(label) {
        Some(last) if !is_asked_for => bail!(
            "{} has no backup of {}, and had one of {last}: is it mounted? --full begins a new chain there",
            directory.path().display(),
            disk.name
        ),
        _ => Ok(()),
    }
}

fn target(
    place: &Place,
    disk: &Disk,
    choice: &Choice,
    newest: Option<&Backup>,
    date: BackupDate,
) -> CopyTarget {
    if let Place::Export(node) = place {
        return CopyTarget::Export(node.clone());
    }
    let (kind, backing) = match choice {
        Choice::Full { .. } => (BackupKind::Full, None),
        Choice::Incremental { .. } => (BackupKind::Incremental, newest.map(Backup::file_name)),
    };
    CopyTarget::File { name: BackupName { disk: disk.name.clone(), kind, date }, backing }
}

/// What is said of a clock that was once ahead.
fn clock_warning(copies: &[DiskCopy]) -> Option<String> {
    let date = copies.first().map(|copy| copy.date).filter(|date| date.is_ahead())?;
    Some(format!(
        "{date} is no time: the backup before has a date in the future, and dates count on from there until the clock has come so far"
    ))
}

/// What is said before why a backup has failed.
fn failure(copies: &[DiskCopy], to: &str) -> String {
    let (done, left): (Vec<&DiskCopy>, Vec<&DiskCopy>) =
        copies.iter().partition(|it| it.is_finished);
    let named = |all: &[&DiskCopy]| -> String {
        all.iter().map(|it| it.disk.name.as_str()).collect::<Vec<_>>().join(", ")
    };
    let also = match done.as_slice() {
        [] => String::new(),
        done => format!(" (that of {} is whole)", named(done)),
    };
    let export = match left.first().map(|it| &it.to) {
        Some(CopyTarget::Export(_)) => {
            ", and what the export holds is no backup until the next one"
        }
        Some(CopyTarget::File { .. }) | None => "",
    };
    format!("no backup of {} to {to}{also}{export}", named(&left))
}

/// One line for each disk.
fn answer(
    copies: &[DiskCopy],
    report: &CopyReport,
    (place, to): (&Place, &str),
    retired: usize,
) -> Answer {
    let mut lines = Vec::new();
    let mut rows = Vec::new();
    let seconds = report.took.as_secs_f64();
    for copy in copies {
        let (how, why, since) = match &copy.choice {
            Choice::Full { why } => (format!("full ({why})"), Some(why), None),
            Choice::Incremental { since, .. } => {
                (format!("incremental since {since}"), None, Some(since.to_string()))
            }
        };
        let file = file_of(copy, place);
        let shown = file.as_ref().map_or_else(|| to.to_owned(), |it| it.display().to_string());
        let used = file.as_deref().and_then(used_bytes);
        let used_text = used.map_or_else(String::new, |used| format!(", {} stored", bytes(used)));
        let quiet = match report.quiet {
            None => "crash-consistent".to_owned(),
            Some(time) => format!("guest held still for {} ms", time.as_millis()),
        };
        let (name, copied) = (&copy.disk.name, bytes(copy.bytes));
        lines.push(format!(
            "{name}: {how}, {copied} copied{used_text}, {seconds:.1} s, {quiet}: {shown}\n"
        ));
        rows.push(json!({
            "disk": name, "node": copy.disk.node, "size": copy.disk.size,
            "kind": if since.is_some() { "incremental" } else { "full" }, "why-full": why,
            "since": since, "date": copy.date.to_string(), "copied-bytes": copy.bytes,
            "stored-bytes": used, "to": shown,
        }));
    }
    if retired > 0 {
        lines.push(format!("--keep: {retired} older merged or removed\n"));
    }
    let json = json!({
        "backups": rows, "seconds": seconds, "crash-consistent": report.quiet.is_none(),
        "held-still-ms": report.quiet.map(|it| it.as_millis()), "retired": retired,
        "warnings": report.warnings,
    });
    Answer { text: lines.concat(), json, warnings: report.warnings.clone() }
}

fn file_of(copy: &DiskCopy, place: &Place) -> Option<std::path::PathBuf> {
    match (&copy.to, place) {
        (CopyTarget::File { name, .. }, Place::Directory(directory)) => {
            Some(directory.join(&name.to_string()))
        }
        (CopyTarget::File { .. } | CopyTarget::Export(_), _) => None,
    }
}

fn used_bytes(path: &Path) -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).ok().map(|it| it.blocks() * 512)
}
