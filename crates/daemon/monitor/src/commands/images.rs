//! Images put on others: `blockdev-snapshot`, `blockdev-snapshot-sync`, `blockdev-reopen`, `transaction`; what their headers
//! name: `change-backing-file`.
//!
//! Invariants: all actions of a transaction are prepared before the graph is changed once, for all of them; what was
//! prepared, files included, is gone again after an error.

use std::path::{Path, PathBuf};

use ::bitmaps::Recording;
use block::DiskSize;
use control::{BackupChanges, StatePolicy};
use graph::{Blockdev, EdgeChange};
use host::chain_of;
use qcow2::CreateOptions;
use serde_json::{Map, Value, json};
use syntax::{Key, Keys, OptionFields, ValueType, is_identifier, optional, required};

use super::at_instant::{InstantAction, InstantActions};
use super::backup::{self, JobResults, ReadBackup};
use super::bitmaps::BitmapAction;
use super::internal_snapshots::SnapshotAction;
use super::nodes::{free_node_name, node_or_device, stem_of};
use super::queries::GraphReader;
use super::{CommandContext, done};
use crate::qmp_error::QmpError;

/// Says that a change need not be there after a restart.
pub(super) const VOLATILE: Key = optional("ringloom-volatile", ValueType::Flag);

pub(super) static SNAPSHOT: Keys = Keys {
    of: "blockdev-snapshot",
    supported: &[&[
        required("node", ValueType::Text),
        required("overlay", ValueType::Text),
        VOLATILE,
    ]],
    later: &[],
};

pub(super) static SNAPSHOT_SYNC: Keys = Keys {
    of: "blockdev-snapshot-sync",
    supported: &[&[
        optional("device", ValueType::Text),
        optional("node-name", ValueType::Text),
        required("snapshot-file", ValueType::Text),
        optional("snapshot-node-name", ValueType::Text),
        optional("format", ValueType::Text),
        optional("mode", ValueType::Word(&["existing", "absolute-paths"])),
        VOLATILE,
    ]],
    later: &[],
};

pub(super) static REOPEN: Keys = Keys {
    of: "blockdev-reopen",
    supported: &[&[required("options", ValueType::List(&ValueType::Blockdev)), VOLATILE]],
    later: &[],
};

pub(super) static CHANGE_BACKING: Keys = Keys {
    of: "change-backing-file",
    supported: &[&[
        required("device", ValueType::Text),
        required("image-node-name", ValueType::Text),
        required("backing-file", ValueType::Text),
    ]],
    later: &[],
};

/// What the actions of a transaction have prepared, and how it is taken back.
pub(super) struct Preparation {
    pub(super) edges: Vec<EdgeChange>,
    /// Nodes that are there and get other options.
    reopened: Vec<Blockdev>,
    policy: StatePolicy,
    /// Nodes that were made for it.
    pub(super) nodes: Vec<String>,
    /// Files that were made for it.
    pub(super) files: Vec<PathBuf>,
    /// What is done with dirty bitmaps and internal snapshots at that instant.
    at_instant: Vec<InstantAction>,
    /// Whether it is taken back after that.
    aborts: bool,
    /// Backups that begin.
    pub(super) backups: Vec<ReadBackup>,
    /// Which of their results count.
    results: JobResults,
}

pub(super) fn snapshot(
    context: &mut CommandContext<'_>,
    mut fields: OptionFields,
) -> Result<Value, QmpError> {
    change(context, |context, preparation| preparation.add_snapshot(context, &mut fields))
}

pub(super) fn snapshot_sync(
    context: &mut CommandContext<'_>,
    mut fields: OptionFields,
) -> Result<Value, QmpError> {
    change(context, |context, preparation| preparation.add_snapshot_sync(context, &mut fields))
}

/// Other nodes below nodes that are there, and other options, as far as their drivers can: all of them, or none.
pub(super) fn reopen(
    context: &mut CommandContext<'_>,
    mut fields: OptionFields,
) -> Result<Value, QmpError> {
    let missing = || QmpError::generic("parameter 'options' is missing");
    let all = fields.list("options")?.ok_or_else(missing)?;
    let is_volatile = fields.flag("ringloom-volatile")?.unwrap_or(false);
    change(context, |context, preparation| {
        for (_, options) in all {
            let blockdev = Blockdev::read(options)?;
            let reopening = context.state.reopen(&blockdev)?;
            if reopening.node.is_some() {
                blockdev.check_files()?;
            }
            preparation.edges.extend(reopening.edges);
            preparation.reopened.extend(reopening.node);
        }
        // With its old options a node has the same bytes.
        if !is_volatile && !preparation.edges.is_empty() {
            preparation.policy = StatePolicy::Kept;
        }
        Ok(())
    })
}

/// The name of the backing file that an image has in its header, which is looked at when it is opened next.
pub(super) fn change_backing_file(
    context: &mut CommandContext<'_>,
    mut fields: OptionFields,
) -> Result<Value, QmpError> {
    let device = fields.required_text("device")?;
    let name = fields.required_text("image-node-name")?;
    let backing = fields.required_text("backing-file")?;
    let graph = context.state.graph();
    if graph.node(&device).is_err() {
        return Err(QmpError::generic(format!("Cannot find device='' nor node-name='{device}'")));
    }
    let info = graph.node_info(&name).map_err(|_missing| QmpError::no_node(&name))?;
    let reader = GraphReader { graph, is_flat: true };
    if !reader.is_in_chain(&device, &name) {
        return Err(QmpError::generic(format!(
            "node '{name}' and device '{device}' are not in the same chain"
        )));
    }
    if info.image.is_none() {
        return Err(QmpError::generic(format!("Node '{name}' has no backing file to name")));
    }
    let format = reader.backing_format(&name);
    context.state.change_backing_file(&name, &backing, format)?;
    done()
}

/// All actions, or none.
pub(super) fn transaction(
    context: &mut CommandContext<'_>,
    mut fields: OptionFields,
) -> Result<Value, QmpError> {
    let missing = || QmpError::generic("parameter 'actions' is missing");
    let actions = fields.list("actions")?.ok_or_else(missing)?;
    let mode = fields.object("properties")?.map(|mut it| it.word("completion-mode"));
    let is_grouped = mode.transpose()?.flatten() == Some("grouped");
    change(context, |context, preparation| {
        for (kind, mut action) in actions {
            let missing = || QmpError::generic("parameter 'data' is missing");
            let mut data = action.object("data")?.ok_or_else(missing)?;
            match kind {
                Some(name) if name.starts_with("block-dirty-bitmap-") => {
                    preparation.add_bitmap_action(context, name, &mut data)?;
                }
                Some("blockdev-backup") => {
                    let backup = backup::read_between_nodes(context, &mut data)?;
                    preparation.backups.push(backup);
                }
                Some("drive-backup") => preparation.add_drive_backup(context, &mut data)?,
                Some("blockdev-snapshot") => preparation.add_snapshot(context, &mut data)?,
                Some("blockdev-snapshot-internal-sync") => {
                    let action = SnapshotAction::create(context, &mut data)?;
                    preparation.at_instant.push(InstantAction::Snapshot(action));
                }
                Some("blockdev-snapshot-sync") => {
                    preparation.add_snapshot_sync(context, &mut data)?;
                }
                Some("ringloom-insert-filter") => preparation.add_insertion(context, &mut data)?,
                Some("ringloom-remove-filter") => preparation.add_removal(context, &mut data)?,
                // What is before it may fail first.
                _ if !preparation.at_instant.is_empty() => {
                    preparation.aborts = true;
                    break;
                }
                _ => return Err(aborted()),
            }
        }
        if is_grouped {
            preparation.results = JobResults::Grouped;
        }
        Ok(())
    })
}

/// QEMU's sentence.
fn aborted() -> QmpError {
    QmpError::generic("Transaction aborted using Abort action")
}

/// Changes the graph once for all that was prepared, or takes it back.
pub(super) fn change(
    context: &mut CommandContext<'_>,
    prepare: impl FnOnce(&mut CommandContext<'_>, &mut Preparation) -> Result<(), QmpError>,
) -> Result<Value, QmpError> {
    let mut preparation = Preparation {
        edges: Vec::new(),
        reopened: Vec::new(),
        policy: StatePolicy::Volatile,
        nodes: Vec::new(),
        files: Vec::new(),
        at_instant: Vec::new(),
        aborts: false,
        backups: Vec::new(),
        results: JobResults::Single,
    };
    let prepared = prepare(context, &mut preparation);
    let after = if preparation.aborts { Err(aborted()) } else { Ok(()) };
    let mut at_instant = InstantActions::new(std::mem::take(&mut preparation.at_instant), after);
    let changed = prepared.and_then(|()| {
        let backups = std::mem::take(&mut preparation.backups);
        let Preparation { edges, reopened, policy, .. } = &preparation;
        if backups.is_empty() {
            return context.state.replace_at_once(edges, reopened, *policy, &mut at_instant);
        }
        let besides = BackupChanges { edges, policy: *policy };
        backup::begin(context, backups, (besides, preparation.results), &mut at_instant)
    });
    if let Err(error) = changed {
        preparation.take_back(context);
        return Err(error);
    }
    at_instant.commit();
    done()
}

impl Preparation {
    fn add_snapshot(
        &mut self,
        context: &mut CommandContext<'_>,
        fields: &mut OptionFields,
    ) -> Result<(), QmpError> {
        let (node, overlay) = (fields.required_text("node")?, fields.required_text("overlay")?);
        for name in [&overlay, &node] {
            if context.state.graph().node(name).is_err() {
                return Err(QmpError::no_node(name));
            }
        }
        self.add_overlay(context, fields, &node, &overlay)
    }

    fn add_bitmap_action(
        &mut self,
        context: &mut CommandContext<'_>,
        name: &str,
        data: &mut OptionFields,
    ) -> Result<(), QmpError> {
        let action = match name {
            "block-dirty-bitmap-add" => BitmapAction::add(context, data),
            "block-dirty-bitmap-clear" => BitmapAction::clear(context, data),
            "block-dirty-bitmap-disable" => BitmapAction::record(context, data, Recording::Off),
            "block-dirty-bitmap-enable" => BitmapAction::record(context, data, Recording::On),
            "block-dirty-bitmap-merge" => BitmapAction::merge(context, data),
            _ => BitmapAction::remove(context, data),
        };
        self.at_instant.push(InstantAction::Bitmap(action?));
        Ok(())
    }

    fn add_overlay(
        &mut self,
        context: &CommandContext<'_>,
        fields: &mut OptionFields,
        node: &str,
        overlay: &str,
    ) -> Result<(), QmpError> {
        self.edges.extend(context.state.snapshot(node, overlay)?);
        self.keep(fields)
    }

    /// A restart has to know the change, unless it is said that it need not.
    pub(super) fn keep(&mut self, fields: &mut OptionFields) -> Result<(), QmpError> {
        if !fields.flag("ringloom-volatile")?.unwrap_or(false) {
            self.policy = StatePolicy::Kept;
        }
        Ok(())
    }

    /// Makes the image, unless it is there, and its node.
    fn add_snapshot_sync(
        &mut self,
        context: &mut CommandContext<'_>,
        fields: &mut OptionFields,
    ) -> Result<(), QmpError> {
        let node = node_or_device(context, fields)?;
        let path = PathBuf::from(fields.required_text("snapshot-file")?);
        let overlay = match fields.text("snapshot-node-name")? {
            None => {
                let stem = stem_of(&node);
                let stem = if is_identifier(&stem) { &stem } else { "node" };
                free_node_name(context, |number| format!("{stem}-overlay{number}"))
            }
            Some(name) if context.state.graph().node(&name).is_ok() => {
                let desc = format!("New overlay node-name already in use: '{name}'");
                return Err(QmpError::generic(desc));
            }
            Some(name) => name,
        };
        let format = fields.text("format")?.unwrap_or_else(|| "qcow2".to_owned());
        if format != "qcow2" {
            let desc = format!("Unknown format '{format}' of an overlay (supported: qcow2)");
            return Err(QmpError::generic(desc));
        }
        if fields.word("mode")? != Some("existing") {
            let size = context.state.graph().node(&node)?.size();
            let made = make_file(context, (&path, &format), size, Some(&node))?;
            self.files.extend(made);
        }
        let blockdev =
            Blockdev::read(OptionFields::of_json(overlay_of(context, &node, &overlay, &path)))?;
        blockdev.check_files()?;
        context.state.add_node_at_run_time(&blockdev, StatePolicy::Kept)?;
        self.nodes.push(overlay.clone());
        self.add_overlay(context, fields, &node, &overlay)
    }

    fn take_back(self, context: &mut CommandContext<'_>) {
        for name in self.nodes.iter().rev() {
            if let Err(error) = context.state.remove_node_at_run_time(name) {
                tracing::error!("node {name} cannot be taken back: {}", chain_of(&error));
            }
        }
        for path in self.files {
            if let Err(error) = std::fs::remove_file(&path)
                && error.kind() != std::io::ErrorKind::NotFound
            {
                tracing::warn!("{} cannot be removed again: {error}", path.display());
            }
        }
    }
}

/// Makes a file of that format which reads as zeroes, or as the file of a node that an image names as its backing file. What is in
/// a file that is there is not written over. Gives the path of a file that was not there.
pub(super) fn make_file(
    context: &CommandContext<'_>,
    (path, format): (&Path, &str),
    size: DiskSize,
    backing: Option<&str>,
) -> Result<Option<PathBuf>, QmpError> {
    let graph = context.state.graph();
    let reader = GraphReader { graph, is_flat: true };
    let no_file =
        |node: &str| QmpError::generic(format!("node '{node}' is in no file that could be named"));
    let named = backing.map(|node| {
        let file = reader.path(node).ok_or_else(|| no_file(node))?;
        let file = std::path::absolute(&file).unwrap_or(file);
        let info = graph.node_info(node)?;
        let format = if info.image.is_some() { info.driver } else { "raw" };
        Ok::<_, QmpError>((file.display().to_string(), format.to_owned()))
    });
    let (backing_file, backing_format) = named.transpose()?.unzip();
    if format == "raw" && backing_file.is_some() {
        return Err(QmpError::generic("Backing file not supported for file format 'raw'"));
    }
    let length = std::fs::metadata(path).ok().map(|it| it.len());
    if length.is_some_and(|length| length > 0) {
        return Err(QmpError::generic(format!(
            "file '{}' exists already and is not empty; mode=existing takes it as it is",
            path.display()
        )));
    }
    let maker = graph.image_maker();
    let made = if format == "raw" {
        maker.file(path, size.0.0)
    } else {
        let options =
            CreateOptions { size, backing_file, backing_format, ..CreateOptions::default() };
        maker.qcow2_file(path, &options)
    };
    let new = length.is_none().then(|| path.to_owned());
    if made.is_err() && new.is_some() {
        // There may be none, too.
        let _nothing = std::fs::remove_file(path);
    }
    Ok(made.map(|()| new)?)
}

/// The node of an overlay, which is told what the node below it was told.
fn overlay_of(
    context: &CommandContext<'_>,
    node: &str,
    overlay: &str,
    path: &Path,
) -> Map<String, Value> {
    let mut all = Map::new();
    for key in ["cache", "discard"] {
        let written = context.state.graph().written_node(node);
        if let Some(value) = written.and_then(|written| written.get(key)) {
            all.insert(key.to_owned(), value.clone());
        }
    }
    all.insert("driver".to_owned(), "qcow2".into());
    all.insert("node-name".to_owned(), overlay.into());
    all.insert("backing".to_owned(), Value::Null);
    let file = json!({"driver": "file", "filename": path.to_string_lossy()});
    all.insert("file".to_owned(), file);
    all
}
