//! `ringloom ctl`: each word, good and bad, with ringloom and with qemu-storage-daemon.

mod backup;
mod destinations;
mod failures;
mod jobs;
mod moved;
mod peer;
mod words;

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use testkit::process::Bench;

/// `ringloom ctl`, in the directory of a bench, as a user who has set nothing.
fn command(bench: &Bench, socket: &Path, line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringloom"));
    command.arg("ctl").arg("-s").arg(socket).args(line.split_whitespace());
    command.current_dir(bench.path("")).env_remove("RINGLOOM_MONITOR");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// What a word printed, and how it ended.
fn run(mut command: Command) -> Result<(Option<i32>, String, String)> {
    let Output { status, stdout, stderr } = command.output().context("run ringloom ctl")?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok((status.code(), text(&stdout), text(&stderr)))
}

/// A word that must be carried out; gives what it printed.
fn said(bench: &Bench, socket: &Path, line: &str) -> Result<String> {
    let (code, stdout, stderr) = run(command(bench, socket, line))?;
    ensure!(code == Some(0) && stderr.is_empty(), "{line}: {code:?}: {stdout}{stderr}");
    Ok(stdout)
}

/// The same as JSON.
fn json(bench: &Bench, socket: &Path, line: &str) -> Result<Value> {
    let text = said(bench, socket, &format!("{line} --json"))?;
    serde_json::from_str(&text).with_context(|| text.clone())
}

/// A word that must print exactly this.
fn check(bench: &Bench, socket: &Path, line: &str, expected: &str) -> Result<()> {
    let text = said(bench, socket, line)?;
    ensure!(text == expected, "{line}:\n{text}instead of\n{expected}");
    Ok(())
}

/// A word that must fail with this status and these words in its sentence.
fn check_refused(
    bench: &Bench,
    socket: &Path,
    line: &str,
    code: i32,
    expected: &str,
) -> Result<()> {
    let (found, stdout, stderr) = run(command(bench, socket, line))?;
    let is_right = found == Some(code) && stdout.is_empty() && stderr.contains(expected);
    ensure!(is_right, "{line}: {found:?}: {stdout}{stderr}");
    Ok(())
}

/// The greeting of a monitor that is none.
fn greet(stream: &mut impl Write) -> Result<()> {
    let greeting = r#"{"QMP": {"version": {"qemu": {}}, "capabilities": []}} {"return": {}}"#;
    stream.write_all(greeting.as_bytes()).context("greet")
}
