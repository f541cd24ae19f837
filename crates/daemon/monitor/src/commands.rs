//! The commands: one table, from which they are found, described and listed.
//!
//! Invariants: arguments are checked against their table before a command begins; a command that is refused has changed
//! nothing.

mod at_instant;
mod backup;
mod bitmaps;
mod chain_jobs;
mod chardevs;
mod creation;
mod drive_jobs;
mod exports;
mod filters;
mod images;
mod internal_snapshots;
mod jobs;
mod log;
mod mirror;
mod nbd;
mod nodes;
mod objects;
mod placement;
mod queries;
mod transaction;

use std::collections::BTreeMap;
use std::sync::Arc;

use ::exports::GuestMemoryOptions;
use control::DaemonState;
use host::chain_of;
use serde_json::{Map, Value};
use syntax::{ArgumentError, Keys, OptionFields, nearest};

use crate::chardev::Chardev;
use crate::client::Client;
use crate::inbox::InboxSender;
use crate::jobs::Jobs;
use crate::monitors::DaemonFate;
use crate::qmp_error::QmpError;
use crate::request::Request;
use crate::schema::Schema;

/// What a command works on.
pub(crate) struct CommandContext<'a> {
    pub(crate) state: &'a mut DaemonState,
    pub(crate) chardevs: &'a mut BTreeMap<String, Chardev>,
    pub(crate) jobs: &'a mut Jobs,
    pub(crate) inbox: InboxSender,
    pub(crate) memory: &'a GuestMemoryOptions,
    /// Whether the daemon is behind fences.
    pub(crate) is_fenced: bool,
    /// What clients are to be told.
    pub(crate) events: Vec<(&'static str, Value)>,
    pub(crate) fate: DaemonFate,
}

/// What a command takes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Arguments {
    /// Nothing.
    None,
    /// The keys of a table.
    Keys(&'static Keys),
    /// An object, as `--object` does.
    Object,
    /// A node, as `--blockdev` does.
    Blockdev,
    /// An export, as `--export` does.
    Export,
}

/// What carries a command out.
pub(crate) type Run = fn(&mut CommandContext<'_>, OptionFields) -> Result<Value, QmpError>;

/// A command.
#[derive(Clone, Copy)]
pub(crate) struct Command {
    pub(crate) name: &'static str,
    pub(crate) arguments: Arguments,
    /// The type of the answer.
    pub(crate) returns: fn(&mut Schema) -> String,
    /// What QEMU calls its features.
    pub(crate) features: &'static [&'static str],
    /// Whether it changes nothing, so that every client may have it done.
    pub(crate) only_asks: bool,
    pub(crate) run: Run,
}

const fn changes(
    name: &'static str,
    arguments: Arguments,
    returns: fn(&mut Schema) -> String,
    run: Run,
) -> Command {
    Command { name, arguments, returns, features: &[], only_asks: false, run }
}

const fn asks(
    name: &'static str,
    arguments: Arguments,
    returns: fn(&mut Schema) -> String,
    run: Run,
) -> Command {
    Command { name, arguments, returns, features: &[], only_asks: true, run }
}

const fn with(features: &'static [&'static str], command: Command) -> Command {
    Command { features, ..command }
}

/// All commands, in the order of their names.
pub(crate) const COMMANDS: &[Command] = {
    use crate::types::{
        BlockDeviceInfo, BlockDirtyBitmapSha256, BlockExportInfo, BlockGraph, BlockInfo,
        BlockJobInfo, BlockStats, ChardevBackendInfo, ChardevInfo, ChardevReturn, CommandInfo,
        JobInfo, ObjectPropertyInfo, ObjectTypeInfo, QapiType, RingloomIothreadInfo,
        RingloomLogInfo, RingloomNbdNodeInfo, RingloomPoolInfo, RingloomQueueInfo,
        RingloomStorageInfo, SchemaInfo, SnapshotInfo, VersionInfo,
    };
    use Arguments::{Blockdev, Export, Keys as Table, None as Nothing, Object};
    use graph::DELAY_SET;
    &[
        changes("block-commit", Table(&chain_jobs::COMMIT), <()>::describe, chain_jobs::commit),
        changes("block-dirty-bitmap-add", Table(&bitmaps::ADD), <()>::describe, bitmaps::add),
        changes(
            "block-dirty-bitmap-clear",
            Table(&bitmaps::BITMAP),
            <()>::describe,
            bitmaps::clear,
        ),
        changes(
            "block-dirty-bitmap-disable",
            Table(&bitmaps::BITMAP),
            <()>::describe,
            bitmaps::disable,
        ),
        changes(
            "block-dirty-bitmap-enable",
            Table(&bitmaps::BITMAP),
            <()>::describe,
            bitmaps::enable,
        ),
        changes("block-dirty-bitmap-merge", Table(&bitmaps::MERGE), <()>::describe, bitmaps::merge),
        changes(
            "block-dirty-bitmap-remove",
            Table(&bitmaps::BITMAP),
            <()>::describe,
            bitmaps::remove,
        ),
        changes("block-export-add", Export, <()>::describe, exports::add),
        changes("block-export-del", Table(&exports::DEL), <()>::describe, exports::del),
        changes(
            "block-set-write-threshold",
            Table(&nodes::WRITE_THRESHOLD),
            <()>::describe,
            nodes::set_write_threshold,
        ),
        changes("block-job-cancel", Table(&jobs::BLOCK_CANCEL), <()>::describe, jobs::block_cancel),
        changes("block-job-change", Table(&jobs::BLOCK_CHANGE), <()>::describe, jobs::block_change),
        changes(
            "block-job-complete",
            Table(&jobs::BLOCK_COMPLETE),
            <()>::describe,
            jobs::block_complete,
        ),
        changes(
            "block-job-dismiss",
            Table(&jobs::BLOCK_DISMISS),
            <()>::describe,
            jobs::block_dismiss,
        ),
        changes(
            "block-job-finalize",
            Table(&jobs::BLOCK_FINALIZE),
            <()>::describe,
            jobs::block_finalize,
        ),
        changes("block-job-pause", Table(&jobs::BLOCK_PAUSE), <()>::describe, jobs::block_pause),
        changes("block-job-resume", Table(&jobs::BLOCK_RESUME), <()>::describe, jobs::block_resume),
        changes(
            "block-job-set-speed",
            Table(&jobs::BLOCK_SET_SPEED),
            <()>::describe,
            jobs::block_set_speed,
        ),
        changes("block-stream", Table(&chain_jobs::STREAM), <()>::describe, chain_jobs::stream),
        changes("block_resize", Table(&nodes::RESIZE), <()>::describe, nodes::resize),
        changes("blockdev-add", Blockdev, <()>::describe, nodes::add),
        changes("blockdev-backup", Table(&backup::BACKUP), <()>::describe, backup::backup),
        changes("blockdev-create", Table(&creation::CREATE), <()>::describe, creation::create),
        changes("blockdev-del", Table(&nodes::DEL), <()>::describe, nodes::del),
        changes("blockdev-mirror", Table(&mirror::MIRROR), <()>::describe, mirror::mirror),
        changes("blockdev-reopen", Table(&images::REOPEN), <()>::describe, images::reopen),
        changes(
            "blockdev-set-active",
            Table(&nodes::SET_ACTIVE),
            <()>::describe,
            nodes::set_active,
        ),
        with(
            &["allow-write-only-overlay"],
            changes(
                "blockdev-snapshot",
                Table(&images::SNAPSHOT),
                <()>::describe,
                images::snapshot,
            ),
        ),
        changes(
            "blockdev-snapshot-delete-internal-sync",
            Table(&internal_snapshots::DELETE),
            SnapshotInfo::describe,
            internal_snapshots::delete,
        ),
        changes(
            "blockdev-snapshot-internal-sync",
            Table(&internal_snapshots::CREATE),
            <()>::describe,
            internal_snapshots::create,
        ),
        changes(
            "blockdev-snapshot-sync",
            Table(&images::SNAPSHOT_SYNC),
            <()>::describe,
            images::snapshot_sync,
        ),
        changes(
            "change-backing-file",
            Table(&images::CHANGE_BACKING),
            <()>::describe,
            images::change_backing_file,
        ),
        changes("chardev-add", Table(&chardevs::ADD), ChardevReturn::describe, chardevs::add),
        changes("chardev-remove", Table(&chardevs::REMOVE), <()>::describe, chardevs::remove),
        with(
            &["deprecated"],
            changes(
                "drive-backup",
                Table(&drive_jobs::DRIVE_BACKUP),
                <()>::describe,
                drive_jobs::drive_backup,
            ),
        ),
        changes(
            "drive-mirror",
            Table(&drive_jobs::DRIVE_MIRROR),
            <()>::describe,
            drive_jobs::drive_mirror,
        ),
        changes("job-cancel", Table(&jobs::CANCEL), <()>::describe, jobs::cancel),
        changes("job-complete", Table(&jobs::COMPLETE), <()>::describe, jobs::complete),
        changes("job-dismiss", Table(&jobs::DISMISS), <()>::describe, jobs::dismiss),
        changes("job-finalize", Table(&jobs::FINALIZE), <()>::describe, jobs::finalize),
        changes("job-pause", Table(&jobs::PAUSE), <()>::describe, jobs::pause),
        changes("job-resume", Table(&jobs::RESUME), <()>::describe, jobs::resume),
        with(
            &["deprecated"],
            changes("nbd-server-add", Table(&nbd::ADD), <()>::describe, nbd::add),
        ),
        with(
            &["deprecated"],
            changes("nbd-server-remove", Table(&nbd::REMOVE), <()>::describe, nbd::remove),
        ),
        changes(
            "nbd-server-start",
            Table(&nbd_server::NBD_SERVER_START),
            <()>::describe,
            nbd::start,
        ),
        changes("nbd-server-stop", Nothing, <()>::describe, nbd::stop),
        changes("object-add", Object, <()>::describe, objects::add),
        changes("object-del", Table(&objects::DEL), <()>::describe, objects::del),
        asks(
            "qmp_capabilities",
            Table(&queries::CAPABILITIES),
            <()>::describe,
            queries::negotiated,
        ),
        asks("qom-get", Table(&objects::GET), Value::describe, objects::get),
        asks("qom-list", Table(&objects::LIST), Vec::<ObjectPropertyInfo>::describe, objects::list),
        asks(
            "qom-list-properties",
            Table(&objects::LIST_PROPERTIES),
            Vec::<ObjectPropertyInfo>::describe,
            objects::list_properties,
        ),
        asks(
            "qom-list-types",
            Table(&objects::LIST_TYPES),
            Vec::<ObjectTypeInfo>::describe,
            objects::list_types,
        ),
        changes("qom-set", Table(&objects::SET), <()>::describe, objects::set),
        asks("query-block", Nothing, Vec::<BlockInfo>::describe, queries::block),
        asks("query-block-exports", Nothing, Vec::<BlockExportInfo>::describe, exports::query),
        asks("query-block-jobs", Nothing, Vec::<BlockJobInfo>::describe, jobs::query_block),
        asks(
            "query-blockstats",
            Table(&queries::BLOCKSTATS),
            Vec::<BlockStats>::describe,
            queries::blockstats,
        ),
        asks("query-chardev", Nothing, Vec::<ChardevInfo>::describe, chardevs::query),
        asks(
            "query-chardev-backends",
            Nothing,
            Vec::<ChardevBackendInfo>::describe,
            chardevs::query_backends,
        ),
        asks("query-commands", Nothing, Vec::<CommandInfo>::describe, queries::commands),
        asks("query-jobs", Nothing, Vec::<JobInfo>::describe, jobs::query),
        asks(
            "query-named-block-nodes",
            Table(&queries::NAMED_NODES),
            Vec::<BlockDeviceInfo>::describe,
            queries::named_block_nodes,
        ),
        asks("query-qmp-schema", Nothing, Vec::<SchemaInfo>::describe, queries::schema),
        asks(
            "query-ringloom-iothreads",
            Nothing,
            Vec::<RingloomIothreadInfo>::describe,
            placement::iothreads,
        ),
        asks("query-ringloom-log", Nothing, RingloomLogInfo::describe, log::query),
        asks(
            "query-ringloom-nbd-nodes",
            Nothing,
            Vec::<RingloomNbdNodeInfo>::describe,
            nodes::of_nbd,
        ),
        asks("query-ringloom-pools", Nothing, Vec::<RingloomPoolInfo>::describe, placement::pools),
        asks(
            "query-ringloom-queues",
            Nothing,
            Vec::<RingloomQueueInfo>::describe,
            placement::queues,
        ),
        asks(
            "query-ringloom-storage",
            Nothing,
            Vec::<RingloomStorageInfo>::describe,
            exports::storage,
        ),
        asks("query-version", Nothing, VersionInfo::describe, queries::version),
        changes("quit", Nothing, <()>::describe, queries::quit),
        changes("ringloom-delay-set", Table(&DELAY_SET), <()>::describe, nodes::set_delay),
        changes("ringloom-insert-filter", Table(&filters::INSERT), <()>::describe, filters::insert),
        changes("ringloom-log-set", Table(&log::SET), <()>::describe, log::set),
        changes(
            "ringloom-move-queue",
            Table(&placement::MOVE_QUEUE),
            <()>::describe,
            placement::move_queue,
        ),
        changes(
            "ringloom-pin-queue",
            Table(&placement::PIN_QUEUE),
            <()>::describe,
            placement::pin_queue,
        ),
        changes("ringloom-remove-filter", Table(&filters::REMOVE), <()>::describe, filters::remove),
        changes(
            "transaction",
            Table(&transaction::TRANSACTION),
            <()>::describe,
            images::transaction,
        ),
        with(
            &["unstable"],
            changes(
                "x-blockdev-set-iothread",
                Table(&placement::SET_IOTHREAD),
                <()>::describe,
                placement::set_iothread,
            ),
        ),
        with(
            &["unstable"],
            asks(
                "x-debug-block-dirty-bitmap-sha256",
                Table(&bitmaps::BITMAP),
                BlockDirtyBitmapSha256::describe,
                bitmaps::sha256,
            ),
        ),
        with(
            &["unstable"],
            asks("x-debug-query-block-graph", Nothing, BlockGraph::describe, queries::graph),
        ),
    ]
};

/// The commands of qemu-storage-daemon that are not here, and say so.
const LATER: &[&str] = &[
    "chardev-change",
    "chardev-send-break",
    "ringbuf-read",
    "ringbuf-write",
    "x-blockdev-amend",
    "x-blockdev-change",
];

/// The arguments by which a log line says what a command is about.
const SUBJECTS: &[&str] =
    &["id", "node-name", "node", "job-id", "export", "path", "image-node-name", "device", "filter"];

/// Carries a command out for a client.
pub(crate) fn run(
    context: &mut CommandContext<'_>,
    client: &Client,
    request: Request,
) -> Result<Value, QmpError> {
    let Request { command: name, arguments, is_out_of_band } = request;
    let command = find(&name)?;
    if is_out_of_band {
        return Err(QmpError::generic(format!("The command {name} does not support OOB")));
    }
    if client.is_read_only && !command.only_asks {
        let desc = format!("The command {name} is not available: this monitor is read-only");
        return Err(QmpError::no_command(desc));
    }
    let subject = SUBJECTS.iter().find_map(|key| arguments.get(*key)?.as_str());
    // A client could put lines of its own into the log.
    let brief = |name: &str| one_line(&name.chars().take(64).collect::<String>());
    let subject = subject.map_or_else(String::new, |name| format!(" {}", brief(name)));
    if !command.only_asks
        && let Some((node, job)) = context.jobs.node_in_use(&Value::Object(arguments.clone()))
    {
        return Err(QmpError::generic(format!("Node '{node}' is in use by job '{job}'")));
    }
    let fields = command.fields(arguments)?;
    let (watch, what) = (Arc::clone(context.state.graph().watch()), format!("{name}{subject}"));
    let result = watch.during(what, || (command.run)(context, fields));
    let result = result.map_err(|mut error| {
        explain_fences(context.is_fenced, &mut error.desc);
        error
    });
    if !command.only_asks {
        match &result {
            Ok(_) => tracing::info!("monitor {}: {name}{subject}", client.monitor),
            Err(error) => {
                let desc = one_line(&error.desc);
                tracing::info!("monitor {}: {name}{subject}: {desc}", client.monitor);
            }
        }
    }
    result
}

/// A text without what would begin another line, or what a terminal would obey; quotes stay as they are.
fn one_line(text: &str) -> String {
    let shown = |letter: char| {
        let escaped = letter.is_control().then(|| letter.escape_debug());
        let plain = (!letter.is_control()).then_some(letter);
        escaped.into_iter().flatten().chain(plain)
    };
    text.chars().flat_map(shown).collect()
}

/// The error numbers of what the fences refuse: EPERM of a filter of system calls, EACCES of landlock.
const REFUSED_BY_FENCES: [&str; 2] = ["(os error 1)", "(os error 13)"];

/// Adds to a sentence about what the fences may have refused the option that opens them.
fn explain_fences(is_fenced: bool, sentence: &mut String) {
    if is_fenced && REFUSED_BY_FENCES.iter().any(|number| sentence.ends_with(number)) {
        sentence
            .push_str("; commands open files and make sockets only below --allow-below DIRECTORY");
    }
}

impl Command {
    /// The arguments, whose keys are those of the table.
    fn fields(&self, arguments: Map<String, Value>) -> Result<OptionFields, QmpError> {
        let mut fields = OptionFields::of_json(arguments);
        match self.arguments {
            Arguments::None => fields.check_keys(&NOTHING)?,
            Arguments::Keys(keys) => fields.check_keys(keys)?,
            Arguments::Object | Arguments::Blockdev | Arguments::Export => {}
        }
        Ok(fields)
    }
}

impl Request {
    /// The arguments as the command takes them: all that is checked before it begins.
    pub fn fields(self) -> Result<OptionFields, QmpError> {
        find(&self.command)?.fields(self.arguments)
    }
}

/// No keys at all.
static NOTHING: Keys = Keys { of: "this command", supported: &[], later: &[] };

fn find(name: &str) -> Result<&'static Command, QmpError> {
    if let Some(command) = COMMANDS.iter().find(|command| command.name == name) {
        return Ok(command);
    }
    if LATER.contains(&name) {
        return Err(QmpError::no_command(format!("The command {name} is not supported yet")));
    }
    let hint = nearest(name, COMMANDS.iter().map(|command| command.name));
    let hint = hint.map_or_else(String::new, |name| format!("; did you mean '{name}'?"));
    Err(QmpError::no_command(format!("The command {name} has not been found{hint}")))
}

/// What nothing is said of but that it was done.
fn done() -> Result<Value, QmpError> {
    Ok(Value::Object(Map::new()))
}

/// An answer of one of the types.
fn answer(value: impl serde::Serialize) -> Result<Value, QmpError> {
    Ok(serde_json::to_value(value).expect("answers are JSON"))
}

/// An error of an argument as an answer.
fn wrong(error: &ArgumentError) -> QmpError {
    QmpError::generic(chain_of(error).to_string())
}

#[cfg(test)]
mod tests {
    use super::one_line;

    #[test]
    fn a_text_stays_one_line_and_keeps_its_quotes() {
        assert_eq!(one_line("it's \"a\" \\ é"), "it's \"a\" \\ é");
        assert_eq!(one_line("a\nINFO b\u{1b}[2J"), "a\\nINFO b\\u{1b}[2J");
    }
}
