//! What the name and the first bytes of a file say about its format.
//!
//! The daemon refuses to guess from it, and the tuner writes no configuration against it. Nothing is ever opened as
//! what it looks like: a guest writes the first bytes of its raw disk.
#![forbid(unsafe_code)]

mod detect;

pub use detect::{FileExtension, names, of_head, of_name};
