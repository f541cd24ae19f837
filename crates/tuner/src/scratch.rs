//! The scratch file: made, filled with incompressible data, synced, and removed on every way out.
//!
//! Invariants: the file exists only while a `Scratch` lives; an existing file is never overwritten.
//! Limits: its size is checked against the free space, less a reserve for everybody else.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use load::Random;
use rustix::fs::{FallocateFlags, OFlags, fallocate, statvfs};
use rustix::io::Errno;

use crate::interrupt::Interrupt;
use crate::units::Bytes;

const CHUNK_BYTES: usize = 1 << 20;
const ALIGNMENT: usize = 4096;
/// Space of the file system that is left to others.
const RESERVE_BYTES: u64 = 64 << 20;

/// A file that is removed when this value goes.
#[derive(Debug)]
pub(crate) struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Makes and fills the file; `report` hears the bytes written so far.
    ///
    /// # Errors
    /// If there is no room, the directory cannot be written, or a signal comes.
    pub(crate) fn create(
        directory: &Path,
        size: Bytes,
        seed: u64,
        interrupt: &Interrupt,
        report: &dyn Fn(u64),
    ) -> Result<Self> {
        check_size(size, free_bytes(directory)?, directory)?;
        let path = directory.join(format!("ringloom-scratch-{}.img", std::process::id()));
        let name = path.display().to_string();
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        let file = file.with_context(|| format!("create the scratch file {name}"))?;
        let scratch = Self { path };
        reserve(&file, size.0).with_context(|| format!("reserve space for {name}"))?;
        let file = reopen_direct(&scratch.path).unwrap_or(file);
        fill(file, size.0, seed, interrupt, report).with_context(|| format!("fill {name}"))?;
        Ok(scratch)
    }

    pub(crate) fn path(&self) -> &Path {
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

fn free_bytes(directory: &Path) -> Result<u64> {
    let statistics = statvfs(directory).with_context(|| format!("{}", directory.display()))?;
    Ok(statistics.f_bavail.saturating_mul(statistics.f_frsize))
}

fn check_size(size: Bytes, free: u64, directory: &Path) -> Result<()> {
    let least = u64::try_from(CHUNK_BYTES).expect("usize fits u64");
    if size.0 < least || !size.0.is_multiple_of(least) {
        bail!("--size {size}: must be a multiple of {}", Bytes(least));
    }
    let usable = free.saturating_sub(RESERVE_BYTES);
    if size.0 > usable {
        let (name, usable) = (directory.display(), usable >> 20);
        bail!(
            "a scratch file of {size} does not fit: {name} has {usable}M to spare; use a smaller \
             --size or run in another directory"
        );
    }
    Ok(())
}

/// Fails early when there is no room; file systems that cannot reserve are filled all the same.
fn reserve(file: &File, bytes: u64) -> Result<(), Errno> {
    match fallocate(file, FallocateFlags::empty(), 0, bytes) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        result => result,
    }
}

/// The same file past the page cache, which the run does not want to find warm.
fn reopen_direct(path: &Path) -> Option<File> {
    let flag = i32::try_from(OFlags::DIRECT.bits()).ok()?;
    OpenOptions::new().write(true).custom_flags(flag).open(path).ok()
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
        random.fill(chunk);
        write_chunk(&mut file, chunk)?;
        written += u64::try_from(chunk.len()).expect("usize fits u64");
        report(written);
    }
    file.sync_all()?;
    Ok(())
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
    use crate::interrupt::tests::deaf;

    const SIZE: Bytes = Bytes(4 << 20);

    fn entries(directory: &Path) -> usize {
        std::fs::read_dir(directory).unwrap().count()
    }

    #[test]
    fn the_file_is_full_of_noise_and_goes_with_its_owner() {
        let directory = tempfile::tempdir().unwrap();
        let reported = std::cell::Cell::new(0);
        let report = |bytes| reported.set(bytes);
        let scratch = Scratch::create(directory.path(), SIZE, 1, &deaf(false), &report).unwrap();
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
        let error = Scratch::create(directory.path(), SIZE, 1, &deaf(true), &|_| {}).unwrap_err();
        assert!(
            error.is::<crate::Interrupted>() || error.root_cause().to_string() == "interrupted"
        );
        assert_eq!(entries(directory.path()), 0);
    }

    #[test]
    fn a_size_without_room_is_refused() {
        let directory = Path::new("/somewhere");
        let error = check_size(Bytes(2 << 30), 1 << 30, directory).unwrap_err().to_string();
        assert!(error.contains("2G") && error.contains("960M to spare"), "{error}");
        assert!(error.contains("/somewhere"), "{error}");
        assert!(check_size(Bytes(960 << 20), 1 << 30, directory).is_ok());
        assert!(check_size(Bytes(1000), 1 << 30, directory).is_err());
        assert!(check_size(Bytes(0), 1 << 30, directory).is_err());
    }

    #[test]
    fn a_missing_directory_is_named() {
        let missing = Path::new("/nonexistent/dir");
        let error = Scratch::create(missing, SIZE, 1, &deaf(false), &|_| {}).unwrap_err();
        assert!(format!("{error:#}").contains("/nonexistent/dir"), "{error:#}");
    }
}
