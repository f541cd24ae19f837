//! Takes the place of a running daemon, without a lost or failed request.
//!
//! Where it stands: beside a normal start. The new process prepares everything that can fail, finds
//! the old one (`server`) and asks it for its exports (`new_process`). The old one stops its rings, hands
//! over listening sockets, sessions, and images with their locks (`old_process`), and leaves when it has said that the new
//! one goes on. `docs/takeover.md` tells it in order, with what happens on every error. A session is handed over as what
//! its front end has said and how far each ring was served, with nothing in flight ([`vhost_user::SavedSession`]); a file
//! as its open description with the locks on it (`kernel_io::OpenFile::inherit`); of a qcow2 image also what only its
//! memory has ([`qcow2::ImageState`]), and of a node its dirty bitmaps (`bitmaps`).
//!
//! Invariants: at every moment exactly one of the two owns the images and may serve rings: the old one until it
//! has said `Commit`, the new one when it has heard that. Before, the new one changes nothing on
//! any image and gives no lock back; afterwards the old one does not. Locks never lapse: both have the same
//! descriptions.
//! Threads: the first one of both processes.

#![forbid(unsafe_code)]

mod bitmaps;
mod error;
#[cfg(feature = "fault-points")]
mod fault_point;
mod hand_over;
mod limits;
mod new_process;
mod old_process;
mod protocol;
mod server;

pub use bitmaps::InheritedBitmapError;
pub use error::TakeoverError;
pub use hand_over::read_hand_over;
pub use new_process::{PredecessorProcess, TakeoverOutcome, configuration_of, take_over};
pub use old_process::{TakeoverListener, TakeoverResult, answer};
pub use protocol::WireError;
pub use server::ServerLookupError;
