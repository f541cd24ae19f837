//! The states that a job can be in, the verbs that clients have, and which is allowed in which.

/// What a job does, as in QEMU's JobType.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobKind {
    /// Makes an image.
    Create,
    /// Copies a disk that is written meanwhile, until both are equal.
    Mirror,
    /// Copies a disk as it is when the job begins.
    Backup,
    /// Copies an image into one of its backing files.
    Commit,
    /// Copies backing files into an image.
    Stream,
}

impl JobKind {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Create, Self::Mirror, Self::Backup, Self::Commit, Self::Stream];

    /// QEMU's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Mirror => "mirror",
            Self::Backup => "backup",
            Self::Commit => "commit",
            Self::Stream => "stream",
        }
    }

    /// Whether it is about a disk that is used: such jobs have commands and events of their own.
    pub const fn is_block_job(self) -> bool {
        match self {
            Self::Create => false,
            Self::Mirror | Self::Backup | Self::Commit | Self::Stream => true,
        }
    }
}

/// Where a job is (QEMU's JobStatus).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobStatus {
    /// It is made, and has not begun.
    Created,
    /// It works.
    Running,
    /// It rests, until it is resumed.
    Paused,
    /// It could be completed, and keeps itself so.
    Ready,
    /// The same, resting.
    Standby,
    /// It has done its work.
    Waiting,
    /// It waits to be finalized.
    Pending,
    /// It takes back what it has done.
    Aborting,
    /// It is over, and can be asked about.
    Concluded,
    /// It is gone.
    Null,
}

impl JobStatus {
    /// QEMU's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Ready => "ready",
            Self::Standby => "standby",
            Self::Waiting => "waiting",
            Self::Pending => "pending",
            Self::Aborting => "aborting",
            Self::Concluded => "concluded",
            Self::Null => "null",
        }
    }

    /// Whether a job may come from here to there.
    pub(crate) fn leads_to(self, to: Self) -> bool {
        match self {
            Self::Created => matches!(to, Self::Running | Self::Aborting | Self::Null),
            Self::Running => {
                matches!(to, Self::Paused | Self::Ready | Self::Waiting | Self::Aborting)
            }
            Self::Paused => matches!(to, Self::Running),
            Self::Ready => matches!(to, Self::Standby | Self::Waiting | Self::Aborting),
            Self::Standby => matches!(to, Self::Ready),
            Self::Waiting => matches!(to, Self::Pending | Self::Aborting),
            Self::Pending => matches!(to, Self::Aborting | Self::Concluded),
            Self::Aborting => matches!(to, Self::Concluded),
            Self::Concluded => matches!(to, Self::Null),
            Self::Null => false,
        }
    }
}

/// What clients have a job do (QEMU's JobVerb).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobVerb {
    /// End without its result.
    Cancel,
    /// Rest.
    Pause,
    /// Go on.
    Resume,
    /// Be faster or slower.
    SetSpeed,
    /// End with its result.
    Complete,
    /// Make its result count.
    Finalize,
    /// Be forgotten.
    Dismiss,
    /// Be another one while it runs.
    Change,
}

/// What a job does not do where it is. QEMU's sentence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VerbRefusal {
    /// Not in this state.
    #[error("Job '{id}' in state '{}' cannot accept command verb '{}'", status.name(), verb.name())]
    State {
        /// The job.
        id: String,
        /// Where it is.
        status: JobStatus,
        /// What it should do.
        verb: JobVerb,
    },
    /// It rests.
    #[error("Job is already paused")]
    Paused,
    /// It does not rest.
    #[error("Can't resume a job that was not paused")]
    NotPaused,
    /// It ends by itself.
    #[error("The active block job '{0}' cannot be completed")]
    NeverReady(String),
}

impl JobVerb {
    /// QEMU's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cancel => "cancel",
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::SetSpeed => "set-speed",
            Self::Complete => "complete",
            Self::Finalize => "finalize",
            Self::Dismiss => "dismiss",
            Self::Change => "change",
        }
    }

    /// Whether a job does it where it is.
    pub(crate) fn is_allowed_in(self, status: JobStatus) -> bool {
        use JobStatus::{Concluded, Created, Paused, Pending, Ready, Running, Standby, Waiting};
        match self {
            Self::Cancel => {
                matches!(status, Created | Running | Paused | Ready | Standby | Waiting | Pending)
            }
            Self::Pause | Self::Resume | Self::SetSpeed | Self::Change => {
                matches!(status, Created | Running | Paused | Ready | Standby)
            }
            Self::Complete => matches!(status, Ready | Standby),
            Self::Finalize => status == Pending,
            Self::Dismiss => status == Concluded,
        }
    }
}
