//! The drivers `file` and `host_device`: opens what holds a disk.

use std::path::Path;
use std::sync::Arc;

use block::Node;
use disk::FileNode;
use kernel_io::{Aio, Caching, FileKind, Flushes, LockOptions, Locking, OpenOptions, Sharing};

use crate::graph::{Graph, GraphError, access, policy};
use crate::options::{self, AioEngine, Blockdev};

impl Graph {
    /// Opens a file and makes its node. Blocks.
    pub(super) fn open(
        &mut self,
        name: &str,
        options: &OpenOptions,
        blockdev: &Blockdev,
    ) -> Result<Arc<dyn Node>, GraphError> {
        let discard = policy(blockdev.discard);
        let what = format!("node {name}: file {}", options.path.display());
        let open = || FileNode::open(name, options, discard, &self.files);
        let node = self
            .watch
            .during(what, open)
            .map_err(|source| GraphError::Open { node: name.to_owned(), source })?;
        if self.naming.contains(&node.file().identity()) {
            let (node, path) = (name.to_owned(), options.path.clone());
            return Err(GraphError::StandsOnItself { node, path });
        }
        self.opened.push(Arc::clone(node.file()));
        Ok(Arc::new(node))
    }

    /// Whether direct I/O reaches the end of what a node has opened. Whoever shows its bytes asks; an image may end
    /// where it likes.
    pub(in crate::graph) fn check_end(&self, name: &str) -> Result<(), GraphError> {
        for file in &self.vertex(name)?.files {
            let (alignment, bytes) = (file.offset_alignment(), file.bytes());
            // What 512-byte blocks need is checked by the export, which has a say in the block size.
            let direct = file.caching() == Caching::Direct;
            if direct && alignment > 512 && !bytes.is_multiple_of(alignment.into()) {
                let (node, path) = (name.to_owned(), file.path().to_path_buf());
                return Err(GraphError::Size { node, path, bytes, alignment });
            }
        }
        Ok(())
    }
}

/// What the options of such a node ask of its file.
pub(super) fn options(
    path: &Path,
    kind: FileKind,
    aio: Option<AioEngine>,
    locking: options::Locking,
    blockdev: &Blockdev,
) -> OpenOptions {
    OpenOptions {
        path: path.to_path_buf(),
        kind,
        access: access(blockdev),
        caching: if blockdev.cache_direct { Caching::Direct } else { Caching::Buffered },
        aio: match aio {
            None => Aio::Automatic,
            Some(AioEngine::IoUring) => Aio::IoUring,
            Some(AioEngine::Native) => Aio::Native,
            Some(AioEngine::Threads) => Aio::Threads,
        },
        flushes: match blockdev.flushes {
            options::Flushes::Obeyed => Flushes::Obeyed,
            options::Flushes::Ignored => Flushes::Ignored,
        },
        lock: LockOptions {
            locking: match locking {
                options::Locking::Automatic => Locking::Automatic,
                options::Locking::On => Locking::On,
                options::Locking::Off => Locking::Off,
            },
            sharing: if blockdev.force_share { Sharing::Forced } else { Sharing::AsClaimed },
        },
    }
}
