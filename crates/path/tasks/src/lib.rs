//! Tools for lanes that cannot answer everything at once: tasks, and what they wait for.
//!
//! Where it stands in the life of a request: a format holds a request and has a task serve it ([`Tasks`]). The task asks
//! the children ([`Storage`], [`Questions`]), has its own I/O carried out, and collects what its request is to be
//! carried out on ([`Parts`]). Tasks take turns ([`Turns`], [`Room`], [`Pauses`]). A thread that owns no ring does the
//! same with [`Control`].
//!
//! Not here: what a format does with it (`qcow2`), I/O (`kernel_io`).

#![forbid(unsafe_code)]

mod control;
mod parts;
mod questions;
mod room;
mod storage;
mod task;

pub use control::Control;
pub use parts::Parts;
pub use questions::{Questions, is_over};
pub use room::{Pauses, Room, Taken};
pub use storage::{Found, Next, Reply, Storage, Telling, Waiting, extent};
pub use task::{Tasks, Turn, Turns, block_on};
