//! QEMU's tools: they make images, change them, and say what they think of them.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, ensure};

/// Whether the tools are missing; says so once if they are.
pub(crate) fn is_missing() -> bool {
    let missing = ["qemu-img", "qemu-io"].into_iter().find(|tool| {
        let version = Command::new(tool).arg("--version").stdout(Stdio::null()).status();
        !version.is_ok_and(|status| status.success())
    });
    if let Some(tool) = missing {
        testkit::report::skipped(&format!("{tool} is not installed"));
    }
    missing.is_some()
}

/// Runs a tool in a directory.
pub(crate) fn run(directory: &Path, line: &[&str]) -> Result<Output> {
    let (tool, arguments) = line.split_first().context("a command line has a tool")?;
    let output = Command::new(tool).args(arguments).current_dir(directory).output();
    output.with_context(|| format!("run {}", line.join(" ")))
}

/// Runs a tool that must succeed; what it prints.
pub(crate) fn succeeds(directory: &Path, line: &[&str]) -> Result<String> {
    let output = run(directory, line)?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "{}: {said}", line.join(" "));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// What `qemu-img check` finds wrong, leaks included; empty if nothing.
pub(crate) fn wrong(directory: &Path, image: &str) -> Result<String> {
    let output = run(directory, &["qemu-img", "check", "-f", "qcow2", image])?;
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    Ok(if output.status.success() { String::new() } else { said })
}

/// For each image whether `qemu-io` opens it, for reading and without its backing file.
pub(crate) fn opens(directory: &Path, images: &[String]) -> Result<Vec<bool>> {
    let mut commands = String::new();
    for image in images {
        let file = format!(r#""file":{{"driver":"file","filename":"{image}"}}"#);
        let node = format!(r#"json:{{"driver":"qcow2","backing":null,{file}}}"#);
        writeln!(commands, "open -r {node}\nlength\nclose")?;
    }
    let (input, output) = (directory.join("opens.in"), directory.join("opens.out"));
    File::create(&input)?.write_all(commands.as_bytes())?;
    let printed = File::create(&output)?;
    let mut process = Command::new("qemu-io")
        .current_dir(directory)
        .stdin(File::open(&input)?)
        .stdout(printed.try_clone()?)
        .stderr(printed)
        .spawn()?;
    // It fails if any of the images is refused.
    process.wait()?;
    let said = std::fs::read_to_string(&output)?;
    let mut lines = said.lines().filter_map(|line| {
        let line = line.trim_start_matches("qemu-io> ");
        // A warning may stand before the size.
        let is_size = line.ends_with("iB") || line.ends_with(" bytes");
        let is_size = is_size && !line.contains("can't open");
        (is_size || line.starts_with("no file open")).then_some(is_size)
    });
    let mut verdicts = Vec::new();
    while let Some(is_open) = lines.next() {
        verdicts.push(is_open);
        if !is_open {
            // It is missed by `length` and by `close`.
            lines.next();
        }
    }
    ensure!(
        verdicts.len() == images.len(),
        "{} verdicts for {} images: {said}",
        verdicts.len(),
        images.len()
    );
    Ok(verdicts)
}
