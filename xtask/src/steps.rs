//! Running the steps of a command: each prints its name, what it runs and how long it took.
//!
//! Invariants: a step that fails ends the command; nothing runs after it.
//! Not here: what the steps are (`check`, `test`).

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

/// The checkout this program works on, and the cargo that started it.
#[derive(Debug)]
pub(crate) struct Workspace {
    pub(crate) root: PathBuf,
    pub(crate) cargo: OsString,
}

impl Workspace {
    /// Finds the workspace from what `cargo run` says, or from where this program was built.
    pub(crate) fn find() -> Result<Self> {
        let manifest_dir = std::env::var_os("CARGO_MANIFEST_DIR")
            .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
        let root = manifest_dir
            .parent()
            .with_context(|| format!("{}: has no parent directory", manifest_dir.display()))?;
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        Ok(Self { root: root.to_path_buf(), cargo })
    }

    /// A cargo command in the root of the workspace.
    pub(crate) fn cargo(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.cargo);
        command.args(arguments).current_dir(&self.root);
        command
    }

    /// Where this project keeps what it downloads and builds for guests: the tests look here,
    /// whatever `CARGO_TARGET_DIR` says.
    pub(crate) fn guest_dir(&self) -> PathBuf {
        self.root.join("target/guest")
    }

    /// Where it keeps schemas to check files with; the tests look here too.
    pub(crate) fn schema_dir(&self) -> PathBuf {
        self.root.join("target/schemas")
    }

    /// Where it keeps what Python programs import; the tests look here too.
    pub(crate) fn python_dir(&self) -> PathBuf {
        self.root.join("target/python")
    }

    /// Cargo's target directory, as an override in the environment sets it.
    pub(crate) fn target_dir(&self) -> PathBuf {
        std::env::var_os("CARGO_TARGET_DIR")
            .map_or_else(|| self.root.join("target"), |it| self.root.join(it))
    }

    /// Where cargo puts programs that are built with optimisation.
    pub(crate) fn release_dir(&self) -> PathBuf {
        self.target_dir().join("release")
    }
}

/// Runs one named step.
pub(crate) fn step(name: &str, what: &str, work: impl FnOnce() -> Result<()>) -> Result<()> {
    println!("== {name}: {what}");
    let start = now();
    let result = work();
    let took = seconds(now().duration_since(start));
    match result {
        Ok(()) => {
            println!("   {name}: ok in {took}");
            Ok(())
        }
        Err(error) => {
            println!("   {name}: FAILED after {took}");
            Err(error.context(format!("step {name}")))
        }
    }
}

/// Runs a cargo command as a step, with its output on the terminal.
pub(crate) fn cargo_step(
    workspace: &Workspace,
    name: &str,
    arguments: &[&str],
    environment: &[(&str, &str)],
) -> Result<()> {
    let mut what = String::new();
    for (key, value) in environment {
        what.push_str(&format!("{key}='{value}' "));
    }
    what.push_str(&format!("cargo {}", arguments.join(" ")));
    step(name, &what, || {
        let mut command = workspace.cargo(arguments);
        command.envs(environment.iter().copied());
        must_succeed(&mut command)
    })
}

/// Builds these packages with optimisation and runs a program of theirs, with its output on the terminal, these
/// arguments, and a default for each of these options that they do not name.
pub(crate) fn run_program(
    workspace: &Workspace,
    packages: &[&str],
    program: &str,
    defaults: &[(&str, PathBuf)],
    arguments: &[String],
) -> Result<()> {
    let mut build = vec!["build", "--release"];
    build.extend(packages.iter().flat_map(|&package| ["-p", package]));
    cargo_step(workspace, "build", &build, &[])?;
    let mut command = Command::new(workspace.release_dir().join(program));
    command.current_dir(&workspace.root);
    let is_named = |option| arguments.iter().any(|it| it.split('=').next() == Some(option));
    for (option, value) in defaults.iter().filter(|(option, _)| !is_named(*option)) {
        command.arg(option).arg(value);
    }
    must_succeed(command.args(arguments))
}

/// Runs a command with its output on the terminal; any exit but 0 is an error.
pub(crate) fn must_succeed(command: &mut Command) -> Result<()> {
    let program = describe(command);
    let status = command.status().with_context(|| format!("cannot start `{program}`"))?;
    if !status.success() {
        bail!("`{program}`: {status}");
    }
    Ok(())
}

/// Runs a command and hands back what it printed; any exit but 0 is an error.
pub(crate) fn output_of(command: &mut Command) -> Result<String> {
    let program = describe(command);
    let output = command.output().with_context(|| format!("cannot start `{program}`"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("`{program}`: {}: {}", output.status, said.trim());
    }
    String::from_utf8(output.stdout).with_context(|| format!("`{program}`: output is not UTF-8"))
}

/// The command line as a person would type it, without its environment.
pub(crate) fn describe(command: &Command) -> String {
    let mut words =
        vec![Path::new(command.get_program()).file_name().map_or_else(
            || command.get_program().to_string_lossy(),
            |name| name.to_string_lossy(),
        )];
    words.extend(command.get_args().map(|it| it.to_string_lossy()));
    words.join(" ")
}

/// The one place where this program reads the clock.
#[expect(clippy::disallowed_methods, reason = "steps are timed for the person who waits for them")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_described_as_typed() {
        let mut command = Command::new("/usr/bin/cargo");
        command.args(["fmt", "--check"]);
        assert_eq!(describe(&command), "cargo fmt --check");
    }

    #[test]
    fn a_failing_command_is_an_error_with_its_words() {
        let error = output_of(Command::new("sh").args(["-c", "echo no such disk >&2; exit 3"]))
            .expect_err("the command exits with 3");
        let text = format!("{error:#}");
        assert!(text.contains("exit status: 3") && text.contains("no such disk"), "{text}");
    }

    #[test]
    fn a_failed_step_carries_its_name() {
        let error = step("fmt", "nothing", || bail!("not formatted")).expect_err("it failed");
        assert_eq!(format!("{error:#}"), "step fmt: not formatted");
    }
}
