//! Reading an image's header on a thread that owns no ring.

use std::sync::Arc;

use ::bitmaps::BitmapRefusal;
use block::{EngineFactory, FailKind, HostMemory, LaneError, Node, display_name};
use tasks::{AsyncChild, ControlExecutor};

use crate::bitmaps::{MarkedBitmaps, mark_in_use};
use crate::handover::InvalidImageState;
use crate::header::{Header, HeaderError};
use crate::repair::{RepairSummary, repair};
use crate::table_reader::{MetadataError, TableReader};

/// Why an image cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Its header.
    #[error("{image}")]
    Header {
        /// What the image is known as: its file.
        image: String,
        /// What is wrong with it.
        source: HeaderError,
    },
    /// It cannot be read; the operator was told why.
    #[error("{image}: the image cannot be read ({kind:?})")]
    Io {
        /// What the image is known as: its file.
        image: String,
        /// What a guest would be told.
        kind: FailKind,
    },
    /// It is known to be damaged, so it is not written.
    #[error(
        "{image}: the image is marked corrupt; it can be opened read-only, or repaired with qemu-img check -r all"
    )]
    Corrupt {
        /// What the image is known as: its file.
        image: String,
    },
    /// It has its data in a file of their own and none was given, or the other way round.
    #[error("{image}: {}", if *has_data_file {
        "the image has its data in an external data file; give it as data-file"
    } else {
        "data-file is given, but the image has its data inside"
    })]
    DataFile {
        /// What the image is known as: its file.
        image: String,
        /// Whether the image has one.
        has_data_file: bool,
    },
    /// Its metadata is damaged, so it is not written.
    #[error("{image}: the image cannot be written")]
    Damaged {
        /// What the image is known as: its file.
        image: String,
        /// What is wrong with it.
        source: MetadataError,
    },
    /// It is another image than when the node was made.
    #[error("{image}: the image was replaced or resized since it was opened")]
    Changed {
        /// What the image is known as: its file.
        image: String,
    },
    /// There is no memory for its bitmaps.
    #[error("{image}")]
    Bitmaps {
        /// What the image is known as: its file.
        image: String,
        /// Why.
        source: BitmapRefusal,
    },
    /// The process whose place is taken says of it what cannot be.
    #[error("{image}")]
    Foreign {
        /// What the image is known as: its file.
        image: String,
        /// What.
        source: InvalidImageState,
    },
    /// Nobody knows how long its file is.
    #[error("{image}: the file cannot be looked at")]
    Measure {
        /// What the image is known as: its file.
        image: String,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A child cannot be used.
    #[error(transparent)]
    Lane(#[from] LaneError),
}

/// Reads the header of the image on a node, and proves that it is one that can be served. Blocks. The
/// node need not be claimed.
pub fn read_header(file: &Arc<dyn Node>, engines: &dyn EngineFactory) -> Result<Header, OpenError> {
    let mut control = ControlExecutor::before_claim(engines, file)?;
    let storage = control.storage();
    let bytes = file.size().0.0;
    let image = || display_name(&**file);
    let mut read = |end: u64| {
        let read = control.run(storage.read(0..end.min(bytes)));
        read.map_err(|kind| OpenError::Io { image: image(), kind })
    };
    let wrong = |source| OpenError::Header { image: image(), source };
    let start = read(512)?;
    let cluster = read(Header::bytes_needed(&start).map_err(wrong)?)?;
    Header::parse(&cluster).map_err(wrong)
}

/// Makes an image fit for being written, and reads its header: refcounts that its last writer has left
/// wrong are made anew, and no bitmap passes for valid that will miss what is written. Blocks. The node is
/// claimed, and nobody else uses it; what is damaged in another way is refused and left as it is.
pub fn make_writable(
    file: &Arc<dyn Node>,
    engines: &dyn EngineFactory,
) -> Result<Header, OpenError> {
    make_writable_with(file, engines, MarkedBitmaps::MissingChanges)
}

/// The same, with these bitmaps marked.
pub(crate) fn make_writable_with(
    file: &Arc<dyn Node>,
    engines: &dyn EngineFactory,
    bitmaps: MarkedBitmaps,
) -> Result<Header, OpenError> {
    let mut header = read_header(file, engines)?;
    let image = || display_name(&**file);
    if header.features.corrupt {
        return Err(OpenError::Corrupt { image: image() });
    }
    let mut control = ControlExecutor::open(engines, file)?;
    let storage = control.storage();
    let damaged = |source| OpenError::Damaged { image: image(), source };
    if header.features.dirty {
        let repaired = control.run(repair(&header, &storage, file.size().0.0));
        let RepairSummary { blocks, tables } = repaired.map_err(damaged)?;
        tracing::info!(
            "{}: the image was not closed; its refcounts are right again ({blocks} blocks \
             and {tables} tables changed)",
            image()
        );
        header = read_header(file, engines)?;
    }
    let tables = TableReader::new(&header, &storage, file.size().0.0);
    control.run(mark_in_use(&tables, bitmaps)).map_err(damaged)?;
    Ok(header)
}

/// Has a file that is going to be written end with a cluster: part of the last one, or of the L1 table,
/// may be missing. Returns how long it is; a device stays as it is.
pub(crate) async fn fill_up(header: &Header, storage: &AsyncChild, bytes: u64) -> u64 {
    let cluster = 1_u64 << header.cluster_bits;
    let l1_end = header.l1_offset + u64::from(header.l1_entries) * 8;
    // What counts as the size may lack a part of a block.
    let end = bytes.max(l1_end).next_multiple_of(cluster);
    if end == bytes || storage.write(end - 1, HostMemory::zeroed(1)).await.is_err() {
        return bytes;
    }
    end
}
