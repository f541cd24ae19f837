//! The time in which a guest holds still: `--before` has begun it, and `--after` ends it, whatever happens to this process.
//!
//! Invariants: the command of `--after` is run once if that of `--before` was, by a process of its own that waits for the end of a
//! pipe: a process that is killed ends it as well. It hears neither Ctrl-C nor SIGTERM.

use std::io::{self, BufRead, BufReader};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, anyhow, ensure};

/// Runs one command, says how it ended, and runs the other one when its input ends. What they print goes to stderr.
const SCRIPT: &str = r#"trap '' HUP INT TERM PIPE
/bin/sh -c "$1" </dev/null >&2
echo "$?"
read -r _
exec /bin/sh -c "$2" </dev/null >&2"#;

/// A guest that holds still. When it is dropped the guest goes on.
#[derive(Debug)]
pub(crate) struct QuietGuest {
    child: Child,
    after: String,
    is_over: bool,
}

impl QuietGuest {
    /// Has it hold still, by commands of a shell.
    pub(crate) fn begin(before: Option<&str>, after: Option<&str>) -> Result<Self> {
        let (before, after) = (before.unwrap_or(":"), after.unwrap_or(":"));
        let stderr = io::stderr().as_fd().try_clone_to_owned().context("stderr")?;
        let mut command = Command::new("/bin/sh");
        command.args(["-c", SCRIPT, "ringloom", before, after]).process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(stderr);
        let child = command.spawn().context("--before: start /bin/sh")?;
        let mut guest = Self { child, after: after.to_owned(), is_over: false };
        let mut line = String::new();
        let stdout = guest.child.stdout.take().expect("it is a pipe");
        let read = BufReader::new(stdout).read_line(&mut line);
        read.context("--before: wait for its end")?;
        let status = line.trim();
        if status != "0" {
            let error = anyhow!("--before '{before}' has ended with status {status}");
            // Whether the guest held still is not known: it has to go on in any case.
            return Err(match guest.end() {
                Ok(()) => error,
                Err(also) => error.context(also),
            });
        }
        Ok(guest)
    }

    /// Has it go on; fails if its command does.
    pub(crate) fn end(mut self) -> Result<()> {
        self.go_on()
    }

    fn go_on(&mut self) -> Result<()> {
        self.is_over = true;
        drop(self.child.stdin.take());
        let after = &self.after;
        let status = self.child.wait().with_context(|| format!("--after '{after}'"))?;
        ensure!(
            status.success(),
            "--after '{after}' has failed ({status}): the guest may hold still"
        );
        Ok(())
    }
}

impl Drop for QuietGuest {
    fn drop(&mut self) {
        if !self.is_over {
            // Whoever drops it fails for another reason, which is said.
            drop(self.go_on());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is in a file after a guest held still, and whether that went well.
    fn told(before: &str, after: &str) -> (String, Result<()>) {
        let file =
            std::env::temp_dir().join(format!("quiet-{}-{}", std::process::id(), before.len()));
        let to = file.display();
        let begun =
            QuietGuest::begin(Some(&format!("{before} >{to}")), Some(&format!("{after} >>{to}")));
        let result = begun.and_then(|guest| {
            let told = std::fs::read_to_string(&file)?;
            ensure!(!told.contains("after"), "too early: {told}");
            guest.end()
        });
        let told = std::fs::read_to_string(&file).unwrap_or_default();
        drop(std::fs::remove_file(&file));
        (told, result)
    }

    #[test]
    fn a_guest_that_held_still_goes_on() {
        let (text, result) = told("echo before", "echo after");
        assert_eq!(text, "before\nafter\n");
        result.unwrap();
        let (text, result) = told("echo before; exit 3", "echo after");
        assert_eq!(text, "after\n", "the redirection is that of exit");
        assert!(result.unwrap_err().to_string().contains("status 3"));
        let (_, result) = told("echo  before", "false");
        assert!(result.unwrap_err().to_string().contains("may hold still"));
    }
}
