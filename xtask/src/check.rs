//! `cargo xtask check`: the quick gate of every change.
//!
//! Invariants: installs nothing, needs no network beyond cargo's registry, no root and no
//! io_uring. The cheap steps come first, so that most mistakes are told within a second.
//! Not here: integration tests, doc tests and loom models (`test`).

use anyhow::Result;

use crate::steps::{Workspace, cargo_step, step};
use crate::tidy;

/// Runs every step of the quick gate; the first that fails ends it.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    read(workspace)?;
    cargo_step(workspace, "unit tests", &["test", "--quiet", "--workspace", "--lib", "--bins"], &[])
}

/// Runs the steps that only read the code.
pub(crate) fn read(workspace: &Workspace) -> Result<()> {
    cargo_step(workspace, "fmt", &["fmt", "--all", "--check"], &[])?;
    step("tidy", "the rules of this project", || tidy::run(workspace))?;
    cargo_step(
        workspace,
        "clippy",
        &["clippy", "--quiet", "--workspace", "--all-targets", "--", "-D", "warnings"],
        &[],
    )?;
    cargo_step(
        workspace,
        "docs",
        &["doc", "--quiet", "--no-deps", "--workspace"],
        &[("RUSTDOCFLAGS", "-D warnings")],
    )
}
