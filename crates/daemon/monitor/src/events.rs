//! What clients are told unasked: events with their data, and how often each is told at most.
//!
//! Specification: QEMU, docs/interop/qmp-spec.rst, section 2.5; qapi/block-core.json, qapi/job.json, qapi/block-export.json.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::schema::{Member, Schema};
use crate::types::{JobStatus, QapiType};

/// An event: its name, and its data for the schema.
pub(crate) struct EventKind {
    pub(crate) name: &'static str,
    pub(crate) members: fn(&mut Schema) -> Vec<Member>,
}

/// An export is gone.
pub(crate) const BLOCK_EXPORT_DELETED: &str = "BLOCK_EXPORT_DELETED";

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

/// An event of now.
#[expect(
    clippy::disallowed_methods,
    reason = "clients compare the time with that of other programs"
)]
pub(crate) fn event(name: &str, data: &Value) -> Value {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    json!({
        "event": name,
        "data": data,
        "timestamp": {"seconds": now.as_secs(), "microseconds": now.subsec_micros()},
    })
}
