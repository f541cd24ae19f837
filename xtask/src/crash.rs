//! `cargo xtask crash`: builds ringloom with optimisation, and starts `ringloom-crash`.
//!
//! Invariants: a ringloom that kills itself at the steps of a request (`--steps`) is built beside the usual one, never
//! in its place.
//! Not here: what is killed and checked (`testkit::crash`), which this program only spawns.

use anyhow::Result;

use crate::steps::{Workspace, cargo_step, must_succeed};

pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Result<()> {
    cargo_step(
        workspace,
        "build",
        &["build", "--release", "-p", "ringloom", "-p", "testkit"],
        &[],
    )?;
    let target = workspace.target_dir();
    let release = target.join("release");
    let mut ringloom = release.join("ringloom");
    if arguments.iter().any(|it| it == "--steps") {
        let beside = target.join("crash");
        let directory = beside.to_string_lossy();
        let build = "build --release -p ringloom --features fault-points --target-dir";
        let build: Vec<&str> = build.split(' ').chain([&*directory]).collect();
        cargo_step(workspace, "build with steps", &build, &[])?;
        ringloom = beside.join("release/ringloom");
    }
    let mut command = std::process::Command::new(release.join("ringloom-crash"));
    command.current_dir(&workspace.root);
    if !arguments.iter().any(|it| it.split('=').next() == Some("--ringloom")) {
        command.arg("--ringloom").arg(ringloom);
    }
    must_succeed(command.args(arguments))
}
