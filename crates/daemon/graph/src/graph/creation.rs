//! Images that are made while a daemon runs: a file of some size, or a format in a node.
//!
//! Invariants: nothing that somebody uses is written over: the file, or the node, is claimed as if alone.
//! Threads: what is made here is carried out on any control thread.

use std::fs::OpenOptions as HostOpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use block::{
    Access, ByteCount, Claim, ClaimError, Clock, DiscardPolicy, DiskSize, Node, Permission,
    Permissions, ResizeError, Rights,
};
use disk::FileNode;
use kernel_io::{FileTable, OpenOptions};
use qcow2::{CreateError, CreateOptions};
use request_path::ControlEngineFactory;

use super::Graph;
use crate::drivers::NodeError;
use crate::model::ModelError;

/// What is done with a file, or a node, in which an image is made: others may only read.
const MAKES: Rights =
    Rights { uses: Permissions::WRITES.and(Permission::Resize), shares: Permissions::READS };

/// An image could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ImageCreationError {
    /// The file could not be made, or not be opened.
    #[error("Could not create '{}'", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The file cannot be used.
    #[error("Could not create an image")]
    Node(#[source] NodeError),
    /// Somebody uses it.
    #[error(transparent)]
    Claim(#[from] ClaimError),
    /// It could not be given its size.
    #[error(transparent)]
    Resize(#[from] ResizeError),
    /// The format could not be written.
    #[error(transparent)]
    Format(#[from] CreateError),
}

/// Makes images; it can go to another thread.
#[derive(Debug, Clone)]
pub struct ImageMaker {
    files: Arc<FileTable>,
    clock: Arc<dyn Clock>,
}

impl Graph {
    /// What makes images in files that this graph may open later.
    pub fn image_maker(&self) -> ImageMaker {
        ImageMaker { files: Arc::clone(&self.files), clock: Arc::clone(&self.clock) }
    }

    /// The node of that name, for another thread.
    pub fn share_node(&self, name: &str) -> Result<Arc<dyn Node>, ModelError> {
        self.node(name).map(Arc::clone)
    }
}

impl ImageMaker {
    /// Makes a file of that size which reads as zeroes, whatever was in it. Blocks.
    pub fn file(&self, path: &Path, bytes: u64) -> Result<(), ImageCreationError> {
        let node = self.open(path)?;
        let claim = claim(&node)?;
        node.resize(DiskSize(ByteCount(0)))?;
        node.resize(DiskSize(ByteCount(bytes)))?;
        flush(&claim, path)
    }

    /// Gives a node that nobody uses another size. Blocks.
    pub fn resize(&self, node: &Arc<dyn Node>, size: DiskSize) -> Result<(), ImageCreationError> {
        let claim = claim(node)?;
        node.resize(size)?;
        flush(&claim, Path::new(node.name()))
    }

    /// Formats a node. Blocks.
    pub fn qcow2(
        &self,
        node: &Arc<dyn Node>,
        options: &CreateOptions,
    ) -> Result<(), ImageCreationError> {
        let claim = claim(node)?;
        let engines = ControlEngineFactory::new(&self.files, &self.clock);
        qcow2::create(node, &engines, options)?;
        // Whoever opens the image next finds how large its file is now.
        claim
            .refresh()
            .map_err(|source| ImageCreationError::File { path: node.name().into(), source })?;
        flush(&claim, Path::new(node.name()))
    }

    /// Makes a file with an image in it. Blocks.
    pub fn qcow2_file(
        &self,
        path: &Path,
        options: &CreateOptions,
    ) -> Result<(), ImageCreationError> {
        self.qcow2(&self.open(path)?, options)
    }

    fn open(&self, path: &Path) -> Result<Arc<dyn Node>, ImageCreationError> {
        let failed = |source| ImageCreationError::File { path: path.to_owned(), source };
        let mut options = HostOpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false).mode(0o644);
        let file = options.open(path).map_err(failed)?;
        if !file.metadata().map_err(failed)?.is_file() {
            return Err(failed(io::Error::other("it is no regular file")));
        }
        let options = OpenOptions::regular(path, Access::ReadWrite);
        let name = path.display().to_string();
        let node = FileNode::open(&name, &options, DiscardPolicy::Unmap, &self.files);
        Ok(Arc::new(node.map_err(|error| ImageCreationError::Node(Box::new(error)))?))
    }
}

fn claim(node: &Arc<dyn Node>) -> Result<Claim, ImageCreationError> {
    Ok(node.claim(MAKES)?)
}

fn flush(claim: &Claim, path: &Path) -> Result<(), ImageCreationError> {
    claim.flush().map_err(|source| ImageCreationError::File { path: path.to_owned(), source })
}
