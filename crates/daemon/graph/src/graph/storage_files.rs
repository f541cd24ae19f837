//! The files that a node stands on, and the one whose bytes it shows if it is that simple.

use std::sync::Arc;

use kernel_io::OpenFile;

use super::Graph;

/// The driver that shows the bytes of its child.
const RAW: &str = "raw";

/// The files that a node stands on.
#[derive(Debug, Default, Clone)]
pub struct StorageFiles {
    /// All of them, each once.
    pub all: Vec<Arc<OpenFile>>,
    /// The one whose bytes are all that the node shows: not an image, nor one of several.
    pub whole: Option<Arc<OpenFile>>,
}

impl Graph {
    /// The files below that node now.
    pub fn storage_files_below(&self, name: &str) -> StorageFiles {
        StorageFiles { whole: self.file_shown(name), all: self.files_below(name) }
    }

    /// The files below that export now.
    pub fn storage_files_below_export(&self, id: &str) -> StorageFiles {
        self.model
            .root(id)
            .map_or_else(StorageFiles::default, |node| self.storage_files_below(node))
    }

    fn file_shown(&self, name: &str) -> Option<Arc<OpenFile>> {
        let mut at = name;
        loop {
            let info = self.node_info(at).ok()?;
            if let Some(file) = info.file {
                return Some(Arc::clone(file));
            }
            match self.below(at) {
                [edge] if edge.role.is_same_disk() || info.driver == RAW => at = &edge.node,
                _ => return None,
            }
        }
    }
}
