//! `file`: a file of the host, the end of the stacks on iothreads.

use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result};
use block::{Access, DiscardPolicy, Node};
use disk::FileNode;
use kernel_io::{Aio, Caching, FileTable, OpenOptions};
use testkit::conformance::stack::{Chosen, Home, Parts, Shape, Subject};
use testkit::conformance::stamp::{SECTOR_BYTES, Stamp};
use testkit::rng::Rng;

/// The longest file.
const SECTORS_MAX: u64 = 8192;

/// Where the files of a stack are.
#[derive(Debug)]
pub(crate) struct Medium {
    directory: tempfile::TempDir,
    /// The open files.
    pub(crate) table: Arc<FileTable>,
    /// What brings bytes that are elsewhere into their files.
    fetches: Mutex<Vec<Fetch>>,
}

/// What brings bytes that are elsewhere into a file of a medium.
pub(super) trait FetchBytes: Debug + Send {
    /// Does it.
    fn fetch(&self) -> Result<()>;
}

/// One of them.
type Fetch = Box<dyn FetchBytes>;

impl Medium {
    /// A new directory in this one; gone with the medium.
    pub(crate) fn new(parent: &Path) -> Result<Self> {
        let place = || format!("a directory in {}", parent.display());
        let directory = tempfile::tempdir_in(parent).with_context(place)?;
        Ok(Self { directory, table: Arc::default(), fetches: Mutex::default() })
    }

    /// Where it is.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Has this done before files are compared.
    pub(super) fn add_fetch(&self, fetch: Fetch) {
        self.fetches.lock().expect("no holder of this lock panics").push(fetch);
    }

    /// Brings bytes that are elsewhere into their files.
    pub(crate) fn fetch(&self) -> Result<()> {
        let fetches = self.fetches.lock().expect("no holder of this lock panics");
        fetches.iter().try_for_each(|it| it.fetch())
    }

    /// The file of that number.
    pub(crate) fn path(&self, file: usize) -> PathBuf {
        self.directory.path().join(format!("file{file}"))
    }

    /// Makes the file of that number, of that many bytes, with what it holds first.
    pub(super) fn write_stamped(&self, file: usize, size: u64) -> Result<PathBuf> {
        let path = self.path(file);
        std::fs::write(&path, stamped(file, size)?)
            .with_context(|| format!("write {}", path.display()))?;
        Ok(path)
    }
}

/// Files on a medium.
#[derive(Debug)]
pub(crate) struct FileEnd(pub(crate) Arc<Medium>);

impl Subject for FileEnd {
    fn name(&self) -> &'static str {
        "file"
    }

    fn choose(&self, rng: &mut Rng, _: &Shape) -> Option<Arc<dyn Chosen>> {
        let ceiling = SECTORS_MAX >> rng.below(5);
        let sectors = 1 + rng.below(ceiling);
        let caching = if rng.one_in(2) { Caching::Direct } else { Caching::Buffered };
        // Linux AIO needs direct I/O.
        let aio = match (rng.below(4), caching) {
            (0, Caching::Direct) => Aio::Native,
            (1, _) => Aio::Threads,
            _ => Aio::Automatic,
        };
        let discard = if rng.one_in(3) { DiscardPolicy::Ignore } else { DiscardPolicy::Unmap };
        let medium = Arc::clone(&self.0);
        let size = sectors * block::SECTOR_BYTES;
        // The host may refuse direct I/O on what is no whole block at the end of a file.
        let size = if caching == Caching::Direct { size.next_multiple_of(4096) } else { size };
        Some(Arc::new(ChosenFile { medium, size, caching, aio, discard }))
    }
}

#[derive(Debug)]
struct ChosenFile {
    medium: Arc<Medium>,
    size: u64,
    caching: Caching,
    aio: Aio,
    discard: DiscardPolicy,
}

impl Chosen for ChosenFile {
    fn describe(&self) -> String {
        format!("{} B, {:?}, {:?}, discard {:?}", self.size, self.caching, self.aio, self.discard)
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn home(&self, at: u64) -> Home {
        Home::File(at)
    }

    fn build(&self, parts: Parts<'_>) -> Result<Arc<dyn Node>> {
        let path = self.medium.write_stamped(parts.file, self.size)?;
        let options = OpenOptions {
            caching: self.caching,
            aio: self.aio,
            ..OpenOptions::regular(path, Access::ReadWrite)
        };
        let node = FileNode::open(parts.name, &options, self.discard, &self.medium.table)?;
        Ok(Arc::new(node))
    }

    fn drops_discards(&self) -> bool {
        self.discard == DiscardPolicy::Ignore
    }
}

/// What a file of that number holds first.
fn stamped(file: usize, size: u64) -> Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(size)?];
    for (sector, bytes) in (0..).zip(bytes.chunks_exact_mut(SECTOR_BYTES)) {
        Stamp::of_file(file, sector).fill(bytes);
    }
    Ok(bytes)
}
