//! The program that needs no library, for the images of the agent and of guests.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::run::{make_dir, output_of};

/// How it is compiled: those images have no libraries for it but fio's.
const STATIC: &str = "-C target-feature=+crt-static";
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Cargo in the workspace, without what `cargo run` has told this program: build scripts such as that of `ring` look at it, and
/// everything above them would be compiled again after each cargo command of a user.
pub fn cargo(workspace: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let is_told =
        |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(is_told)) {
        command.env_remove(name);
    }
    command.current_dir(workspace);
    command
}

/// Builds `ringloom` statically with a profile of cargo's. Returns a directory with nothing else, in which it has no symbols;
/// that directory is below `target`, which cargo builds in. Cargo knows what has to be built anew.
pub fn static_program(workspace: &Path, target: &Path, profile: &str) -> Result<PathBuf> {
    let mut cargo = cargo(workspace);
    cargo.args(["build", "--quiet", "--locked", "--package", "ringloom"]);
    cargo.args(["--target", TARGET, "--profile", profile]).arg("--target-dir").arg(target);
    output_of(cargo.env("RUSTFLAGS", STATIC))?;
    let kind = if profile == "dev" { "debug" } else { profile };
    let built = target.join(TARGET).join(kind);
    let place = built.join("static");
    make_dir(&place)?;
    let program = place.join("ringloom");
    let mut strip = Command::new("strip");
    output_of(strip.arg("--strip-all").arg("-o").arg(&program).arg(built.join("ringloom")))
        .context("take the symbols out of the program")?;
    Ok(place)
}
