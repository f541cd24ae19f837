//! What is handed out, tried with the programs that read it: man, mandoc, bash, dpkg-deb; the runbook, carried out.

mod completions;
mod manual;
mod operations;
mod package;

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

/// The program that cargo has built beside these tests.
fn binary() -> Result<PathBuf> {
    let own = std::env::current_exe().context("find this program")?;
    let binary = own.ancestors().nth(2).context("tests lie in deps")?.join("ringloom");
    ensure!(binary.exists(), "{}: build the workspace first", binary.display());
    Ok(binary)
}

/// Whether a program is there.
fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).exists())
}
