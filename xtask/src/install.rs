//! Installs what the tests need beyond rustc, cc and git, and says what and why.
//!
//! Deciding is apart from doing: `needs` says what is missing, `apt` turns that into commands,
//! `kernel` fetches the guests' kernel. If nothing is missing this is a look at a few files.
//!
//! Invariants: installs only what is missing, only as root, and only from the mirrors this machine
//! already uses (`sources`). The guests' kernel is unpacked below `target/guest`, never installed:
//! the package would run the hooks that change this machine's boot files. KubeVirt's schema and QEMU's client of QMP are only
//! unpacked too (`schema`, `qmp`).

mod apt;
mod kernel;
mod needs;
pub(crate) mod null;
mod qmp;
mod schema;
mod sources;

use std::path::Path;

use anyhow::{Context as _, Result};

use crate::install::needs::Need;
use crate::steps::{Workspace, step};

/// Who runs this: decides what may be installed and how strict skips are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum User {
    Root,
    Other,
}

impl User {
    fn current() -> Result<Self> {
        use std::os::unix::fs::MetadataExt as _;
        let own = std::fs::metadata("/proc/self").context("cannot read /proc/self")?;
        Ok(if own.uid() == 0 { Self::Root } else { Self::Other })
    }
}

/// Installs what is missing, or without root tells it and lets the tests skip.
pub(crate) fn run(workspace: &Workspace) -> Result<User> {
    let user = User::current()?;
    null::repair(user)?;
    let missing = needs::missing();
    let guest_dir = workspace.guest_dir();
    let has_kernel = kernel::is_present(&guest_dir.join("kernel"));
    if missing.is_empty() && has_kernel {
        println!("== install: everything the tests need is here");
    } else {
        match user {
            User::Root => step("install", &plan(&missing, has_kernel), || {
                install(&missing, has_kernel, &guest_dir)
            })?,
            User::Other => tell(&missing, has_kernel, &guest_dir),
        }
    }
    let (schemas, python) = (workspace.schema_dir(), workspace.python_dir());
    if !schema::is_present(&schemas) {
        fetch("schema", schema::WHY, user, || schema::fetch(&schemas))?;
    }
    if !qmp::is_present(&python) {
        fetch("qemu.qmp", qmp::WHY, user, || qmp::fetch(&python))?;
    }
    Ok(user)
}

/// With the packages in place, for it comes by one of them.
fn fetch(what: &str, why: &str, user: User, fetch: impl FnOnce() -> Result<()>) -> Result<()> {
    match user {
        User::Root => step(what, why, fetch),
        User::Other => {
            if let Err(error) = fetch() {
                println!("   missing: {why} ({error:#})");
            }
            Ok(())
        }
    }
}

fn install(missing: &[&Need], has_kernel: bool, guest_dir: &Path) -> Result<()> {
    let release = apt::Release::of_this_machine()?;
    apt::prepare(&release)?;
    apt::install(missing, &release)?;
    let still: Vec<&str> = needs::missing().iter().map(|need| need.package).collect();
    anyhow::ensure!(
        still.is_empty(),
        "apt-get succeeded, but the commands of these packages are missing: {}",
        still.join(" "),
    );
    if !has_kernel {
        let place = kernel::fetch(guest_dir, &release)?;
        println!("   guest kernel: {}", place.display());
    }
    Ok(())
}

/// What will be installed and why, one line per package.
fn plan(missing: &[&Need], has_kernel: bool) -> String {
    let mut text = "what the tests need and this machine does not have".to_owned();
    for need in missing {
        text.push_str(&format!("\n   {} ({})", need.package, need.why));
    }
    if !has_kernel {
        text.push_str(&format!("\n   {} ({})", kernel::PACKAGE, kernel::WHY));
    }
    text
}

/// Without root: names what is missing and what cannot run, fetches the kernel if apt can.
fn tell(missing: &[&Need], has_kernel: bool, guest_dir: &Path) {
    println!("== install: this needs root; tests that miss something are skipped");
    for need in missing {
        println!("   missing: {} of package {}: {}", need.commands(), need.package, need.why);
    }
    if has_kernel {
        return;
    }
    // Downloading needs no root, only package lists that somebody with root has fetched.
    match apt::Release::of_this_machine().and_then(|it| kernel::fetch(guest_dir, &it)) {
        Ok(place) => println!("   guest kernel: {}", place.display()),
        Err(error) => {
            println!("   missing: {}: {} ({error:#})", kernel::PACKAGE, kernel::WHY);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plan_names_each_package_with_its_reason() {
        let text = plan(&[&needs::NEEDS[0]], false);
        assert!(text.contains(needs::NEEDS[0].why) && text.contains(kernel::PACKAGE), "{text}");
        assert!(!plan(&[&needs::NEEDS[0]], true).contains(kernel::PACKAGE));
    }
}
