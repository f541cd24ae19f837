//! `cargo xtask hostile`: builds ringloom with optimisation, and starts `ringloom-hostile`.
//!
//! Not here: what attacks, and what is checked (`testkit::hostile`), which this program only spawns.

use anyhow::Result;

use crate::steps::{Workspace, run_program};

pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Result<()> {
    let defaults = [("--ringloom", workspace.release_dir().join("ringloom"))];
    run_program(workspace, &["ringloom", "testkit"], "ringloom-hostile", &defaults, arguments)
}
