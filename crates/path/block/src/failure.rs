//! Why an operation on a file or another storage failed.

use rustix::io::Errno;

use crate::{ByteOffset, FailKind};

/// Why an operation failed, and where.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum IoFailure {
    /// The kernel or the storage said so.
    #[error("error at byte {offset}")]
    Errno {
        /// The first byte that was not transferred.
        offset: ByteOffset,
        /// What it said.
        #[source]
        errno: Errno,
    },
    /// It is shorter than when it was opened.
    #[error("the file has no byte {offset} any more")]
    EndOfFile {
        /// The first byte that was not transferred; the file may end before it.
        offset: ByteOffset,
    },
}

impl IoFailure {
    /// What it is to a guest or client.
    pub fn kind(self) -> FailKind {
        match self {
            Self::Errno { errno: Errno::NOSPC | Errno::DQUOT, .. } => FailKind::NoSpace,
            Self::Errno { errno: Errno::ROFS, .. } => FailKind::ReadOnly,
            Self::Errno { .. } | Self::EndOfFile { .. } => FailKind::Io,
        }
    }

    /// Whether the storage cannot do such a thing at all, as QEMU reads these errors.
    pub fn is_unsupported(self) -> bool {
        let Self::Errno { errno, .. } = self else { return false };
        [Errno::OPNOTSUPP, Errno::NOSYS, Errno::NODEV, Errno::NOTTY].contains(&errno)
    }
}
