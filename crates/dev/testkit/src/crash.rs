//! The crash campaign: a server is killed again and again under load, and started again; nothing may be lost, come
//! back, or be done twice.
//!
//! Where it stands: `campaign` starts, kills and restarts the server and prints what happened; `front_end` is a guest
//! that survives its back end, with its memory, rings and in-flight region; `load` keeps the rings full and checks every
//! answer against `model`, which knows what each sector may hold; `stamp` writes into each sector which write it is of.
//!
//! What can go wrong, and what shows it:
//! - a request is lost at a kill: it is still in flight at the end (`load`, deadline);
//! - a request is completed twice: a completion for a free slot, at once or when the rings must be silent (`rings`);
//! - a completed write is lost, or an older one comes back from the dead process's queue: a read, or the image at
//!   the end, holds a write that is older than the last completed one (`model`);
//! - a read of the dead process comes in after its slot was used again: the poison in the slot's buffer is gone, or the
//!   slot's next write stores foreign bytes (`load`, `stamp`);
//! - an interrupt or a kick is lost at a kill: the driver is strict, looks only when it was interrupted and kicks only
//!   when it was asked to, so it stands still (deadline).
//!
//! Not here: the disk with a slow queue (`slow_disk`); the messages (`rawring`).

pub mod campaign;
pub(crate) mod format;
mod front_end;
mod load;
mod model;
mod packed;
mod rings;
mod split;
mod stamp;
