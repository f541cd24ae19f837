//! Programs of this machine: where they are, what they print, which libraries they need.

use std::io::{Read as _, Seek as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::clock::wait_for;

/// How long a program may take to say something about itself.
const ANSWER_LIMIT: Duration = Duration::from_secs(20);

/// Where a program is: in `PATH`, then where root finds its own.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|directory| directory.join(name))
        .find(|candidate| candidate.is_file())
}

/// What a program prints when it is started with these arguments; it must end well, and soon.
pub(crate) fn output_of(program: &Path, arguments: &[&str]) -> Result<String> {
    let (status, text) = ending_of(program, arguments)?;
    ensure!(status.success(), "{} {}: {status}", program.display(), arguments.join(" "));
    Ok(text)
}

/// How a program ends, and what it prints, when it is started with these arguments; it must end soon.
pub(crate) fn ending_of(program: &Path, arguments: &[&str]) -> Result<(ExitStatus, String)> {
    run(program, arguments, Heard::Output)
}

/// What it says on standard error.
pub(crate) fn complaint_of(program: &Path, arguments: &[&str]) -> Result<String> {
    Ok(run(program, arguments, Heard::Complaints)?.1)
}

/// Which of a program's outputs is listened to.
#[derive(Clone, Copy)]
enum Heard {
    Output,
    Complaints,
}

fn run(program: &Path, arguments: &[&str], heard: Heard) -> Result<(ExitStatus, String)> {
    let name = || format!("{} {}", program.display(), arguments.join(" "));
    let mut output = tempfile::tempfile().context("make a file for what a program prints")?;
    let file = Stdio::from(output.try_clone().context("share a file")?);
    let (stdout, stderr) = match heard {
        Heard::Output => (file, Stdio::null()),
        Heard::Complaints => (Stdio::null(), file),
    };
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(stdout)
        .stderr(stderr)
        .spawn()
        .with_context(|| format!("start {}", name()))?;
    let ended = wait_for(&name(), ANSWER_LIMIT, &mut || Ok(()), || Ok(child.try_wait()?));
    if ended.is_err() {
        // It may have ended by itself just now, which is as good.
        let _already_ended = child.kill();
        let _already_reaped = child.wait();
    }
    let status = ended?;
    output.rewind().context("rewind a file")?;
    let mut bytes = Vec::new();
    output.read_to_end(&mut bytes).with_context(|| format!("read the output of {}", name()))?;
    Ok((status, String::from_utf8_lossy(&bytes).into_owned()))
}

/// All shared libraries of a program with its interpreter, at the paths where it looks for them. An error
/// for a program that is linked statically.
pub fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let ldd =
        find_program("ldd").context("ldd is not installed: it finds a program's libraries")?;
    let text = output_of(&ldd, &[program.to_str().context("a program's path is text")?])?;
    Ok(libraries_in(&text))
}

fn libraries_in(text: &str) -> Vec<PathBuf> {
    text.lines()
        .filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')))
        .map(PathBuf::from)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_the_paths_that_ldd_prints() {
        let text = "\tlinux-vdso.so.1 (0x7f)\n\tlibc.so.6 => /lib/libc.so.6 (0x7f)\n\t/lib64/ld.so (0x7f)\n";
        assert_eq!(libraries_in(text), [Path::new("/lib/libc.so.6"), Path::new("/lib64/ld.so")]);
    }

    #[test]
    fn a_program_that_fails_is_an_error_with_its_name() {
        let error = output_of(Path::new("/bin/false"), &["x"]).expect_err("it fails");
        assert!(error.to_string().starts_with("/bin/false x: exit status: 1"), "{error}");
    }

    #[test]
    fn a_program_is_looked_for_where_shells_look() {
        assert!(find_program("sh").is_some());
        assert_eq!(find_program("no-such-program-at-all"), None);
    }
}
