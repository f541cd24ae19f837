//! `block-export-add`, `block-export-del`, `query-block-exports`, `query-ringloom-storage`.

use control::RunningExport;
use exports::{ExportOptions, StorageCondition};
use serde_json::{Value, json};
use syntax::{Keys, OptionFields, ValueType, optional, required};

use super::{CommandContext, answer, done};
use crate::events::BLOCK_EXPORT_DELETED;
use crate::qmp_error::QmpError;
use crate::types::{BlockExportInfo, ExportType, RingloomStorageInfo};

pub(super) static DEL: Keys = Keys {
    of: "block-export-del",
    supported: &[&[
        required("id", ValueType::Text),
        optional("mode", ValueType::Word(&["safe", "hard"])),
    ]],
    later: &[],
};

pub(super) fn add(
    context: &mut CommandContext<'_>,
    fields: OptionFields,
) -> Result<Value, QmpError> {
    let options = ExportOptions::read(fields)?;
    if options.vhost_user_blk().is_some_and(|own| own.socket.descriptor.is_some()) {
        let desc = "addr.type=fd is for the command line: a monitor passes no descriptors";
        return Err(QmpError::generic(desc));
    }
    context.state.add_export_at_run_time(&options, context.memory)?;
    done()
}

/// `safe` is refused while a client is connected, as in QEMU; `hard` disconnects it.
pub(super) fn del(
    context: &mut CommandContext<'_>,
    mut fields: OptionFields,
) -> Result<Value, QmpError> {
    let id = fields.required_text("id")?;
    let is_hard = fields.word("mode")? == Some("hard");
    remove(context, &id, is_hard)
}

/// Removes an export, and tells of it.
pub(super) fn remove(
    context: &mut CommandContext<'_>,
    id: &str,
    is_hard: bool,
) -> Result<Value, QmpError> {
    let export = context.state.exports().iter().find(|export| export.disk().id == id);
    if export.is_some_and(|export| !is_hard && export.has_client()) {
        let desc = format!("export '{id}' still in use (mode='hard' disconnects its client)");
        return Err(QmpError::generic(desc));
    }
    let exports = context.state.exports().len();
    let removed = context.state.remove_export_at_run_time(id);
    // It is gone also if its last flush failed.
    if context.state.exports().len() < exports {
        context.events.push((BLOCK_EXPORT_DELETED, json!({"id": id})));
    }
    removed?;
    done()
}

pub(super) fn query(context: &mut CommandContext<'_>, _: OptionFields) -> Result<Value, QmpError> {
    let graph = context.state.graph();
    let node_below = |id: &str| {
        let root = graph.root(id).unwrap_or_default();
        graph.model().job_filter_on(root).map_or(root, |filter| filter.name.as_str()).to_owned()
    };
    let info = |export: &RunningExport| BlockExportInfo {
        id: export.disk().id.clone(),
        kind: ExportType(export.type_name()),
        node_name: node_below(&export.disk().id),
        is_shutting_down: false,
    };
    answer(context.state.exports().iter().map(info).collect::<Vec<_>>())
}

/// What was found last: nothing is asked of storage, which may hang.
pub(super) fn storage(
    context: &mut CommandContext<'_>,
    _: OptionFields,
) -> Result<Value, QmpError> {
    let info = |(export, found): (String, StorageCondition)| RingloomStorageInfo {
        export,
        is_removed: found.is_removed,
        size_difference: found.size_difference,
    };
    answer(context.state.storage().into_iter().map(info).collect::<Vec<_>>())
}
