//! Nodes: `blockdev-add`, `blockdev-del`, `blockdev-set-active`, `block_resize`, `block-set-write-threshold`,
//! `ringloom-delay-set`, `query-ringloom-nbd-nodes`.

use block::nanoseconds;
use graph::{Activity, Blockdev, NODE, RemoteCondition};
use serde_json::Value;
use syntax::{Keys, OptionFields, ValueType, optional, required};

use super::mirror::policy;
use super::{CommandContext, answer, done};
use crate::inbox::Message;
use crate::qmp_error::QmpError;
use crate::types::RingloomNbdNodeInfo;

pub(super) static DEL: Keys = Keys {
    of: "blockdev-del",
    supported: &[&[required("node-name", ValueType::Text)]],
    later: &[],
};

pub(super) fn of_nbd(context: &mut CommandContext<'_>, _: OptionFields) -> Result<Value, QmpError> {
    let remotes = context.state.graph().remotes(context.state.clock().now()).into_iter();
    let info = |it: RemoteCondition| RingloomNbdNodeInfo {
        node_name: it.node,
        server: it.uri,
        disconnected_ns: nanoseconds(it.disconnected),
    };
    answer(remotes.map(info).collect::<Vec<_>>())
}

pub(super) fn add(
    context: &mut CommandContext<'_>,
    mut fields: OptionFields,
) -> Result<Value, QmpError> {
    // A key of the command, and none of a driver.
    let policy = policy(&mut fields)?;
    let blockdev = Blockdev::read(fields)?;
    blockdev.check_files()?;
    let mut bitmap_nodes = blockdev.bitmap_nodes();
    // What is wrong with them is said when the node is made.
    bitmap_nodes.retain(|node| context.state.graph().node(node).is_ok());
    let held: Result<Vec<_>, _> =
        bitmap_nodes.into_iter().map(|node| context.state.hold_bitmaps(node)).collect();
    let _bitmaps = held?;
    context.state.add_node_at_run_time(&blockdev, policy)?;
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

/// What a node-name that is made up has of the name of another node.
pub(super) fn stem_of(node: &str) -> String {
    node.chars().filter(char::is_ascii_alphanumeric).take(16).collect()
}

/// The first of the names with these numbers, from 1 on, that no node has.
pub(super) fn free_node_name(context: &CommandContext<'_>, of: impl Fn(u32) -> String) -> String {
    let names = context.state.graph().model().names(NODE);
    let free = |name: &String| !names.contains(&name.as_str());
    (1..).map(of).find(free).expect("there are fewer nodes than numbers")
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

pub(super) static SET_ACTIVE: Keys = Keys {
    of: "blockdev-set-active",
    supported: &[&[optional("node-name", ValueType::Text), required("active", ValueType::Flag)]],
    later: &[],
};

pub(super) fn set_active(
    context: &mut CommandContext<'_>,
    mut fields: OptionFields,
) -> Result<Value, QmpError> {
    let name = fields.text("node-name")?;
    let to = fields.either("active", Activity::Active, Activity::Inactive)?;
    let to = to.ok_or_else(|| QmpError::generic("parameter 'active' is missing"))?;
    if let Some(name) = &name
        && context.state.graph().node(name).is_err()
    {
        return Err(QmpError::generic(format!("Failed to find node with node-name='{name}'")));
    }
    context.state.set_activity(name.as_deref(), to)?;
    done()
}

pub(super) static WRITE_THRESHOLD: Keys = Keys {
    of: "block-set-write-threshold",
    supported: &[&[
        required("node-name", ValueType::Text),
        required("write-threshold", ValueType::Number),
    ]],
    later: &[],
};

/// Only of files, where space is given: an image's own offsets say nothing of that.
pub(super) fn set_write_threshold(
    context: &mut CommandContext<'_>,
    mut fields: OptionFields,
) -> Result<Value, QmpError> {
    let name = fields.required_text("node-name")?;
    let missing = || QmpError::generic("parameter 'write-threshold' is missing");
    let offset = fields.number("write-threshold")?.ok_or_else(missing)?;
    let graph = context.state.graph();
    let info = graph.node_info(&name);
    let info = info.map_err(|_missing| QmpError::generic(format!("Device '{name}' not found")))?;
    let not_file = || {
        QmpError::generic(format!(
            "node '{name}' is no file: set the threshold of the file below it"
        ))
    };
    let threshold = info.write_threshold.ok_or_else(not_file)?;
    let inbox = context.inbox.clone();
    threshold.set(
        offset,
        Box::new(move |amount, threshold| {
            inbox.send(Message::ThresholdExceeded { node: name, amount, threshold });
        }),
    );
    done()
}

pub(super) fn set_delay(
    context: &mut CommandContext<'_>,
    fields: OptionFields,
) -> Result<Value, QmpError> {
    context.state.set_delay(fields)?;
    done()
}
