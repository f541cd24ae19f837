//! `cargo xtask bench`: builds what is measured with optimisation, and starts `ringloom-bench`.
//!
//! Not here: what is measured (`crates/dev/bench`), which this program only spawns.

use anyhow::Result;

use crate::steps::{Workspace, cargo_step, must_succeed};

pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Result<()> {
    cargo_step(workspace, "build", &["build", "--release", "-p", "ringloom", "-p", "bench"], &[])?;
    let target = workspace.target_dir();
    let release = target.join("release");
    let mut command = std::process::Command::new(release.join("ringloom-bench"));
    command.current_dir(&workspace.root);
    let defaults = [("--ringloom", release.join("ringloom")), ("--work", target.join("bench"))];
    for (option, path) in defaults {
        if !arguments.iter().any(|it| it.split('=').next() == Some(option)) {
            command.arg(option).arg(path);
        }
    }
    must_succeed(command.args(arguments))
}
