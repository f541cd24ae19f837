//! `cargo xtask bench`: builds what is measured with optimisation, and starts `ringloom-bench`.
//!
//! Not here: what is measured (`crates/dev/bench`), which this program only spawns.

use anyhow::Result;

use crate::steps::{Workspace, run_program};

pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Result<()> {
    let ringloom = workspace.release_dir().join("ringloom");
    let defaults = [("--ringloom", ringloom), ("--work", workspace.target_dir().join("bench"))];
    run_program(workspace, &["ringloom", "bench"], "ringloom-bench", &defaults, arguments)
}
