//! The internal snapshots of an image: made and deleted while nobody uses its lanes (QEMU's `qcow2_snapshot_create` and
//! `qcow2_snapshot_delete`).
//!
//! Invariants: what was in memory of the image is in its file, and no cluster is taken ahead, before its tables are made anew;
//! it is loaded again afterwards, so nobody thinks that a cluster is his own which a snapshot has too. If nobody knows what the
//! header says, no image is in use: requests fail until it is claimed anew.
//! Threads: the control thread that calls; the image is its own. Not here: tables (`snapshot_change`).

use std::time::Duration;

use block::{
    FailKind, InternalSnapshots, NewSnapshot, SnapshotFailure, SnapshotInfo, SnapshotSelector,
};
use tasks::ControlExecutor;

use super::{Qcow2Node, Shared, UseState};
use crate::header::{Header, SNAPSHOTS_MAX};
use crate::open::{OpenError, read_header};
use crate::snapshot_change::{SnapshotChange, SnapshotChangeError, change};
use crate::snapshots::{self, SnapshotEntry};
use crate::table_reader::{MetadataError, TableReader};

/// The snapshots of an image are as they were. QEMU's words where it has some.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// An image whose data are in a file of their own has none.
    #[error("Operation not supported")]
    Unsupported,
    /// Nobody has claimed it for writing, or another process owns it.
    #[error("the image is not in use for writing here")]
    NotWritten,
    /// It has as many as it can have.
    #[error("File too large")]
    TooMany,
    /// A cluster would have more references than a refcount can say.
    #[error("Invalid argument")]
    TooWide {
        /// Which one.
        #[source]
        source: MetadataError,
    },
    /// The identity that it would get is taken.
    #[error("File exists")]
    Taken,
    /// There is none that fits.
    #[error("No such file or directory")]
    Missing,
    /// The file cannot grow.
    #[error("No space left on device")]
    NoSpace,
    /// The file cannot be read or written; the operator was told why.
    #[error("Input/output error")]
    Io(FailKind),
    /// The tables of the image are damaged, or too large.
    #[error("the tables of the image cannot be made anew")]
    Damaged {
        /// What is wrong.
        #[source]
        source: MetadataError,
    },
    /// Nobody knows whether it is there or not: the image is not used any more.
    #[error("nobody knows whether the snapshot is there; the image is not used any more")]
    Unknown(FailKind),
    /// The image cannot be used before or after that.
    #[error(transparent)]
    Open(#[from] OpenError),
}

impl From<MetadataError> for SnapshotError {
    fn from(source: MetadataError) -> Self {
        match source {
            MetadataError::References { .. } => Self::TooWide { source },
            MetadataError::Io(FailKind::NoSpace) => Self::NoSpace,
            MetadataError::Io(kind) => Self::Io(kind),
            MetadataError::Wrong { .. } | MetadataError::TooMuch { .. } => Self::Damaged { source },
        }
    }
}

impl From<SnapshotChangeError> for SnapshotError {
    fn from(error: SnapshotChangeError) -> Self {
        match error {
            SnapshotChangeError::Unchanged(error) => error.into(),
            SnapshotChangeError::TooLarge => Self::TooMany,
            SnapshotChangeError::Unknown(kind) => Self::Unknown(kind),
        }
    }
}

impl Qcow2Node {
    /// See [`InternalSnapshots::snapshots`].
    pub fn snapshots(&self) -> Vec<SnapshotInfo> {
        self.shared.snapshots()
    }

    /// See [`InternalSnapshots::create_snapshot`]; which error it is.
    pub fn create_snapshot(&self, new: &NewSnapshot) -> Result<SnapshotInfo, SnapshotError> {
        self.shared.create(new)
    }

    /// See [`InternalSnapshots::delete_snapshot`]; which error it is.
    pub fn delete_snapshot(&self, which: &SnapshotSelector) -> Result<SnapshotInfo, SnapshotError> {
        self.shared.delete(which)
    }
}

impl Shared {
    /// Whether the image can have snapshots. QEMU's sentence.
    fn can_have_snapshots(&self) -> Result<(), SnapshotError> {
        if self.header().features.external_data {
            return Err(SnapshotError::Unsupported);
        }
        Ok(())
    }

    /// See [`InternalSnapshots::create_snapshot`].
    fn create(&self, new: &NewSnapshot) -> Result<SnapshotInfo, SnapshotError> {
        self.can_have_snapshots()?;
        self.change_snapshots(|entries| {
            if entries.len() >= SNAPSHOTS_MAX as usize {
                return Err(SnapshotError::TooMany);
            }
            let id = snapshots::next_id(entries.iter().map(|entry| &*entry.info.id));
            if entries.iter().any(|entry| entry.info.id == id) {
                return Err(SnapshotError::Taken);
            }
            let name = snapshots::kept_name(&new.name).to_owned();
            let (state_bytes, clock, instructions) = (0, Duration::ZERO, None);
            let date = new.date;
            let info = SnapshotInfo { id, name, state_bytes, date, clock, instructions };
            Ok((info.clone(), SnapshotChange::Create(info)))
        })
    }

    /// See [`InternalSnapshots::delete_snapshot`].
    fn delete(&self, which: &SnapshotSelector) -> Result<SnapshotInfo, SnapshotError> {
        self.can_have_snapshots()?;
        self.change_snapshots(|entries| {
            let place = entries.iter().position(|entry| which.is_of(&entry.info));
            let place = place.ok_or(SnapshotError::Missing)?;
            Ok((entries[place].info.clone(), SnapshotChange::Delete(place)))
        })
    }

    /// Why not, as the peer says it where it does; the log has more.
    fn in_words_of_qemu(&self, error: SnapshotError) -> SnapshotFailure {
        match &error {
            SnapshotError::TooWide { source } => {
                tracing::warn!("{}: {error}: {source}", self.display_name());
                error.to_string().into()
            }
            SnapshotError::Unsupported
            | SnapshotError::NotWritten
            | SnapshotError::TooMany
            | SnapshotError::Taken
            | SnapshotError::Missing
            | SnapshotError::NoSpace
            | SnapshotError::Io(_)
            | SnapshotError::Damaged { .. }
            | SnapshotError::Unknown(_)
            | SnapshotError::Open(_) => error.into(),
        }
    }
}

impl InternalSnapshots for Shared {
    /// Those that the image had when the node was made or claimed, and since.
    fn snapshots(&self) -> Vec<SnapshotInfo> {
        self.snapshots.lock().expect("no holder of this lock panics").clone()
    }

    fn check_snapshots(&self) -> Result<(), SnapshotFailure> {
        Ok(self.can_have_snapshots()?)
    }

    fn create_snapshot(&self, new: &NewSnapshot) -> Result<SnapshotInfo, SnapshotFailure> {
        self.create(new).map_err(|error| self.in_words_of_qemu(error))
    }

    fn delete_snapshot(&self, which: &SnapshotSelector) -> Result<SnapshotInfo, SnapshotFailure> {
        self.delete(which).map_err(|error| self.in_words_of_qemu(error))
    }
}

impl Shared {
    /// Looks which snapshots an image has that nobody has claimed yet.
    pub(super) fn look_for_snapshots(&self) {
        let header = self.header();
        if header.snapshots == 0 {
            return;
        }
        let file = self.children.file.node();
        match ControlExecutor::before_claim(&*self.engines, &file) {
            Ok(mut control) => self.note_snapshots(&mut control, &header, file.size().0.0),
            Err(error) => tracing::warn!("{}: {error}", self.display_name()),
        }
    }

    /// Reads which snapshots the image has. A table that cannot be read is no reason not to serve the disk.
    pub(super) fn note_snapshots(
        &self,
        control: &mut ControlExecutor,
        header: &Header,
        file_bytes: u64,
    ) {
        let storage = control.storage();
        let tables = TableReader::new(header, &storage, file_bytes);
        let found = control.run(snapshots::list(&tables)).unwrap_or_else(|error| {
            tracing::warn!(
                "{}: its internal snapshots are not known: {error}",
                self.display_name()
            );
            Vec::new()
        });
        *self.snapshots.lock().expect("no holder of this lock panics") = found;
    }

    /// Changes the snapshots of the image that is in use for writing as the caller decides from those that are there.
    fn change_snapshots(
        &self,
        decide: impl FnOnce(&[SnapshotEntry]) -> Result<(SnapshotInfo, SnapshotChange), SnapshotError>,
    ) -> Result<SnapshotInfo, SnapshotError> {
        let image = self.written().ok_or(SnapshotError::NotWritten)?;
        // The file may not say what memory says.
        if image.slices.has_failed_writes() || image.space().is_err() {
            return Err(SnapshotError::Io(FailKind::Io));
        }
        let mut used = self.used();
        used.image = None;
        image.set_closed();
        let changed = match self.close(&image) {
            Ok(()) => self.change_closed(decide),
            Err(error) => Err(error.into()),
        };
        if let Err(SnapshotError::Unknown(_)) = changed {
            tracing::error!(
                "{}: nobody knows whether a snapshot was made or deleted; the image is not used any more",
                self.display_name()
            );
            return changed;
        }
        self.after_change(&mut used, changed)
    }

    fn change_closed(
        &self,
        decide: impl FnOnce(&[SnapshotEntry]) -> Result<(SnapshotInfo, SnapshotChange), SnapshotError>,
    ) -> Result<SnapshotInfo, SnapshotError> {
        self.measure()?;
        let file = self.children.file.node();
        let header = read_header(&file, &*self.engines)?;
        let mut control = ControlExecutor::open(&*self.engines, &file).map_err(OpenError::from)?;
        let storage = control.storage();
        let tables = TableReader::new(&header, &storage, file.size().0.0);
        let entries = control.run(snapshots::entries(&tables))?;
        let (info, planned) = decide(&entries)?;
        control.run(change(&tables, &entries, &planned, self.settings.discards))?;
        Ok(info)
    }

    /// Loads the image again, whether its snapshots have changed or not.
    fn after_change(
        &self,
        used: &mut UseState,
        changed: Result<SnapshotInfo, SnapshotError>,
    ) -> Result<SnapshotInfo, SnapshotError> {
        match (self.load_again(used, None), changed) {
            (Ok(()), changed) => changed,
            (Err(error), Ok(_)) => Err(error.into()),
            (Err(error), Err(first)) => {
                tracing::error!("{}: it is not used any more: {error}", self.display_name());
                Err(first)
            }
        }
    }
}
