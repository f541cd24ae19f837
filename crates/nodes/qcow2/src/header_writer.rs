//! Makes the first cluster of an image: the fields of its header, the extensions, and the name of the backing file.
//!
//! Where it stands: what [`crate::header`] reads. Used when an image is made, and when its backing file gets another name.
//!
//! Invariants: an image is what the first sector of its file says. Whatever else that names is durable before the
//! sector is written, so a loss of power leaves the old image or the new one.

use block::{FailKind, HostMemory};
use tasks::AsyncChild;

use crate::header::{BACKING_FORMAT, END, FEATURE_NAMES};

/// What the power cannot cut.
pub(crate) const SECTOR: usize = 512;

/// Kind and bytes of a header extension.
pub(crate) type Extension = (u32, Vec<u8>);

/// Type, bit and name of the features that have one.
const FEATURES: [(u8, u8, &str); 8] = [
    (0, 0, "dirty bit"),
    (0, 1, "corrupt bit"),
    (0, 2, "external data file"),
    (0, 3, "compression type"),
    (0, 4, "extended L2 entries"),
    (1, 0, "lazy refcounts"),
    (2, 0, "bitmaps"),
    (2, 1, "raw external data"),
];

/// The names of features, for whoever does not know one. Like QEMU's, it is in no image of small clusters or version 2.
pub(crate) fn feature_names() -> Extension {
    let mut bytes = Vec::new();
    for (kind, bit, name) in FEATURES {
        let end = bytes.len() + 48;
        bytes.extend([kind, bit]);
        bytes.extend(name.as_bytes());
        bytes.resize(end, 0);
    }
    (FEATURE_NAMES, bytes)
}

/// The format of the backing file.
pub(crate) fn backing_format(name: &str) -> Extension {
    (BACKING_FORMAT, name.as_bytes().to_vec())
}

/// The fields with the extensions behind them. No backing file is named yet.
pub(crate) fn with_extensions(fields: &[u8], extensions: &[Extension]) -> Vec<u8> {
    let mut bytes = fields.to_vec();
    let end = (END, Vec::new());
    for (kind, data) in extensions.iter().chain(std::iter::once(&end)) {
        let count = u32::try_from(data.len()).expect("an extension is inside a cluster");
        bytes.extend([kind.to_be_bytes(), count.to_be_bytes()].concat());
        bytes.extend(data);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
    }
    bytes
}

/// Has the fields say where the backing file's name is. Without one they say nothing.
pub(crate) fn name_backing(fields: &mut [u8], at: usize, name: &str) {
    let count = u32::try_from(name.len()).expect("a name is inside a cluster");
    let at = if name.is_empty() { 0 } else { at as u64 };
    fields[8..16].copy_from_slice(&at.to_be_bytes());
    fields[16..20].copy_from_slice(&count.to_be_bytes());
}

/// Writes the first bytes of an image: what is behind the first sector, all of it and what was written before durably,
/// and then that sector.
pub(crate) async fn write(storage: &AsyncChild, bytes: &[u8]) -> Result<(), FailKind> {
    let (first, rest) = bytes.split_at(SECTOR.min(bytes.len()));
    if !rest.is_empty() {
        storage.write(SECTOR as u64, HostMemory::of(rest)).await?;
    }
    storage.sync().await?;
    storage.write(0, HostMemory::of(first)).await?;
    storage.sync().await
}
