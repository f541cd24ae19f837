//! Why the place of another process could not be taken.

use std::path::PathBuf;
use std::time::Duration;

use control::BuildError;
use host::PidfileError;

use super::bitmaps::InheritedBitmapError;
use super::protocol::WireError;
use super::server::ServerLookupError;

/// How long an old process that was told to end may take: it finishes its requests and flushes.
pub(super) const END_LIMIT: Duration = Duration::from_secs(60);

/// The place of another process could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum TakeoverError {
    /// What was asked for cannot be built.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The old process could not be found out.
    #[error(transparent)]
    Find(#[from] ServerLookupError),
    /// The pidfile could not be written.
    #[error(transparent)]
    Pidfile(#[from] PidfileError),
    /// More than one old process.
    #[error("socket {path} is served by process {process}, and {other_path} by process {other}")]
    Several {
        /// The first socket.
        path: PathBuf,
        /// Who serves it.
        process: u32,
        /// Another socket.
        other_path: PathBuf,
        /// Who serves that.
        other: u32,
    },
    /// The old process goes on serving.
    #[error("process {process} goes on serving: {reason}")]
    Refused {
        /// Which.
        process: u32,
        /// What it said.
        reason: String,
    },
    /// A guest would see another disk.
    #[error("export {export}: its {what} is not that of process {process}, which goes on serving")]
    OtherDisk {
        /// The export.
        export: String,
        /// What differs.
        what: String,
        /// The old process.
        process: u32,
    },
    /// What the old process has open cannot be used here.
    #[error("export {export}: cannot go on with its image; process {process} goes on serving")]
    Image {
        /// The export.
        export: String,
        /// The old process.
        process: u32,
        /// Why.
        #[source]
        source: kernel_io::DescriptorInheritError,
    },
    /// What was changed on a disk would not be known any more.
    #[error("cannot go on with {bitmap}; process {process} goes on serving")]
    Bitmap {
        /// Which.
        bitmap: String,
        /// The old process.
        process: u32,
        /// Why.
        #[source]
        source: Box<InheritedBitmapError>,
    },
    /// The handing over broke.
    #[error("process {process} could not hand over and goes on serving, if it lives")]
    Broken {
        /// Which.
        process: u32,
        /// Why.
        #[source]
        source: WireError,
    },
    /// A session could not be built here.
    #[error("export {export}: cannot go on with its client; process {process} goes on serving")]
    Session {
        /// The export.
        export: String,
        /// The old process.
        process: u32,
        /// Why.
        #[source]
        source: vhost_user::SessionError,
    },
    /// The old process could not be told to end.
    #[error("process {process} cannot be told to end")]
    Signal {
        /// Which.
        process: u32,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The old process does not end.
    #[error(
        "process {process} was told to end and has not within {} s; it serves no new requests",
        END_LIMIT.as_secs()
    )]
    Stuck {
        /// Which.
        process: u32,
    },
    /// A signal came.
    #[error("stopped while it waited")]
    Stopped,
    /// The sockets change hands all the time.
    #[error(
        "each time it was asked the process that serves the sockets hung up or was gone, at last process {0}"
    )]
    Restless(u32),
    /// The old process would not listen.
    #[error(
        "process {process} goes on serving: only its user (number {user}) and root may take its place"
    )]
    OtherUser {
        /// The old process.
        process: u32,
        /// Whose it is.
        user: u32,
    },
}
