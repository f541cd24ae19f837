//! Running other programs: what fails is said with the command and what it wrote.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

/// The programs that images are built with, and the packages of Debian that have them.
pub const NEEDED: &[(&str, &str)] = &[("buildah", "buildah"), ("mmdebstrap", "mmdebstrap")];

/// The packages of those programs that are not there, of a list like [`NEEDED`].
fn missing_packages<'a>(needed: &[(&str, &'a str)]) -> Vec<&'a str> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = |name: &str| std::env::split_paths(&path).any(|it| it.join(name).exists());
    needed.iter().filter(|(name, _)| !is_there(name)).map(|(_, package)| *package).collect()
}

/// Whether those programs are all there, of a list like [`NEEDED`]; the error is the command that brings the others.
pub fn check_programs(needed: &[(&str, &str)]) -> Result<()> {
    let packages = missing_packages(needed);
    ensure!(packages.is_empty(), "first: apt-get install {}", packages.join(" "));
    Ok(())
}

/// What a program printed. It must succeed.
pub fn output_of(command: &mut Command) -> Result<String> {
    let words = words(command);
    let output = command.output().with_context(|| format!("start {words}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (said, wrong) = (text(&output.stdout), text(&output.stderr));
    ensure!(output.status.success(), "{words}: {}\n{said}{wrong}", output.status);
    Ok(said)
}

/// The command line as a person would type it.
fn words(command: &Command) -> String {
    let all = [command.get_program()].into_iter().chain(command.get_args());
    all.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

/// A path as a word of a command line that is text.
pub(crate) fn text(path: &Path) -> Result<&str> {
    path.to_str().with_context(|| format!("{}: its name is not text", path.display()))
}

/// Removes a file if it is there.
pub(crate) fn remove_file(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// Makes a directory with its parents.
pub(crate) fn make_dir(path: &Path) -> Result<()> {
    std::fs::create_dir_all(path).with_context(|| format!("create {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_program_is_an_error_with_its_words() {
        let mut command = Command::new("sh");
        let error = output_of(command.args(["-c", "echo no disk >&2; exit 3"])).expect_err("fails");
        let text = format!("{error:#}");
        assert!(text.contains("exit status: 3") && text.contains("no disk"), "{text}");
    }

    #[test]
    fn what_is_missing_is_told_by_its_package() {
        let needed = [("sh", "dash"), ("no-such-program", "it")];
        assert_eq!(missing_packages(&needed), ["it"]);
    }
}
