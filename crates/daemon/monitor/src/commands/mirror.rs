//! `blockdev-mirror`: a disk is copied to another node while it is used, and its users can go on there.

use std::sync::Arc;

use bitmaps::Granularity;
use control::{BlockJobError, DaemonState, JobObserver, MirrorOptions, MirrorSync, StatePolicy};
use copy::ErrorPolicy;
use jobs::{JobKind, JobSettings};
use layers::MirrorMode;
use serde_json::Value;
use syntax::{Key, Keys, OptionFields, ValueType, optional, required};

use super::images::VOLATILE;
use super::{CommandContext, done};
use crate::qmp_error::QmpError;

/// What becomes of errors, as QEMU calls it.
pub(super) const ON_ERROR: ValueType =
    ValueType::Word(&["report", "ignore", "stop", "enospc", "auto"]);

/// What all block jobs are told.
pub(super) const BLOCK_JOB_KEYS: &[Key] = &[
    optional("job-id", ValueType::Text),
    optional("speed", ValueType::Number),
    optional("auto-finalize", ValueType::Flag),
    optional("auto-dismiss", ValueType::Flag),
];

/// How the filter of a block job is called.
pub(super) const FILTER_NAME: Key = optional("filter-node-name", ValueType::Text);

/// When the target has what is written, as QEMU calls it.
pub(super) const COPY_MODE: ValueType = ValueType::Word(&["background", "write-blocking"]);

/// What mirrors are told, whatever their targets are.
pub(super) const MIRROR_KEYS: &[Key] = &[
    required("sync", ValueType::Word(&["top", "full", "none", "incremental", "bitmap"])),
    optional("granularity", ValueType::Number),
    optional("on-source-error", ON_ERROR),
    optional("on-target-error", ON_ERROR),
    optional("copy-mode", COPY_MODE),
    optional("replaces", ValueType::Text),
    optional("buf-size", ValueType::Int),
    optional("ringloom-verify", ValueType::Flag),
];

pub(super) static MIRROR: Keys = Keys {
    of: "blockdev-mirror",
    supported: &[
        BLOCK_JOB_KEYS,
        &[
            required("device", ValueType::Text),
            required("target", ValueType::Text),
            FILTER_NAME,
            VOLATILE,
        ],
        MIRROR_KEYS,
    ],
    later: &[],
};

/// The granularities that a mirror may have.
const GRANULARITY: std::ops::RangeInclusive<u64> = 512..=64 << 20;

pub(super) fn mirror(
    context: &mut CommandContext<'_>,
    mut fields: OptionFields,
) -> Result<Value, QmpError> {
    let source = node(context, &mut fields, "device")?;
    let target = node(context, &mut fields, "target")?;
    let sync = fields.word("sync")?;
    let filter = filter_name(&mut fields)?;
    begin_mirror(context, fields, MirrorEnds { source, target, sync, filter, owned: None })
}

/// What a mirror is between, and what of it.
pub(super) struct MirrorEnds {
    pub source: String,
    pub target: String,
    pub sync: Option<&'static str>,
    /// The name of its filter.
    pub filter: Option<String>,
    /// The node that is gone with it, unless somebody uses it.
    pub owned: Option<String>,
}

/// Begins a mirror between nodes that were read.
pub(super) fn begin_mirror(
    context: &mut CommandContext<'_>,
    mut fields: OptionFields,
    ends: MirrorEnds,
) -> Result<Value, QmpError> {
    let MirrorEnds { source, target, sync, filter, owned } = ends;
    let (id, settings) = block_job_settings(&mut fields)?;
    let sync = match sync {
        Some("top") => MirrorSync::Top,
        Some("none") => MirrorSync::New,
        Some(word @ ("incremental" | "bitmap")) => {
            return Err(QmpError::generic(format!("Sync mode '{word}' not supported")));
        }
        Some(_) => MirrorSync::Full,
        None => return Err(QmpError::generic("parameter 'sync' is missing")),
    };
    let granularity = match fields.number("granularity")? {
        None | Some(0) => Granularity::DEFAULT,
        Some(bytes) => granularity(bytes)?,
    };
    let on_source_error = error_policy(&mut fields, "on-source-error")?;
    let on_target_error = error_policy(&mut fields, "on-target-error")?;
    let mode = copy_mode(&mut fields)?;
    let replaces = fields.text("replaces")?;
    if let Some(name) = replaces.as_ref().filter(|name| context.state.graph().node(name).is_err()) {
        return Err(QmpError::generic(format!("Failed to find node with node-name='{name}'")));
    }
    let memory = fields.int("buf-size")?.unwrap_or(0);
    let is_verified = fields.flag("ringloom-verify")?.unwrap_or(false);
    if is_verified && mode != MirrorMode::WriteBlocking {
        return Err(QmpError::generic("ringloom-verify needs copy-mode=write-blocking"));
    }
    let policy = policy(&mut fields)?;
    let speed = settings.speed;
    let options = MirrorOptions {
        id,
        source,
        target,
        sync,
        mode,
        granularity,
        speed,
        on_source_error,
        on_target_error,
        memory,
        replaces,
        filter,
        is_verified,
    };
    begin(context, (&options.id, JobKind::Mirror, settings), policy, |state, observer| {
        state.start_mirror(&options, observer)
    })?;
    context.jobs.get(&options.id).expect("it has begun").owned = owned;
    done()
}

/// When the target is to have what is written.
pub(super) fn copy_mode(fields: &mut OptionFields) -> Result<MirrorMode, QmpError> {
    Ok(match fields.word("copy-mode")? {
        Some("write-blocking") => MirrorMode::WriteBlocking,
        _ => MirrorMode::Background,
    })
}

/// Begins a job, of which clients are told.
pub(super) fn begin(
    context: &mut CommandContext<'_>,
    (id, kind, settings): (&str, JobKind, JobSettings),
    policy: StatePolicy,
    start: impl FnOnce(&mut DaemonState, &Arc<dyn JobObserver>) -> Result<(), BlockJobError>,
) -> Result<Value, QmpError> {
    let (serial, observer) = context.jobs.prepare(id, &context.inbox)?;
    start(context.state, &observer)?;
    let events = context.jobs.begin(serial, (id, kind, settings), Vec::new(), policy);
    context.events.extend(events);
    done()
}

/// Whether a restart has to find what a job changes.
pub(super) fn policy(fields: &mut OptionFields) -> Result<StatePolicy, QmpError> {
    let is_volatile = fields.flag("ringloom-volatile")?.unwrap_or(false);
    Ok(if is_volatile { StatePolicy::Volatile } else { StatePolicy::Kept })
}

/// The id of a block job, and what it is to be.
pub(super) fn block_job_settings(
    fields: &mut OptionFields,
) -> Result<(String, JobSettings), QmpError> {
    let id = fields.text("job-id")?.unwrap_or_default();
    let settings = JobSettings {
        auto_finalize: fields.flag("auto-finalize")?.unwrap_or(true),
        auto_dismiss: fields.flag("auto-dismiss")?.unwrap_or(true),
        speed: fields.number("speed")?.unwrap_or(0),
    };
    Ok((id, settings))
}

/// How the filter of a job is to be called.
pub(super) fn filter_name(fields: &mut OptionFields) -> Result<Option<String>, QmpError> {
    const KEY: &str = FILTER_NAME.name;
    let name = fields.text(KEY)?.map(|name| graph::check_node_name(KEY, name));
    name.transpose().map_err(QmpError::from)
}

/// A node that is there. QEMU's sentence.
pub(super) fn node(
    context: &CommandContext<'_>,
    fields: &mut OptionFields,
    key: &str,
) -> Result<String, QmpError> {
    let name = fields.required_text(key)?;
    if context.state.graph().node(&name).is_err() {
        let desc = format!("Cannot find device='{name}' nor node-name='{name}'");
        return Err(QmpError::generic(desc));
    }
    Ok(name)
}

fn granularity(bytes: u64) -> Result<Granularity, QmpError> {
    if !GRANULARITY.contains(&bytes) {
        let desc = "Parameter 'granularity' expects a value in range [512B, 64MB]";
        return Err(QmpError::generic(desc));
    }
    Granularity::new(bytes)
        .ok_or_else(|| QmpError::generic("Parameter 'granularity' expects a power of 2"))
}

pub(super) fn error_policy(fields: &mut OptionFields, key: &str) -> Result<ErrorPolicy, QmpError> {
    Ok(match fields.word(key)? {
        Some("ignore") => ErrorPolicy::Ignore,
        Some("stop") => ErrorPolicy::Stop,
        Some("enospc" | "auto") => ErrorPolicy::Enospc,
        _ => ErrorPolicy::Report,
    })
}
