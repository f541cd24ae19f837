//! `ringloom ctl restore`: a disk as it was when it was backed up, in a file of its own.
//!
//! Invariants: the target has its name, or its new content, when that was written, compared and made durable; until then what was
//! there stays. A target that somebody uses is refused, by the locks of images; a block device is held for ourselves alone (O_EXCL), as
//! mounts and arrays hold it, and written over: after a failure it is neither what it was nor the backup.

use std::fs::{self, File};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};

use anyhow::{Context, Error, Result, anyhow, bail, ensure};
use clap::Args;
use convert::{Flattened, Flattening, flatten, hold_unused};
use rustix::fs::{CWD, OFlags, RenameFlags, renameat_with};
use rustix::io::Errno;
use serde_json::json;

use crate::arguments::Format;
use crate::backup::BackupDate;
use crate::backup::directory::{Backup, BackupDirectory, BackupName};
use crate::table::Answer;
use crate::units::{bytes, no};
use crate::usage::wrong;

/// Which backup, and where it is restored to.
#[derive(Debug, Args)]
pub(crate) struct RestoreArgs {
    /// A directory of backups, or the file of one
    #[arg(value_name = "DIR|FILE")]
    from: PathBuf,
    /// The disk, if the directory has several
    #[arg(long, value_name = "NAME")]
    disk: Option<String>,
    /// The last one of that time (UTC) or before, as 20261127T0800, which is 08:00:59; default: the last one
    #[arg(long, value_name = "DATE|FILE")]
    at: Option<String>,
    /// The file that is made, or with --force written anew
    #[arg(long, value_name = "FILE")]
    to: PathBuf,
    /// What the file is to be
    #[arg(long, value_enum)]
    format: Format,
    /// Replace what is there, or write it onto a block device, if nobody uses it
    #[arg(long)]
    force: bool,
}

/// What is at the place of the target.
enum Found {
    Nothing,
    File(fs::Metadata),
    Device,
}

/// Restores; prints what.
pub(crate) fn restore(arguments: &RestoreArgs) -> Result<Answer> {
    let RestoreArgs { from, disk, at, to, format, force } = arguments;
    let (directory, file) = place(from)?;
    let is_chosen_twice = file.is_some() && (at.is_some() || disk.is_some());
    ensure!(!is_chosen_twice, wrong("the file of one backup takes no --at and no --disk"));
    let all = BackupDirectory::open(&directory)?.scan()?;
    let chosen = choose(&all, file.as_deref().or(at.as_deref()), disk.as_deref())
        .with_context(|| directory.display().to_string())?;
    let images = chain(&all, chosen)?;
    let found = look(to, *force)?;
    let flattened =
        write(&images, to, *format, &found).with_context(|| to.display().to_string())?;
    let Flattened { bytes: size, written_bytes, seconds } = flattened;
    let (name, to) = (chosen.file_name(), to.display());
    let said = format!(
        "{to}: disk {} as of {}, {} with {} of data, compared with {name}, {seconds:.1} s",
        chosen.name.disk,
        chosen.name.date,
        bytes(size),
        bytes(written_bytes)
    );
    let json = json!({
        "disk": chosen.name.disk, "date": chosen.name.date.to_string(), "from": chosen.path,
        "files": images.len(), "to": to.to_string(), "bytes": size, "written-bytes": written_bytes,
        "verified": true, "seconds": seconds,
    });
    Ok(Answer::said(&said, json))
}

/// The directory, and the file if one is named.
fn place(from: &Path) -> Result<(PathBuf, Option<String>)> {
    let found = fs::metadata(from).with_context(|| from.display().to_string())?;
    if found.is_dir() {
        return Ok((from.to_owned(), None));
    }
    let file = from.canonicalize().with_context(|| from.display().to_string())?;
    let name = file.file_name().and_then(|it| it.to_str()).unwrap_or_default().to_owned();
    ensure!(
        BackupName::parse(&name).is_some(),
        "{}: it is no backup by its name, as vm1-full-20261127T080000Z.qcow2",
        from.display()
    );
    let directory = file.parent().context("a file is in a directory")?;
    Ok((directory.to_owned(), Some(name)))
}

/// The backup that is meant: that file, or the last one of that disk at or before a time.
fn choose<'a>(all: &'a [Backup], at: Option<&str>, disk: Option<&str>) -> Result<&'a Backup> {
    ensure!(!all.is_empty(), "there is no backup");
    let chosen = if let Some(name) = at.and_then(BackupName::parse) {
        let found = all.iter().find(|it| it.name == name);
        found.ok_or_else(|| anyhow!("there is no {name}"))?
    } else {
        let disk = disk_of(all, disk)?;
        let mut of_disk = all.iter().filter(|it| it.name.disk == disk);
        let Some(at) = at else {
            let last = of_disk.next_back().expect("the disk has one");
            return check(last);
        };
        let date = BackupDate::parse_end(at);
        let date = date.with_context(|| {
            format!(
                "'{at}' is no time in UTC, as 20261127T080000Z or 2026-11-27 08:00, and no file"
            )
        })?;
        let found = of_disk.rfind(|it| it.name.date <= date);
        found.ok_or_else(|| anyhow!("there is no backup of {disk} at {date} or before"))?
    };
    check(chosen)
}

fn check(chosen: &Backup) -> Result<&Backup> {
    let name = chosen.file_name();
    if let Some(damage) = &chosen.damage {
        bail!("{name} is broken: {damage}");
    }
    ensure!(!chosen.is_merging, "{name} is being merged into the next one, and has its bytes");
    Ok(chosen)
}

fn disk_of<'a>(all: &'a [Backup], disk: Option<&str>) -> Result<&'a str> {
    let mut names: Vec<&str> = all.iter().map(|it| it.name.disk.as_str()).collect();
    names.dedup();
    match (disk, names.as_slice()) {
        (Some(disk), names) => match names.iter().find(|name| **name == disk) {
            Some(name) => Ok(name),
            None => bail!("there is {}", no("backup of", disk, names)),
        },
        (None, [only]) => Ok(only),
        (None, several) => bail!("which disk? --disk {}", several.join(", --disk ")),
    }
}

/// The files of a backup, the oldest first.
fn chain(all: &[Backup], top: &Backup) -> Result<Vec<PathBuf>> {
    let (mut files, mut next) = (vec![top.path.clone()], top.backing.as_deref());
    while let Some(name) = next {
        let below = all.iter().find(|it| it.file_name() == name);
        let below = below.with_context(|| format!("{name} is gone"))?;
        files.push(below.path.clone());
        next = below.backing.as_deref();
    }
    files.reverse();
    Ok(files)
}

fn look(to: &Path, is_forced: bool) -> Result<Found> {
    let shown = to.display();
    let Ok(found) = fs::metadata(to) else {
        ensure!(to.symlink_metadata().is_err(), "{shown}: it leads nowhere");
        return Ok(Found::Nothing);
    };
    ensure!(is_forced, "{shown} is there already: --force has it replaced");
    if found.file_type().is_block_device() {
        return Ok(Found::Device);
    }
    ensure!(found.is_file(), "{shown} is neither a file nor a block device");
    Ok(Found::File(found))
}

/// Writes beside a file, and gives that its name in the end.
fn write(images: &[PathBuf], to: &Path, format: Format, found: &Found) -> Result<Flattened> {
    let format = match format {
        Format::Raw => "raw",
        Format::Qcow2 => "qcow2",
    };
    let order = |target, into_existing| Flattening { images, target, format, into_existing };
    if let Found::Device = found {
        ensure!(format == "raw", "a block device takes --format raw");
        let _held = hold_device(to)?;
        let written = flatten(&order(to, true));
        return written.context("it may be half written, and is no disk until a restore succeeds");
    }
    let to = match found {
        Found::File(_) => to.canonicalize()?,
        Found::Nothing | Found::Device => std::path::absolute(to)?,
    };
    // Held to the end: nobody begins to use what is replaced.
    let _held = matches!(found, Found::File(_)).then(|| hold_unused(&to)).transpose()?;
    let name = to.file_name().context("it is no file")?.to_string_lossy().into_owned();
    let directory = to.parent().context("it is no file")?;
    let part = directory.join(format!(".{name}.restoring"));
    if part.symlink_metadata().is_ok() {
        // Of a restore that was killed; one that runs holds it.
        drop(hold_unused(&part)?);
        fs::remove_file(&part)?;
    }
    let flattened = flatten(&order(&part, false))?;
    let named = give_name(&part, &to, found);
    if named.is_err() {
        let _may_stay = fs::remove_file(&part);
    }
    named.map(|()| flattened)
}

/// Holds a block device as a mount does, so that nobody has it mounted before all is written.
fn hold_device(to: &Path) -> Result<File> {
    let flag = i32::try_from(OFlags::EXCL.bits()).expect("O_EXCL fits the flags of open");
    let opened = File::options().read(true).custom_flags(flag).open(to);
    opened.map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::BUSY) => {
            Error::new(error).context("it is mounted, or an array or a volume group has it")
        }
        _ => error.into(),
    })
}

fn give_name(part: &Path, to: &Path, found: &Found) -> Result<()> {
    let file = File::open(part)?;
    if let Found::File(old) = found {
        file.set_permissions(old.permissions())?;
        let is_same = file.metadata().map(|new| (new.uid(), new.gid()) == (old.uid(), old.gid()));
        if !is_same? {
            fchown(&file, Some(old.uid()), Some(old.gid())).context("give it its old owner")?;
        }
    }
    file.sync_all()?;
    match found {
        Found::Nothing => name_new(part, to)?,
        Found::File(_) | Found::Device => fs::rename(part, to)?,
    }
    File::open(to.parent().context("it is no file")?)?.sync_all()?;
    Ok(())
}

/// Gives a file a name that nothing has.
fn name_new(part: &Path, to: &Path) -> Result<()> {
    let named = match renameat_with(CWD, part, CWD, to, RenameFlags::NOREPLACE) {
        // File systems of other machines have no such rename.
        Err(Errno::INVAL | Errno::NOSYS) => {
            rustix::fs::link(part, to).and_then(|()| rustix::fs::unlink(part))
        }
        named => named,
    };
    match named {
        Err(Errno::EXIST) => bail!("something was put there meanwhile, and stays"),
        named => named.context("give it its name"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_there_meanwhile_stays() {
        let directory = tempfile::tempdir().unwrap();
        let (part, to) = (directory.path().join("part"), directory.path().join("disk"));
        fs::write(&part, "new").unwrap();
        fs::write(&to, "old").unwrap();
        let error = give_name(&part, &to, &Found::Nothing).unwrap_err();
        assert!(error.to_string().contains("meanwhile"), "{error:#}");
        assert_eq!(fs::read(&to).unwrap(), b"old");
        fs::remove_file(&to).unwrap();
        give_name(&part, &to, &Found::Nothing).unwrap();
        assert_eq!(fs::read(&to).unwrap(), b"new");
        assert!(!part.exists());
    }

    fn backups(all: &[&str]) -> Vec<Backup> {
        let mut found: Vec<Backup> = Vec::new();
        for text in all {
            let name = BackupName::parse(text).unwrap();
            let backing = text.contains("-inc-").then(|| found.last().unwrap().file_name());
            found.push(Backup {
                path: (*text).into(),
                name,
                size: Some(1024),
                used: 0,
                backing,
                depth: 1,
                damage: None,
                is_merging: false,
            });
        }
        found
    }

    #[test]
    fn a_time_names_the_last_backup_before_it() {
        let (full, first) = ("a-full-20260101T000000Z.qcow2", "a-inc-20260102T000000Z.qcow2");
        let (second, other) = ("a-inc-20260103T000000Z.qcow2", "b-full-20260104T000000Z.qcow2");
        let all = backups(&[full, first, second, other]);
        let found = |at: Option<&str>, disk: Option<&str>| match choose(&all, at, disk) {
            Ok(backup) => backup.file_name(),
            Err(error) => error.to_string(),
        };
        assert_eq!(found(None, Some("a")), second);
        assert_eq!(found(None, None), "which disk? --disk a, --disk b");
        assert_eq!(found(None, Some("c")), "there is no backup of 'c'; did you mean 'a'?");
        assert_eq!(found(Some("2026-01-02 23:59"), Some("a")), first);
        assert_eq!(found(Some("20260102"), Some("a")), first);
        assert_eq!(found(Some("2026-01-01"), Some("a")), full);
        assert_eq!(found(Some(full), None), full);
        assert!(found(Some("20251231"), Some("a")).contains("or before"));
        assert!(found(Some("noon"), Some("a")).contains("is no time"));
        let files = chain(&all, &all[2]).unwrap();
        assert_eq!(files, [full, first, second].map(PathBuf::from));
    }
}
