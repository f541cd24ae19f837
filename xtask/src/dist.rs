//! `cargo xtask dist`: starts the program that makes packages.
//!
//! Not here: what is made, and how (`crates/dev/dist`), which this program only spawns.

use anyhow::Result;

use crate::steps::{Workspace, must_succeed};

pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Result<()> {
    let mut command = workspace.cargo(&["run", "--quiet", "--package", "dist", "--"]);
    must_succeed(command.args(arguments))
}
