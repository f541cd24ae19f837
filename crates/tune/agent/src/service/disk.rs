//! The disk that is measured: what it is, and all of it written once.
//!
//! Invariants: nothing is written but a file of the name `FILE` in a directory that was named, or a device that was to be filled.
//! What is written does not compress and is on the disk when it is told.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use load::Random;
use load::probe::{CacheMode, cache_mode};
use rustix::fs::{OFlags, major, minor, statvfs};

use super::Mouth;
use super::work::StopFlag;
use crate::clock;
use crate::error::AgentError;
use crate::protocol::{Disk, DiskKind, DiskRequest, Tell};

/// The file in a directory: the one that KubeVirt gives to a virtual machine as its disk, so that both can be measured on one claim.
const FILE: &str = "disk.img";
const BLOCK_BYTES: usize = 1 << 20;
/// Of memory for direct I/O.
const ALIGNMENT: usize = 4096;
const PROGRESS: Duration = Duration::from_millis(500);
const SECTOR_BYTES: u32 = 512;
const SEED: u64 = 0x7269_6e67;

/// Looks at a disk; in a directory it is made first.
pub(super) fn make_ready(
    request: &DiskRequest,
    mouth: &Mouth,
    stop: &StopFlag,
) -> Result<Disk, AgentError> {
    match request {
        DiskRequest::Device { path } => look(Path::new(path)),
        DiskRequest::Directory { path, bytes } => {
            let file = prepare(Path::new(path), *bytes, mouth, stop)?;
            look(&file)
        }
    }
}

/// Writes all of a disk that exists.
pub(super) fn fill_all(path: &str, mouth: &Mouth, stop: &StopFlag) -> Result<u64, AgentError> {
    let disk = look(Path::new(path))?;
    if !disk.writable {
        return Err(refused(Path::new(path), "may not be written"));
    }
    fill(Path::new(path), disk.bytes, disk.direct, mouth, stop)?;
    Ok(disk.bytes)
}

fn refused(path: &Path, why: impl std::fmt::Display) -> AgentError {
    AgentError::Refused(format!("disk {}: {why}", path.display()))
}

fn look(path: &Path) -> Result<Disk, AgentError> {
    let fault = |error: io::Error| refused(path, error);
    let found = std::fs::metadata(path).map_err(fault)?;
    let kind = match found.file_type() {
        it if it.is_block_device() => DiskKind::Block,
        it if it.is_file() => DiskKind::File,
        _ => return Err(refused(path, "is neither a file nor a block device")),
    };
    let bytes = File::open(path).and_then(|mut it| it.seek(SeekFrom::End(0))).map_err(fault)?;
    let writable = OpenOptions::new().read(true).write(true).open(path).is_ok();
    let direct = cache_mode(path).map_err(fault)? == CacheMode::Direct;
    let device = (kind == DiskKind::Block).then(|| device_directory(found.rdev())).flatten();
    let block = device.as_ref().and_then(|it| {
        std::fs::read_to_string(it.join("queue/logical_block_size")).ok()?.trim().parse().ok()
    });
    let queues = device.and_then(|it| std::fs::read_dir(it.join("mq")).ok());
    let queues = queues.and_then(|it| u32::try_from(it.count()).ok());
    let logical_block_bytes = block.unwrap_or(SECTOR_BYTES);
    let path = path.to_string_lossy().into_owned();
    Ok(Disk { path, kind, bytes, logical_block_bytes, queues, writable, direct })
}

/// What the kernel tells of a device, or of the whole one if it is a partition.
fn device_directory(number: u64) -> Option<PathBuf> {
    let link = format!("/sys/dev/block/{}:{}", major(number), minor(number));
    let own = std::fs::canonicalize(link).ok()?;
    if own.join("partition").exists() { own.parent().map(Path::to_path_buf) } else { Some(own) }
}

/// The file in a directory, filled unless it was before.
fn prepare(
    directory: &Path,
    bytes: u64,
    mouth: &Mouth,
    stop: &StopFlag,
) -> Result<PathBuf, AgentError> {
    let path = directory.join(FILE);
    let fault = |error: io::Error| refused(&path, error);
    let block = u64::try_from(ALIGNMENT).expect("a small number");
    if bytes == 0 || !bytes.is_multiple_of(block) {
        return Err(refused(&path, format!("{bytes} bytes are no multiple of {block}")));
    }
    match std::fs::symlink_metadata(&path) {
        // A file that lacks nothing was filled: its end is written last.
        Ok(it)
            if it.is_file()
                && it.len() == bytes
                && it.blocks() * u64::from(SECTOR_BYTES) >= bytes =>
        {
            return Ok(path);
        }
        Ok(it) if it.is_file() => std::fs::remove_file(&path).map_err(fault)?,
        Ok(_) => return Err(refused(&path, "is there, and no file")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(fault(error)),
    }
    let space = statvfs(directory).map_err(|error| fault(error.into()))?;
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    if free < bytes {
        return Err(refused(&path, format!("{bytes} bytes do not fit, {free} are free")));
    }
    OpenOptions::new().write(true).create_new(true).open(&path).map_err(fault)?;
    let direct = cache_mode(&path).map_err(fault)? == CacheMode::Direct;
    fill(&path, bytes, direct, mouth, stop)?;
    Ok(path)
}

/// Writes so many bytes, tells how far it is, and syncs.
fn fill(
    path: &Path,
    bytes: u64,
    direct: bool,
    mouth: &Mouth,
    stop: &StopFlag,
) -> Result<(), AgentError> {
    let fault =
        |done: u64, error: io::Error| refused(path, format!("write at byte {done}: {error}"));
    let open = |flags: OFlags| {
        let flags = i32::try_from(flags.bits()).expect("flags of open fit");
        OpenOptions::new().write(true).custom_flags(flags).open(path)
    };
    let flags = if direct { OFlags::DIRECT } else { OFlags::empty() };
    let mut disk = open(flags).map_err(|error| refused(path, error))?;
    let (mut random, mut memory) = (Random::new(SEED), vec![0; BLOCK_BYTES + ALIGNMENT]);
    let begin = memory.as_ptr().align_offset(ALIGNMENT);
    let block = &mut memory[begin..begin + BLOCK_BYTES];
    let (mut done, mut told) = (0_u64, clock::now());
    while done < bytes {
        if stop.is_set() {
            return Err(refused(path, format!("was to be filled, and was ended at byte {done}")));
        }
        let left = usize::try_from(bytes - done).unwrap_or(BLOCK_BYTES).min(BLOCK_BYTES);
        random.fill(&mut block[..left]);
        disk.write_all(&block[..left]).map_err(|error| fault(done, error))?;
        done += u64::try_from(left).expect("a block is small");
        if told.elapsed() >= PROGRESS {
            told = clock::now();
            mouth.say(&Tell::Progress { bytes: done })?;
        }
    }
    disk.sync_all().map_err(|error| fault(done, error))
}
