//! The test programs: built once, and started here. `cargo test` of some of the packages would build what stands on their
//! dependencies again, whenever the others ask for a feature more of a crate that both use.
//!
//! Invariants: each program runs in the directory of its package, as cargo runs it; all run, whatever fails.
//! Not here: which are selected (`test`), what their output means (`test::tally`), how often a test is run that failed
//! (`test::alone`).

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::steps::{Workspace, output_of, step};
use crate::test::watch::Log;

/// What everything is built with: the binary kills itself where a test asks for it, and is the same where none does.
pub(crate) const FEATURES: [&str; 2] = ["--features", "ringloom/fault-points"];

/// A program with the tests of a library, of a binary or of `tests/`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TestProgram {
    /// The package, which is called as its directory.
    pub(crate) package: String,
    pub(super) directory: PathBuf,
    pub(super) path: PathBuf,
}

impl TestProgram {
    /// Whether the documentation of its package has examples. To have rustdoc look takes a second for each crate.
    pub(crate) fn has_examples(&self) -> Result<bool> {
        let mut left = vec![self.directory.join("src")];
        while let Some(directory) = left.pop() {
            let shown = || format!("{}", directory.display());
            for entry in fs::read_dir(&directory).with_context(shown)? {
                let path = entry.with_context(shown)?.path();
                if path.is_dir() {
                    left.push(path);
                } else if path.extension().is_some_and(|it| it == "rs") {
                    let text = fs::read_to_string(&path).with_context(shown)?;
                    let is_example = |line: &str| {
                        ["/// ```", "//! ```"].iter().any(|it| line.trim_start().starts_with(it))
                    };
                    if text.lines().any(is_example) {
                        return Ok(true);
                    }
                }
            }
        }
        Ok(false)
    }
}

/// Builds all binaries and tests of the workspace in one step, since whoever links last would leave processors idle in each.
pub(crate) fn build(workspace: &Workspace) -> Result<Vec<TestProgram>> {
    let what = ["build", "--quiet", "--workspace", "--bins", "--tests"];
    let words = [&what[..], &FEATURES].concat();
    let mut programs = Vec::new();
    step("binaries and tests", &format!("cargo {}", words.join(" ")), || {
        let mut cargo = workspace.cargo(&words);
        programs = parse(&output_of(cargo.arg("--message-format=json-render-diagnostics"))?)?;
        ensure!(!programs.is_empty(), "cargo has built no test");
        Ok(())
    })?;
    Ok(programs)
}

/// What cargo says that it has built, in the order of packages.
fn parse(said: &str) -> Result<Vec<TestProgram>> {
    let mut programs = Vec::new();
    for line in said.lines().filter(|line| line.starts_with('{')) {
        let message: Value = serde_json::from_str(line).context("what cargo says")?;
        let text = |value: &Value| value.as_str().map(PathBuf::from);
        if message["profile"]["test"] != true {
            continue;
        }
        let (manifest, path) = (text(&message["manifest_path"]), text(&message["executable"]));
        let (Some(manifest), Some(path)) = (manifest, path) else { continue };
        let directory = manifest.parent().context("a manifest is in a directory")?.to_owned();
        let package = directory.file_name().context("a package has a name")?;
        let package = package.to_string_lossy().into_owned();
        programs.push(TestProgram { package, directory, path });
    }
    programs.sort_by(|a, b| (&a.package, &a.path).cmp(&(&b.package, &b.path)));
    Ok(programs)
}

/// A test that has failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FailedTest {
    pub(crate) program: TestProgram,
    /// As libtest prints it.
    pub(crate) name: String,
}

/// Runs these one after the other with these words, each with a pipe of its own: what one of them does to its output, such as
/// making it non-blocking, ends with it. Returns the tests that failed; a program that fails without one is an error.
pub(crate) fn run(
    workspace: &Workspace,
    programs: &[&TestProgram],
    words: &[String],
    log: &mut Log,
    mut take_line: impl FnMut(&str),
) -> Result<Vec<FailedTest>> {
    let (mut failed, mut broken) = (Vec::new(), Vec::new());
    for &program in programs {
        let TestProgram { package, directory, path } = program;
        log.write(&format!("     Running {package} {}", path.display()), &mut take_line)?;
        let mut command = Command::new(path);
        command.args(words).current_dir(directory);
        command.env("CARGO", &workspace.cargo).env("CARGO_MANIFEST_DIR", directory);
        let mut found = FailedNames::default();
        let result = log.run(&mut command, &mut |line: &str| {
            found.feed(line);
            take_line(line);
        });
        if let Err(error) = result {
            if found.names.is_empty() {
                broken.push(format!("{package}: {error:#}"));
            }
            let test = |name| FailedTest { program: program.clone(), name };
            failed.extend(found.names.into_iter().map(test));
        }
    }
    ensure!(broken.is_empty(), "tests failed: {}", broken.join("; "));
    Ok(failed)
}

/// The names at the end of what a test program prints. Before them, under the same heading, is what those tests printed.
#[derive(Debug, Default)]
struct FailedNames {
    are_next: bool,
    names: Vec<String>,
}

impl FailedNames {
    fn feed(&mut self, line: &str) {
        match line.trim_end() {
            "failures:" => *self = Self { are_next: true, names: Vec::new() },
            "successes:" => *self = Self::default(),
            line => {
                if let Some(name) = line.strip_prefix("    ")
                    && self.are_next
                    && !name.contains(char::is_whitespace)
                {
                    self.names.push(name.to_owned());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn tests_are_found_among_what_cargo_has_built() {
        let message = |is_test: bool, name: &str, executable: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/w/crates/{name}/Cargo.toml","profile":{{"test":{is_test}}},"executable":{executable}}}"#
            )
        };
        let said = [
            message(true, "ringloom", "\"/t/it-1\""),
            message(false, "ringloom", "\"/t/ringloom\""),
            message(true, "block", "\"/t/block-1\""),
            message(true, "block", "null"),
            r#"{"reason":"build-finished","success":true}"#.to_owned(),
        ];
        let program = |package: &str, path: &str| TestProgram {
            package: package.to_owned(),
            directory: Path::new("/w/crates").join(package),
            path: path.into(),
        };
        let expected = [program("block", "/t/block-1"), program("ringloom", "/t/it-1")];
        assert_eq!(parse(&said.join("\n")).expect("it is right"), expected);
    }

    #[test]
    fn examples_are_seen() {
        let place = std::env::temp_dir().join(format!("xtask-examples-{}", std::process::id()));
        fs::create_dir_all(place.join("src/a")).expect("a directory");
        let program =
            TestProgram { package: "a".to_owned(), directory: place.clone(), path: PathBuf::new() };
        let file = place.join("src/a/b.rs");
        fs::write(&file, "/// A `word`.\nfn f() {}\n").expect("a file");
        assert!(!program.has_examples().expect("it is read"));
        fs::write(&file, "    /// ```compile_fail\n    /// ```\n").expect("a file");
        assert!(program.has_examples().expect("it is read"));
        fs::remove_dir_all(place).expect("it is there");
    }

    #[test]
    fn the_names_of_failed_tests_are_at_the_end() {
        let mut found = FailedNames::default();
        for line in ["successes:", "    a::passes", "test result: ok. 1 passed"] {
            found.feed(line);
        }
        assert!(found.names.is_empty(), "{found:?}");
        let lines = [
            "failures:",
            "---- b::fails stdout ----",
            "    word",
            "failures:",
            "    b::fails",
            "    two words",
            "    c::fails",
            "",
            "test result: FAILED. 1 passed; 2 failed;",
        ];
        lines.iter().for_each(|line| found.feed(line));
        assert_eq!(found.names, ["b::fails", "c::fails"]);
    }

    #[test]
    fn all_are_run_and_the_failures_named() {
        let program = |package: &str, path: &str| TestProgram {
            package: package.to_owned(),
            directory: "/".into(),
            path: path.into(),
        };
        let all = [program("bad", "/bin/false"), program("good", "/bin/echo")];
        let workspace = Workspace { root: "/".into(), cargo: "cargo".into() };
        let path = std::env::temp_dir().join(format!("xtask-{}-all.log", std::process::id()));
        let run_all = |programs: &[&TestProgram]| {
            let (mut log, mut lines) = (Log::create(&path).expect("a log"), Vec::new());
            let take = |line: &str| lines.push(line.to_owned());
            let result = run(&workspace, programs, &["it's".to_owned()], &mut log, take);
            (result, lines)
        };
        let (result, lines) = run_all(&[&all[0], &all[1]]);
        let failure = format!("{:#}", result.expect_err("one of them fails"));
        assert!(failure.contains("tests failed: bad: exit status: 1"), "{failure}");
        let expected = ["     Running bad /bin/false", "     Running good /bin/echo", "it's"];
        assert_eq!(lines, expected);
        assert_eq!(run_all(&[&all[1]]).0.expect("it does not fail"), []);
        fs::remove_file(&path).expect("it is there");
    }

    #[test]
    fn an_output_made_non_blocking_is_so_for_one_program_only() {
        let place = std::env::temp_dir().join(format!("xtask-nonblock-{}", std::process::id()));
        fs::create_dir_all(&place).expect("a directory");
        let program = |name: &str, script: &str| {
            let path = place.join(name);
            fs::write(&path, format!("#!/usr/bin/python3\n{script}\n")).expect("a file");
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            fs::set_permissions(&path, mode).expect("it is ours");
            TestProgram { package: name.to_owned(), directory: "/".into(), path }
        };
        let first = program("first", "import os; os.set_blocking(1, False)");
        let second = program("second", "for n in range(200000): print(n)");
        let workspace = Workspace { root: "/".into(), cargo: "cargo".into() };
        let (mut log, mut last) = (Log::create(&place.join("log")).expect("a log"), String::new());
        let take = |line: &str| line.clone_into(&mut last);
        run(&workspace, &[&first, &second], &[], &mut log, take).expect("both pass");
        assert_eq!(last, "199999");
        fs::remove_dir_all(place).expect("it is there");
    }
}
