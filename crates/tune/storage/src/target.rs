//! The disk that is measured: the user's file or device, or the scratch file.
//!
//! Invariants: a `Target` exists, is a regular file or block device, can be opened as the run needs
//! it, and its size is known. When it was opened nobody else wrote to it (`in_use`), and
//! nobody read it if it is to be written. A block device is written only when it can be had alone
//! (O_EXCL).

use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use load::probe::{CacheMode, cache_mode};
use plan::matrix::Writes;
use plan::units::Bytes;
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use crate::in_use;
use crate::machine::file_system;

/// Why a file with holes is no disk to measure.
pub const HOLES: &str = "reading them does not touch the disk and looks too fast";

/// Less than this is no disk.
pub const DISK_BYTES_MIN: u64 = 1 << 20;
/// Where the size of the disk is in a qcow2 image: 8 bytes, big-endian.
const QCOW2_SIZE_OFFSET: u64 = 24;
/// The unit of `blocks` in the metadata of a file.
const METADATA_BLOCK_BYTES: u64 = 512;

/// Whose file it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// A file made for this run and removed after it.
    Scratch,
    /// The PATH of the command line.
    User,
    /// The disk in the user's own guest, where only that is measured.
    Guest,
}

/// How the daemon opens it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A block device of the host.
    BlockDevice,
}

/// A checked disk.
#[derive(Clone, Debug)]
pub struct Target {
    /// Where it is.
    pub path: PathBuf,
    /// How it is opened.
    pub kind: Kind,
    /// Its size.
    pub bytes: u64,
    /// How the page cache is used.
    pub cache: CacheMode,
    /// Whether it may be written.
    pub writes: Writes,
    /// What it lies on, for the report.
    pub file_system: String,
    /// The image format as whose images the bytes begin.
    pub looks_like: Option<&'static str>,
    /// Less of it is stored than it is long.
    pub holes: bool,
    /// What the user should know before trusting the numbers.
    pub notes: Vec<String>,
}

impl Target {
    /// Checks the disk at `path`.
    ///
    /// # Errors
    /// If it is missing, a directory, not accessible, too small, or in use by somebody else.
    pub fn open(path: &Path, origin: Origin, writes: Writes) -> Result<Self> {
        let name = path.display();
        let metadata = std::fs::metadata(path).with_context(|| format!("disk {name}"))?;
        let kind = if metadata.is_file() {
            Kind::File
        } else if metadata.file_type().is_block_device() {
            Kind::BlockDevice
        } else if metadata.is_dir() {
            bail!("disk {name}: is a directory; name a disk file or block device in it");
        } else {
            bail!("disk {name}: is neither a file nor a block device");
        };
        let uses = match origin {
            Origin::User => in_use::check(path, writes)?,
            Origin::Scratch | Origin::Guest => Vec::new(),
        };
        let mut file = open(path, kind, writes).with_context(|| match writes {
            Writes::Allowed => format!("disk {name}: open for reading and writing"),
            Writes::Skipped => format!("disk {name}: open for reading"),
        })?;
        let bytes = file.seek(SeekFrom::End(0)).with_context(|| format!("disk {name}: size"))?;
        if bytes < DISK_BYTES_MIN {
            let least = Bytes(DISK_BYTES_MIN);
            bail!("disk {name}: {bytes} bytes are too few to measure, {least} is the least");
        }
        let cache = cache_mode(path).with_context(|| format!("disk {name}: read with O_DIRECT"))?;
        let file_system = match kind {
            Kind::File => file_system(path),
            Kind::BlockDevice => "block device".to_owned(),
        };
        let stored = metadata.blocks().saturating_mul(METADATA_BLOCK_BYTES);
        let holes = kind == Kind::File && has_holes(bytes, stored);
        let mut notes = notes(cache, &file_system, holes);
        notes.extend(uses);
        let looks_like = formats::of_head(path).with_context(|| format!("disk {name}"))?;
        if let Some(format) = looks_like {
            notes.push(image_note(path, format)?);
        }
        let path = path.to_path_buf();
        Ok(Self { path, kind, bytes, cache, writes, file_system, looks_like, holes, notes })
    }

    /// `64M on ext4, O_DIRECT`.
    pub fn description(&self) -> String {
        let cache = cache_name(self.cache);
        format!("{} on {}, {cache}", Bytes(self.bytes), self.file_system)
    }
}

/// Whether a file with so much stored of its length has more holes than file systems make by themselves.
pub fn has_holes(bytes: u64, stored: u64) -> bool {
    stored < bytes / 10 * 9
}

/// How the disk is opened, in words.
pub fn cache_name(cache: CacheMode) -> &'static str {
    match cache {
        CacheMode::Direct => "O_DIRECT",
        CacheMode::Buffered => "through the page cache",
    }
}

fn open(path: &Path, kind: Kind, writes: Writes) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(writes == Writes::Allowed);
    if kind == Kind::BlockDevice && writes == Writes::Allowed {
        let exclusive = OFlags::EXCL.bits();
        options.custom_flags(i32::try_from(exclusive).expect("O_EXCL fits the flags of open"));
    }
    options.open(path)
}

/// A word of warning: the bytes are those of an image.
fn image_note(path: &Path, format: &str) -> Result<String> {
    let bytes = disk_bytes(path).with_context(|| format!("disk {}", path.display()))?;
    let (size, other) = match bytes {
        Some(bytes) => (format!(" of {}", Bytes(bytes)), ", --image qcow2 the disk in it"),
        None => (String::new(), ""),
    };
    Ok(format!(
        "the file looks like a {format} image{size}: --image raw measures the file's bytes{other}"
    ))
}

fn notes(cache: CacheMode, file_system: &str, holes: bool) -> Vec<String> {
    let mut notes = Vec::new();
    if cache == CacheMode::Buffered {
        notes.push(format!(
            "{file_system} knows no O_DIRECT: all subjects go through the page cache, the numbers \
             are those of memory as far as it reaches"
        ));
    } else if file_system == "tmpfs" {
        notes.push("tmpfs is memory: the numbers are not those of a disk".to_owned());
    }
    if holes {
        notes.push(format!("the file has holes: {HOLES}"));
    }
    notes
}

/// The size of the disk in a qcow2 image; `None` if the file is none.
///
/// # Errors
/// If the file cannot be read.
pub fn disk_bytes(path: &Path) -> std::io::Result<Option<u64>> {
    if formats::of_head(path)? != Some("qcow2") {
        return Ok(None);
    }
    let mut size = [0; 8];
    let length = File::open(path)?.read_at(&mut size, QCOW2_SIZE_OFFSET)?;
    Ok((length == size.len()).then(|| u64::from_be_bytes(size)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_refused(path: &Path, expected: &str) {
        let error = Target::open(path, Origin::User, Writes::Skipped).unwrap_err();
        let message = format!("{error:#}");
        assert!(message.contains(expected), "{message}");
        assert!(message.contains(&path.display().to_string()), "{message}");
    }

    #[test]
    fn what_is_no_disk_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        check_refused(directory.path(), "is a directory");
        check_refused(&directory.path().join("missing"), "No such file");
        check_refused(Path::new("/dev/null"), "neither a file nor a block device");
        let small = directory.path().join("small");
        std::fs::write(&small, [0; 4096]).unwrap();
        check_refused(&small, "4096 bytes are too few");
    }

    #[test]
    fn a_sparse_file_gets_a_note() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("sparse");
        File::create(&path).unwrap().set_len(8 << 20).unwrap();
        let target = Target::open(&path, Origin::User, Writes::Skipped).unwrap();
        assert_eq!((target.bytes, target.kind), (8 << 20, Kind::File));
        assert!(target.notes.iter().any(|note| note.contains("holes")), "{:?}", target.notes);
        assert_eq!(target.looks_like, None);
    }

    #[test]
    fn a_file_that_looks_like_an_image_is_known_as_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("image");
        for (head, format, other) in [
            (b"QFI\xfb\0\0\0\x03".as_slice(), "qcow2", true),
            (b"QFI\xfb\0\0\0\x01", "qcow", false),
            (b"QED\0", "qed", false),
            (b"KDMV", "vmdk", false),
            (b"vhdxfile", "vhdx", false),
            (b"conectix", "vpc", false),
            (&[[0; 0x40].as_slice(), b"\x7f\x10\xda\xbe"].concat(), "vdi", false),
        ] {
            std::fs::write(&path, [head, &[0; 8 << 20]].concat()).unwrap();
            let target = Target::open(&path, Origin::User, Writes::Skipped).unwrap();
            assert_eq!(target.looks_like, Some(format));
            let looks = format!("looks like a {format} image");
            let notes: Vec<_> = target.notes.iter().filter(|it| it.contains(&looks)).collect();
            assert_eq!(notes.len(), 1, "{:?}", target.notes);
            assert_eq!(notes[0].contains("--image qcow2"), other, "{notes:?}");
        }
    }

    #[test]
    fn what_bends_the_numbers_is_said() {
        assert!(notes(CacheMode::Direct, "ext4", false).is_empty());
        assert!(notes(CacheMode::Direct, "tmpfs", false)[0].contains("memory"));
        assert!(notes(CacheMode::Buffered, "fuse", false)[0].contains("page cache"));
    }

    #[test]
    fn an_image_tells_the_size_of_its_disk() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("image");
        let mut head = vec![0; 64];
        std::fs::write(&path, &head).unwrap();
        assert_eq!(disk_bytes(&path).unwrap(), None);
        head[28] = 1;
        for (version, bytes) in [(1, None), (2, Some(1 << 24)), (3, Some(1 << 24))] {
            head[..8].copy_from_slice(&[b'Q', b'F', b'I', 0xfb, 0, 0, 0, version]);
            std::fs::write(&path, &head).unwrap();
            assert_eq!(disk_bytes(&path).unwrap(), bytes, "version {version}");
        }
        std::fs::write(&path, &head[..8]).unwrap();
        assert_eq!(disk_bytes(&path).unwrap(), None);
    }
}
