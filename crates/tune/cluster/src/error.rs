//! What can go wrong on a cluster, each in a sentence.

use std::io;

use crate::hint;
use crate::job::JobError;

/// Why something was not done.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// The job file is wrong.
    #[error("{path}")]
    Job {
        /// The file.
        path: String,
        /// What and where.
        #[source]
        source: JobError,
    },
    /// The job file cannot be read.
    #[error("{path}")]
    JobFile {
        /// The file.
        path: String,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The way to the cluster is not known.
    #[error("kubeconfig")]
    Access(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The API server does not answer.
    #[error("the API server has not answered for {seconds} s at {address}")]
    Lost {
        /// Where it should be.
        address: String,
        /// How long it was tried.
        seconds: u64,
        /// What happened last.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The API server refuses.
    #[error("{what}: {why}{}", hint::behind(why))]
    Refused {
        /// What was asked.
        what: String,
        /// Its own sentence.
        why: String,
    },
    /// What the API server answers is not understood.
    #[error("{what}")]
    Answer {
        /// What was asked.
        what: String,
        /// Why not.
        #[source]
        source: Box<kube::Error>,
    },
    /// Rights that are missing.
    #[error("rights are missing: {}; --print-rbac prints what the job needs", .0.join(", "))]
    Rights(Vec<String>),
    /// The cluster lacks something that the job wants.
    #[error("{0}")]
    Lacks(String),
    /// A pod or a virtual machine does not become ready, or is not any more.
    #[error("{what}: {why}{}", hint::behind(why))]
    Worker {
        /// Which.
        what: String,
        /// The reason, as far as the cluster tells.
        why: String,
    },
    /// The agent in a pod.
    #[error("{what}")]
    Agent {
        /// Which.
        what: String,
        /// What it says.
        #[source]
        source: agent::AgentError,
    },
    /// Something has failed, and what was made until then could not be removed.
    #[error("not removed from the cluster: {}", .left.join("; "))]
    Left {
        /// A sentence for each.
        left: Vec<String>,
        /// What has failed.
        #[source]
        source: Box<ClusterError>,
    },
    /// A thread or the like cannot be had.
    #[error("prepare to speak with the cluster")]
    Host(#[source] io::Error),
    /// A token cannot be made.
    #[error(transparent)]
    Token(#[from] agent::TokenError),
    /// Who waited does not want to any more.
    #[error("the wait for the cluster was ended")]
    Ended(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl ClusterError {
    /// With what is left on the cluster after it.
    pub(crate) fn with_left(self, left: Vec<String>) -> Self {
        if left.is_empty() { self } else { Self::Left { left, source: Box::new(self) } }
    }
}
