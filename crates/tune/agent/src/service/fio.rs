//! One fio: started at a time, its output handed on as it comes, ended when somebody wants it.
//!
//! Invariants: fio runs in a directory of its own with the job in it, and is gone, with the directory, when `run` returns. It has no
//! standard input.
//! Limits: it starts at most `AHEAD_MAX` from now; on SIGTERM it has `PATIENCE`. Of standard error `STDERR_BYTES_MAX` are kept.

use std::io::{ErrorKind, Read};
use std::process::{ChildStderr, ChildStdout, Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use load::child::{Request, Supervised};

use super::work::StopFlag;
use super::{Mouth, Service};
use crate::clock;
use crate::error::AgentError;
use crate::protocol::{JOB, RunEnd, Tell};

const AHEAD_MAX: Duration = Duration::from_secs(600);
const PATIENCE: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(2);
/// What is read at once; as JSON it is at most six times as long.
const CHUNK_BYTES: usize = 64 << 10;
const STDERR_BYTES_MAX: u64 = 64 << 10;

/// Runs fio to its end.
pub(super) fn run(
    service: &Service,
    job: &str,
    words: &[String],
    start_ns: Option<u64>,
    mouth: &Mouth,
    stop: &StopFlag,
) -> Result<RunEnd, AgentError> {
    let refused =
        |what: &str, error: std::io::Error| AgentError::Refused(format!("{what}: {error}"));
    let directory = tempfile::Builder::new().prefix("ringloom-agent-").tempdir();
    let directory = directory.map_err(|error| refused("make a directory", error))?;
    std::fs::write(directory.path().join(JOB), job)
        .map_err(|error| refused("write the job", error))?;
    let mut command = command(service, words);
    command.current_dir(directory.path()).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    wait_for_start(start_ns, stop)?;
    let started_ns = clock::wall_ns();
    let mut child = Supervised::start(&mut command, Request::Terminate, PATIENCE)
        .map_err(|error| refused(&format!("start {}", service.fio.display()), error))?;
    let printed = child.child().stdout.take().map(|it| hand_on(it, mouth.clone()));
    let said = child.child().stderr.take().map(keep);
    let status = loop {
        let status = child.poll().map_err(|error| refused("look after fio", error))?;
        if stop.is_set() {
            let status = child.end().map_err(|error| refused("end fio", error))?;
            break status;
        }
        if status.is_some() {
            break status;
        }
        clock::pause(LOOK);
    };
    let ended_ns = clock::wall_ns();
    finish(printed, stop);
    let stderr = said.map(|it| it.join().unwrap_or_default()).unwrap_or_default();
    let failed = match status {
        None => Some("it was killed".to_owned()),
        Some(_) if stop.is_set() => Some("it was ended".to_owned()),
        Some(status) if status.success() => None,
        Some(status) => Some(status.to_string()),
    };
    Ok(RunEnd { failed, stderr, started_ns, ended_ns })
}

fn command(service: &Service, words: &[String]) -> Command {
    let mut all = service.through.iter().map(AsRef::as_ref).chain([service.fio.as_os_str()]);
    let mut command = Command::new(all.next().expect("fio at least"));
    command.args(all).args(words);
    command
}

/// Until it is time.
fn wait_for_start(start_ns: Option<u64>, stop: &StopFlag) -> Result<(), AgentError> {
    let Some(start_ns) = start_ns else { return Ok(()) };
    // Once, so that a wall clock that is set meanwhile moves nothing.
    let (wall, now) = (clock::wall_ns(), clock::now());
    let Some(wait) = start_ns.checked_sub(wall) else {
        let late = Duration::from_nanos(wall - start_ns);
        return Err(AgentError::Refused(format!("the time to start was {late:?} ago")));
    };
    let wait = Duration::from_nanos(wait);
    if wait > AHEAD_MAX {
        let most = AHEAD_MAX.as_secs();
        return Err(AgentError::Refused(format!(
            "the time to start is in {wait:?}; {most} s are the most"
        )));
    }
    let until: Instant = now + wait;
    while let Some(left) = until.checked_duration_since(clock::now()).filter(|it| !it.is_zero()) {
        if stop.is_set() {
            return Err(AgentError::Refused("it was ended before its start".to_owned()));
        }
        clock::pause(left.min(Duration::from_millis(20)));
    }
    Ok(())
}

/// Tells what fio prints, until it has closed its output.
fn hand_on(mut output: ChildStdout, mouth: Mouth) -> JoinHandle<()> {
    thread::spawn(move || {
        let mut bytes = vec![0; CHUNK_BYTES];
        // The begin of a character whose end has not come yet.
        let mut kept = Vec::new();
        loop {
            let length = match output.read(&mut bytes) {
                Ok(length) => length,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => 0,
            };
            kept.extend_from_slice(&bytes[..length]);
            let whole = if length == 0 { kept.len() } else { whole_characters(&kept) };
            let text = String::from_utf8_lossy(&kept[..whole]).into_owned();
            kept.drain(..whole);
            if !text.is_empty() && mouth.say(&Tell::Output { text }).is_err() || length == 0 {
                return;
            }
        }
    })
}

/// How many bytes at the begin are not a part of a character that goes on.
fn whole_characters(bytes: &[u8]) -> usize {
    match std::str::from_utf8(bytes) {
        Ok(_) => bytes.len(),
        Err(error) if error.error_len().is_none() => error.valid_up_to(),
        Err(_) => bytes.len(),
    }
}

/// Waits until all is told; not for a client that does not listen, once the run shall end.
fn finish(printed: Option<JoinHandle<()>>, stop: &StopFlag) {
    let Some(printed) = printed else { return };
    let mut patience = PATIENCE.as_millis() / LOOK.as_millis();
    while !printed.is_finished() && patience > 0 {
        patience -= u128::from(stop.is_set());
        clock::pause(LOOK);
    }
}

/// The begin of what fio says on standard error; the rest is read and dropped.
fn keep(mut errors: ChildStderr) -> JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // What cannot be read of a child's pipe is lost, and what was read is told.
        drop(errors.by_ref().take(STDERR_BYTES_MAX).read_to_end(&mut bytes));
        drop(std::io::copy(&mut errors, &mut std::io::sink()));
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_character_is_not_torn() {
        let text = "aä€".as_bytes();
        for (length, whole) in [(0, 0), (1, 1), (2, 1), (3, 3), (4, 3), (5, 3), (6, 6)] {
            assert_eq!(whole_characters(&text[..length]), whole, "{length}");
        }
        assert_eq!(whole_characters(b"a\xffb"), 3, "what never becomes a character is not kept");
    }

    #[test]
    fn a_start_is_neither_past_nor_far() {
        let stop = StopFlag::default();
        assert!(wait_for_start(None, &stop).is_ok());
        let said = |start| wait_for_start(Some(start), &stop).expect_err("refused").to_string();
        assert!(said(0).contains("ago"));
        assert!(said(u64::MAX).contains("600 s are the most"));
        let soon = clock::wall_ns() + 3_000_000;
        wait_for_start(Some(soon), &stop).expect("it comes");
    }
}
