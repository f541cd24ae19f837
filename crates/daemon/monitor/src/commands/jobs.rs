//! Jobs: what goes on after its command was answered. `query-jobs`, `job-dismiss`, `query-block-jobs`.
//!
//! Specification: QEMU, docs/interop/live-block-operations.rst, qapi/job.json. A job stays as *concluded* until it is
//! dismissed.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use syntax::{Keys, OptionFields, ValueType, required};

use super::{CommandContext, answer, done};
use crate::events::JOB_STATUS_CHANGE;
use crate::qmp_error::{ErrorClass, QmpError};
use crate::types::{BlockJobInfo, JobInfo, JobStatus, JobType};

pub(super) static DISMISS: Keys =
    Keys { of: "job-dismiss", supported: &[&[required("id", ValueType::Text)]], later: &[] };

/// What clients are told of a job.
type Events = Vec<(&'static str, Value)>;

/// The jobs by id.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    all: BTreeMap<String, Job>,
}

#[derive(Debug)]
struct Job {
    status: &'static str,
    error: Option<String>,
    /// The nodes that it writes, which nobody else uses and nobody may begin to use.
    nodes: Vec<String>,
}

impl Jobs {
    /// A job has begun. Refuses an id that another one has.
    pub(crate) fn begin(&mut self, id: &str, nodes: Vec<String>) -> Result<Events, QmpError> {
        if self.all.contains_key(id) {
            return Err(QmpError::generic(format!("Job ID '{id}' already in use")));
        }
        self.all.insert(id.to_owned(), Job { status: "running", error: None, nodes });
        Ok(told(id, &["created", "running"]))
    }

    /// A node that arguments name anywhere and that a job writes, and the job.
    pub(crate) fn node_in_use(&self, arguments: &Value) -> Option<(&str, &str)> {
        let named = |name: &str| match arguments {
            Value::String(text) => text == name,
            Value::Array(_)
            | Value::Object(_)
            | Value::Null
            | Value::Bool(_)
            | Value::Number(_) => false,
        };
        let mut nodes =
            self.all.iter().flat_map(|(id, job)| job.nodes.iter().map(move |node| (node, id)));
        let found =
            nodes.find(|(node, _)| named(node)).map(|(node, id)| (node.as_str(), id.as_str()));
        match arguments {
            Value::Array(all) => found.or_else(|| all.iter().find_map(|it| self.node_in_use(it))),
            Value::Object(all) => {
                found.or_else(|| all.values().find_map(|it| self.node_in_use(it)))
            }
            Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => found,
        }
    }

    /// A job is over.
    pub(crate) fn ended(&mut self, id: &str, error: Option<String>) -> Events {
        let Some(job) = self.all.get_mut(id) else { return Vec::new() };
        let has_failed = error.is_some();
        *job = Job { status: "concluded", error, nodes: Vec::new() };
        told(
            id,
            if has_failed {
                &["aborting", "concluded"]
            } else {
                &["waiting", "pending", "concluded"]
            },
        )
    }
}

fn told(id: &str, stations: &[&str]) -> Events {
    let event = |status: &&str| (JOB_STATUS_CHANGE, json!({"id": id, "status": status}));
    stations.iter().map(event).collect()
}

pub(super) fn dismiss(
    context: &mut CommandContext<'_>,
    mut fields: OptionFields,
) -> Result<Value, QmpError> {
    let id = fields.required_text("id")?;
    match context.jobs.all.get(&id) {
        None => Err(QmpError {
            class: ErrorClass::GenericError,
            desc: format!("Job not found: '{id}'"),
        }),
        Some(job) if job.status != "concluded" => Err(QmpError::generic(format!(
            "Job '{id}' in state '{}' cannot accept command verb 'dismiss'",
            job.status
        ))),
        Some(_) => {
            context.jobs.all.remove(&id);
            context.events.extend(told(&id, &["null"]));
            done()
        }
    }
}

pub(super) fn query(context: &mut CommandContext<'_>, _: OptionFields) -> Result<Value, QmpError> {
    let info = |(id, job): (&String, &Job)| JobInfo {
        id: id.clone(),
        kind: JobType("create"),
        status: JobStatus(job.status),
        current: u64::from(job.status == "concluded"),
        total: 1,
        error: job.error.clone(),
    };
    answer(context.jobs.all.iter().map(info).collect::<Vec<_>>())
}

/// Jobs of a block device do not exist yet, so there are none to show.
pub(super) fn query_block(_: &mut CommandContext<'_>, _: OptionFields) -> Result<Value, QmpError> {
    answer(Vec::<BlockJobInfo>::new())
}
