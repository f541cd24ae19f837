//! `cargo xtask conform`: builds the conformance suite with optimisation, and starts `ringloom-conform`.
//!
//! Not here: what is stacked and checked (`testkit::conformance`, `crates/dev/conform`), which this program only spawns.

use anyhow::Result;

use crate::steps::{Workspace, cargo_step, must_succeed};

pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Result<()> {
    cargo_step(workspace, "build", &["build", "--release", "-p", "conform"], &[])?;
    let target = workspace.target_dir();
    let mut command = std::process::Command::new(target.join("release/ringloom-conform"));
    command.current_dir(&workspace.root);
    if !arguments.iter().any(|it| it.split('=').next() == Some("--directories")) {
        command.arg("--directories").arg(target.join("tmp")).arg("--directories").arg("/dev/shm");
        std::fs::create_dir_all(target.join("tmp"))?;
    }
    must_succeed(command.args(arguments))
}
