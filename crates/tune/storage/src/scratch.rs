//! The scratch file: made, filled with incompressible data, synced, and removed on every way out.
//!
//! Invariants: the file exists only while a `Scratch` lives; an existing file is never overwritten.
//! Limits: its size is checked against the free space, less a reserve for everybody else.

use std::cell::Cell as Shared;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Seek as _, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use load::Random;
use plan::units::Bytes;
use rustix::fs::{FallocateFlags, OFlags, fallocate, statvfs};
use rustix::io::Errno;

use crate::clock;
use crate::interrupt::Interrupt;

const CHUNK_BYTES: usize = 1 << 20;
/// What tells how fast a disk is filled; a slow one takes a second for it.
pub const TRIAL_BYTES: u64 = 64 << 20;
/// The beginning of it, which is slow: a large file has it only once. Whole chunks.
const TRIAL_START_BYTES: u64 = 8 << 20;
const ALIGNMENT: usize = 4096;
/// Space of the file system that is left to others.
const RESERVE_BYTES: u64 = 64 << 20;

/// A file that is removed when this value goes.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Makes and fills the file, which must not exist; `report` hears the bytes written so far.
    ///
    /// # Errors
    /// If there is no room, the directory cannot be written, or a signal comes.
    pub fn create(
        path: PathBuf,
        size: Bytes,
        seed: u64,
        interrupt: &Interrupt,
        report: &dyn Fn(u64),
    ) -> Result<Self> {
        let directory = path.parent().unwrap_or(Path::new("/")).to_path_buf();
        check_size(size, free_bytes(&directory)?, &directory)?;
        let name = path.display().to_string();
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        let file = file.with_context(|| format!("create the scratch file {name}"))?;
        let scratch = Self { path };
        reserve(&file, &scratch.path, size)?;
        let file = reopen_direct(&scratch.path).unwrap_or(file);
        let filled = fill(file, size.0, seed, interrupt, report);
        filled.with_context(|| format!("fill {name} in {}", directory.display()))?;
        Ok(scratch)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            // Nobody is left to handle it, but the user must know of the space.
            let name = self.path.display();
            writeln!(io::stderr(), "cannot remove the scratch file {name}: {error}")
                .unwrap_or_default();
        }
    }
}

/// How many bytes per second such a file is filled with: tried with a small one, which is removed.
///
/// # Errors
/// As `Scratch::create`.
pub fn fill_rate(directory: &Path, interrupt: &Interrupt) -> Result<f64> {
    let path = directory.join(format!("ringloom-scratch-{}-rate.img", std::process::id()));
    let begun = Shared::new(clock::now());
    let report = |bytes| {
        if bytes == TRIAL_START_BYTES {
            begun.set(clock::now());
        }
    };
    let scratch = Scratch::create(path, Bytes(TRIAL_BYTES), 0, interrupt, &report)?;
    let seconds = begun.get().elapsed().as_secs_f64().max(f64::MIN_POSITIVE);
    drop(scratch);
    Ok((TRIAL_BYTES - TRIAL_START_BYTES) as f64 / seconds)
}

/// Bytes of the file system that we may use.
pub fn free_bytes(directory: &Path) -> Result<u64> {
    let statistics = statvfs(directory).with_context(|| format!("{}", directory.display()))?;
    Ok(statistics.f_bavail.saturating_mul(statistics.f_frsize))
}

/// Whether a scratch file of this size can be made where so many bytes are free.
fn check_size(size: Bytes, free: u64, directory: &Path) -> Result<()> {
    let least = u64::try_from(CHUNK_BYTES).expect("usize fits u64");
    if size.0 < least || !size.0.is_multiple_of(least) {
        bail!("--size {size}: must be a multiple of {}", Bytes(least));
    }
    check_room(&format!("a scratch file of {size}"), size, free, directory)
}

/// Whether so many bytes leave others the reserve.
///
/// # Errors
/// If not; `what` says what has the size, and the size.
pub fn check_room(what: &str, size: Bytes, free: u64, directory: &Path) -> Result<()> {
    let usable = free.saturating_sub(RESERVE_BYTES);
    if size.0 <= usable {
        return Ok(());
    }
    let (name, usable, kept) = (directory.display(), usable >> 20, Bytes(RESERVE_BYTES));
    bail!(
        "{what} does not fit: {name} has {usable}M to spare, and {kept} that are kept free; use a smaller --size or \
         run in another directory"
    )
}

/// Fails early when there is no room; file systems that cannot reserve are filled all the same.
///
/// # Errors
/// If there is none, with what there is.
pub fn reserve(file: &File, path: &Path, bytes: Bytes) -> Result<()> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    let free = Bytes(free_bytes(directory)?);
    match fallocate(file, FallocateFlags::empty(), 0, bytes.0) {
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        Err(error) => Err(error)
            .with_context(|| format!("reserve {bytes} for {} ({free} free)", path.display())),
    }
}

/// The same file past the page cache, which the run does not want to find warm.
fn reopen_direct(path: &Path) -> Option<File> {
    let flag = i32::try_from(OFlags::DIRECT.bits()).ok()?;
    OpenOptions::new().write(true).custom_flags(flag).open(path).ok()
}

/// Writes a whole disk, a file or a block device, with data that does not compress.
///
/// # Errors
/// If it cannot be written, or a signal comes.
pub fn overwrite(path: &Path, seed: u64, interrupt: &Interrupt) -> Result<()> {
    let file = match reopen_direct(path) {
        Some(file) => file,
        None => OpenOptions::new().write(true).open(path)?,
    };
    let bytes = (&file).seek(SeekFrom::End(0))?;
    (&file).rewind()?;
    fill(file, bytes, seed, interrupt, &|_| {})
}

fn fill(
    mut file: File,
    bytes: u64,
    seed: u64,
    interrupt: &Interrupt,
    report: &dyn Fn(u64),
) -> Result<()> {
    let mut memory = vec![0_u8; CHUNK_BYTES + ALIGNMENT];
    let start = memory.as_ptr().align_offset(ALIGNMENT);
    let chunk = &mut memory[start..start + CHUNK_BYTES];
    let mut random = Random::new(seed);
    let mut written = 0;
    while written < bytes {
        interrupt.check()?;
        let chunk =
            &mut chunk[..usize::try_from(bytes - written).unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES)];
        random.fill(chunk);
        write_chunk(&mut file, chunk).map_err(|error| explain_full(error, written, bytes))?;
        written += u64::try_from(chunk.len()).expect("usize fits u64");
        report(written);
    }
    file.sync_all()?;
    Ok(())
}

/// Says of a full disk how far the file came; others may write there at the same time.
fn explain_full(error: anyhow::Error, written: u64, bytes: u64) -> anyhow::Error {
    let errno = error.downcast_ref().and_then(io::Error::raw_os_error);
    if errno != Some(Errno::NOSPC.raw_os_error()) && errno != Some(Errno::DQUOT.raw_os_error()) {
        return error;
    }
    let (written, bytes) = (Bytes(written), Bytes(bytes));
    error.context(format!(
        "the disk was full after {written} of {bytes}: use a smaller --size, free space, or run in \
         another directory"
    ))
}

fn write_chunk(file: &mut File, chunk: &[u8]) -> Result<()> {
    match file.write_all(chunk) {
        // Some file systems open with O_DIRECT and refuse the write: go through the cache then.
        Err(error) if error.kind() == ErrorKind::InvalidInput => {
            let flags = rustix::fs::fcntl_getfl(&*file)?;
            rustix::fs::fcntl_setfl(&*file, flags - OFlags::DIRECT)?;
            Ok(file.write_all(chunk)?)
        }
        result => Ok(result?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interrupt::Interrupt;

    const SIZE: Bytes = Bytes(4 << 20);

    fn entries(directory: &Path) -> usize {
        std::fs::read_dir(directory).unwrap().count()
    }

    #[test]
    fn the_file_is_full_of_noise_and_goes_with_its_owner() {
        let directory = tempfile::tempdir().unwrap();
        let reported = std::cell::Cell::new(0);
        let report = |bytes| reported.set(bytes);
        let scratch =
            Scratch::create(directory.path().join("s"), SIZE, 1, &Interrupt::deaf(false), &report)
                .unwrap();
        let data = std::fs::read(scratch.path()).unwrap();
        assert_eq!((data.len(), reported.get()), (4 << 20, 4 << 20));
        let mut counts = [0_u32; 256];
        for byte in &data {
            counts[usize::from(*byte)] += 1;
        }
        assert!(counts.iter().all(|&count| (15_000..18_000).contains(&count)), "not random");
        assert_ne!(data[..4096], data[1 << 20..(1 << 20) + 4096]);
        drop(scratch);
        assert_eq!(entries(directory.path()), 0);
    }

    #[test]
    fn an_interrupted_fill_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let error =
            Scratch::create(directory.path().join("s"), SIZE, 1, &Interrupt::deaf(true), &|_| {})
                .unwrap_err();
        assert!(
            error.is::<crate::interrupt::Interrupted>()
                || error.root_cause().to_string() == "interrupted"
        );
        assert_eq!(entries(directory.path()), 0);
    }

    #[test]
    fn the_rate_is_tried_and_nothing_stays() {
        let directory = tempfile::tempdir().unwrap();
        let rate = fill_rate(directory.path(), &Interrupt::deaf(false)).unwrap();
        assert!(rate.is_finite() && rate > 0.0, "{rate}");
        assert!(fill_rate(directory.path(), &Interrupt::deaf(true)).is_err());
        assert!(fill_rate(&directory.path().join("missing"), &Interrupt::deaf(false)).is_err());
        assert_eq!(entries(directory.path()), 0);
    }

    #[test]
    fn a_size_without_room_is_refused() {
        let directory = Path::new("/somewhere");
        let error = check_size(Bytes(2 << 30), 1 << 30, directory).unwrap_err().to_string();
        assert!(
            error.contains("2G") && error.contains("960M to spare, and 64M that are kept free"),
            "{error}"
        );
        assert!(error.contains("/somewhere"), "{error}");
        assert!(check_size(Bytes(960 << 20), 1 << 30, directory).is_ok());
        assert!(check_size(Bytes(1000), 1 << 30, directory).is_err());
        assert!(check_size(Bytes(0), 1 << 30, directory).is_err());
    }

    #[test]
    fn a_full_disk_says_how_far_the_file_came() {
        let full =
            || anyhow::Error::from(io::Error::from_raw_os_error(Errno::NOSPC.raw_os_error()));
        let message = format!("{:#}", explain_full(full(), 3 << 20, 8 << 20));
        assert!(message.starts_with("the disk was full after 3M of 8M: use a"), "{message}");
        assert!(message.ends_with("No space left on device (os error 28)"), "{message}");
        let other = explain_full(anyhow::Error::from(crate::interrupt::Interrupted), 0, 1);
        assert!(other.is::<crate::interrupt::Interrupted>());
    }

    #[test]
    fn a_device_that_is_full_ends_the_fill() {
        let file = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let error = fill(file, 2 << 20, 1, &Interrupt::deaf(false), &|_| {}).unwrap_err();
        assert!(error.to_string().starts_with("the disk was full after 0 of 2M"), "{error}");
    }

    #[test]
    fn a_missing_directory_is_named() {
        let missing = Path::new("/nonexistent/dir");
        let error = Scratch::create(missing.join("s"), SIZE, 1, &Interrupt::deaf(false), &|_| {})
            .unwrap_err();
        assert!(format!("{error:#}").contains("/nonexistent/dir"), "{error:#}");
    }
}
