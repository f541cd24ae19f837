//! What a command or a transaction does at one instant, when nothing is in flight on the nodes: with dirty bitmaps, and with
//! internal snapshots.
//!
//! Invariants: it is done in the order in which it was asked for; what was done before something fails is taken back before
//! anything is in flight again.

use block::SnapshotInfo;
use control::AtOnce;

use super::bitmaps::{BitmapAction, BitmapDone};
use super::internal_snapshots::SnapshotAction;
use crate::qmp_error::QmpError;

/// Something that is done at the instant.
pub(super) enum InstantAction {
    /// With a bitmap of a node.
    Bitmap(BitmapAction),
    /// With an internal snapshot of an image.
    Snapshot(SnapshotAction),
}

/// What was done, until it is sure that it stays.
enum Done {
    Bitmap(BitmapDone),
    /// That snapshot was made or deleted.
    Snapshot(SnapshotInfo),
}

/// All that is done at the instant, in order.
pub(super) struct InstantActions {
    all: Vec<InstantAction>,
    /// What comes of it once it is done.
    after: Result<(), QmpError>,
    /// What was done of it.
    done: Vec<Done>,
}

impl InstantActions {
    /// These, in order; with an error they are only tried.
    pub(super) fn new(all: Vec<InstantAction>, after: Result<(), QmpError>) -> Self {
        Self { all, after, done: Vec::new() }
    }

    /// All of it stays. The snapshots that were made or deleted.
    pub(super) fn commit(self) -> Vec<SnapshotInfo> {
        let mut snapshots = Vec::new();
        for (action, done) in self.all.iter().zip(self.done) {
            match (action, done) {
                (InstantAction::Bitmap(action), Done::Bitmap(done)) => action.commit(done),
                (_, Done::Snapshot(info)) => snapshots.push(info),
                (InstantAction::Snapshot(_), Done::Bitmap(_)) => {}
            }
        }
        snapshots
    }
}

impl AtOnce for InstantActions {
    type Error = QmpError;

    fn nodes(&self) -> Vec<String> {
        let node = |action: &InstantAction| match action {
            InstantAction::Bitmap(action) => action.node().to_owned(),
            InstantAction::Snapshot(action) => action.node().to_owned(),
        };
        self.all.iter().map(node).collect()
    }

    fn apply(&mut self) -> Result<(), QmpError> {
        let mut all = self.all.iter();
        let result = all.try_for_each(|action| {
            let done = match action {
                InstantAction::Bitmap(action) => Done::Bitmap(action.apply()?),
                InstantAction::Snapshot(action) => Done::Snapshot(action.apply()?),
            };
            self.done.push(done);
            Ok(())
        });
        let result = result.and_then(|()| self.after.clone());
        if result.is_err() {
            self.take_back();
        }
        result
    }

    fn take_back(&mut self) {
        while let Some(done) = self.done.pop() {
            match (&self.all[self.done.len()], done) {
                (InstantAction::Bitmap(action), Done::Bitmap(done)) => action.take_back(done),
                (InstantAction::Snapshot(action), Done::Snapshot(info)) => action.take_back(&info),
                (InstantAction::Bitmap(_), Done::Snapshot(_))
                | (InstantAction::Snapshot(_), Done::Bitmap(_)) => {}
            }
        }
    }
}
