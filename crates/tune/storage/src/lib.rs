//! The disk that is measured, and what is put on it and below it.
//!
//! `target` is the file or device of the user, which `in_use` asks for first, or `scratch` a file made for the run. `storages`
//! are the images, file systems, stripes and delays of all variants, prepared one after the other and taken away in reverse
//! order. All of it ends soon after an `interrupt`.
//!
//! Not here: which variants there are (crate `plan`), and guests, which get the disks of the crate `tuner`.
#![forbid(unsafe_code)]

pub mod clock;
pub mod in_use;
pub mod interrupt;
pub mod machine;
pub mod quote;
pub mod scratch;
pub mod storages;
pub mod target;
