//! Dirty bitmaps that change hands: each is a packet with a file in memory that has its bits.
//!
//! Invariants: the old process keeps its own until the new one has been told to go on. What an old process says is checked: bits
//! behind the end of a disk are left out, and nothing is mapped.
//! Limits: a bitmap is as large as its node has it here; [`INHERITED_MAX`] of them; parts without a mark are neither copied nor
//! kept.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use bitmaps::{DirtyBitmap, Granularity, Persistence, Recording, StoredBitmap};
use control::DaemonState;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::{Errno, pread, pwrite};
use serde::{Deserialize, Serialize};

use super::error::TakeoverError;
use super::limits::Deadline;
use super::protocol::{Message, TakeoverConnection, WireError};

/// How many bitmaps can be handed over.
pub(super) const INHERITED_MAX: usize = 1 << 16;

/// The words that are copied at once: 32 KiB of them.
const WORDS_AT_ONCE: usize = 4096;

/// What an old process says of a bitmap.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct BitmapDescription {
    node: String,
    name: String,
    granularity: u64,
    is_recording: bool,
    is_persistent: bool,
    /// Whether its bits come along.
    pub(super) is_consistent: bool,
}

/// A bitmap as an old process hands it over.
#[derive(Debug)]
pub(super) struct InheritedBitmap {
    pub(super) description: BitmapDescription,
    pub(super) bits: Option<OwnedFd>,
}

/// The same, with its bits here.
#[derive(Debug)]
pub(super) struct LoadedBitmap {
    node: String,
    persistence: Persistence,
    bitmap: StoredBitmap,
}

/// Why a bitmap cannot be gone on with.
#[derive(Debug, thiserror::Error)]
pub enum InheritedBitmapError {
    /// Its node is not there.
    #[error(transparent)]
    Node(#[from] graph::ModelError),
    /// Its node cannot record changes.
    #[error(transparent)]
    Recorder(#[from] control::GraphChangeError),
    /// It cannot be added.
    #[error(transparent)]
    Refused(#[from] bitmaps::BitmapRefusal),
    /// There is no memory for it.
    #[error(transparent)]
    Bitmap(#[from] bitmaps::BitmapError),
    /// A granularity that no bitmap has.
    #[error("its granularity is {0} bytes")]
    Granularity(u64),
    /// Its bits cannot be read.
    #[error("its bits cannot be read")]
    Read(#[source] std::io::Error),
}

/// Sends all bitmaps of a daemon in which nothing is in flight.
pub(super) fn send(
    wire: &TakeoverConnection,
    built: &DaemonState,
    until: Deadline,
) -> Result<(), WireError> {
    for (node, persistence, bitmap) in built.dirty_bitmaps() {
        let StoredBitmap { name, granularity, recording, bits } = bitmap;
        let file = bits.as_deref().map(file_of).transpose()?;
        let message = Message::Bitmap(BitmapDescription {
            node,
            name,
            granularity: granularity.bytes(),
            is_recording: recording == Recording::On,
            is_persistent: persistence == Persistence::Kept,
            is_consistent: file.is_some(),
        });
        let fds: Vec<_> = file.iter().map(AsFd::as_fd).collect();
        wire.send(&message, &fds, until)?;
    }
    Ok(())
}

/// A file in memory with the bits of a bitmap.
fn file_of(bits: &DirtyBitmap) -> Result<OwnedFd, Errno> {
    let file = memfd_create("ringloom-bitmap", MemfdFlags::CLOEXEC)?;
    ftruncate(&file, bits.word_count() as u64 * 8)?;
    let mut words = vec![0; WORDS_AT_ONCE];
    let mut bytes = vec![0; WORDS_AT_ONCE * 8];
    for first in (0..bits.word_count()).step_by(WORDS_AT_ONCE) {
        bits.load_words(first, &mut words);
        if words.iter().all(|word| *word == 0) {
            continue;
        }
        for (to, word) in bytes.chunks_exact_mut(8).zip(&words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        let count = (bits.word_count() - first).min(WORDS_AT_ONCE) * 8;
        let mut written = 0;
        while written < count {
            written += pwrite(&file, &bytes[written..count], (first * 8 + written) as u64)?;
        }
    }
    Ok(file)
}

impl InheritedBitmap {
    fn load(self, built: &mut DaemonState) -> Result<LoadedBitmap, InheritedBitmapError> {
        let Self { description, bits } = self;
        let BitmapDescription { node, name, granularity, is_recording, is_persistent, .. } =
            description;
        let recording = if is_recording { Recording::On } else { Recording::Off };
        let persistence = if is_persistent { Persistence::Kept } else { Persistence::Volatile };
        let size = built.record_inherited(&node)?;
        let known = Granularity::new(granularity);
        let granularity = known.ok_or(InheritedBitmapError::Granularity(granularity))?;
        let load = |file: OwnedFd| -> Result<Arc<DirtyBitmap>, InheritedBitmapError> {
            let bits = DirtyBitmap::new(size, granularity)?;
            read(&file, &bits).map_err(|errno| InheritedBitmapError::Read(errno.into()))?;
            Ok(Arc::new(bits))
        };
        let bits = bits.map(load).transpose()?;
        let bitmap = StoredBitmap { name, granularity, recording, bits };
        Ok(LoadedBitmap { node, persistence, bitmap })
    }
}

/// Has all nodes with bitmaps record changes from now on, and reads what was marked. Before the nodes are claimed.
pub(super) fn load(
    inherited: Vec<InheritedBitmap>,
    process: u32,
    built: &mut DaemonState,
) -> Result<Vec<LoadedBitmap>, TakeoverError> {
    let load = |it: InheritedBitmap| {
        let (node, name) = (it.description.node.clone(), it.description.name.clone());
        it.load(built).map_err(|source| failed((&node, &name), process, source))
    };
    inherited.into_iter().map(load).collect()
}

/// Goes on with them. After all nodes are claimed: what is stored in an image is older.
pub(super) fn adopt(
    loaded: Vec<LoadedBitmap>,
    process: u32,
    built: &DaemonState,
) -> Result<(), TakeoverError> {
    for LoadedBitmap { node, persistence, bitmap } in loaded {
        let name = bitmap.name.clone();
        let of_node = built.graph().bitmaps(&node).map_err(InheritedBitmapError::from);
        let adopted = of_node.and_then(|all| Ok(all.adopt(persistence, bitmap)?));
        adopted.map_err(|source| failed((&node, &name), process, source))?;
    }
    Ok(())
}

fn failed((node, name): (&str, &str), process: u32, source: InheritedBitmapError) -> TakeoverError {
    let bitmap = format!("dirty bitmap '{name}' of node {node}");
    TakeoverError::Bitmap { bitmap, process, source: Box::new(source) }
}

/// Marks what is marked in a file; one that is too short has nothing there.
fn read(file: &OwnedFd, bits: &DirtyBitmap) -> Result<(), Errno> {
    let mut bytes = vec![0; WORDS_AT_ONCE * 8];
    for first in (0..bits.word_count()).step_by(WORDS_AT_ONCE) {
        let count = pread(file, &mut bytes, first as u64 * 8)?;
        let is_whole = count == bytes.len() || count / 8 == bits.word_count() - first;
        if !is_whole {
            return Err(Errno::INVAL);
        }
        if bytes[..count].iter().all(|byte| *byte == 0) {
            continue;
        }
        let words: Vec<u64> = bytes[..count]
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes")))
            .collect();
        bits.merge_words(first, &words);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use block::{ByteCount, DiskSize};

    use super::*;

    fn bitmap(bytes: u64) -> DirtyBitmap {
        let granularity = Granularity::new(512).expect("a power of two");
        DirtyBitmap::new(DiskSize(ByteCount(bytes)), granularity).expect("a small one")
    }

    #[test]
    fn what_is_marked_arrives() {
        for bytes in [512, 512 * 64, 512 * 65, 512 * 64 * 4096, 512 * 64 * 9000 + 512] {
            let (sent, received) = (bitmap(bytes), bitmap(bytes));
            for at in [0, bytes / 3, bytes - 512] {
                sent.set(at..at + 1);
            }
            read(&file_of(&sent).expect("a file in memory"), &received).expect("it is read");
            let runs = |bits: &DirtyBitmap| {
                let (mut at, mut runs) = (0, Vec::new());
                while let Some(run) = bits.next_dirty(at..bytes) {
                    at = run.end;
                    runs.push(run);
                }
                runs
            };
            assert_eq!(runs(&sent), runs(&received), "{bytes}");
        }
    }

    #[test]
    fn a_file_of_another_length_is_refused() {
        let file = file_of(&bitmap(512 * 64)).expect("a file in memory");
        assert_eq!(read(&file, &bitmap(512 * 128)), Err(Errno::INVAL));
        assert_eq!(read(&file, &bitmap(512 * 64 * 5000)), Err(Errno::INVAL));
    }
}
