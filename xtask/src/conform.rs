//! `cargo xtask conform`: builds the conformance suite with optimisation, and starts `ringloom-conform`.
//!
//! Not here: what is stacked and checked (`testkit::conformance`, `crates/dev/conform`), which this program only spawns.

use anyhow::Result;

use crate::steps::{Workspace, run_program};

pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Result<()> {
    let files = workspace.target_dir().join("tmp");
    std::fs::create_dir_all(&files)?;
    let defaults = [("--directories", files), ("--directories", "/dev/shm".into())];
    run_program(workspace, &["conform"], "ringloom-conform", &defaults, arguments)
}
