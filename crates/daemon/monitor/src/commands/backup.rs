//! `blockdev-backup`: a disk is copied to another node as it is now, while its guest runs; several disks at one instant by
//! `transaction`.

use std::sync::Arc;
use std::time::Duration;

use control::{
    BackupBitmap, BackupChanges, BackupOptions, BackupSync, BitmapSync, JobObserver, StatePolicy,
};
use copy::CopiedSource;
use jobs::{JobKind, JobSettings};
use layers::CbwErrorPolicy;
use serde_json::Value;
use syntax::{Key, Keys, OptionFields, ValueType, optional, required};

use super::at_instant::InstantActions;
use super::mirror::{
    BLOCK_JOB_KEYS, FILTER_NAME, ON_ERROR, block_job_settings, error_policy, filter_name, node,
};
use super::{CommandContext, done};
use crate::jobs::JobSerial;
use crate::qmp_error::QmpError;

/// What backups are told, whatever their targets are.
pub(super) const BACKUP_KEYS: &[Key] = &[
    required("sync", ValueType::Word(&["top", "full", "none", "incremental", "bitmap"])),
    optional("bitmap", ValueType::Text),
    optional("bitmap-mode", ValueType::Word(&["on-success", "never", "always"])),
    optional("compress", ValueType::Flag),
    optional("discard-source", ValueType::Flag),
    optional("on-source-error", ON_ERROR),
    optional("on-target-error", ON_ERROR),
    optional("on-cbw-error", ValueType::Word(&["break-guest-write", "break-snapshot"])),
    optional("cbw-timeout", ValueType::Number),
    optional("x-perf", ValueType::Object(&PERF)),
    FILTER_NAME,
];

pub(super) static BACKUP: Keys = Keys {
    of: "blockdev-backup",
    supported: &[
        BLOCK_JOB_KEYS,
        &[required("device", ValueType::Text), required("target", ValueType::Text)],
        BACKUP_KEYS,
    ],
    later: &[],
};

static PERF: Keys = Keys {
    of: "blockdev-backup x-perf",
    supported: &[&[
        optional("use-copy-range", ValueType::Flag),
        optional("max-workers", ValueType::Int),
        optional("max-chunk", ValueType::Int),
        optional("min-cluster-size", ValueType::Size),
    ]],
    later: &[],
};

/// What the peer's number of workers fits.
const WORKERS_MAX: u64 = 0x7fff_ffff;

/// A backup that was read and is to be begun.
pub(super) struct ReadBackup {
    serial: JobSerial,
    options: BackupOptions,
    observer: Arc<dyn JobObserver>,
    settings: JobSettings,
    /// The node that is gone with it, unless somebody uses it.
    pub(super) owned: Option<String>,
}

/// Which results of the jobs of a transaction count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum JobResults {
    /// Each, whatever becomes of the others.
    Single,
    /// All, or none.
    Grouped,
}

pub(super) fn backup(
    context: &mut CommandContext<'_>,
    mut fields: OptionFields,
) -> Result<Value, QmpError> {
    let backup = read_between_nodes(context, &mut fields)?;
    let more = &mut InstantActions::new(Vec::new(), Ok(()));
    begin(context, vec![backup], (BackupChanges::NONE, JobResults::Single), more)?;
    done()
}

/// Begins backups of one instant, with what else changes and is done then: all of it, or nothing.
pub(super) fn begin(
    context: &mut CommandContext<'_>,
    all: Vec<ReadBackup>,
    (besides, results): (BackupChanges<'_>, JobResults),
    more: &mut InstantActions,
) -> Result<(), QmpError> {
    for (place, backup) in all.iter().enumerate() {
        let id = &backup.options.id;
        if all[..place].iter().any(|other| other.options.id == *id) {
            return Err(QmpError::generic(format!("Job ID '{id}' already in use")));
        }
    }
    let options = |it: &ReadBackup| (it.options.clone(), Arc::clone(&it.observer));
    let started: Vec<_> = all.iter().map(options).collect();
    context.state.start_backups(&started, besides, more)?;
    let group = match results {
        JobResults::Single => None,
        JobResults::Grouped => all.first().map(|first| first.serial),
    };
    for ReadBackup { serial, options, settings, owned, .. } in all {
        let begun = (options.id.as_str(), JobKind::Backup, settings);
        let events = context.jobs.begin(serial, begun, Vec::new(), StatePolicy::Volatile);
        context.events.extend(events);
        let entry = context.jobs.get(&options.id).expect("it has begun");
        (entry.is_idle, entry.owned) = (options.sync == BackupSync::Changed, owned);
        entry.group = group;
    }
    Ok(())
}

/// Reads what a backup is to be; nothing is begun.
pub(super) fn read_between_nodes(
    context: &mut CommandContext<'_>,
    fields: &mut OptionFields,
) -> Result<ReadBackup, QmpError> {
    let source = node(context, fields, "device")?;
    let target = node(context, fields, "target")?;
    let sync = fields.word("sync")?;
    read(context, fields, (source, target), sync)
}

/// The same but nodes and `sync`, which were read.
pub(super) fn read(
    context: &mut CommandContext<'_>,
    fields: &mut OptionFields,
    (source, target): (String, String),
    word: Option<&'static str>,
) -> Result<ReadBackup, QmpError> {
    let (id, settings) = block_job_settings(fields)?;
    let (sync, bitmap) = sync(fields, word)?;
    let compress = fields.flag("compress")?.unwrap_or(false);
    let copied = match fields.flag("discard-source")? {
        Some(true) => CopiedSource::Discarded,
        Some(false) | None => CopiedSource::Kept,
    };
    let on_cbw_error = match fields.word("on-cbw-error")? {
        Some("break-snapshot") => CbwErrorPolicy::BreakSnapshot,
        _ => CbwErrorPolicy::BreakGuestWrite,
    };
    let timeout = fields.number_u32("cbw-timeout")?.filter(|seconds| *seconds > 0);
    let cbw_timeout = timeout.map(|seconds| Duration::from_secs(seconds.into()));
    let (workers_max, chunk_max, min_cluster_bytes) = performance(fields)?;
    let (on_source_error, on_target_error) =
        (error_policy(fields, "on-source-error")?, error_policy(fields, "on-target-error")?);
    let filter = filter_name(fields)?;
    let (serial, observer) = context.jobs.prepare(&id, &context.inbox)?;
    let options = BackupOptions {
        id,
        source,
        target,
        sync,
        bitmap,
        compress,
        copied,
        speed: settings.speed,
        on_source_error,
        on_target_error,
        on_cbw_error,
        cbw_timeout,
        workers_max,
        chunk_max,
        min_cluster_bytes,
        filter,
    };
    Ok(ReadBackup { serial, options, observer, settings, owned: None })
}

/// What is copied, and the bitmap of that, with what becomes of it. QEMU's sentences.
fn sync(
    fields: &mut OptionFields,
    word: Option<&'static str>,
) -> Result<(BackupSync, Option<BackupBitmap>), QmpError> {
    let word = word.ok_or_else(|| QmpError::generic("parameter 'sync' is missing"))?;
    let (bitmap, mode) = (fields.text("bitmap")?, fields.word("bitmap-mode")?);
    let sync = match word {
        "top" => BackupSync::Top,
        "none" => BackupSync::Changed,
        "incremental" | "bitmap" => BackupSync::Bitmap,
        _ => BackupSync::Full,
    };
    let refused = |desc: String| Err(QmpError::generic(desc));
    let Some(name) = bitmap else {
        if sync == BackupSync::Bitmap {
            return refused(format!("must provide a valid bitmap name for '{word}' sync mode"));
        }
        if mode.is_some() {
            return refused("Cannot specify bitmap sync mode without a bitmap".to_owned());
        }
        return Ok((sync, None));
    };
    let mode = match (word, mode) {
        ("incremental", None) => "on-success",
        ("incremental", Some(mode)) if mode != "on-success" => {
            let desc = "Bitmap sync mode must be 'on-success' when using sync mode 'incremental'";
            return refused(desc.to_owned());
        }
        (_, None) => {
            return refused("Bitmap sync mode must be given when providing a bitmap".to_owned());
        }
        ("none", Some(_)) => {
            return refused(
                "sync mode 'none' does not produce meaningful bitmap outputs".to_owned(),
            );
        }
        ("full" | "top", Some("never")) => {
            return refused(format!(
                "Bitmap sync mode 'never' has no meaningful effect when combined with sync mode '{word}'"
            ));
        }
        (_, Some(mode)) => mode,
    };
    let becomes = match mode {
        "never" => BitmapSync::Never,
        "always" => BitmapSync::Always,
        _ => BitmapSync::OnSuccess,
    };
    Ok((sync, Some(BackupBitmap { name, sync: becomes })))
}

/// How many requests at once, how large, and what is preserved together; 0 is no limit. Copying within the kernel is left out, as
/// with the peer where that cannot do it.
fn performance(fields: &mut OptionFields) -> Result<(u64, u64, u64), QmpError> {
    let Some(mut fields) = fields.object("x-perf")? else { return Ok((0, 0, 0)) };
    fields.flag("use-copy-range")?;
    let workers = fields.int("max-workers")?;
    if workers.is_some_and(|workers| !(1..=WORKERS_MAX).contains(&workers)) {
        let desc = format!("max-workers must be between 1 and {WORKERS_MAX}");
        return Err(QmpError::generic(desc));
    }
    let chunk = fields.int("max-chunk")?.unwrap_or(0);
    Ok((workers.unwrap_or(0), chunk, fields.size("min-cluster-size")?.unwrap_or(0)))
}
