//! Pods and KubeVirt virtual machines as places where a tuner runs fio: made, waited for, reached and removed.
//!
//! Where it stands: the tuner reads a [`ClusterJob`], begins a [`Session`], and starts workers on claims, each with an
//! `agent::Client`; at the end everything is removed. All calls block and ask their `check` whether to go on.
//!
//! Invariants: everything that is made has the label of its run, and is owned by the run's ConfigMap, so that its deletion removes all;
//! what could not be removed is named. No secret of the cluster gets into a pod: none has a token of a service account.
//! Threads: one of tokio's carries streams; everything else is done on the caller's.
//! Not here: what is measured (the tuner), fio and its agent (`agent`).
#![forbid(unsafe_code)]

mod api;
mod clock;
mod error;
mod hint;
mod job;
mod objects;
mod quantity;
mod rights;
mod session;
mod stream;
mod survey;
mod trouble;

pub use api::ClusterAccess;
pub use error::ClusterError;
pub use job::{
    ClaimStorage, ClusterJob, Images, JobError, NodeChoice, NodeToleration, Placement, PodShape,
    Security, Treatment, TreatmentKind, VmIothreads, VmShape, VolumeMode, WORKERS_MAX, example,
};
pub use objects::RunId;
pub use rights::rbac;
pub use session::{Removal, Session, Setup, Worker, sweep};
pub use survey::{ClassFacts, NodeFacts, Survey, UNKNOWN};
