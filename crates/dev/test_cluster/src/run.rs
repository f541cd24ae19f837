//! Running other programs: what fails is said with the command and what it wrote.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, ensure};

/// The command line as a person would type it.
pub(crate) fn words(command: &Command) -> String {
    let all = [command.get_program()].into_iter().chain(command.get_args());
    all.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

/// What a program printed. It must succeed.
pub(crate) fn output_of(command: &mut Command) -> Result<String> {
    output_given(command, "")
}

/// What a program printed that reads this on its standard input. It must succeed.
pub(crate) fn output_given(command: &mut Command, input: &str) -> Result<String> {
    let words = words(command);
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = child.spawn().with_context(|| format!("start {words}"))?;
    let mut pipe = child.stdin.take().expect("it was asked for above");
    let text = input.to_owned();
    // On a thread of its own, since the program may print before it has read everything. One that ends without having
    // read is judged by its exit status.
    let writer = std::thread::spawn(move || pipe.write_all(text.as_bytes()));
    let output = child.wait_with_output().with_context(|| format!("wait for {words}"))?;
    let _broken_pipe = writer.join().expect("writing does not panic");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (said, wrong) = (text(&output.stdout), text(&output.stderr));
    ensure!(output.status.success(), "{words}: {}\n{said}{wrong}", output.status);
    Ok(said)
}

/// Runs a program with its output on the terminal. It must succeed.
pub(crate) fn must_succeed(command: &mut Command) -> Result<()> {
    let words = words(command);
    let status = command.status().with_context(|| format!("start {words}"))?;
    ensure!(status.success(), "{words}: {status}");
    Ok(())
}

/// Starts a program that stays, with its output in a file.
pub(crate) fn start(command: &mut Command, log: &Path) -> Result<Child> {
    let words = words(command);
    let file = File::create(log).with_context(|| format!("create {}", log.display()))?;
    let errors = file.try_clone().context("share a file")?;
    let command = command.stdin(Stdio::null()).stdout(file).stderr(errors);
    command.spawn().with_context(|| format!("start {words}"))
}

/// Makes a directory with its parents.
pub(crate) fn make_dir(path: &Path) -> Result<()> {
    fs::create_dir_all(path).with_context(|| format!("create {}", path.display()))
}

/// Writes a file.
pub(crate) fn write(path: &Path, content: impl AsRef<[u8]>) -> Result<()> {
    fs::write(path, content).with_context(|| format!("write {}", path.display()))
}

/// Reads a file of text.
pub(crate) fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("read {}", path.display()))
}

/// Removes a file or directory with all that is in it, if it is there.
pub(crate) fn remove(path: &Path) -> Result<()> {
    let result = match path.symlink_metadata() {
        Ok(facts) if facts.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(_) => return Ok(()),
    };
    result.with_context(|| format!("remove {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_gets_its_input_and_its_output_comes_back() {
        let long = "line\n".repeat(100_000);
        assert_eq!(output_given(&mut Command::new("cat"), &long).expect("cat works"), long);
        output_given(&mut Command::new("true"), &long).expect("it need not read");
    }

    #[test]
    fn a_failing_program_is_an_error_with_its_words() {
        let mut command = Command::new("sh");
        let error = output_of(command.args(["-c", "echo no disk >&2; exit 3"])).expect_err("fails");
        let text = format!("{error:#}");
        assert!(text.contains("exit status: 3") && text.contains("no disk"), "{text}");
    }
}
