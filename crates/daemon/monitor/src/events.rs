//! What clients are told unasked: events with their data, and how often each is told at most.
//!
//! Specification: QEMU, docs/interop/qmp-spec.rst, section 2.5; qapi/block-core.json, qapi/job.json, qapi/block-export.json.

use host::since_1970;
use serde_json::{Value, json};

use crate::schema::{Member, Schema};
use crate::types::{JobStatus, JobType, QapiType};

/// An event: its name, and its data for the schema.
pub(crate) struct EventKind {
    pub(crate) name: &'static str,
    pub(crate) members: fn(&mut Schema) -> Vec<Member>,
}

/// An export is gone.
pub(crate) const BLOCK_EXPORT_DELETED: &str = "BLOCK_EXPORT_DELETED";

/// A block job is over, and was cancelled.
pub(crate) const BLOCK_JOB_CANCELLED: &str = "BLOCK_JOB_CANCELLED";

/// A block job is over.
pub(crate) const BLOCK_JOB_COMPLETED: &str = "BLOCK_JOB_COMPLETED";

/// A disk of a block job has failed.
pub(crate) const BLOCK_JOB_ERROR: &str = "BLOCK_JOB_ERROR";

/// A block job waits to be finalized.
pub(crate) const BLOCK_JOB_PENDING: &str = "BLOCK_JOB_PENDING";

/// A block job can be completed.
pub(crate) const BLOCK_JOB_READY: &str = "BLOCK_JOB_READY";

/// A job is somewhere else than before.
pub(crate) const JOB_STATUS_CHANGE: &str = "JOB_STATUS_CHANGE";

/// An image turned out to be damaged.
pub(crate) const BLOCK_IMAGE_CORRUPTED: &str = "BLOCK_IMAGE_CORRUPTED";

/// A change went beyond the write threshold of a node.
pub(crate) const BLOCK_WRITE_THRESHOLD: &str = "BLOCK_WRITE_THRESHOLD";

/// All events.
pub(crate) const EVENTS: &[EventKind] = &[
    EventKind {
        name: BLOCK_EXPORT_DELETED,
        members: |_| vec![("id".to_owned(), "str".to_owned(), false)],
    },
    EventKind {
        name: BLOCK_IMAGE_CORRUPTED,
        members: |_| {
            let member =
                |name: &str, of: &str, is_optional| (name.to_owned(), of.to_owned(), is_optional);
            vec![
                member("device", "str", false),
                member("node-name", "str", true),
                member("msg", "str", false),
                member("offset", "int", true),
                member("size", "int", true),
                member("fatal", "bool", false),
            ]
        },
    },
    EventKind { name: BLOCK_JOB_CANCELLED, members: block_job },
    EventKind {
        name: BLOCK_JOB_COMPLETED,
        members: |schema| {
            let mut members = block_job(schema);
            members.push(("error".to_owned(), "str".to_owned(), true));
            members
        },
    },
    EventKind {
        name: BLOCK_JOB_ERROR,
        members: |schema| {
            let operation = schema.words(&["read", "write"]);
            let action = schema.words(&["ignore", "report", "stop"]);
            let member = |name: &str, of: String| (name.to_owned(), of, false);
            vec![
                member("device", "str".to_owned()),
                member("operation", operation),
                member("action", action),
            ]
        },
    },
    EventKind {
        name: BLOCK_JOB_PENDING,
        members: |schema| {
            let kind = JobType::describe(schema);
            vec![("type".to_owned(), kind, false), ("id".to_owned(), "str".to_owned(), false)]
        },
    },
    EventKind { name: BLOCK_JOB_READY, members: block_job },
    EventKind {
        name: BLOCK_WRITE_THRESHOLD,
        members: |_| {
            let number = |name: &str| (name.to_owned(), "int".to_owned(), false);
            let node = ("node-name".to_owned(), "str".to_owned(), false);
            vec![node, number("amount-exceeded"), number("write-threshold")]
        },
    },
    EventKind {
        name: JOB_STATUS_CHANGE,
        members: |schema| {
            let status = JobStatus::describe(schema);
            vec![("id".to_owned(), "str".to_owned(), false), ("status".to_owned(), status, false)]
        },
    },
];

/// What most events of block jobs say.
fn block_job(schema: &mut Schema) -> Vec<Member> {
    let kind = JobType::describe(schema);
    let number = |name: &str| (name.to_owned(), "int".to_owned(), false);
    let id = ("device".to_owned(), "str".to_owned(), false);
    vec![("type".to_owned(), kind, false), id, number("len"), number("offset"), number("speed")]
}

/// An event of now.
pub(crate) fn event(name: &str, data: &Value) -> Value {
    let now = since_1970();
    json!({
        "event": name,
        "data": data,
        "timestamp": {"seconds": now.as_secs(), "microseconds": now.subsec_micros()},
    })
}
