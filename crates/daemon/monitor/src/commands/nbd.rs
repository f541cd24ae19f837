//! `nbd-server-start`, `nbd-server-stop`, and the older way to add and remove NBD exports.

use nbd_server::NbdServerOptions;
use serde_json::{Value, json};
use syntax::{Keys, OptionFields, ValueType, optional, required};

use super::{CommandContext, done, exports as block_exports};
use crate::events::BLOCK_EXPORT_DELETED;
use crate::qmp_error::QmpError;

pub(super) static ADD: Keys = Keys {
    of: "nbd-server-add",
    supported: &[&[
        required("device", ValueType::Text),
        optional("name", ValueType::Text),
        optional("description", ValueType::Text),
        optional("writable", ValueType::Flag),
    ]],
    later: &[&["bitmap"]],
};

pub(super) static REMOVE: Keys = Keys {
    of: "nbd-server-remove",
    supported: &[&[
        required("name", ValueType::Text),
        optional("mode", ValueType::Word(&["safe", "hard"])),
    ]],
    later: &[],
};

pub(super) fn start(
    context: &mut CommandContext<'_>,
    fields: OptionFields,
) -> Result<Value, QmpError> {
    let options = NbdServerOptions::read_legacy(fields)?;
    context.state.start_nbd_server_at_run_time(&options)?;
    done()
}

/// Ends all NBD exports, too, as in QEMU.
pub(super) fn stop(context: &mut CommandContext<'_>, _: OptionFields) -> Result<Value, QmpError> {
    for id in context.state.stop_nbd_server_at_run_time()? {
        context.events.push((BLOCK_EXPORT_DELETED, json!({"id": id})));
    }
    done()
}

/// The export's id is its name, as in QEMU.
pub(super) fn add(
    context: &mut CommandContext<'_>,
    mut fields: OptionFields,
) -> Result<Value, QmpError> {
    let node_name = fields.required_text("device")?;
    if context.state.graph().node(&node_name).is_err() {
        return Err(QmpError::no_node(&node_name));
    }
    let name = fields.text("name")?.unwrap_or_else(|| node_name.clone());
    let mut export = serde_json::Map::new();
    export.insert("type".to_owned(), "nbd".into());
    export.insert("id".to_owned(), name.as_str().into());
    export.insert("name".to_owned(), name.into());
    export.insert("node-name".to_owned(), node_name.into());
    if let Some(description) = fields.text("description")? {
        export.insert("description".to_owned(), description.into());
    }
    export.insert("writable".to_owned(), fields.flag("writable")?.unwrap_or(false).into());
    block_exports::add(context, OptionFields::of_json(export))
}

pub(super) fn remove(
    context: &mut CommandContext<'_>,
    mut fields: OptionFields,
) -> Result<Value, QmpError> {
    let name = fields.required_text("name")?;
    let is_it = |export: &&control::RunningExport| {
        export.disk().id == name && matches!(export, control::RunningExport::Nbd(_))
    };
    if !context.state.exports().iter().any(|export| is_it(&export)) {
        return Err(QmpError::generic(format!("Export '{name}' is not found")));
    }
    let is_hard = fields.word("mode")? == Some("hard");
    block_exports::remove(context, &name, is_hard)
}
