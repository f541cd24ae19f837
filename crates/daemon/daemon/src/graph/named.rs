//! Files that an image names: its backing file and its data file.
//!
//! Where it stands: while a node of `driver=qcow2` is made whose command line leaves it to the image what
//! is below it. A file is opened only as `--named-files` allows it: who could write an image may have
//! put any name there.
//!
//! Invariants: the format of a backing file is what the image says and never guessed. What is below one of
//! the allowed directories is so without links. Backing files are opened read-only, data files as
//! their image, and then never for writing because of a directory that was allowed: it may hold the disks of others.
//! Limits: [`CHAIN_MAX`] images, each named by the one before.
//! Not here: what the command line says to be below an image (`options`).

use std::fmt;
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
use crate::permissions::{BACKING, DATA_FILE, Edge};

/// How many images may name each other in a row, so that reading them ends; as many as libvirt bears.
const CHAIN_MAX: usize = 200;

/// What an image names cannot be opened. Each message follows the path of the image.
#[derive(Debug, thiserror::Error)]
pub enum NamedFault {
    /// Nobody allowed it.
    #[error(
        "it names {what} '{name}', and files that only an image names are not opened unasked; say {}, \
         or allow it with --named-files DIRECTORY or --named-files on", what.answers()
    )]
    NotAllowed {
        /// What it is to the image.
        what: What,
        /// What the image says.
        name: String,
    },
    /// It would be written.
    #[error(
        "it names data file '{name}', and a data file that only an image names is not written unasked; \
         say data-file=NODE or read-only=on, or allow it with --named-files on"
    )]
    Written {
        /// What the image says.
        name: String,
    },
    /// It is somewhere else.
    #[error("it names {what} '{name}', and {} is in no directory of --named-files", path.display())]
    Outside {
        /// What it is to the image.
        what: What,
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
    #[error("it names {what} '{name}', which is no path of a file; say {}", what.node())]
    NoPath {
        /// What it is to the image.
        what: What,
        /// What the image says.
        name: String,
    },
    /// The image has no place that the name could be relative to.
    #[error("it names {what} '{name}', which is relative to an image that is not in one file")]
    NoDirectory {
        /// What it is to the image.
        what: What,
        /// What the image says.
        name: String,
    },
    /// It is not there, or not ours to open.
    #[error("it names {what} '{name}': could not open '{}'", path.display())]
    Open {
        /// What it is to the image.
        what: What,
        /// What the image says.
        name: String,
        /// Where that is.
        path: PathBuf,
        /// Why not.
        #[source]
        cause: io::Error,
    },
    /// It cannot hold a disk.
    #[error("it names {what} '{name}', which is neither a regular file nor a block device")]
    Kind {
        /// What it is to the image.
        what: What,
        /// What the image says.
        name: String,
    },
    /// The image has a data file and does not name it.
    #[error("its data are in a file that it does not name; say data-file=NODE")]
    NoDataFile,
    /// There is no end.
    #[error("it is the last of {CHAIN_MAX} images that name each other, and names another one")]
    TooLong,
}

/// What a file is to the image that names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// What shows where the image has nothing.
    Backing,
    /// What the data are in.
    Data,
}

impl What {
    /// What says on the command line that it is something else.
    fn node(self) -> &'static str {
        match self {
            Self::Backing => "backing=NODE",
            Self::Data => "data-file=NODE",
        }
    }

    fn answers(self) -> &'static str {
        match self {
            Self::Backing => "backing=NODE or backing=null",
            Self::Data => "data-file=NODE",
        }
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Backing => "backing file",
            Self::Data => "data file",
        })
    }
}

/// What an image names.
#[derive(Debug, Clone, Copy)]
struct Named<'a> {
    what: What,
    name: &'a str,
    allowed: &'a NamedFiles,
}

impl Graph {
    /// Makes what is below an image and only named in it, if the command line leaves that to it and allows
    /// it. Blocks.
    pub(super) fn add_named(
        &mut self,
        name: &str,
        blockdev: &Blockdev,
        below: &mut Vec<Below>,
        made: &mut Vec<String>,
    ) -> Result<(), GraphError> {
        let Driver::Qcow2 { backing, named_files: allowed, .. } = &blockdev.driver else {
            return Ok(());
        };
        let header = self.header(name, below)?;
        let file = below.first().expect("an image is in a file").edge.node.clone();
        let image = self.path_of(&file);
        let has_data = below.iter().any(|below| below.edge.role == DATA_FILE);
        let depth = self.naming.len();
        let named = || -> Result<Vec<_>, NamedFault> {
            let mut inner = Vec::new();
            if let (Backing::OfImage, Some(name)) = (backing, &header.backing) {
                let named = Named { what: What::Backing, name, allowed };
                inner.push((
                    BACKING,
                    named.backing_node(image.as_deref(), &header, depth, blockdev)?,
                ));
            }
            if header.features.external_data && !has_data {
                let name = header.data_file.as_ref().ok_or(NamedFault::NoDataFile)?;
                if *allowed != NamedFiles::Anywhere && !blockdev.read_only {
                    return Err(NamedFault::Written { name: name.to_owned() });
                }
                let named = Named { what: What::Data, name, allowed };
                inner.push((DATA_FILE, named.file_node(image.as_deref(), blockdev)?));
            }
            Ok(inner)
        };
        let inner = named().map_err(|source| {
            let image = image.clone().unwrap_or_else(|| PathBuf::from(&file));
            GraphError::Named { node: name.to_owned(), image, source }
        })?;
        self.naming.extend(self.files_below(&file).iter().map(|file| file.identity()));
        let result = inner.into_iter().try_for_each(|(role, inner)| {
            let child = inner.name_below(name, role);
            let node = self.build(&inner, &child, made)?;
            let edge = Edge { role: role.to_owned(), node: child };
            below.push(Below { edge, place: Child::new(node) });
            Ok(())
        });
        self.naming.truncate(depth);
        result
    }

    /// What the image says in whose file the first child is.
    pub(super) fn header(&self, name: &str, below: &[Below]) -> Result<Header, GraphError> {
        let file = below.first().expect("an image is in a file").place.node();
        let runner = Arc::clone(&self.files) as Arc<dyn ErrandRunner>;
        let failed = |source| GraphError::Image { node: name.to_owned(), source };
        let path = self.path_of(&below[0].edge.node).unwrap_or_default();
        let what = format!("node {name}: image {}", path.display());
        let read = || qcow2::read_header(&file, &runner);
        self.watch.during(what, read).map_err(failed)
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
    fn backing_node(
        self,
        image: Option<&Path>,
        header: &Header,
        depth: usize,
        above: &Blockdev,
    ) -> Result<Blockdev, NamedFault> {
        let name = || self.name.to_owned();
        // Whoever has to allow it first hears of that first.
        if *self.allowed == NamedFiles::Refused {
            return Err(NamedFault::NotAllowed { what: self.what, name: name() });
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
        let (what, name) = (self.what, self.name.to_owned());
        let kind = match filename.metadata() {
            Ok(metadata) => metadata.file_type(),
            Err(cause) => return Err(NamedFault::Open { what, name, path: filename, cause }),
        };
        let (aio, locking) = (None, Locking::Automatic);
        let driver = if kind.is_file() {
            Driver::File { filename, aio, locking }
        } else if kind.is_block_device() {
            Driver::HostDevice { filename, aio, locking }
        } else {
            return Err(NamedFault::Kind { what, name });
        };
        Ok(Blockdev { driver, ..plain(above) })
    }

    /// Where the file is, if it may be opened. If it counts where, the path is without links, so that
    /// nobody can lead it elsewhere from here on.
    fn resolve(self, image: Option<&Path>) -> Result<PathBuf, NamedFault> {
        let Self { what, name: given, allowed } = self;
        let name = || given.to_owned();
        // As in QEMU, a colon before the first slash ends the name of a protocol; `json:` is one.
        let first = given.split('/').next().unwrap_or_default();
        if first.contains(':') || given.contains('\0') {
            return Err(NamedFault::NoPath { what, name: name() });
        }
        let path = match (Path::new(given), image) {
            (path, _) if path.is_absolute() => path.to_path_buf(),
            (path, Some(image)) => image.parent().unwrap_or(Path::new("")).join(path),
            (_, None) => return Err(NamedFault::NoDirectory { what, name: name() }),
        };
        match allowed {
            NamedFiles::Refused => Err(NamedFault::NotAllowed { what, name: name() }),
            NamedFiles::Anywhere => Ok(path),
            NamedFiles::Below(directories) => match path.canonicalize() {
                Ok(real) if directories.iter().any(|it| real.starts_with(it)) => Ok(real),
                Ok(path) => Err(NamedFault::Outside { what, name: name(), path }),
                Err(cause) => Err(NamedFault::Open { what, name: name(), path, cause }),
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
