//! The snapshots of an image as control threads see them: QEMU's internal snapshots.
//!
//! Invariants: a snapshot is made while nothing is in flight, so it has what was answered before and nothing of what came later.
//! One that the cluster has not told of in time may still be made: then it has later writes, too, and the sentence says that
//! it may be there.

use std::io;
use std::sync::Arc;

use block::{InternalSnapshots, NewSnapshot, SnapshotFailure, SnapshotInfo, SnapshotSelector};
use rustix::io::Errno;

use super::{Disk, SNAPSHOT_MAX};
use crate::cluster::CallError;
use crate::image::Image;

/// A snapshot was not made or removed.
#[derive(Debug, thiserror::Error)]
enum SnapshotError {
    /// The image has none of that name.
    #[error("No such file or directory")]
    Missing,
    /// It is protected, or others depend on it.
    #[error("it is protected, or has clones (rbd snap unprotect, rbd children)")]
    Busy,
    /// The cluster says no.
    #[error(transparent)]
    Call(CallError),
    /// The cluster says nothing.
    #[error(
        "the cluster has not answered for {} s, and may do it later: see rbd snap ls",
        SNAPSHOT_MAX.as_secs()
    )]
    Late(#[source] io::Error),
}

impl Disk {
    /// Has a snapshot made or removed, and looks which there are then. Blocks.
    fn change_snapshots(
        &self,
        change: impl FnOnce(&Image) -> Result<(), CallError> + Send + 'static,
    ) -> Result<(), SnapshotError> {
        let (name, header) = (self.name().to_owned(), Arc::clone(&self.header));
        let changed = self.call(SNAPSHOT_MAX, move |image| {
            let changed = change(image);
            header.look(&name, image);
            changed
        });
        changed.map_err(SnapshotError::Late)?.map_err(|error| {
            self.say_refused(error.errno);
            match error.errno {
                Errno::BUSY => SnapshotError::Busy,
                Errno::NOENT => SnapshotError::Missing,
                _ => SnapshotError::Call(error),
            }
        })
    }

    fn snapshot(&self, which: &SnapshotSelector) -> Option<SnapshotInfo> {
        self.header.snapshots().iter().find(|info| which.is_of(info)).cloned()
    }
}

impl InternalSnapshots for Disk {
    fn snapshots(&self) -> Vec<SnapshotInfo> {
        self.header.snapshots().clone()
    }

    fn check_snapshots(&self) -> Result<(), SnapshotFailure> {
        Ok(())
    }

    fn create_snapshot(&self, new: &NewSnapshot) -> Result<SnapshotInfo, SnapshotFailure> {
        let name = new.name.clone();
        self.change_snapshots(move |image| image.create_snapshot(&name))?;
        let which = SnapshotSelector { id: None, name: Some(new.name.clone()) };
        Ok(self.snapshot(&which).ok_or(SnapshotError::Missing)?)
    }

    fn delete_snapshot(&self, which: &SnapshotSelector) -> Result<SnapshotInfo, SnapshotFailure> {
        let info = self.snapshot(which).ok_or(SnapshotError::Missing)?;
        let name = info.name.clone();
        self.change_snapshots(move |image| image.remove_snapshot(&name))?;
        Ok(info)
    }
}
