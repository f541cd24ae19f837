//! The commands of `ringloom` as their command lines describe them: for the binary, and for those who make manual pages and
//! completions of them.
//!
//! Not here: what the commands do (the crates that `main` calls).
#![forbid(unsafe_code)]

pub mod arguments;
pub mod commands;
