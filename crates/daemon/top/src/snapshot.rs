//! What a daemon said at one moment: its replies, as structures.
//!
//! Invariants: a member that a daemon does not say is zero or none, so that other versions are understood; a list that it does not
//! have at all is none. Nothing is made of the numbers here.

use std::time::Duration;

use anyhow::{Context, Result};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::histogram::Bucket;

/// What a daemon said.
#[derive(Debug, Clone, Default)]
pub(crate) struct Snapshot {
    /// When, on the clock of whoever asked.
    pub(crate) at: Duration,
    pub(crate) exports: Vec<Export>,
    /// Those that are served; none if the daemon does not say it.
    pub(crate) queues: Option<Vec<Queue>>,
    /// None if the daemon does not say it.
    pub(crate) iothreads: Option<Vec<Iothread>>,
    pub(crate) pools: Vec<Pool>,
    pub(crate) jobs: Vec<Job>,
    pub(crate) nbd_nodes: Vec<NbdNode>,
    pub(crate) storage: Vec<Storage>,
}

/// What the daemon has found of the storage of an export (`query-ringloom-storage`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub(crate) struct Storage {
    pub(crate) export: String,
    /// Whether a file was removed, renamed or replaced.
    pub(crate) removed: bool,
    /// By how many bytes it has grown, or shrunk, since it was measured.
    pub(crate) size_difference: i64,
}

/// A node on an NBD server (`query-ringloom-nbd-nodes`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub(crate) struct NbdNode {
    pub(crate) node_name: String,
    pub(crate) server: String,
    /// For how long it has lacked a connection that it needs.
    pub(crate) disconnected_ns: u64,
}

/// An export (`query-block-exports`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub(crate) struct Export {
    pub(crate) id: String,
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) node_name: String,
}

/// A queue and its sums since its client came (`query-ringloom-queues`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub(crate) struct Queue {
    pub(crate) export: String,
    pub(crate) queue: u64,
    pub(crate) iothread: String,
    pub(crate) reads: u64,
    pub(crate) writes: u64,
    pub(crate) flushes: u64,
    pub(crate) discards: u64,
    pub(crate) write_zeroes: u64,
    pub(crate) errors: u64,
    pub(crate) read_bytes: u64,
    pub(crate) written_bytes: u64,
    pub(crate) in_flight: u64,
    pub(crate) moves: u64,
    pub(crate) open_ns: u64,
    pub(crate) take_wait_ns: Option<u64>,
    pub(crate) answer_wait_ns: Option<u64>,
    pub(crate) latency: Vec<Bucket>,
}

impl Queue {
    /// Requests of all kinds that were answered.
    pub(crate) fn requests(&self) -> u64 {
        let kinds = [self.reads, self.writes, self.flushes, self.discards, self.write_zeroes];
        kinds.into_iter().fold(0, u64::saturating_add)
    }
}

/// An iothread and its sums since its start (`query-ringloom-iothreads`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub(crate) struct Iothread {
    pub(crate) name: String,
    pub(crate) queues: u64,
    pub(crate) work_ns: u64,
    pub(crate) poll_ns: u64,
    pub(crate) sleep_ns: u64,
    pub(crate) cpu_ns: Option<u64>,
    pub(crate) run_delay_ns: Option<u64>,
    /// For how long it has not turned though it was asked to.
    pub(crate) stalled_ns: u64,
}

/// A pool of iothreads (`query-ringloom-pools`).
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub(crate) struct Pool {
    pub(crate) name: String,
    pub(crate) max: u64,
    pub(crate) mode: Option<String>,
    pub(crate) iothreads: Vec<String>,
    pub(crate) exports: Vec<Placement>,
}

/// How a pool places an export.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub(crate) struct Placement {
    pub(crate) export: String,
    pub(crate) iothreads: Option<u64>,
    pub(crate) gain_max: Option<f64>,
    pub(crate) trying: bool,
    /// On how many iothreads.
    pub(crate) tries: Option<u64>,
    pub(crate) gain_predicted: Option<f64>,
    pub(crate) note: Option<String>,
}

/// A job (`query-jobs`, and of block jobs what `query-block-jobs` knows).
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub(crate) struct Job {
    pub(crate) id: String,
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) status: String,
    pub(crate) current_progress: u64,
    pub(crate) total_progress: u64,
    pub(crate) error: Option<String>,
    /// The most bytes in a second; 0: any number.
    #[serde(skip)]
    pub(crate) speed: u64,
    /// `ok`, or why it rests.
    #[serde(skip)]
    pub(crate) io_status: String,
}

/// What `query-block-jobs` adds.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct BlockJob {
    device: String,
    speed: u64,
    io_status: String,
}

/// The replies of a daemon; a question that it does not have is none.
#[derive(Debug, Default)]
pub(crate) struct Replies {
    pub(crate) exports: Option<Vec<Value>>,
    pub(crate) queues: Option<Vec<Value>>,
    pub(crate) iothreads: Option<Vec<Value>>,
    pub(crate) pools: Option<Vec<Value>>,
    pub(crate) jobs: Option<Vec<Value>>,
    pub(crate) block_jobs: Option<Vec<Value>>,
    pub(crate) nbd_nodes: Option<Vec<Value>>,
    pub(crate) storage: Option<Vec<Value>>,
}

impl Replies {
    /// What they say, if each is what it should be.
    pub(crate) fn read(self, at: Duration) -> Result<Snapshot> {
        let mut jobs: Vec<Job> = list("query-jobs", self.jobs)?.unwrap_or_default();
        let block: Vec<BlockJob> = list("query-block-jobs", self.block_jobs)?.unwrap_or_default();
        for job in &mut jobs {
            if let Some(more) = block.iter().find(|it| it.device == job.id) {
                job.speed = more.speed;
                job.io_status.clone_from(&more.io_status);
            }
        }
        Ok(Snapshot {
            at,
            exports: list("query-block-exports", self.exports)?.unwrap_or_default(),
            queues: list("query-ringloom-queues", self.queues)?,
            iothreads: list("query-ringloom-iothreads", self.iothreads)?,
            pools: list("query-ringloom-pools", self.pools)?.unwrap_or_default(),
            jobs,
            nbd_nodes: list("query-ringloom-nbd-nodes", self.nbd_nodes)?.unwrap_or_default(),
            storage: list("query-ringloom-storage", self.storage)?.unwrap_or_default(),
        })
    }
}

fn list<T: DeserializeOwned>(question: &str, reply: Option<Vec<Value>>) -> Result<Option<Vec<T>>> {
    let read = |value| serde_json::from_value(value);
    let all: Option<Result<Vec<T>, _>> = reply.map(|all| all.into_iter().map(read).collect());
    all.transpose().with_context(|| format!("the answer to {question}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn replies_of_other_versions_are_understood() {
        let some = |value: Value| Some(vec![value]);
        let replies = Replies {
            exports: some(json!({"id": "e", "type": "nbd", "node-name": "n", "later": 1})),
            queues: some(json!({"export": "e", "queue": 1, "reads": 2,
                                "latency": [{"from-ns": 1, "to-ns": 2, "count": 3}]})),
            pools: some(json!({"name": "p", "exports": [{"export": "e", "gain-max": 0.5}]})),
            jobs: some(json!({"id": "j", "type": "backup", "status": "running"})),
            block_jobs: some(json!({"device": "j", "speed": 5, "io-status": "ok"})),
            nbd_nodes: some(json!({"node-name": "n", "disconnected-ns": 7})),
            storage: some(json!({"export": "e", "removed": true, "size-difference": -3})),
            iothreads: None,
        };
        let found = replies.read(Duration::ZERO).expect("it is understood");
        assert_eq!(found.exports[0].kind, "nbd");
        let queues = found.queues.expect("queues");
        assert_eq!((queues[0].requests(), queues[0].latency[0].count), (2, 3));
        assert_eq!(found.iothreads, None);
        assert_eq!(found.pools[0].exports[0].gain_max, Some(0.5));
        assert_eq!(found.nbd_nodes[0].disconnected_ns, 7);
        assert_eq!((found.storage[0].removed, found.storage[0].size_difference), (true, -3));
        assert_eq!((found.jobs[0].speed, found.jobs[0].io_status.as_str()), (5, "ok"));
    }

    #[test]
    fn nonsense_is_named() {
        let queues = Some(vec![json!({"export": 5})]);
        let error = Replies { queues, ..Replies::default() }.read(Duration::ZERO);
        let text = format!("{:#}", error.expect_err("it is nonsense"));
        assert!(text.starts_with("the answer to query-ringloom-queues: invalid type"), "{text}");
    }
}
