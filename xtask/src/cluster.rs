//! `cargo xtask cluster`: starts the program that runs a real Kubernetes on this machine.
//!
//! Not here: how (`crates/dev/test_cluster`), which this program only spawns.

use anyhow::Result;

use crate::install;
use crate::steps::{Workspace, must_succeed};

pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Result<()> {
    // Programs of this machine go into one of its images.
    if arguments.iter().any(|it| it == "up" || it == "test") {
        install::run(workspace)?;
    }
    let mut command = workspace.cargo(&["run", "--quiet", "--package", "test_cluster", "--"]);
    must_succeed(command.args(arguments))
}
