//! The name and the format of the backing file in the header of an image that is in use (QMP's `change-backing-file`).
//!
//! Where it stands: on a control thread. Lanes may be open: none of them reads this. Which node stands below is the graph's
//! affair.
//!
//! Invariants, for a loss of power at any time: the header has the old name and the old format, or the new ones. The new name
//! is written beside the old one, and the first sector says which is meant, with the format.
//! Limits: a name of 1023 bytes, a format of 15; both names fit into the first cluster, and all extensions but the names of
//! features into its first sector if they have to move.

use std::ops::Range;

use block::{FailKind, HostMemory, LaneError};
use tasks::AsyncChild;

use super::Image;
use crate::header::{
    BACKING_FORMAT, BACKING_NAME_MAX, END, FEATURE_NAMES, FORMAT_NAME_MAX, Header, HeaderError,
};
use crate::header_writer::{Extension, SECTOR, backing_format, name_backing, with_extensions};
use crate::table_reader::number;

/// The backing file of an image got no other name.
#[derive(Debug, thiserror::Error)]
#[error("{image}: Could not change backing file to '{name}'")]
pub struct ChangeBackingError {
    /// What the image is known as: its file.
    pub image: String,
    /// The name.
    pub name: String,
    /// Why.
    #[source]
    pub source: BackingNameError,
}

/// Why a name of a backing file is not in the header. After the first three nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum BackingNameError {
    /// It is too long, or the image can have no backing file.
    #[error("Invalid argument")]
    Invalid,
    /// It does not fit beside what is there, and the old name until then.
    #[error("No space left on device")]
    NoSpace,
    /// Nobody has claimed the image for writing, or another process owns it.
    #[error("the image is not in use for writing here")]
    NotWritten,
    /// The header is not what it was.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// The file cannot be read or written; the operator was told why.
    #[error("the image cannot be read or written ({0:?})")]
    Io(FailKind),
    /// The file cannot be used.
    #[error(transparent)]
    Lane(#[from] LaneError),
}

impl From<FailKind> for BackingNameError {
    fn from(kind: FailKind) -> Self {
        Self::Io(kind)
    }
}

impl Image {
    /// Has the header name another backing file, or none if the name is empty. Durable when it
    /// returns what the header says now.
    pub(crate) async fn name_backing(
        &self,
        storage: &AsyncChild,
        name: &str,
        format: Option<&str>,
    ) -> Result<Header, BackingNameError> {
        let _turn = self.header_writes.take().await;
        let mut cluster = storage.read(0..self.geometry.cluster_bytes()).await?.to_vec();
        let header = Header::parse(&cluster)?;
        for step in backing_steps(&header, &cluster, name, format)? {
            write_step(storage, &cluster, &step).await?;
            cluster = step;
        }
        Ok(Header::parse(&cluster)?)
    }
}

/// The first cluster of an image as it becomes, step by step, with another backing file, or none if the name is empty. After
/// each step the image is whole, and so it is if the power goes while a step is written as [`write_step`] does it. What the
/// features are called is left out and comes back if the extensions have to move: nobody else reads it.
fn backing_steps(
    header: &Header,
    cluster: &[u8],
    name: &str,
    format: Option<&str>,
) -> Result<Vec<Vec<u8>>, BackingNameError> {
    let format = format.filter(|_| !name.is_empty());
    let is_long = name.len() > BACKING_NAME_MAX as usize
        || format.is_some_and(|format| format.len() > FORMAT_NAME_MAX);
    if is_long || (header.features.raw_external && !name.is_empty()) {
        return Err(BackingNameError::Invalid);
    }
    let fields = &cluster[..header.header_bytes as usize];
    let (old, old_end) = extensions(cluster, fields.len());
    let is_feature_names = |extension: &Extension| extension.0 == FEATURE_NAMES;
    let (names, others): (Vec<_>, Vec<_>) = old.into_iter().partition(is_feature_names);
    let others = others.into_iter().filter(|extension| extension.0 != BACKING_FORMAT);
    let short: Vec<Extension> = format.map(backing_format).into_iter().chain(others).collect();
    header_steps(cluster, old_end, fields, (&short, &names), name)
}

/// The first cluster of an image as it becomes, with these fields, extensions (of which the names of features come last) and
/// name of the backing file.
pub(super) fn header_steps(
    cluster: &[u8],
    old_end: usize,
    fields: &[u8],
    (short, names): (&[Extension], &[Extension]),
    name: &str,
) -> Result<Vec<Vec<u8>>, BackingNameError> {
    let full = with_extensions(fields, &[short, names].concat());
    let short = with_extensions(fields, short);
    let place = place_name(cluster, old_end, full.len(), name.len())?;
    let step = |before: &[u8], extensions: &[u8]| {
        let mut after = before.to_vec();
        after[..SECTOR].fill(0);
        after[..extensions.len()].copy_from_slice(extensions);
        name_backing(&mut after, place.start, name);
        after[place.clone()].copy_from_slice(name.as_bytes());
        after
    };
    let moves = full.len() > SECTOR && full[SECTOR..] != cluster[SECTOR..full.len()];
    if !moves {
        return Ok(vec![step(cluster, &full)]);
    }
    if short.len() > SECTOR {
        return Err(BackingNameError::NoSpace);
    }
    let first = step(cluster, &short);
    let second = step(&first, &full);
    Ok(vec![first, second])
}

/// The extensions of a header that was checked, and where they end.
pub(super) fn extensions(cluster: &[u8], start: usize) -> (Vec<Extension>, usize) {
    let name = old_name(cluster);
    let end = if name.start == 0 { cluster.len() } else { name.start };
    let (mut found, mut at) = (Vec::new(), start);
    while at < end {
        let kind = u32::try_from(number::<4>(cluster, at)).expect("4 bytes");
        let count = usize::try_from(number::<4>(cluster, at + 4)).expect("4 bytes");
        let data = at + 8;
        at = (data + count).next_multiple_of(8);
        if kind == END {
            break;
        }
        found.push((kind, cluster[data..data + count].to_vec()));
    }
    (found, at)
}

/// Where the name of the backing file is.
fn old_name(cluster: &[u8]) -> Range<usize> {
    let index = |value: u64| usize::try_from(value).expect("inside the first cluster");
    let start = index(number::<8>(cluster, 8));
    start..start + index(number::<4>(cluster, 16))
}

/// Where a name goes: behind the extensions, old and new, and beside the old name, unless all is in one sector.
fn place_name(
    cluster: &[u8],
    old_end: usize,
    new_end: usize,
    count: usize,
) -> Result<Range<usize>, BackingNameError> {
    if new_end + count <= SECTOR {
        return Ok(new_end..new_end + count);
    }
    let old = old_name(cluster);
    let start = old_end.max(new_end);
    let fits = |start: usize| start + count <= cluster.len();
    let is_beside = start + count <= old.start || old.end <= start;
    let start = if is_beside { start } else { old.end.next_multiple_of(8) };
    if fits(start) { Ok(start..start + count) } else { Err(BackingNameError::NoSpace) }
}

/// Writes a step of a change of the first cluster, durably: its first sector last.
pub(super) async fn write_step(
    storage: &AsyncChild,
    before: &[u8],
    after: &[u8],
) -> Result<(), FailKind> {
    let differs = |at: &usize| before[*at] != after[*at];
    let behind = || SECTOR..after.len();
    if let (Some(first), Some(last)) = (behind().find(differs), behind().rfind(differs)) {
        let (first, end) = (first - first % SECTOR, (last + 1).next_multiple_of(SECTOR));
        storage.write(first as u64, HostMemory::of(&after[first..end])).await?;
        storage.sync().await?;
    }
    storage.write(0, HostMemory::of(&after[..SECTOR])).await?;
    storage.sync().await
}
