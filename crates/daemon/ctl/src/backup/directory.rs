//! A directory of backups: its files, what each stands on, and which are whole.
//!
//! A backup of a disk is an image `DISK-full-DATE.qcow2`, or one `DISK-inc-DATE.qcow2` whose backing file is the backup before it,
//! named without its directory: both can be moved together. Nothing else says what is there. Files whose names begin with a
//! point are none: what is not finished (`.….part`), what is merged into the next one (`.….merging`), and the lock of a disk.
//!
//! Invariants: a file has its name when it is whole and durable, and is never changed afterwards, but for the oldest of a chain
//! while it is marked as being merged. Nothing in an image is trusted: it names files of its directory alone, and older ones.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use qcow2::Header;
use rustix::fs::{FlockOperation, flock};

use super::date::BackupDate;
use super::image_check::{FileEnd, ImageGap, check_clusters};

/// How many images may stand on each other, as in QEMU.
pub(crate) const CHAIN_MAX: usize = 200;

/// The bytes of an image that say how large its first cluster is.
const HEADER_BYTES: usize = 512;

/// The end of the name of an image.
const SUFFIX: &str = ".qcow2";

/// What the name of a backup says of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BackupKind {
    /// The whole disk.
    Full,
    /// What was changed since the one before.
    Incremental,
}

impl BackupKind {
    fn word(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Incremental => "inc",
        }
    }
}

/// The name of a file with a backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BackupName {
    pub(crate) disk: String,
    pub(crate) kind: BackupKind,
    pub(crate) date: BackupDate,
}

impl BackupName {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (rest, date) = text.strip_suffix(SUFFIX)?.rsplit_once('-')?;
        let (disk, kind) = rest.rsplit_once('-')?;
        let kinds = [BackupKind::Full, BackupKind::Incremental];
        let kind = kinds.into_iter().find(|it| it.word() == kind)?;
        let date = BackupDate::parse(date)?;
        let name = Self { disk: disk.to_owned(), kind, date };
        (name.to_string() == text && is_disk_name(disk)).then_some(name)
    }
}

impl fmt::Display for BackupName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { disk, kind, date } = self;
        write!(formatter, "{disk}-{}-{date}{SUFFIX}", kind.word())
    }
}

/// Whether a file can be named after that disk.
pub(crate) fn is_disk_name(name: &str) -> bool {
    let is_plain = |it: char| it.is_ascii_alphanumeric() || "._-".contains(it);
    !name.is_empty() && !name.starts_with(['.', '-']) && name.chars().all(is_plain)
}

/// A backup that is there.
#[derive(Debug, Clone)]
pub(crate) struct Backup {
    pub(crate) name: BackupName,
    pub(crate) path: PathBuf,
    /// The size of the disk, if the image says it.
    pub(crate) size: Option<u64>,
    /// What the file takes.
    pub(crate) used: u64,
    /// The file that it stands on.
    pub(crate) backing: Option<String>,
    /// How many images it is made of.
    pub(crate) depth: usize,
    /// Why it, or what stands on it, can be used for nothing.
    pub(crate) damage: Option<String>,
    /// It is merged into the next one, and no backup of its own date any more.
    pub(crate) is_merging: bool,
}

impl Backup {
    pub(crate) fn file_name(&self) -> String {
        self.name.to_string()
    }

    /// Whether the disk can be had from it as it was then.
    pub(crate) fn is_whole(&self) -> bool {
        self.damage.is_none() && !self.is_merging
    }
}

/// A directory that has backups, or is to have some.
#[derive(Debug, Clone)]
pub(crate) struct BackupDirectory(PathBuf);

/// The lock of a disk in a directory, held until it is dropped.
#[derive(Debug)]
pub(crate) struct DiskLock {
    _file: File,
}

impl BackupDirectory {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let found = path.canonicalize().with_context(|| path.display().to_string())?;
        ensure!(found.is_dir(), "{} is no directory", path.display());
        ensure!(found.to_str().is_some(), "{}: its name is no UTF-8", path.display());
        Ok(Self(found))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Where a backup is while it is made.
    pub(crate) fn part(&self, name: &BackupName) -> PathBuf {
        self.0.join(format!(".{name}.part"))
    }

    /// What says that a backup is merged into the next one.
    pub(crate) fn merging(&self, name: &BackupName) -> PathBuf {
        self.0.join(format!(".{name}.merging"))
    }

    /// Sees to it that nobody else makes a backup of that disk here.
    pub(crate) fn lock(&self, disk: &str) -> Result<DiskLock> {
        let path = self.0.join(format!(".{disk}.lock"));
        let shown = path.display();
        let file = File::options().read(true).write(true).create(true).truncate(false).open(&path);
        let file = file.with_context(|| format!("{shown}"))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(DiskLock { _file: file }),
            Err(rustix::io::Errno::WOULDBLOCK) => {
                bail!("{disk}: another backup to {} is under way", self.0.display())
            }
            Err(error) => Err(error).with_context(|| format!("{shown}: lock it")),
        }
    }

    /// All backups, by disk and date.
    pub(crate) fn scan(&self) -> Result<Vec<Backup>> {
        self.scan_of(|_| true)
    }

    /// Those of the disks that are wanted.
    pub(crate) fn scan_of(&self, is_wanted: impl Fn(&str) -> bool) -> Result<Vec<Backup>> {
        let shown = || format!("{}: read the directory", self.0.display());
        let (mut names, mut merging) = (Vec::new(), Vec::new());
        for entry in fs::read_dir(&self.0).with_context(shown)? {
            let name = entry.with_context(shown)?.file_name();
            let Some(name) = name.to_str() else { continue };
            names.extend(BackupName::parse(name).filter(|it| is_wanted(&it.disk)));
            let hidden = name.strip_prefix('.').and_then(|it| it.strip_suffix(".merging"));
            merging.extend(hidden.and_then(BackupName::parse));
        }
        names.sort_by(|one, next| (&one.disk, one.date).cmp(&(&next.disk, next.date)));
        let backup = |name: BackupName| {
            let is_merging = merging.contains(&name);
            look(self.0.join(name.to_string()), name, is_merging)
        };
        let mut found: Vec<Backup> = names.into_iter().map(backup).collect();
        link(&mut found);
        Ok(found)
    }

    /// What was begun and not finished: the files, and what they were to be.
    pub(crate) fn parts(&self) -> Result<Vec<(PathBuf, BackupName)>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.0).with_context(|| self.0.display().to_string())? {
            let entry = entry.with_context(|| self.0.display().to_string())?;
            let name = entry.file_name();
            let name = name.to_str().and_then(|it| it.strip_prefix('.'));
            let name = name.and_then(|it| it.strip_suffix(".part")).and_then(BackupName::parse);
            found.extend(name.map(|name| (entry.path(), name)));
        }
        found.sort_by(|(one, _), (next, _)| one.cmp(next));
        Ok(found)
    }

    /// Removes the marks of merges whose oldest backup has gone.
    pub(crate) fn forget_marks(&self) -> Result<()> {
        for entry in fs::read_dir(&self.0).with_context(|| self.0.display().to_string())? {
            let entry = entry.with_context(|| self.0.display().to_string())?;
            let name = entry.file_name();
            let name = name.to_str().and_then(|it| it.strip_prefix('.'));
            let name = name.and_then(|it| it.strip_suffix(".merging")).and_then(BackupName::parse);
            let is_gone = |it: BackupName| self.join(&it.to_string()).symlink_metadata().is_err();
            if name.is_some_and(is_gone) {
                let path = entry.path();
                fs::remove_file(&path).with_context(|| path.display().to_string())?;
            }
        }
        Ok(())
    }

    /// Makes durable which files are here.
    pub(crate) fn sync(&self) -> Result<()> {
        let synced = File::open(&self.0).and_then(|directory| directory.sync_all());
        synced.with_context(|| format!("{}: flush the directory", self.0.display()))
    }
}

/// Why a file is none of what it is to be.
#[derive(Debug, thiserror::Error)]
enum ImageFault {
    #[error("it cannot be read: {0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Header(#[from] qcow2::HeaderError),
    #[error("{0}")]
    Gap(#[from] ImageGap),
    #[error("{0}")]
    Kind(&'static str),
}

/// What an image says of itself, if all that it names is in its file.
fn header(path: &Path, end: FileEnd) -> Result<Header, ImageFault> {
    if !fs::metadata(path)?.is_file() {
        return Err(ImageFault::Kind("it is no file"));
    }
    let file = File::open(path)?;
    let start = read_start(&file, HEADER_BYTES)?;
    let bytes = usize::try_from(Header::bytes_needed(&start)?).expect("a cluster fits memory");
    let header = Header::parse(&read_start(&file, bytes)?)?;
    let features = header.features;
    let backing_is_known = header.backing_format.as_deref().is_none_or(|it| it == "qcow2");
    match (features.corrupt, features.dirty, features.external_data, backing_is_known) {
        (true, ..) => return Err(ImageFault::Kind("it is marked as corrupt")),
        (_, true, ..) => return Err(ImageFault::Kind("it was not closed")),
        (_, _, true, _) => return Err(ImageFault::Kind("its data are in another file")),
        (.., false) => return Err(ImageFault::Kind("its backing file is no qcow2 image")),
        (.., true) => {}
    }
    check_clusters(&file, &header, end)?;
    Ok(header)
}

fn read_start(file: &File, bytes: usize) -> io::Result<Vec<u8>> {
    let mut start = vec![0; bytes];
    let mut filled = 0;
    while filled < bytes {
        match file.read_at(&mut start[filled..], filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    start.truncate(filled);
    Ok(start)
}

/// A backup by itself.
fn look(path: PathBuf, name: BackupName, is_merging: bool) -> Backup {
    let used = fs::metadata(&path).map_or(0, |it| it.blocks() * 512);
    let end = if is_merging { FileEnd::Begun } else { FileEnd::Whole };
    let (size, backing, damage) = match header(&path, end) {
        Ok(header) => (Some(header.size), header.backing, None),
        Err(fault) => (None, None, Some(fault.to_string())),
    };
    Backup { name, path, size, used, backing, depth: 1, damage, is_merging }
}

/// Makes a file that nobody writes durable, and checks that it is the finished image of a backup. It gets all of its last cluster,
/// which need not have been written: so a file that ends elsewhere has lost something.
pub(crate) fn finish_image(path: &Path, size: u64, backing: Option<&str>) -> Result<()> {
    let shown = || path.display().to_string();
    let file = File::open(path).with_context(shown)?;
    let start = read_start(&file, HEADER_BYTES).with_context(shown)?;
    let cluster = Header::bytes_needed(&start).with_context(shown)?;
    let bytes = file.metadata().with_context(shown)?.len();
    if !bytes.is_multiple_of(cluster) {
        let writable = File::options().write(true).open(path).with_context(shown)?;
        writable.set_len(bytes.next_multiple_of(cluster)).with_context(shown)?;
    }
    let header = header(path, FileEnd::Whole).with_context(|| path.display().to_string())?;
    let found = (header.size, header.backing.as_deref());
    ensure!(found == (size, backing), "{}: another image is there: {found:?}", path.display());
    file.sync_all().with_context(|| format!("{}: flush", path.display()))
}

/// Says of each what is wrong with what it stands on. They come by date, and what one stands on comes before it.
fn link(all: &mut [Backup]) {
    let mut known: BTreeMap<String, usize> = BTreeMap::new();
    for place in 0..all.len() {
        let (before, rest) = all.split_at_mut(place);
        let backup = &mut rest[0];
        if backup.damage.is_none()
            && let Some(backing) = backup.backing.clone()
        {
            let below = known.get(&backing).map(|place| &before[*place]);
            backup.depth = below.map_or(1, |below| below.depth + 1);
            backup.damage = fault_below(backup, &backing, below);
        }
        known.insert(backup.file_name(), place);
    }
}

/// What is wrong with the file that a backup stands on.
fn fault_below(backup: &Backup, backing: &str, below: Option<&Backup>) -> Option<String> {
    let Some(below) = below else {
        let parsed = BackupName::parse(backing);
        let is_older = parsed.is_some_and(|it| it.date < backup.name.date);
        return Some(match is_older {
            true => format!("{backing}, on which it stands, is missing"),
            false => format!("it stands on '{backing}', which is no older backup here"),
        });
    };
    if below.name.disk != backup.name.disk {
        Some(format!("it stands on {backing}, which is of another disk"))
    } else if below.damage.is_some() {
        Some(format!("{backing}, on which it stands, is broken"))
    } else if below.size != backup.size {
        Some(format!("{backing}, on which it stands, has another size"))
    } else if backup.depth > CHAIN_MAX {
        Some(format!("it stands on more than {CHAIN_MAX} images"))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_disk_kind_and_date() {
        let name = BackupName::parse("vm-1-inc-20261127T080000Z.qcow2").unwrap();
        assert_eq!((&*name.disk, name.kind), ("vm-1", BackupKind::Incremental));
        assert_eq!(name.to_string(), "vm-1-inc-20261127T080000Z.qcow2");
        for text in [
            "vm1-full-20261127T080000Z.img",
            "vm1-half-20261127T080000Z.qcow2",
            "vm1-full-20261127.qcow2",
            "-full-20261127T080000Z.qcow2",
            ".vm1-full-20261127T080000Z.qcow2",
            "full-20261127T080000Z.qcow2",
            "a/b-full-20261127T080000Z.qcow2",
        ] {
            assert_eq!(BackupName::parse(text), None, "{text}");
        }
    }

    fn backup(name: &str, backing: Option<&str>, size: u64) -> Backup {
        let name = BackupName::parse(name).unwrap();
        Backup {
            path: name.to_string().into(),
            name,
            size: Some(size),
            used: 0,
            backing: backing.map(str::to_owned),
            depth: 1,
            damage: None,
            is_merging: false,
        }
    }

    /// What is wrong with the last of these.
    fn damage(all: &[(&str, Option<&str>, u64)]) -> String {
        let mut all: Vec<Backup> =
            all.iter().map(|(name, backing, size)| backup(name, *backing, *size)).collect();
        link(&mut all);
        all.pop().unwrap().damage.unwrap_or_default()
    }

    #[test]
    fn what_a_backup_stands_on_has_to_be_whole() {
        let (full, inc) = ("a-full-20260101T000000Z.qcow2", "a-inc-20260102T000000Z.qcow2");
        let last = "a-inc-20260103T000000Z.qcow2";
        let whole = [(full, None, 1024), (inc, Some(full), 1024), (last, Some(inc), 1024)];
        assert_eq!(damage(&whole), "");
        assert_eq!(damage(&whole[1..]), format!("{inc}, on which it stands, is broken"));
        assert_eq!(damage(&whole[1..2]), format!("{full}, on which it stands, is missing"));
        let other = [(full, None, 512), (inc, Some(full), 1024)];
        assert_eq!(damage(&other), format!("{full}, on which it stands, has another size"));
        for name in ["/etc/passwd", "../x.qcow2", last, inc, "json:{}"] {
            let found = damage(&[(full, None, 1024), (inc, Some(name), 1024)]);
            assert!(found.contains("no older backup here"), "{name}: {found}");
        }
        let stranger = "b-full-20260101T000000Z.qcow2";
        let mixed = [(stranger, None, 1024), (inc, Some(stranger), 1024)];
        assert!(damage(&mixed).contains("of another disk"));
    }
}
