//! Files that an image names: its backing file and its data file.
//!
//! Where it stands: while a node is made whose options leave it to its image what is below it. A file is opened only as
//! `--named-files` allows it: who could write an image may have put any name there.
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

use block::Child;
use kernel_io::FileKind;
use syntax::NameList;

use super::{ChildEdge, Graph, GraphError};
use crate::drivers::{BaseOptions, Blockdev, ImageFileReference, image_format, image_formats};
use crate::model::{ChildRole, Edge, NodeOwner};

/// How many images may name each other in a row, so that reading them ends; as many as libvirt bears.
const CHAIN_MAX: usize = 200;

/// Which files may be opened that only an image names (`--named-files`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NamedFilesPolicy {
    /// None.
    Refused,
    /// Those in one of these directories or below it. Each is there, and has no links in its path.
    Below(Vec<PathBuf>),
    /// All.
    Anywhere,
}

/// A file that an image names cannot be opened. Each message follows the path of the image.
#[derive(Debug, thiserror::Error)]
pub enum NamedFileError {
    /// It may not be, or means nothing.
    #[error("it names {what} '{name}'{why}")]
    Refused {
        /// What it is to the image.
        what: NamedFileRole,
        /// What the image says.
        name: String,
        /// Why.
        why: NamedFileRefusal,
    },
    /// It is not there, or not ours to open.
    #[error("it names {what} '{name}': could not open '{}'", path.display())]
    Open {
        /// What it is to the image.
        what: NamedFileRole,
        /// What the image says.
        name: String,
        /// Where that is.
        path: PathBuf,
        /// Why not.
        #[source]
        cause: io::Error,
    },
    /// The image has a data file and does not name it.
    #[error("its data are in a file that it does not name; say data-file=NODE")]
    NoDataFile,
    /// There is no end.
    #[error("it is the last of {CHAIN_MAX} images that name each other, and names another one")]
    TooLong,
}

/// Why a file that an image names is not opened: the rest of a sentence that has named it.
#[derive(Debug, thiserror::Error)]
pub enum NamedFileRefusal {
    /// Nobody allowed it.
    #[error(
        ", and files that only an image names are not opened unasked; say {}, or allow it with \
         --named-files DIRECTORY or --named-files on", .0.answers()
    )]
    NotAllowed(NamedFileRole),
    /// It would be written.
    #[error(
        ", and a data file that only an image names is not written unasked; say data-file=NODE or \
         read-only=on, or allow it with --named-files on"
    )]
    Written,
    /// It is somewhere else: there, without links.
    #[error(", and {} is in no directory of --named-files", .0.display())]
    Outside(PathBuf),
    /// The image does not say what the file of that name is.
    #[error(
        " without its format, which is not guessed; say backing=NODE or backing=null, or write the \
         format into the image: qemu-img rebase -u -b '{0}' -F FORMAT"
    )]
    NoFormat(String),
    /// Nobody here reads that format.
    #[error(" of format '{0}' (supported: {names})", names = NameList(&format_names()))]
    Format(String),
    /// It is not a path.
    #[error(", which is no path of a file; say {}", .0.node())]
    NoPath(NamedFileRole),
    /// The image has no place that the name could be relative to.
    #[error(", which is relative to an image that is not in one file")]
    NoDirectory,
    /// It cannot hold a disk.
    #[error(", which is neither a regular file nor a block device")]
    Kind,
}

/// What a file is to the image that names it: backing file or data file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NamedFileRole {
    /// What shows where the image has nothing.
    Backing,
    /// What the data are in.
    Data,
}

impl NamedFileRole {
    /// What says on the command line that it is something else.
    fn node(self) -> &'static str {
        match self {
            Self::Backing => "backing=NODE",
            Self::Data => "data-file=NODE",
        }
    }

    fn refused(self, name: &str, why: NamedFileRefusal) -> NamedFileError {
        NamedFileError::Refused { what: self, name: name.to_owned(), why }
    }

    fn answers(self) -> &'static str {
        match self {
            Self::Backing => "backing=NODE or backing=null",
            Self::Data => "data-file=NODE",
        }
    }
}

impl fmt::Display for NamedFileRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Backing => "backing file",
            Self::Data => "data file",
        })
    }
}

fn format_names() -> Vec<&'static str> {
    image_formats().map(|format| format.name).collect()
}

impl Graph {
    /// Makes what is below an image and only named in it, if the options leave that to it and it is allowed. Blocks.
    pub(super) fn add_named(
        &mut self,
        name: &str,
        blockdev: &Blockdev,
        below: &mut Vec<ChildEdge>,
        made: &mut Vec<String>,
    ) -> Result<(), GraphError> {
        let Some(image) = blockdev.options.needs().names_files else { return Ok(()) };
        let named =
            image.named(&self.context(name, blockdev, below)).map_err(GraphError::Driver)?;
        let (file, above) = (&below[0], &blockdev.base);
        let path = file.place.node().image_file();
        let depth = self.naming.len();
        let (allowed, image) = (&self.named_files, path.as_deref());
        let policy = NamedFileResolver { allowed, image, above, depth };
        let inner = named.into_iter().map(|named| match named {
            ImageFileReference::Backing { key, name, format } => {
                policy.backing_node(&name, format.as_deref()).map(|node| (key, node))
            }
            ImageFileReference::Data { key, name } => {
                policy.data_node(name).map(|node| (key, node))
            }
        });
        let inner = inner.collect::<Result<Vec<_>, _>>().map_err(|source| {
            let image = path.clone().unwrap_or_else(|| PathBuf::from(&file.edge.node));
            GraphError::Named { node: name.to_owned(), image, source }
        })?;
        let files = self.files_below(&file.edge.node);
        self.naming.extend(files.iter().map(|file| file.identity()));
        let result = inner.into_iter().try_for_each(|(key, inner)| {
            let child = inner.name_below(name, key);
            self.build(&inner, &child, NodeOwner::Parent, made)?;
            self.named_by_images.insert(child.clone());
            let place = Child::new(Arc::clone(self.node(&child)?));
            let (key, role) = (key.to_owned(), blockdev.driver.role(key));
            let edge = Edge { key, role, node: child };
            below.push(ChildEdge { edge, place });
            Ok(())
        });
        self.naming.truncate(depth);
        result
    }
}

/// Resolves the files that one image names, as the policy allows.
#[derive(Clone, Copy)]
struct NamedFileResolver<'a> {
    allowed: &'a NamedFilesPolicy,
    /// Where the image is, if it is in one file.
    image: Option<&'a Path>,
    /// What the node of the image is told.
    above: &'a BaseOptions,
    /// How many images have named each other up to this one.
    depth: usize,
}

impl NamedFileResolver<'_> {
    /// The node that shows the backing file, to be written inside the image's.
    fn backing_node(self, name: &str, format: Option<&str>) -> Result<Blockdev, NamedFileError> {
        let what = NamedFileRole::Backing;
        // Whoever has to allow it first hears of that first.
        if *self.allowed == NamedFilesPolicy::Refused {
            return Err(what.refused(name, NamedFileRefusal::NotAllowed(what)));
        }
        let format = format
            .ok_or_else(|| what.refused(name, NamedFileRefusal::NoFormat(name.to_owned())))?;
        let unknown = || what.refused(name, NamedFileRefusal::Format(format.to_owned()));
        let driver = image_format(format).ok_or_else(unknown)?;
        let names_files = driver.as_format.is_some_and(|it| it().needs().names_files.is_some());
        if self.depth + 1 >= CHAIN_MAX && names_files {
            return Err(NamedFileError::TooLong);
        }
        let (path, kind) = self.file(what, name)?;
        Ok(Blockdev::of_image(driver, path, kind, self.above.below(ChildRole::Backing)))
    }

    /// The node that shows the data file.
    fn data_node(self, name: Option<String>) -> Result<Blockdev, NamedFileError> {
        let name = name.ok_or(NamedFileError::NoDataFile)?;
        if *self.allowed != NamedFilesPolicy::Anywhere && !self.above.read_only {
            return Err(NamedFileRole::Data.refused(&name, NamedFileRefusal::Written));
        }
        let (path, kind) = self.file(NamedFileRole::Data, &name)?;
        Ok(Blockdev::of_file(path, kind, self.above.below(ChildRole::Data)))
    }

    /// Where a file is that may be opened, and what it is.
    fn file(self, what: NamedFileRole, name: &str) -> Result<(PathBuf, FileKind), NamedFileError> {
        let path = self.resolve(what, name)?;
        let kind = match path.metadata() {
            Ok(metadata) => metadata.file_type(),
            Err(cause) => {
                return Err(NamedFileError::Open { what, name: name.to_owned(), path, cause });
            }
        };
        if kind.is_file() {
            Ok((path, FileKind::Regular))
        } else if kind.is_block_device() {
            Ok((path, FileKind::BlockDevice))
        } else {
            Err(what.refused(name, NamedFileRefusal::Kind))
        }
    }

    /// Where the file is, if it may be opened. If it counts where, the path is without links, so that
    /// nobody can lead it elsewhere from here on.
    fn resolve(self, what: NamedFileRole, given: &str) -> Result<PathBuf, NamedFileError> {
        let refused = |why| Err(what.refused(given, why));
        // As in QEMU, a colon before the first slash ends the name of a protocol; `json:` is one.
        let first = given.split('/').next().unwrap_or_default();
        if first.contains(':') || given.contains('\0') {
            return refused(NamedFileRefusal::NoPath(what));
        }
        let path = match (Path::new(given), self.image) {
            (path, _) if path.is_absolute() => path.to_path_buf(),
            (path, Some(image)) => image.parent().unwrap_or(Path::new("")).join(path),
            (_, None) => return refused(NamedFileRefusal::NoDirectory),
        };
        match self.allowed {
            NamedFilesPolicy::Refused => refused(NamedFileRefusal::NotAllowed(what)),
            NamedFilesPolicy::Anywhere => Ok(path),
            NamedFilesPolicy::Below(directories) => match path.canonicalize() {
                Ok(real) if directories.iter().any(|it| real.starts_with(it)) => Ok(real),
                Ok(path) => refused(NamedFileRefusal::Outside(path)),
                Err(cause) => {
                    Err(NamedFileError::Open { what, name: given.to_owned(), path, cause })
                }
            },
        }
    }
}
