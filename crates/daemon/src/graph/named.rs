//! Files that an image names: its backing file.
//!
//! Where it stands: while a node of `driver=qcow2` is made whose command line leaves it to the image what
//! is below it. A file is opened only as `--named-files` allows it: who could write an image may have
//! put any name there.
//!
//! Invariants: the format of a backing file is what the image says and never guessed. What is below one of
//! the allowed directories is so without links. Backing files are opened read-only.
//! Limits: [`CHAIN_MAX`] images, each named by the one before.
//! Not here: what the command line says to be below an image (`options`).

use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use block::{Child, ErrandRunner};
use qcow2::Header;

use super::{Below, Graph, GraphError};
use crate::options::{
    self, Activity, AutoReadOnly, Backing, Blockdev, Discard, Driver, Locking, NamedChild,
    NamedFiles, Qcow2Caches,
};
use crate::permissions::{BACKING, Edge};

/// How many images may name each other in a row, so that reading them ends; as many as libvirt bears.
const CHAIN_MAX: usize = 200;

/// What an image names cannot be opened. Each message follows the path of the image.
#[derive(Debug, thiserror::Error)]
pub enum NamedFault {
    /// Nobody allowed it.
    #[error(
        "it names backing file '{name}', and files that only an image names are not opened unasked; \
         say backing=NODE or backing=null, or allow it with --named-files DIRECTORY or --named-files on"
    )]
    NotAllowed {
        /// What the image says.
        name: String,
    },
    /// It is somewhere else.
    #[error("it names backing file '{name}', and {} is in no directory of --named-files", path.display())]
    Outside {
        /// What the image says.
        name: String,
        /// Where that is, without links.
        path: PathBuf,
    },
    /// The image does not say what it is.
    #[error(
        "it names backing file '{name}' without its format, which is not guessed; say backing=NODE \
         or backing=null, or write the format into the image: qemu-img rebase -u -b '{name}' -F FORMAT"
    )]
    NoFormat {
        /// What the image says.
        name: String,
    },
    /// Nobody here reads that.
    #[error("it names backing file '{name}' of format '{format}' (supported: raw, qcow2)")]
    Format {
        /// What the image says.
        name: String,
        /// The format.
        format: String,
    },
    /// It is not a path.
    #[error("it names backing file '{name}', which is no path of a file; say backing=NODE")]
    NoPath {
        /// What the image says.
        name: String,
    },
    /// The image has no place that the name could be relative to.
    #[error(
        "it names backing file '{name}', which is relative to an image that is not in one file"
    )]
    NoDirectory {
        /// What the image says.
        name: String,
    },
    /// It is not there, or not ours to open.
    #[error("it names backing file '{name}': could not open '{}'", path.display())]
    Open {
        /// What the image says.
        name: String,
        /// Where that is.
        path: PathBuf,
        /// Why not.
        #[source]
        cause: io::Error,
    },
    /// It cannot hold a disk.
    #[error("it names backing file '{name}', which is neither a regular file nor a block device")]
    Kind {
        /// What the image says.
        name: String,
    },
    /// There is no end.
    #[error("it is the last of {CHAIN_MAX} images that name each other, and names another one")]
    TooLong,
}

/// What an image names.
#[derive(Debug, Clone, Copy)]
struct Named<'a> {
    name: &'a str,
    allowed: &'a NamedFiles,
}

impl Graph {
    /// Makes what an image stands on and only names, if the command line leaves that to it and allows it.
    /// Blocks.
    pub(super) fn add_named(
        &mut self,
        name: &str,
        blockdev: &Blockdev,
        below: &mut Vec<Below>,
        made: &mut Vec<String>,
    ) -> Result<(), GraphError> {
        let Driver::Qcow2 { backing: Backing::OfImage, named_files: allowed, .. } =
            &blockdev.driver
        else {
            return Ok(());
        };
        let header = self.header(name, below)?;
        let Some(backing) = header.backing.clone() else { return Ok(()) };
        let file = &below.first().expect("an image is in a file").edge.node;
        let image = self.path_of(file);
        let shown = image.clone().unwrap_or_else(|| PathBuf::from(file));
        let fault = |source| GraphError::Named { node: name.to_owned(), image: shown, source };
        let named = Named { name: &backing, allowed };
        let above = self.naming.len();
        let inner = named.node(image.as_deref(), &header, above, blockdev).map_err(fault)?;
        self.naming.extend(self.files_below(file).iter().map(|file| file.identity()));
        let child = inner.name_below(name, BACKING);
        let node = self.build(&inner, &child, made);
        self.naming.truncate(above);
        let (edge, place) = (Edge { role: BACKING.to_owned(), node: child }, Child::new(node?));
        below.push(Below { edge, place });
        Ok(())
    }

    /// What the image says in whose file the first child is.
    pub(super) fn header(&self, name: &str, below: &[Below]) -> Result<Header, GraphError> {
        let file = below.first().expect("an image is in a file").place.node();
        let runner = Arc::clone(&self.files) as Arc<dyn ErrandRunner>;
        let failed = |source| GraphError::Image { node: name.to_owned(), source };
        qcow2::read_header(&file, &runner).map_err(failed)
    }

    /// The path of the one file that a node shows the bytes of, as QEMU finds it: of nodes with one child it
    /// is that of the child.
    fn path_of<'a>(&'a self, mut name: &'a str) -> Option<PathBuf> {
        loop {
            let vertex = self.vertices.get(name)?;
            match (vertex.files.as_slice(), vertex.below.as_slice()) {
                ([file], []) => return Some(file.path().to_path_buf()),
                ([], [only]) => name = &only.edge.node,
                _ => return None,
            }
        }
    }
}

impl Named<'_> {
    /// The node that shows the backing file, to be written inside the image's.
    fn node(
        self,
        image: Option<&Path>,
        header: &Header,
        depth: usize,
        above: &Blockdev,
    ) -> Result<Blockdev, NamedFault> {
        let name = || self.name.to_owned();
        // Whoever has to allow it first hears of that first.
        if *self.allowed == NamedFiles::Refused {
            return Err(NamedFault::NotAllowed { name: name() });
        }
        let driver = match header.backing_format.as_deref() {
            None => return Err(NamedFault::NoFormat { name: name() }),
            Some("raw") => Driver::Raw { offset: 0, size: None },
            Some("qcow2") if depth + 1 >= CHAIN_MAX => return Err(NamedFault::TooLong),
            Some("qcow2") => Driver::Qcow2 {
                caches: Qcow2Caches::default(),
                backing: Backing::OfImage,
                named_files: self.allowed.clone(),
            },
            Some(format) => {
                return Err(NamedFault::Format { name: name(), format: format.to_owned() });
            }
        };
        let read_only = Blockdev { read_only: true, ..above.clone() };
        let file = options::Child::Inline(Box::new(self.file_node(image, &read_only)?));
        let children = vec![NamedChild { name: "file".to_owned(), node: file }];
        Ok(Blockdev { driver, children, discard: Discard::Ignore, ..plain(&read_only) })
    }

    fn file_node(self, image: Option<&Path>, above: &Blockdev) -> Result<Blockdev, NamedFault> {
        let filename = self.resolve(image)?;
        let name = self.name.to_owned();
        let kind = match filename.metadata() {
            Ok(metadata) => metadata.file_type(),
            Err(cause) => return Err(NamedFault::Open { name, path: filename, cause }),
        };
        let (aio, locking) = (None, Locking::Automatic);
        let driver = if kind.is_file() {
            Driver::File { filename, aio, locking }
        } else if kind.is_block_device() {
            Driver::HostDevice { filename, aio, locking }
        } else {
            return Err(NamedFault::Kind { name });
        };
        Ok(Blockdev { driver, ..plain(above) })
    }

    /// Where the file is, if it may be opened. If it counts where, the path is without links, so that
    /// nobody can lead it elsewhere from here on.
    fn resolve(self, image: Option<&Path>) -> Result<PathBuf, NamedFault> {
        let Self { name: given, allowed } = self;
        let name = || given.to_owned();
        // As in QEMU, a colon before the first slash ends the name of a protocol; `json:` is one.
        let first = given.split('/').next().unwrap_or_default();
        if first.contains(':') || given.contains('\0') {
            return Err(NamedFault::NoPath { name: name() });
        }
        let path = match (Path::new(given), image) {
            (path, _) if path.is_absolute() => path.to_path_buf(),
            (path, Some(image)) => image.parent().unwrap_or(Path::new("")).join(path),
            (_, None) => return Err(NamedFault::NoDirectory { name: name() }),
        };
        match allowed {
            NamedFiles::Refused => Err(NamedFault::NotAllowed { name: name() }),
            NamedFiles::Anywhere => Ok(path),
            NamedFiles::Below(directories) => match path.canonicalize() {
                Ok(real) if directories.iter().any(|it| real.starts_with(it)) => Ok(real),
                Ok(path) => Err(NamedFault::Outside { name: name(), path }),
                Err(cause) => Err(NamedFault::Open { name: name(), path, cause }),
            },
        }
    }
}

/// A node inside that one, with what is inherited.
fn plain(above: &Blockdev) -> Blockdev {
    Blockdev {
        node_name: None,
        driver: above.driver.clone(),
        children: Vec::new(),
        read_only: above.read_only,
        auto_read_only: AutoReadOnly::Off,
        discard: Discard::Unmap,
        cache_direct: above.cache_direct,
        flushes: above.flushes,
        force_share: above.force_share,
        activity: Activity::Active,
    }
}
