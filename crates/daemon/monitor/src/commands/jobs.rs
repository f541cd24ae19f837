//! Commands about jobs: `job-*`, `block-job-*`, `query-jobs`, `query-block-jobs`.
//!
//! Specification: QEMU, qapi/job.json, qapi/block-core.json.

use serde_json::Value;
use syntax::{Key, Keys, OptionFields, ValueType, optional, required};

use super::mirror::{COPY_MODE, copy_mode};
use super::{CommandContext, answer, done};
use crate::jobs::JobEntry;
use crate::qmp_error::{ErrorClass, QmpError};
use crate::types::{BlockJobInfo, IoStatus, JobInfo, JobStatus, JobType};

const ID: &[&[Key]] = &[&[required("id", ValueType::Text)]];

const DEVICE: &[&[Key]] = &[&[required("device", ValueType::Text)]];

/// The keys of a command of all jobs.
const fn of_job(name: &'static str) -> Keys {
    Keys { of: name, supported: ID, later: &[] }
}

/// The keys of a command of block jobs, which calls them devices.
const fn of_device(name: &'static str) -> Keys {
    Keys { of: name, supported: DEVICE, later: &[] }
}

pub(super) static PAUSE: Keys = of_job("job-pause");
pub(super) static RESUME: Keys = of_job("job-resume");
pub(super) static CANCEL: Keys = of_job("job-cancel");
pub(super) static COMPLETE: Keys = of_job("job-complete");
pub(super) static FINALIZE: Keys = of_job("job-finalize");
pub(super) static DISMISS: Keys = of_job("job-dismiss");
pub(super) static BLOCK_FINALIZE: Keys = of_job("block-job-finalize");
pub(super) static BLOCK_DISMISS: Keys = of_job("block-job-dismiss");
pub(super) static BLOCK_PAUSE: Keys = of_device("block-job-pause");
pub(super) static BLOCK_RESUME: Keys = of_device("block-job-resume");
pub(super) static BLOCK_COMPLETE: Keys = of_device("block-job-complete");

pub(super) static BLOCK_CANCEL: Keys = Keys {
    of: "block-job-cancel",
    supported: &[&[required("device", ValueType::Text), optional("force", ValueType::Flag)]],
    later: &[],
};

pub(super) static BLOCK_SET_SPEED: Keys = Keys {
    of: "block-job-set-speed",
    supported: &[&[required("device", ValueType::Text), required("speed", ValueType::Number)]],
    later: &[],
};

/// QEMU's types of jobs. Only mirrors can change, but it takes them all.
const JOB_TYPE: ValueType = ValueType::Word(&[
    "amend",
    "backup",
    "commit",
    "create",
    MIRROR,
    "snapshot-delete",
    "snapshot-load",
    "snapshot-save",
    "stream",
]);

const MIRROR: &str = "mirror";

pub(super) static BLOCK_CHANGE: Keys = Keys {
    of: "block-job-change",
    supported: &[&[
        required("id", ValueType::Text),
        required("type", JOB_TYPE),
        optional("copy-mode", COPY_MODE),
    ]],
    later: &[],
};

/// Which jobs a command knows, and how it names one.
#[derive(Debug, Clone, Copy)]
enum JobScope {
    /// All, by `id`.
    All,
    /// Block jobs, under that key.
    Block(&'static str),
}

/// Finds the job that is meant.
fn find(
    context: &mut CommandContext<'_>,
    fields: &mut OptionFields,
    scope: JobScope,
) -> Result<String, QmpError> {
    let (key, of_block) = match scope {
        JobScope::All => ("id", false),
        JobScope::Block(key) => (key, true),
    };
    let id = fields.required_text(key)?;
    let found = context.jobs.get(&id);
    let is_meant = |entry: &&mut JobEntry| !of_block || entry.job.kind().is_block_job();
    match (found.filter(is_meant), of_block) {
        (Some(_), _) => Ok(id),
        (None, true) => Err(QmpError {
            class: ErrorClass::DeviceNotActive,
            desc: format!("Block job '{id}' not found"),
        }),
        (None, false) => Err(QmpError::generic("Job not found")),
    }
}

/// Has the job that is meant do something.
fn command<E: Into<QmpError>>(
    context: &mut CommandContext<'_>,
    id: &str,
    run: impl FnOnce(&mut JobEntry, &mut control::DaemonState) -> Result<(), E>,
) -> Result<Value, QmpError> {
    let state = &mut *context.state;
    let events = context.jobs.command(state, id, run).map_err(Into::into)?;
    context.events.extend(events);
    done()
}

/// The commands that do one thing with one job, for all jobs and for block jobs.
macro_rules! verbs {
    ($($name:ident ($scope:expr) => $method:ident;)*) => { $(
        pub(super) fn $name(
            context: &mut CommandContext<'_>,
            mut fields: OptionFields,
        ) -> Result<Value, QmpError> {
            let id = find(context, &mut fields, $scope)?;
            command(context, &id, |entry, state| entry.$method(state))
        }
    )* };
}

verbs! {
    pause(JobScope::All) => pause;
    resume(JobScope::All) => resume;
    complete(JobScope::All) => complete;
    finalize(JobScope::All) => finalize;
    block_pause(JobScope::Block("device")) => pause;
    block_resume(JobScope::Block("device")) => resume;
    block_complete(JobScope::Block("device")) => complete;
    block_finalize(JobScope::Block("id")) => finalize;
}

pub(super) fn cancel(
    context: &mut CommandContext<'_>,
    mut fields: OptionFields,
) -> Result<Value, QmpError> {
    let id = find(context, &mut fields, JobScope::All)?;
    command(context, &id, |entry, state| entry.cancel(state, true))
}

pub(super) fn block_cancel(
    context: &mut CommandContext<'_>,
    mut fields: OptionFields,
) -> Result<Value, QmpError> {
    let id = find(context, &mut fields, JobScope::Block("device"))?;
    let is_forced = fields.flag("force")?.unwrap_or(false);
    command(context, &id, |entry, state| entry.cancel(state, is_forced))
}

pub(super) fn block_set_speed(
    context: &mut CommandContext<'_>,
    mut fields: OptionFields,
) -> Result<Value, QmpError> {
    let speed = fields.number("speed")?;
    let speed = speed.ok_or_else(|| QmpError::generic("parameter 'speed' is missing"))?;
    let id = find(context, &mut fields, JobScope::Block("device"))?;
    command(context, &id, |entry, state| entry.set_speed(state, speed))
}

/// A mirror that runs becomes another one.
pub(super) fn block_change(
    context: &mut CommandContext<'_>,
    mut fields: OptionFields,
) -> Result<Value, QmpError> {
    match (fields.word("type")?, fields.has("copy-mode")) {
        (Some(MIRROR), false) => {
            return Err(QmpError::generic("parameter 'copy-mode' is missing"));
        }
        (Some(kind), true) if kind != MIRROR => {
            let desc = format!("parameter 'copy-mode' is unexpected with type '{kind}'");
            return Err(QmpError::generic(desc));
        }
        _ => {}
    }
    let mode = copy_mode(&mut fields)?;
    let id = find(context, &mut fields, JobScope::Block("id"))?;
    command(context, &id, |entry, state| entry.change_mirror(state, mode))
}

pub(super) fn dismiss(
    context: &mut CommandContext<'_>,
    mut fields: OptionFields,
) -> Result<Value, QmpError> {
    let id = find(context, &mut fields, JobScope::All)?;
    command(context, &id, |entry, _| entry.dismiss())
}

pub(super) fn block_dismiss(
    context: &mut CommandContext<'_>,
    mut fields: OptionFields,
) -> Result<Value, QmpError> {
    let id = find(context, &mut fields, JobScope::Block("id"))?;
    command(context, &id, |entry, _| entry.dismiss())
}

pub(super) fn query(context: &mut CommandContext<'_>, _: OptionFields) -> Result<Value, QmpError> {
    let infos = context.jobs.all(context.state).map(|(entry, progress)| JobInfo {
        id: entry.job.id().to_owned(),
        kind: JobType(entry.job.kind().name()),
        status: JobStatus(entry.job.status().name()),
        current: progress.current,
        total: progress.total,
        error: entry.job.error(),
    });
    let infos: Vec<_> = infos.collect();
    answer(infos)
}

pub(super) fn query_block(
    context: &mut CommandContext<'_>,
    _: OptionFields,
) -> Result<Value, QmpError> {
    let state = &*context.state;
    let all = context.jobs.all(state).filter(|(entry, _)| entry.job.kind().is_block_job());
    let info = |(entry, progress): (&JobEntry, control::BlockJobProgress)| {
        let (job, settings) = (&entry.job, entry.job.settings());
        let is_mirror = job.kind() == ::jobs::JobKind::Mirror;
        BlockJobInfo {
            kind: JobType(job.kind().name()),
            device: job.id().to_owned(),
            length: progress.total,
            offset: progress.current,
            is_busy: job.status() == ::jobs::JobStatus::Running && !entry.is_idle,
            is_paused: job.is_paused(),
            speed: settings.speed,
            io_status: IoStatus(entry.io_status),
            is_ready: job.is_ready(),
            status: JobStatus(job.status().name()),
            finalizes_itself: settings.auto_finalize,
            dismisses_itself: settings.auto_dismiss,
            error: job.error(),
            compared_bytes: state.compared_by_mirror(job.id()).map(|it| it.bytes),
            differing_bytes: state.compared_by_mirror(job.id()).map(|it| it.differing),
            is_actively_synced: is_mirror
                .then(|| job.is_ready() && state.is_mirror_synchronous(job.id())),
        }
    };
    let infos: Vec<_> = all.map(info).collect();
    answer(infos)
}
