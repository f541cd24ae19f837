//! What is handed out of ringloom: manual pages and completions made of the descriptions that the program itself reads, a
//! Debian package, the licences and the list of all that is linked, the container images.
//!
//! Where it stands: `cargo xtask dist` runs the program of this crate. Nothing that is made here is kept in the repository,
//! so nothing of it can be old.
//!
//! Not here: the profile that the binary is built with (`Cargo.toml` of the workspace, `dist`).
#![forbid(unsafe_code)]

pub mod chroot;
pub mod completions;
pub mod components;
pub mod debian;
pub mod help_page;
pub mod images;
pub mod manual;
pub mod materials;
pub mod tree;
