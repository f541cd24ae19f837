//! The files behind the rows, and how a server is told of them.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use load::Random;
use load::probe::{CacheMode, cache_mode};
use tempfile::{NamedTempFile, TempPath};

use crate::rows::{Disk, SEED};

/// Small enough for a tmpfs, larger than any cache that matters.
pub(crate) const DISK_BYTES: u64 = 512 << 20;
const CHUNK_BYTES: usize = 1 << 20;

/// The files of a run, made when a row needs them and removed at its end.
#[derive(Debug)]
pub(crate) struct Disks {
    work: PathBuf,
    tmpfs_file: Option<TempPath>,
    work_file: Option<(TempPath, CacheMode)>,
}

/// A file and how it is opened.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DiskFile<'a> {
    pub(crate) path: &'a Path,
    pub(crate) cache: CacheMode,
}

impl Disks {
    pub(crate) fn new(work: &Path) -> Self {
        Self { work: work.to_path_buf(), tmpfs_file: None, work_file: None }
    }

    /// Makes what the disk needs; the null disk needs nothing.
    pub(crate) fn make(&mut self, disk: Disk) -> Result<()> {
        match disk {
            Disk::Null => {}
            Disk::Tmpfs if self.tmpfs_file.is_some() => {}
            Disk::Tmpfs => self.tmpfs_file = Some(filled(Path::new("/dev/shm"))?),
            Disk::Work if self.work_file.is_some() => {}
            Disk::Work => {
                let work = &self.work;
                fs::create_dir_all(work).with_context(|| format!("make {}", work.display()))?;
                let path = filled(work)?;
                let cache = cache_mode(&path)
                    .with_context(|| format!("read {} with O_DIRECT", path.display()))?;
                self.work_file = Some((path, cache));
            }
        }
        Ok(())
    }

    /// The file of a disk that was made; the null disk has none. A tmpfs is its own page cache.
    pub(crate) fn file(&self, disk: Disk) -> Option<DiskFile<'_>> {
        match disk {
            Disk::Null => None,
            Disk::Tmpfs => {
                let path = self.tmpfs_file.as_ref()?;
                Some(DiskFile { path, cache: CacheMode::Buffered })
            }
            Disk::Work => {
                let (path, cache) = self.work_file.as_ref()?;
                Some(DiskFile { path, cache: *cache })
            }
        }
    }
}

/// A file of incompressible data, on disk.
fn filled(directory: &Path) -> Result<TempPath> {
    let made = NamedTempFile::with_prefix_in("ringloom-bench-", directory);
    let file = made.with_context(|| format!("make a file in {}", directory.display()))?;
    write_all(file.as_file()).with_context(|| format!("fill {}", file.path().display()))?;
    Ok(file.into_temp_path())
}

fn write_all(mut file: &File) -> Result<()> {
    let (mut random, mut chunk) = (Random::new(SEED), vec![0; CHUNK_BYTES]);
    for _ in 0..DISK_BYTES / CHUNK_BYTES as u64 {
        random.fill(&mut chunk);
        file.write_all(&chunk)?;
    }
    Ok(file.sync_all()?)
}
