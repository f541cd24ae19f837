//! Disks of servers, made durable together when the daemon ends.
//!
//! Threads: one for each server that has something to flush, so that those which answer nothing are waited for once and
//! not one after the other.

use std::io;
use std::sync::Arc;
use std::thread::{Builder, Scope, ScopedJoinHandle};

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

impl Graph {
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
