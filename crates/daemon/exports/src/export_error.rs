//! Why an export cannot be.

use std::io;

/// An export could not be made or started.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// Its disk cannot be shown in blocks of the size asked for.
    #[error(
        "export {export}: the size of node {node}, {bytes} bytes, is no multiple of the logical \
         block size of {block} bytes"
    )]
    Size {
        /// The export.
        export: String,
        /// Its node.
        node: String,
        /// The node's size.
        bytes: u64,
        /// The block size.
        block: u32,
    },
    /// Something that its thread needs could not be had.
    #[error("export {id}: cannot start its thread")]
    Thread {
        /// The export.
        id: String,
        /// Why.
        #[source]
        source: io::Error,
    },
}

impl ExportError {
    /// Something that the export's thread needs could not be had.
    pub fn of(id: &str, source: io::Error) -> Self {
        Self::Thread { id: id.to_owned(), source }
    }
}
