//! Jobs that make chains of backing files shorter: `block-commit`, `block-stream`.
//!
//! Specification: QEMU, docs/interop/live-block-operations.rst, qapi/block-core.json. A commit of the uppermost image is
//! completed like a mirror; the others end by themselves.

use bitmaps::Granularity;
use control::{BackingName, CommitOptions, MirrorOptions, MirrorSync, StreamOptions};
use jobs::JobKind;
use layers::MirrorMode;
use serde_json::Value;
use syntax::{Keys, OptionFields, ValueType, optional, required};

use super::CommandContext;
use super::images::VOLATILE;
use super::mirror::{BLOCK_JOB_KEYS, ON_ERROR, begin, block_job_settings, error_policy, policy};
use super::queries::GraphReader;
use crate::qmp_error::QmpError;

pub(super) static COMMIT: Keys = Keys {
    of: "block-commit",
    supported: &[
        BLOCK_JOB_KEYS,
        &[
            required("device", ValueType::Text),
            optional("base-node", ValueType::Text),
            optional("top-node", ValueType::Text),
            optional("backing-file", ValueType::Text),
            optional("on-error", ON_ERROR),
            VOLATILE,
        ],
    ],
    later: &[&["base", "top", "backing-mask-protocol", "filter-node-name"]],
};

pub(super) static STREAM: Keys = Keys {
    of: "block-stream",
    supported: &[
        BLOCK_JOB_KEYS,
        &[
            required("device", ValueType::Text),
            optional("base-node", ValueType::Text),
            optional("backing-file", ValueType::Text),
            optional("on-error", ON_ERROR),
            VOLATILE,
        ],
    ],
    later: &[&["base", "bottom", "backing-mask-protocol", "filter-node-name"]],
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
    let base = node_of(context, &mut fields, "base-node")?;
    let top = node_of(context, &mut fields, "top-node")?.unwrap_or_else(|| device.clone());
    let lowest = chain.last().cloned().unwrap_or_default();
    let base = base.unwrap_or(lowest);
    if base == top {
        return Err(QmpError::generic("cannot commit an image into itself"));
    }
    let backing = fields.text("backing-file")?;
    let on_error = error_policy(&mut fields, "on-error")?;
    let policy = policy(&mut fields)?;
    if !chain.contains(&top) || !chain.contains(&base) {
        let name = if chain.contains(&top) { &base } else { &top };
        let desc = format!("'{name}' is not in this backing file chain");
        return Err(QmpError::generic(desc));
    }
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
        };
        return begin(context, (&id, JobKind::Commit, settings), policy, |state, observer| {
            state.start_mirror(&options, observer)
        });
    }
    let backing = backing_name(context, Some(&base), backing)?;
    let speed = settings.speed;
    let options = CommitOptions { id: id.clone(), top, base, backing, speed, on_error };
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
    let base = node_of(context, &mut fields, "base-node")?;
    let chain = context.state.graph().model().backing_chain(&top);
    if let Some(base) = base.as_ref().filter(|base| !chain[1..].contains(base)) {
        let desc = format!("Node '{base}' is not a backing image of '{top}'");
        return Err(QmpError::generic(desc));
    }
    let backing = fields.text("backing-file")?;
    if base.is_none() && backing.is_some() {
        let desc = "backing file specified, but streaming the entire chain";
        return Err(QmpError::generic(desc));
    }
    let on_error = error_policy(&mut fields, "on-error")?;
    let policy = policy(&mut fields)?;
    let backing = backing_name(context, base.as_deref(), backing)?;
    let speed = settings.speed;
    let options = StreamOptions { id: id.clone(), top, base, backing, speed, on_error };
    begin(context, (&id, JobKind::Stream, settings), policy, |state, observer| {
        state.check_chain_switch(&options.top, policy)?;
        state.start_stream(&options, observer)
    })
}

/// A node that is there, if one is named.
fn node_of(
    context: &CommandContext<'_>,
    fields: &mut OptionFields,
    key: &str,
) -> Result<Option<String>, QmpError> {
    let Some(name) = fields.text(key)? else { return Ok(None) };
    match context.state.graph().node(&name) {
        Ok(_) => Ok(Some(name)),
        Err(_missing) => Err(QmpError::no_node(&name)),
    }
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
