//! Runs test commands: every line of their output goes to a log and to the caller, as it comes.
//!
//! Threads: one reads the command's output, so that this one can notice that the command has
//! ended while a process that a test left behind still holds the pipe. At most `LINES_AHEAD` lines
//! wait between them.
//! Not here: what a line means (`test::tally`).

use std::fs::File;
use std::io::{BufRead as _, BufReader, BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::steps;

/// How long the pipe may stay open after the command has ended, before a process that a test
/// forgot to stop is blamed. A daemon that was asked to stop drains within this time.
const LEFTOVER_GRACE: Duration = Duration::from_secs(10);

/// How often the end of the command is looked for while it prints nothing.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// How long a command may print nothing. The longest test takes a few minutes; what is silent for longer waits for ever, and would
/// keep everybody from hearing which test it is.
const SILENCE_MAX: Duration = Duration::from_secs(900);

/// How many lines may wait to be logged; a command that prints faster is slowed down.
const LINES_AHEAD: usize = 1024;

/// The file that has all output of one step, which may be that of several commands.
pub(crate) struct Log {
    path: PathBuf,
    file: BufWriter<File>,
    silence_max: Duration,
}

impl Log {
    pub(crate) fn create(path: &Path) -> Result<Self> {
        let file = File::create(path).with_context(|| format!("{}", path.display()))?;
        Ok(Self { path: path.to_owned(), file: BufWriter::new(file), silence_max: SILENCE_MAX })
    }

    /// Adds a line, which the caller hears as if a command had printed it.
    pub(crate) fn write(&mut self, line: &str, take_line: &mut impl FnMut(&str)) -> Result<()> {
        writeln!(self.file, "{line}").with_context(|| format!("{}", self.path.display()))?;
        take_line(line);
        Ok(())
    }

    /// Runs the command and hands on its output, both streams in order, line by line.
    pub(crate) fn run(
        &mut self,
        command: &mut Command,
        take_line: &mut impl FnMut(&str),
    ) -> Result<()> {
        let (reader, writer) = std::io::pipe().context("cannot make a pipe")?;
        let errors = writer.try_clone().context("cannot copy the pipe")?;
        command.stdin(Stdio::null()).stdout(writer).stderr(errors);
        let mut child = command.spawn().context("cannot start the tests")?;
        // The command owns the write ends; the reader sees the end of the pipe only without them.
        command.stdout(Stdio::null()).stderr(Stdio::null());

        let lines = read_lines(reader);
        let (mut ended, mut heard, mut last) = (None, steps::now(), String::new());
        let mut is_stuck = false;
        let leftover = loop {
            match lines.recv_timeout(LOOK_EVERY) {
                Ok(line) => {
                    self.write(&line, take_line)?;
                    (heard, last) = (steps::now(), line);
                }
                Err(RecvTimeoutError::Disconnected) => break false,
                // Whoever looks into the log meanwhile wants to see where the tests are.
                Err(RecvTimeoutError::Timeout) => self.flush()?,
            }
            if !is_stuck && steps::now().duration_since(heard) > self.silence_max {
                is_stuck = true;
                child.kill().context("cannot end the tests")?;
            }
            if ended.is_none() && child.try_wait().context("cannot wait for the tests")?.is_some() {
                ended = Some(steps::now());
            }
            if ended.is_some_and(|at| steps::now().duration_since(at) > LEFTOVER_GRACE) {
                break true;
            }
        };
        self.flush()?;
        let status = child.wait().context("cannot wait for the tests")?;
        if is_stuck {
            let (limit, log) = (self.silence_max, self.path.display());
            bail!(
                "silent for {limit:?} after the line `{last}`, and killed; all output is in {log}"
            );
        }
        if !status.success() {
            bail!("{status}; all output is in {}", self.path.display());
        }
        if leftover {
            bail!("a process that a test started is still running and holds the output");
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.file.flush().with_context(|| format!("{}", self.path.display()))
    }
}

/// Reads lines on a thread of their own; the channel closes at the end of the output.
fn read_lines(reader: std::io::PipeReader) -> Receiver<String> {
    let (sender, receiver) = sync_channel(LINES_AHEAD);
    std::thread::spawn(move || {
        let mut reader = BufReader::new(reader);
        let mut bytes = Vec::new();
        // An error of the pipe ends the reading as its end does; the exit status is the verdict.
        while reader.read_until(b'\n', &mut bytes).is_ok_and(|count| count > 0) {
            let line = String::from_utf8_lossy(&bytes).trim_end().to_owned();
            bytes.clear();
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_shell(script: &str, name: &str) -> (Result<()>, Vec<String>, String) {
        run_limited(script, name, SILENCE_MAX)
    }

    fn run_limited(
        script: &str,
        name: &str,
        silence_max: Duration,
    ) -> (Result<()>, Vec<String>, String) {
        let log = std::env::temp_dir().join(format!("xtask-{}-{name}.log", std::process::id()));
        let mut lines = Vec::new();
        let mut command = Command::new("sh");
        let result = Log::create(&log).and_then(|mut log| {
            log.silence_max = silence_max;
            log.run(command.args(["-c", script]), &mut |line: &str| lines.push(line.to_owned()))
        });
        let text = std::fs::read_to_string(&log).expect("the log was written");
        std::fs::remove_file(&log).expect("the log can be removed");
        (result, lines, text)
    }

    #[test]
    fn both_streams_reach_log_and_caller_in_order() {
        let (result, lines, log) =
            run_shell("echo one; echo two >&2; printf '\\377three'", "order");
        result.expect("the script exits with 0");
        assert_eq!(lines, ["one", "two", "\u{fffd}three"]);
        assert_eq!(log, "one\ntwo\n\u{fffd}three\n");
    }

    #[test]
    fn a_command_that_waits_for_ever_is_ended_and_its_last_line_told() {
        let limit = Duration::from_millis(300);
        let (result, lines, _) = run_limited("echo a test; exec sleep 600", "silent", limit);
        let text = format!("{:#}", result.expect_err("it never ends by itself"));
        assert!(text.contains("after the line `a test`") && text.contains("silent.log"), "{text}");
        assert_eq!(lines, ["a test"]);
    }

    #[test]
    fn a_failing_command_is_an_error_that_names_the_log() {
        let (result, _, _) = run_shell("exit 101", "fail");
        let text = format!("{:#}", result.expect_err("the script exits with 101"));
        assert!(text.contains("101") && text.contains("fail.log"), "{text}");
    }
}
