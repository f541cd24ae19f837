//! `cargo xtask hostile`: builds ringloom with optimisation, and starts `ringloom-hostile`.
//!
//! Not here: what attacks, and what is checked (`testkit::hostile`), which this program only spawns.

use anyhow::Result;

use crate::steps::{Workspace, cargo_step, must_succeed};

pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Result<()> {
    cargo_step(
        workspace,
        "build",
        &["build", "--release", "-p", "ringloom", "-p", "testkit"],
        &[],
    )?;
    let release = workspace.target_dir().join("release");
    let mut command = std::process::Command::new(release.join("ringloom-hostile"));
    command.current_dir(&workspace.root);
    if !arguments.iter().any(|it| it.split('=').next() == Some("--ringloom")) {
        command.arg("--ringloom").arg(release.join("ringloom"));
    }
    must_succeed(command.args(arguments))
}
