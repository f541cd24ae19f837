//! Disks of servers, made durable together when the daemon ends.
//!
//! Threads: one for each server that has something to flush, so that those which answer nothing are waited for once and
//! not one after the other.

use std::io;
use std::sync::Arc;
use std::thread::{Builder, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use block::Node;
use nbd_client::NbdNode;

use super::Graph;

/// What a server was told last could not be made durable.
#[derive(Debug, thiserror::Error)]
#[error("disk {uri}: the last flush failed")]
pub struct RemoteFlushError {
    uri: String,
    source: io::Error,
}

/// A disk of a server, as whoever watches it sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteCondition {
    /// The node.
    pub node: String,
    /// Server and export.
    pub uri: String,
    /// For how long a connection that is needed has not been there; nothing if all are.
    pub disconnected: Duration,
}

impl Graph {
    /// How it is with the connections to servers, by node. Waits for nothing.
    pub fn remotes(&self, now: Instant) -> Vec<RemoteCondition> {
        let remotes = self.vertices.values().filter_map(|vertex| vertex.made.remote.as_ref());
        let mut all: Vec<_> = remotes
            .map(|remote| RemoteCondition {
                node: remote.name().to_owned(),
                uri: remote.uri().to_owned(),
                disconnected: remote.disconnected(now),
            })
            .collect();
        all.sort_by(|one, other| one.node.cmp(&other.node));
        all
    }

    /// Makes durable what was written to disks of servers. Blocks, as long as the slowest of them may take.
    pub fn flush_remotes(&self) -> Vec<RemoteFlushError> {
        let remotes = self.vertices.values().filter_map(|vertex| vertex.made.remote.as_ref());
        let behind: Vec<&Arc<NbdNode>> = remotes.filter(|remote| remote.needs_flush()).collect();
        std::thread::scope(|scope| {
            let begun: Vec<_> = behind.into_iter().map(|remote| begin(scope, remote)).collect();
            begun.into_iter().filter_map(end).collect()
        })
    }
}

/// A flush under way, or its result if there is no thread for it.
enum RemoteFlush<'scope> {
    UnderWay(ScopedJoinHandle<'scope, Result<(), RemoteFlushError>>),
    Over(Result<(), RemoteFlushError>),
}

fn begin<'scope>(
    scope: &'scope Scope<'scope, '_>,
    remote: &'scope Arc<NbdNode>,
) -> RemoteFlush<'scope> {
    let flush = move || {
        let uri = || remote.uri().to_owned();
        remote.flush().map_err(|source| RemoteFlushError { uri: uri(), source })
    };
    match Builder::new().name("nbd flush".to_owned()).spawn_scoped(scope, flush) {
        Ok(thread) => RemoteFlush::UnderWay(thread),
        Err(_no_thread) => RemoteFlush::Over(flush()),
    }
}

fn end(flush: RemoteFlush<'_>) -> Option<RemoteFlushError> {
    let result = match flush {
        RemoteFlush::UnderWay(thread) => thread.join().expect("a panic ends the process"),
        RemoteFlush::Over(result) => result,
    };
    result.err()
}
