//! The words of the protocol: what a client asks and what an agent tells.
//!
//! Each ask but `Alive`, `Stop` and `End` has one answer; `Run`, `Fill` and `Disk` tell more before it. An agent does one of these three
//! at a time, and answers everything else meanwhile.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::meters::Meters;
use crate::token::Token;

/// Of this protocol. Both ends are the same program; another version is refused in a sentence.
pub const VERSION: u32 = 1;
/// The job file in fio's directory, for its command line.
pub const JOB: &str = "job.fio";
/// An agent that has heard nothing for so long ends, and its fio with it. A client says something every sixth of it.
pub const SILENCE_LIMIT: Duration = Duration::from_secs(60);

/// From the client.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum Ask {
    /// The first line.
    Hello {
        version: u32,
        token: Option<Token>,
    },
    /// Somebody is there.
    Alive {},
    /// What the wall clock says.
    Clock {},
    Disk {
        request: DiskRequest,
    },
    /// Writes all of a device or a file once.
    Fill {
        path: String,
    },
    /// Runs fio on a job: the words of its command line, the time at which it starts by the agent's wall clock.
    Run {
        job: String,
        words: Vec<String>,
        start_ns: Option<u64>,
    },
    Meters {},
    /// Ends what is under way; it is answered by that one's end.
    Stop {},
    /// The client leaves.
    End {},
}

/// From the agent.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "tell", rename_all = "kebab-case")]
pub(crate) enum Tell {
    Hello {
        version: u32,
        facts: Box<Facts>,
    },
    Clock {
        wall_ns: u64,
    },
    /// Of a disk that is being filled.
    Progress {
        bytes: u64,
    },
    Disk {
        disk: Disk,
    },
    Filled {
        bytes: u64,
    },
    /// What fio prints.
    Output {
        text: String,
    },
    Ended {
        end: RunEnd,
    },
    Meters {
        meters: Meters,
    },
    /// Why what was asked is not done.
    Failed {
        why: String,
    },
}

/// How a fio has ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RunEnd {
    /// If not well.
    pub(crate) failed: Option<String>,
    pub(crate) stderr: String,
    pub(crate) started_ns: u64,
    pub(crate) ended_ns: u64,
}

/// Where an agent is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// ringloom's version.
    pub ringloom: String,
    /// What fio says of its version, if it is there.
    pub fio: Option<String>,
    /// Name, release and architecture.
    pub kernel: String,
    /// The host's name: in a pod, that of the pod.
    pub host: String,
    /// CPUs of the machine that are online.
    pub cpus: u32,
    /// What the first of them is called.
    pub cpu: Option<String>,
    /// Memory of the machine.
    pub memory_bytes: u64,
    /// CPUs that the control group may use.
    pub cpu_limit: Option<f64>,
    /// Memory that the control group may use.
    pub memory_limit: Option<u64>,
    /// What the hypervisor calls itself, if the machine is a virtual one.
    pub hypervisor: Option<String>,
    /// Whether the kernel lets the agent use io_uring.
    pub io_uring: bool,
}

/// What is to be measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "on", rename_all = "kebab-case", deny_unknown_fields)]
pub enum DiskRequest {
    /// A block device, or a file that exists.
    Device {
        /// Its path.
        path: String,
    },
    /// A file that is made and filled in a directory.
    Directory {
        /// The directory.
        path: String,
        /// The size of the file.
        bytes: u64,
    },
}

/// What a disk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DiskKind {
    /// A block device.
    Block,
    /// A file.
    File,
}

/// What can be measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disk {
    /// What fio has to open.
    pub path: String,
    /// Device or file.
    pub kind: DiskKind,
    /// Its size.
    pub bytes: u64,
    /// The least that can be read or written directly.
    pub logical_block_bytes: u32,
    /// Of the device, as far as the kernel tells.
    pub queues: Option<u32>,
    /// Whether it can be opened for writing.
    pub writable: bool,
    /// Whether it can be opened for direct I/O.
    pub direct: bool,
}
