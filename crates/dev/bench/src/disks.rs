//! The files behind the rows, and how a server is told of them.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use load::Random;
use load::probe::{CacheMode, cache_mode};
use tempfile::{NamedTempFile, TempPath};

use crate::images::{Content, Image};
use crate::nbd_disk::NbdDisk;
use crate::rbd_disk::RbdDisk;
use crate::rows::qcow2::FULL;
use crate::rows::{Disk, SEED};

/// Small enough for a tmpfs, larger than any cache that matters.
pub(crate) const DISK_BYTES: u64 = 512 << 20;
/// Where files are that are their own page cache.
pub(crate) const TMPFS: &str = "/dev/shm";
const CHUNK_BYTES: usize = 1 << 20;

/// The files of a run, made when a row needs them and removed at its end.
#[derive(Debug)]
pub(crate) struct Disks {
    work: PathBuf,
    tmpfs_file: Option<TempPath>,
    work_file: Option<(TempPath, CacheMode)>,
    /// The last one, and its size.
    sparse_file: Option<(u64, TempPath)>,
    /// The last one, with what it is backed by.
    image: Option<(Image, Vec<TempPath>)>,
    /// A server of the last image.
    nbd: Option<NbdDisk>,
    /// The configuration of a Ceph cluster, if one is named, and an image.
    ceph_conf: Option<PathBuf>,
    rbd: Option<RbdDisk>,
}

/// A file and how it is opened.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DiskFile<'a> {
    pub(crate) path: &'a Path,
    pub(crate) cache: CacheMode,
    pub(crate) format: Format<'a>,
    /// The socket of the NBD server that has it, if it is reached that way.
    pub(crate) nbd: Option<&'a Path>,
}

/// What gives a file's bytes meaning.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Format<'a> {
    Raw,
    Qcow2 {
        /// The images below, the next first.
        backing: &'a [TempPath],
        /// In bytes.
        l2_cache: Option<u64>,
    },
    /// None: the path is that of the configuration of a cluster, which has the bytes.
    Cluster,
}

impl<'a> DiskFile<'a> {
    pub(crate) fn raw(path: &'a Path, cache: CacheMode) -> Self {
        Self { path, cache, format: Format::Raw, nbd: None }
    }
}

impl Disks {
    pub(crate) fn new(work: &Path, ceph_conf: Option<&Path>) -> Self {
        Self {
            work: work.to_path_buf(),
            tmpfs_file: None,
            work_file: None,
            sparse_file: None,
            image: None,
            nbd: None,
            ceph_conf: ceph_conf.map(Path::to_path_buf),
            rbd: None,
        }
    }

    /// Makes what the disk needs, and what it is compared with; the null disk needs nothing.
    pub(crate) fn make(&mut self, disk: Disk) -> Result<()> {
        match disk {
            Disk::Null => {}
            Disk::Tmpfs if self.tmpfs_file.is_some() => {}
            Disk::Tmpfs => self.tmpfs_file = Some(filled(Path::new(TMPFS))?),
            Disk::Work if self.work_file.is_some() => {}
            Disk::Work => {
                let work = &self.work;
                fs::create_dir_all(work).with_context(|| format!("make {}", work.display()))?;
                let path = filled(work)?;
                let cache = cache_mode(&path)
                    .with_context(|| format!("read {} with O_DIRECT", path.display()))?;
                self.work_file = Some((path, cache));
            }
            Disk::Sparse { bytes } => {
                if self.sparse_file.as_ref().is_none_or(|(made, _)| *made != bytes) {
                    self.sparse_file = None;
                    self.sparse_file = Some((bytes, sparse(bytes)?));
                }
            }
            Disk::Image(image) => {
                self.make(raw_of(image))?;
                if self.image.as_ref().is_none_or(|(made, _)| *made != image) {
                    (self.nbd, self.image) = (None, None);
                    let full = self.tmpfs_file.as_deref().unwrap_or(Path::new(""));
                    self.image = Some((image, image.make(full)?));
                }
            }
            Disk::RemoteImage => {
                self.make(Disk::Image(FULL))?;
                if let (None, Some((_, paths))) = (&self.nbd, &self.image) {
                    self.nbd = Some(NbdDisk::start(&paths[0])?);
                }
            }
            Disk::ClusterImage if self.rbd.is_some() => {}
            Disk::ClusterImage => {
                self.make(Disk::Tmpfs)?;
                let file = self.tmpfs_file.as_deref().expect("it was made just now");
                self.rbd = Some(RbdDisk::make(self.ceph_conf.as_deref(), file)?);
            }
        }
        Ok(())
    }

    /// Makes anew what grows when it is written.
    pub(crate) fn renew(&mut self, disk: Disk) -> Result<()> {
        if let Some((image, _)) = &self.image
            && image.is_sparse()
        {
            self.image = None;
        }
        self.sparse_file = None;
        self.make(disk)
    }

    /// The file of a disk that was made; the null disk has none. A tmpfs is its own page cache.
    pub(crate) fn file(&self, disk: Disk) -> Option<DiskFile<'_>> {
        let buffered = |path| DiskFile::raw(path, CacheMode::Buffered);
        match disk {
            Disk::Null => None,
            Disk::Tmpfs => self.tmpfs_file.as_deref().map(buffered),
            Disk::Sparse { .. } => self.sparse_file.as_ref().map(|(_, path)| buffered(path)),
            Disk::Work => {
                let (path, cache) = self.work_file.as_ref()?;
                Some(DiskFile::raw(path, *cache))
            }
            Disk::Image(_) => {
                let (image, paths) = self.image.as_ref()?;
                let (top, backing) = paths.split_first()?;
                let format = Format::Qcow2 { backing, l2_cache: image.l2_cache };
                Some(DiskFile { format, ..buffered(top) })
            }
            Disk::RemoteImage => {
                let image = self.file(Disk::Image(FULL))?;
                Some(DiskFile { nbd: Some(self.nbd.as_ref()?.socket()), ..image })
            }
            Disk::ClusterImage => {
                let path = self.rbd.as_ref()?.conf();
                Some(DiskFile { format: Format::Cluster, ..DiskFile::raw(path, CacheMode::Direct) })
            }
        }
    }

    /// The image of a cluster, if one was made.
    pub(crate) fn rbd(&self) -> Option<&RbdDisk> {
        self.rbd.as_ref()
    }
}

/// The raw file that an image is compared with: as large, with the same content, or with
/// holes that the file system fills as the image does.
pub(crate) fn raw_of(image: Image) -> Disk {
    match image.content {
        Content::Full | Content::Chain => Disk::Tmpfs,
        Content::Mapped(bytes) | Content::Empty(bytes) => Disk::Sparse { bytes },
    }
}

fn named(directory: &Path) -> Result<NamedTempFile> {
    let made = NamedTempFile::with_prefix_in("ringloom-bench-", directory);
    made.with_context(|| format!("make a file in {}", directory.display()))
}

/// A file of incompressible data, on disk.
fn filled(directory: &Path) -> Result<TempPath> {
    let file = named(directory)?;
    write_all(file.as_file()).with_context(|| format!("fill {}", file.path().display()))?;
    Ok(file.into_temp_path())
}

/// A file of holes on tmpfs.
fn sparse(bytes: u64) -> Result<TempPath> {
    let file = named(Path::new(TMPFS))?;
    let grown = file.as_file().set_len(bytes);
    grown.with_context(|| format!("grow {}", file.path().display()))?;
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
