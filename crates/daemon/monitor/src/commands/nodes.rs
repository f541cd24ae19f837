//! Nodes: `blockdev-add`, `blockdev-del`, `block_resize`.

use graph::Blockdev;
use serde_json::Value;
use syntax::{Keys, OptionFields, ValueType, optional, required};

use super::{CommandContext, done};
use crate::qmp_error::QmpError;

pub(super) static DEL: Keys = Keys {
    of: "blockdev-del",
    supported: &[&[required("node-name", ValueType::Text)]],
    later: &[],
};

pub(super) fn add(
    context: &mut CommandContext<'_>,
    fields: OptionFields,
) -> Result<Value, QmpError> {
    let blockdev = Blockdev::read(fields)?;
    blockdev.check_files()?;
    context.state.add_node_at_run_time(&blockdev)?;
    done()
}

pub(super) fn del(
    context: &mut CommandContext<'_>,
    mut fields: OptionFields,
) -> Result<Value, QmpError> {
    let name = fields.required_text("node-name")?;
    if context.state.graph().node(&name).is_err() {
        return Err(QmpError::generic(format!("Failed to find node with node-name='{name}'")));
    }
    if name.contains('/') {
        return Err(QmpError::generic(format!("Node {name} is not owned by the monitor")));
    }
    context.state.remove_node_at_run_time(&name)?;
    done()
}

pub(super) static RESIZE: Keys = Keys {
    of: "block_resize",
    supported: &[&[
        optional("device", ValueType::Text),
        optional("node-name", ValueType::Text),
        required("size", ValueType::Int),
    ]],
    later: &[],
};

pub(super) fn resize(
    context: &mut CommandContext<'_>,
    mut fields: OptionFields,
) -> Result<Value, QmpError> {
    let name = node_or_device(context, &mut fields)?;
    let size =
        fields.int("size")?.ok_or_else(|| QmpError::generic("parameter 'size' is missing"))?;
    context.state.resize_node(&name, size)?;
    done()
}

/// The node that is meant. A storage daemon has no devices, whose names QEMU takes too.
pub(super) fn node_or_device(
    context: &CommandContext<'_>,
    fields: &mut OptionFields,
) -> Result<String, QmpError> {
    let (device, node) = (fields.text("device")?, fields.text("node-name")?);
    match node {
        Some(name) if context.state.graph().node(&name).is_ok() => Ok(name),
        node => Err(QmpError::generic(format!(
            "Cannot find device='{}' nor node-name='{}'",
            device.unwrap_or_default(),
            node.unwrap_or_default()
        ))),
    }
}
