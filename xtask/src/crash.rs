//! `cargo xtask crash`: builds ringloom with optimisation, and starts `ringloom-crash`.
//!
//! Invariants: a ringloom that kills itself at the steps of a request (`--steps`) is built beside the usual one, never
//! in its place.
//! Not here: what is killed and checked (`testkit::crash`), which this program only spawns.

use anyhow::Result;

use crate::steps::{Workspace, cargo_step, run_program};

pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Result<()> {
    let mut ringloom = workspace.release_dir().join("ringloom");
    if arguments.iter().any(|it| it == "--steps") {
        let beside = workspace.target_dir().join("crash");
        let directory = beside.to_string_lossy();
        let build = "build --release -p ringloom --features fault-points --target-dir";
        let build: Vec<&str> = build.split(' ').chain([&*directory]).collect();
        cargo_step(workspace, "build with steps", &build, &[])?;
        ringloom = beside.join("release/ringloom");
    }
    let defaults = [("--ringloom", ringloom)];
    run_program(workspace, &["ringloom", "testkit"], "ringloom-crash", &defaults, arguments)
}
