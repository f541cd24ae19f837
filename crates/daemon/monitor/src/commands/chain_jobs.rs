//! Jobs that make chains of backing files shorter: `block-commit`, `block-stream`.
//!
//! Specification: QEMU, docs/interop/live-block-operations.rst, qapi/block-core.json. A commit of the uppermost image is
//! completed like a mirror; the others end by themselves.

use bitmaps::Granularity;
use control::{BackingName, CommitOptions, MirrorOptions, MirrorSync, StreamOptions};
use jobs::JobKind;
use layers::MirrorMode;
use serde_json::Value;
use syntax::{Key, Keys, OptionFields, ValueType, optional, required};

use super::CommandContext;
use super::images::VOLATILE;
use super::mirror::{
    BLOCK_JOB_KEYS, FILTER_NAME, ON_ERROR, begin, block_job_settings, error_policy, filter_name,
    policy,
};
use super::queries::GraphReader;
use crate::qmp_error::QmpError;

/// Whether a header names a driver of a protocol as the format of a backing file, which here it never does.
const MASK: Key = optional("backing-mask-protocol", ValueType::Flag);

pub(super) static COMMIT: Keys = Keys {
    of: "block-commit",
    supported: &[
        BLOCK_JOB_KEYS,
        &[
            required("device", ValueType::Text),
            optional("base-node", ValueType::Text),
            optional("base", ValueType::Text),
            optional("top-node", ValueType::Text),
            optional("top", ValueType::Text),
            optional("backing-file", ValueType::Text),
            MASK,
            optional("on-error", ON_ERROR),
            FILTER_NAME,
            VOLATILE,
        ],
    ],
    later: &[],
};

pub(super) static STREAM: Keys = Keys {
    of: "block-stream",
    supported: &[
        BLOCK_JOB_KEYS,
        &[
            required("device", ValueType::Text),
            optional("base-node", ValueType::Text),
            optional("base", ValueType::Text),
            optional("bottom", ValueType::Text),
            optional("backing-file", ValueType::Text),
            MASK,
            optional("on-error", ON_ERROR),
            FILTER_NAME,
            VOLATILE,
        ],
    ],
    later: &[],
};

/// What images of a chain have is copied into a backing file.
pub(super) fn commit(
    context: &mut CommandContext<'_>,
    mut fields: OptionFields,
) -> Result<Value, QmpError> {
    let (id, settings) = block_job_settings(&mut fields)?;
    let device = fields.required_text("device")?;
    if context.state.graph().node(&device).is_err() {
        return Err(QmpError::no_device(&device));
    }
    let chain = context.state.graph().model().backing_chain(&device);
    let top = top_of(context, &mut fields, &chain)?;
    let below: Vec<String> = chain.iter().skip_while(|node| **node != top).cloned().collect();
    let base = base_of(context, &mut fields, &below)?;
    if base == top {
        return Err(QmpError::generic("cannot commit an image into itself"));
    }
    let backing = fields.text("backing-file")?;
    fields.flag(MASK.name)?;
    let on_error = error_policy(&mut fields, "on-error")?;
    let filter = filter_name(&mut fields)?;
    let policy = policy(&mut fields)?;
    if top == device {
        if backing.is_some() {
            let desc = format!("'backing-file' specified, but '{device}' is the active layer");
            return Err(QmpError::generic(desc));
        }
        let options = MirrorOptions {
            id: id.clone(),
            source: top,
            target: base,
            sync: MirrorSync::Commit,
            mode: MirrorMode::Background,
            granularity: Granularity::DEFAULT,
            speed: settings.speed,
            on_source_error: on_error,
            on_target_error: on_error,
            memory: 0,
            replaces: None,
            filter,
            is_verified: false,
        };
        return begin(context, (&id, JobKind::Commit, settings), policy, |state, observer| {
            state.start_mirror(&options, observer)
        });
    }
    let backing = backing_name(context, Some(&base), backing)?;
    let speed = settings.speed;
    let options = CommitOptions { id: id.clone(), top, base, backing, speed, on_error, filter };
    begin(context, (&id, JobKind::Commit, settings), policy, |state, observer| {
        state.check_chain_switch(&options.top, policy)?;
        state.start_commit(&options, observer)
    })
}

/// An image gets what backing files have.
pub(super) fn stream(
    context: &mut CommandContext<'_>,
    mut fields: OptionFields,
) -> Result<Value, QmpError> {
    let (id, settings) = block_job_settings(&mut fields)?;
    let top = fields.required_text("device")?;
    if context.state.graph().node(&top).is_err() {
        let desc = format!("Cannot find device='{top}' nor node-name='{top}'");
        return Err(QmpError::generic(desc));
    }
    let chain = context.state.graph().model().backing_chain(&top);
    let bottom = fields.text("bottom")?;
    let base = stream_base(context, &mut fields, &chain, bottom.is_some())?;
    let backing = fields.text("backing-file")?;
    if base.is_none() && backing.is_some() {
        let desc = "backing file specified, but streaming the entire chain";
        return Err(QmpError::generic(desc));
    }
    let base = match bottom {
        Some(bottom) => below_bottom(context, &chain, &bottom)?,
        None => base,
    };
    fields.flag(MASK.name)?;
    let on_error = error_policy(&mut fields, "on-error")?;
    let filter = filter_name(&mut fields)?;
    let policy = policy(&mut fields)?;
    let backing = backing_name(context, base.as_deref(), backing)?;
    let speed = settings.speed;
    let options = StreamOptions { id: id.clone(), top, base, backing, speed, on_error, filter };
    begin(context, (&id, JobKind::Stream, settings), policy, |state, observer| {
        state.check_chain_switch(&options.top, policy)?;
        state.start_stream(&options, observer)
    })
}

/// The uppermost image of a commit. QEMU's sentences.
fn top_of(
    context: &CommandContext<'_>,
    fields: &mut OptionFields,
    chain: &[String],
) -> Result<String, QmpError> {
    let (node, file) = (node_of(context, fields, "top-node")?, fields.text("top")?);
    match (node, file) {
        (Some(_), Some(_)) => Err(QmpError::generic("'top-node' and 'top' are mutually exclusive")),
        (Some(node), None) if chain.contains(&node) => Ok(node),
        (Some(node), None) => {
            Err(QmpError::generic(format!("'{node}' is not in this backing file chain")))
        }
        (None, Some(file)) => {
            let reader = GraphReader { graph: context.state.graph(), is_flat: true };
            if reader.path(&chain[0]).is_some_and(|path| path.as_os_str() == file.as_str()) {
                return Ok(chain[0].clone());
            }
            let found = reader.backing_file_called(chain, &file);
            found.ok_or_else(|| QmpError::generic(format!("Top image file '{file}' not found")))
        }
        (None, None) => Ok(chain[0].clone()),
    }
}

/// What is committed into, of a chain that begins with the uppermost image. QEMU's sentences.
fn base_of(
    context: &CommandContext<'_>,
    fields: &mut OptionFields,
    chain: &[String],
) -> Result<String, QmpError> {
    let (node, file) = (node_of(context, fields, "base-node")?, fields.text("base")?);
    match (node, file) {
        (Some(_), Some(_)) => {
            Err(QmpError::generic("'base-node' and 'base' are mutually exclusive"))
        }
        (Some(node), None) if chain.contains(&node) => Ok(node),
        (Some(node), None) => {
            Err(QmpError::generic(format!("'{node}' is not in this backing file chain")))
        }
        (None, Some(file)) => called(context, chain, &file),
        (None, None) => Ok(chain.last().cloned().unwrap_or_default()),
    }
}

/// What a stream leaves below, if something is named. QEMU's sentences.
fn stream_base(
    context: &CommandContext<'_>,
    fields: &mut OptionFields,
    chain: &[String],
    has_bottom: bool,
) -> Result<Option<String>, QmpError> {
    let (node, file) = (fields.text("base-node")?, fields.text("base")?);
    let both = match (&node, &file, has_bottom) {
        (Some(_), Some(_), _) => Some(["base", "base-node"]),
        (_, Some(_), true) => Some(["base", "bottom"]),
        (Some(_), _, true) => Some(["bottom", "base-node"]),
        _ => None,
    };
    if let Some([one, other]) = both {
        let desc = format!("'{one}' and '{other}' cannot be specified at the same time");
        return Err(QmpError::generic(desc));
    }
    if let Some(file) = file {
        return called(context, chain, &file).map(Some);
    }
    let Some(base) = node else { return Ok(None) };
    check_node(context, &base)?;
    if !chain[1..].contains(&base) {
        let desc = format!("Node '{base}' is not a backing image of '{}'", chain[0]);
        return Err(QmpError::generic(desc));
    }
    Ok(Some(base))
}

/// What is below the lowest image that a stream copies. QEMU's sentences.
fn below_bottom(
    context: &CommandContext<'_>,
    chain: &[String],
    bottom: &str,
) -> Result<Option<String>, QmpError> {
    check_node(context, bottom)?;
    if context.state.graph().model().filtered(bottom).is_some() {
        let desc = format!("Node '{bottom}' is a filter, use a non-filter node as 'bottom'");
        return Err(QmpError::generic(desc));
    }
    let Some(place) = chain.iter().position(|node| node == bottom) else {
        let desc = format!("Node '{bottom}' is not in a chain starting from '{}'", chain[0]);
        return Err(QmpError::generic(desc));
    };
    Ok(chain.get(place + 1).cloned())
}

/// The backing file of that name.
fn called(context: &CommandContext<'_>, chain: &[String], file: &str) -> Result<String, QmpError> {
    let reader = GraphReader { graph: context.state.graph(), is_flat: true };
    let found = reader.backing_file_called(chain, file);
    found.ok_or_else(|| QmpError::generic(format!("Can't find '{file}' in the backing chain")))
}

fn check_node(context: &CommandContext<'_>, name: &str) -> Result<(), QmpError> {
    let found = context.state.graph().node(name);
    found.map(drop).map_err(|_missing| QmpError::no_node(name))
}

/// A node that is there, if one is named.
fn node_of(
    context: &CommandContext<'_>,
    fields: &mut OptionFields,
    key: &str,
) -> Result<Option<String>, QmpError> {
    let Some(name) = fields.text(key)? else { return Ok(None) };
    check_node(context, &name)?;
    Ok(Some(name))
}

/// What a header is to say of a backing file: the name that a client gives, or that of its file.
fn backing_name(
    context: &CommandContext<'_>,
    base: Option<&str>,
    given: Option<String>,
) -> Result<BackingName, QmpError> {
    let Some(base) = base else { return Ok(BackingName::default()) };
    let graph = context.state.graph();
    let reader = GraphReader { graph, is_flat: true };
    let no_file = || {
        QmpError::generic(format!(
            "node '{base}' is in no file that could be named: give 'backing-file'"
        ))
    };
    let file = match given {
        Some(name) => name,
        None => {
            let path = reader.path(base).ok_or_else(no_file)?;
            std::path::absolute(&path).unwrap_or(path).display().to_string()
        }
    };
    let info = graph.node_info(base)?;
    let format = if info.image.is_some() { info.driver } else { "raw" };
    Ok(BackingName { file, format: Some(format.to_owned()) })
}
