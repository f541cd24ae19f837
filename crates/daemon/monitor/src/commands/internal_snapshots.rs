//! Internal snapshots: `blockdev-snapshot-internal-sync`, alone and in transactions, `blockdev-snapshot-delete-internal-sync`.
//!
//! Invariants: they are made and deleted while nothing is in flight on the node and no lane is open on it; what a transaction
//! has made that fails is deleted again before anything is.

use std::sync::Arc;

use block::{Access, Claim, InternalSnapshots, NewSnapshot, SnapshotFailure, SnapshotSelector};
use control::StatePolicy;
use graph::{Activity, NodeUser};
use host::{chain_of, since_1970};
use serde_json::Value;
use syntax::{Keys, OptionFields, ValueType, optional, required};

use super::at_instant::{InstantAction, InstantActions};
use super::{CommandContext, answer, done};
use crate::qmp_error::QmpError;
use crate::types::SnapshotInfo;

pub(super) static CREATE: Keys = Keys {
    of: "blockdev-snapshot-internal-sync",
    supported: &[&[required("device", ValueType::Text), required("name", ValueType::Text)]],
    later: &[],
};

pub(super) static DELETE: Keys = Keys {
    of: "blockdev-snapshot-delete-internal-sync",
    supported: &[&[
        required("device", ValueType::Text),
        optional("id", ValueType::Text),
        optional("name", ValueType::Text),
    ]],
    later: &[],
};

/// A snapshot that is made or deleted.
pub(super) struct SnapshotAction {
    /// What the client calls the image: the image, or what passes it on.
    device: String,
    /// The image.
    node: String,
    snapshots: Arc<dyn InternalSnapshots>,
    what: Deed,
    /// The image is in use until then.
    _held: Claim,
}

/// What is done with it.
enum Deed {
    /// It is made, with that name.
    Create(String),
    Delete(SnapshotSelector),
}

pub(super) fn create(
    context: &mut CommandContext<'_>,
    mut fields: OptionFields,
) -> Result<Value, QmpError> {
    let action = SnapshotAction::create(context, &mut fields)?;
    carry_out(context, action)?;
    done()
}

pub(super) fn delete(
    context: &mut CommandContext<'_>,
    mut fields: OptionFields,
) -> Result<Value, QmpError> {
    let action = SnapshotAction::delete(context, &mut fields)?;
    let deleted = carry_out(context, action)?.pop().map(|info| SnapshotInfo::of(&info));
    answer(deleted)
}

fn carry_out(
    context: &mut CommandContext<'_>,
    action: SnapshotAction,
) -> Result<Vec<block::SnapshotInfo>, QmpError> {
    let mut all = InstantActions::new(vec![InstantAction::Snapshot(action)], Ok(()));
    context.state.replace_at_once(&[], &[], StatePolicy::Volatile, &mut all)?;
    Ok(all.commit())
}

/// QEMU's sentence.
fn no_list(why: &str) -> QmpError {
    QmpError::generic(format!("Failed to get a snapshot list: {why}"))
}

/// The device that is meant, on which no other node stands.
fn device(context: &CommandContext<'_>, fields: &mut OptionFields) -> Result<String, QmpError> {
    let device = fields.required_text("device")?;
    let graph = context.state.graph();
    if graph.node(&device).is_err() {
        let desc = format!("Cannot find device='{device}' nor node-name='{device}'");
        return Err(QmpError::generic(desc));
    }
    let users = graph.model().users_of(&device);
    if users.iter().any(|(user, _)| !matches!(user, NodeUser::Export(_))) {
        return Err(QmpError::generic("Need a root block node"));
    }
    Ok(device)
}

impl SnapshotAction {
    pub(super) fn create(
        context: &CommandContext<'_>,
        fields: &mut OptionFields,
    ) -> Result<Self, QmpError> {
        let device = device(context, fields)?;
        let name = fields.required_text("name")?;
        let graph = context.state.graph();
        let info = graph.node_info(&device)?;
        if info.access == Access::ReadOnly {
            return Err(QmpError::generic(format!("Device '{device}' is read only")));
        }
        if graph.internal_snapshots(&device).is_none() {
            return Err(QmpError::generic(format!(
                "Block format '{}' used by device '{device}' does not support internal snapshots",
                info.driver
            )));
        }
        if name.is_empty() {
            return Err(QmpError::generic("Name is empty"));
        }
        let action = Self::of(context, device, Deed::Create(name))?;
        action.check()?;
        Ok(action)
    }

    pub(super) fn delete(
        context: &CommandContext<'_>,
        fields: &mut OptionFields,
    ) -> Result<Self, QmpError> {
        let device = device(context, fields)?;
        let which = SnapshotSelector { id: fields.text("id")?, name: fields.text("name")? };
        if which.id.is_none() && which.name.is_none() {
            return Err(QmpError::generic("Name or id must be provided"));
        }
        let action = Self::of(context, device, Deed::Delete(which))?;
        action.check()?;
        Ok(action)
    }

    fn of(context: &CommandContext<'_>, device: String, what: Deed) -> Result<Self, QmpError> {
        let graph = context.state.graph();
        let (node, snapshots) =
            graph.internal_snapshots(&device).ok_or_else(|| no_list("Operation not supported"))?;
        snapshots.check_snapshots().map_err(|error| no_list(&error.to_string()))?;
        let info = graph.node_info(node)?;
        if info.access == Access::ReadOnly {
            return Err(QmpError::generic(format!("Device '{device}' is read only")));
        }
        if info.activity == Activity::Inactive {
            return Err(QmpError::generic(format!("Device '{device}' is inactive")));
        }
        let node = node.to_owned();
        let held = context.state.hold_image(&node)?;
        Ok(Self { device, node, snapshots, what, _held: held })
    }

    /// The image that it is in.
    pub(super) fn node(&self) -> &str {
        &self.node
    }

    /// Whether it can be made or deleted, as far as names go. QEMU's sentences.
    fn check(&self) -> Result<(), QmpError> {
        let (all, device) = (self.snapshots.snapshots(), &self.device);
        match &self.what {
            Deed::Create(name) if all.iter().any(|info| info.name == *name) => {
                let desc =
                    format!("Snapshot with name '{name}' already exists on device '{device}'");
                Err(QmpError::generic(desc))
            }
            Deed::Delete(which) if !all.iter().any(|info| which.is_of(info)) => {
                let said =
                    |given: &Option<String>| given.clone().unwrap_or_else(|| "null".to_owned());
                let (id, name) = (said(&which.id), said(&which.name));
                Err(QmpError::generic(format!(
                    "Snapshot with id '{id}' and name '{name}' does not exist on device '{device}'"
                )))
            }
            Deed::Create(_) | Deed::Delete(_) => Ok(()),
        }
    }

    /// Makes or deletes it, while nothing is in flight on the image.
    pub(super) fn apply(&self) -> Result<block::SnapshotInfo, QmpError> {
        // Others of the same transaction may have the name.
        self.check()?;
        let device = &self.device;
        match &self.what {
            Deed::Create(name) => {
                let new = NewSnapshot { name: name.clone(), date: since_1970() };
                self.snapshots.create_snapshot(&new).map_err(|error| {
                    let why = said(&error);
                    QmpError::generic(format!(
                        "Failed to create snapshot '{name}' on device '{device}': {why}"
                    ))
                })
            }
            Deed::Delete(which) => self.snapshots.delete_snapshot(which).map_err(|error| {
                let why = said(&error);
                QmpError::generic(format!(
                    "Failed to delete a snapshot of device '{device}': {why}"
                ))
            }),
        }
    }

    /// It was made and shall not be there. One that was deleted is gone.
    pub(super) fn take_back(&self, made: &block::SnapshotInfo) {
        let node = &self.node;
        match &self.what {
            Deed::Create(name) => {
                let which = SnapshotSelector { id: Some(made.id.clone()), name: None };
                if let Err(error) = self.snapshots.delete_snapshot(&which) {
                    let error = said(&error);
                    tracing::error!("node {node}: snapshot '{name}' cannot be taken back: {error}");
                }
            }
            Deed::Delete(_) => {
                tracing::warn!("node {node}: snapshot '{}' is gone all the same", made.name);
            }
        }
    }
}

/// Why not, and why that.
fn said(error: &SnapshotFailure) -> String {
    chain_of(&**error).to_string()
}

impl SnapshotInfo {
    /// As QMP has it.
    pub(super) fn of(info: &block::SnapshotInfo) -> Self {
        let block::SnapshotInfo { id, name, state_bytes, date, clock, instructions } = info;
        Self {
            id: id.clone(),
            name: name.clone(),
            state_bytes: *state_bytes,
            date_seconds: date.as_secs(),
            date_nanoseconds: date.subsec_nanos().into(),
            clock_seconds: clock.as_secs(),
            clock_nanoseconds: clock.subsec_nanos().into(),
            instructions: *instructions,
        }
    }
}
