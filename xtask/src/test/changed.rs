//! What a change can break: which crates' tests, and which modules of the tests of the binary.
//!
//! Where it stands: `cargo xtask test --changed` runs what comes out of here instead of everything.
//!
//! Invariants: pure but for asking git and cargo. A file that no rule knows stands for everything; a crate stands for all
//! crates that use it, in tests as well.
//! Not here: how tests are run (`test`).

use std::collections::BTreeSet;

use anyhow::{Context as _, Result};

use crate::steps::{Workspace, output_of};
use crate::tidy::metadata::{Member, Metadata};

/// The crate of the binary, whose tests take most of the time.
pub(crate) const BINARY: &str = "ringloom";

/// The modules of its tests that the tuner can break, and nothing that only the tuner uses can break others.
const OF_TUNER: &[&str] = &["emitted::", "page::", "report::", "tune::", "tune_in_guest::"];

/// Crates that nothing but the tuner uses in the binary.
const TUNER_ONLY: &[&str] =
    &["emit", "findings", "load", "model", "plan", "records", "report", "storage", "tuner"];

/// Documents are read by the tests of these crates.
const READERS_OF_DOCUMENTS: &[&str] = &["dist", "graph", "options", "sandbox", "tuner"];

/// What has to be tested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Selection {
    Everything,
    Some(Affected),
}

/// Some crates, and some of the binary's tests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Affected {
    /// All of their tests; the binary is not one of them.
    pub(crate) crates: BTreeSet<String>,
    pub(crate) binary: BinaryTests,
}

/// Which tests of the binary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum BinaryTests {
    All,
    /// Those whose names begin so.
    Modules(BTreeSet<String>),
}

impl Default for BinaryTests {
    fn default() -> Self {
        Self::Modules(BTreeSet::new())
    }
}

impl BinaryTests {
    fn add(&mut self, module: &str) {
        if let Self::Modules(modules) = self {
            modules.insert(module.to_owned());
        }
    }
}

impl Selection {
    /// Whether all tests of a crate are selected.
    pub(crate) fn has(&self, name: &str) -> bool {
        match self {
            Self::Everything => true,
            Self::Some(Affected { binary, .. }) if name == BINARY => *binary == BinaryTests::All,
            Self::Some(Affected { crates, .. }) => crates.contains(name),
        }
    }
}

/// What has to be tested since `base`, uncommitted changes and new files included.
pub(crate) fn since(workspace: &Workspace, base: Option<&str>) -> Result<Selection> {
    let git = |arguments: &[&str]| {
        let mut command = std::process::Command::new("git");
        output_of(command.args(arguments).current_dir(&workspace.root))
    };
    let fork = match base {
        Some(base) => git(&["merge-base", base, "HEAD"]).context("the base of --changed")?,
        None => git(&["merge-base", "main", "HEAD"])?,
    };
    let changed = git(&["diff", "--name-only", fork.trim()])?;
    let new = git(&["ls-files", "--others", "--exclude-standard"])?;
    let paths: Vec<&str> = changed.lines().chain(new.lines()).collect();
    Ok(select(&paths, &Metadata::of(workspace)?.members))
}

fn select(paths: &[&str], members: &[Member]) -> Selection {
    let (mut changed, mut readers) = (BTreeSet::new(), BTreeSet::new());
    let mut affected = Affected::default();
    for path in paths {
        let owner = members.iter().find_map(|member| {
            let rest = path.strip_prefix(member.directory.as_str())?.strip_prefix('/')?;
            Some((member.name.as_str(), rest))
        });
        match owner {
            Some((BINARY, rest)) => match module_of_test(rest) {
                Some(module) => affected.binary.add(&module),
                None => affected.binary = BinaryTests::All,
            },
            Some((name, _)) => {
                changed.insert(name);
            }
            None if is_page(path) => readers.extend(READERS_OF_DOCUMENTS),
            // `tidy` reads all of them, always.
            None if path.starts_with("docs/decisions/") || path.starts_with("LICENSE") => {}
            None if path.ends_with(".md") && !path.contains('/') => {}
            None => return Selection::Everything,
        }
    }
    affected.crates = users_of(&changed, members);
    if affected.crates.remove(BINARY) {
        if changed.iter().all(|name| TUNER_ONLY.contains(name)) {
            OF_TUNER.iter().for_each(|module| affected.binary.add(module));
        } else {
            affected.binary = BinaryTests::All;
        }
    }
    affected.crates.extend(readers.into_iter().map(str::to_owned));
    Selection::Some(affected)
}

/// Whether it is a page of the documentation; the examples below them are read by more tests.
fn is_page(path: &str) -> bool {
    path.strip_prefix("docs/").is_some_and(|name| name.ends_with(".md") && !name.contains('/'))
}

/// These crates and all that use them.
fn users_of(changed: &BTreeSet<&str>, members: &[Member]) -> BTreeSet<String> {
    let mut found: BTreeSet<String> = changed.iter().map(|&name| name.to_owned()).collect();
    loop {
        let users = members.iter().filter(|member| {
            member.dependencies.iter().any(|dependency| found.contains(&dependency.name))
        });
        let before = found.len();
        found = found.iter().cloned().chain(users.map(|user| user.name.clone())).collect();
        if found.len() == before {
            return found;
        }
    }
}

/// The module of the binary's tests that a file belongs to and nobody else uses.
fn module_of_test(path: &str) -> Option<String> {
    let name = path.strip_prefix("tests/it/")?.split(['/', '.']).next()?;
    // Others take helpers from these.
    let is_shared = ["main", "support", "crash", "guest", "paused_qemu"].contains(&name);
    (!is_shared).then(|| format!("{name}::"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::metadata::{Dependency, Kind};

    fn members() -> Vec<Member> {
        let member = |directory: &str, uses: &[&str]| {
            let dependency =
                |name: &&str| Dependency { name: (*name).to_owned(), kind: Kind::Normal };
            let name = directory.rsplit('/').next().expect("a name").to_owned();
            let dependencies = uses.iter().map(dependency).collect();
            Member { name, directory: directory.to_owned(), dependencies }
        };
        vec![
            member("crates/path/block", &[]),
            member("crates/nodes/disk", &["block"]),
            member("crates/daemon/daemon", &["disk"]),
            member("crates/tune/tuner", &[]),
            member("crates/ringloom", &["daemon", "tuner"]),
            member("crates/dev/bench", &["disk"]),
            member("xtask", &[]),
        ]
    }

    #[track_caller]
    fn check(paths: &[&str], crates: &[&str], binary: Option<&[&str]>) {
        let names = |all: &[&str]| all.iter().map(|&name| name.to_owned()).collect();
        let binary =
            binary.map_or(BinaryTests::All, |modules| BinaryTests::Modules(names(modules)));
        let expected = Selection::Some(Affected { crates: names(crates), binary });
        assert_eq!(select(paths, &members()), expected, "{paths:?}");
    }

    #[test]
    fn a_crate_stands_for_all_that_use_it() {
        check(&["crates/path/block/src/lib.rs"], &["bench", "block", "daemon", "disk"], None);
        check(&["crates/daemon/daemon/src/a/b.rs"], &["daemon"], None);
        check(&["crates/dev/bench/src/main.rs"], &["bench"], Some(&[]));
        check(&["xtask/src/main.rs"], &["xtask"], Some(&[]));
    }

    #[test]
    fn the_tuner_and_single_tests_of_the_binary_stand_for_their_modules() {
        check(&["crates/tune/tuner/src/lib.rs"], &["tuner"], Some(OF_TUNER));
        check(&["crates/ringloom/tests/it/hostile/a.rs"], &[], Some(&["hostile::"]));
        check(&["crates/ringloom/tests/it/delay.rs"], &[], Some(&["delay::"]));
        check(&["crates/ringloom/tests/it/guest.rs"], &[], None);
        check(&["crates/ringloom/src/main.rs"], &[], None);
        check(
            &["crates/ringloom/tests/it/delay.rs", "crates/nodes/disk/src/lib.rs"],
            &["bench", "daemon", "disk"],
            None,
        );
    }

    #[test]
    fn what_no_rule_knows_stands_for_everything() {
        for path in ["Cargo.lock", "rust-toolchain.toml", ".ci/run", "docs/examples/a/b.md"] {
            assert_eq!(select(&["README.md", path], &members()), Selection::Everything, "{path}");
        }
        check(&["README.md", "CHANGELOG.md"], &[], Some(&[]));
        check(&["docs/options.md"], READERS_OF_DOCUMENTS, Some(&[]));
    }
}
