//! Lines of JSON on a byte stream: read with a bound, written whole.
//!
//! Limits: a line has at most [`LINE_BYTES_MAX`] bytes; a longer one ends the stream, for nobody knows where the next one begins.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::AgentError;

/// The longest line, its end included: job files and what fio prints in a moment fit many times.
pub const LINE_BYTES_MAX: usize = 1 << 20;
/// Of a line that is not understood, this much is repeated.
const QUOTED_BYTES_MAX: usize = 80;

/// Reads lines.
#[derive(Debug)]
pub(crate) struct Lines<R> {
    input: BufReader<R>,
    line: Vec<u8>,
}

impl<R: Read> Lines<R> {
    pub(crate) fn new(input: R) -> Self {
        Self { input: BufReader::new(input), line: Vec::new() }
    }

    /// The next line, or nothing at the end of the stream.
    pub(crate) fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, AgentError> {
        self.line.clear();
        let bound = u64::try_from(LINE_BYTES_MAX).expect("a small number");
        loop {
            let left = bound.saturating_sub(self.line.len().try_into().unwrap_or(bound));
            match self.input.by_ref().take(left).read_until(b'\n', &mut self.line) {
                Ok(_) => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(AgentError::Stream(error)),
            }
        }
        if self.line.is_empty() {
            return Ok(None);
        }
        if self.line.last() != Some(&b'\n') {
            let what = if self.line.len() < LINE_BYTES_MAX { "without an end" } else { "too long" };
            return Err(AgentError::Line(format!("{what}: {}", quoted(&self.line))));
        }
        serde_json::from_slice(&self.line)
            .map(Some)
            .map_err(|error| AgentError::Line(format!("{error}: {}", quoted(&self.line))))
    }
}

fn quoted(line: &[u8]) -> String {
    let begin = &line[..line.len().min(QUOTED_BYTES_MAX)];
    String::from_utf8_lossy(begin).trim_end().escape_debug().to_string()
}

/// Writes one line at once.
pub(crate) fn write(output: &mut impl Write, words: &impl Serialize) -> Result<(), AgentError> {
    let mut line = serde_json::to_vec(words).expect("words of the protocol are JSON");
    line.push(b'\n');
    if line.len() > LINE_BYTES_MAX {
        return Err(AgentError::Line(format!("too long: {}", quoted(&line))));
    }
    output.write_all(&line).and_then(|()| output.flush()).map_err(AgentError::Stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(bytes: &[u8], expected: Result<Option<u32>, &str>) {
        match (Lines::new(bytes).next::<u32>(), expected) {
            (Ok(found), Ok(expected)) => assert_eq!(found, expected),
            (Err(error), Err(part)) => {
                let said = error.to_string();
                assert!(said.contains(part) && said.len() < 300, "{said}");
            }
            (found, expected) => panic!("{found:?} instead of {expected:?}"),
        }
    }

    #[test]
    fn a_line_is_whole_short_and_json() {
        check(b"7\n8\n", Ok(Some(7)));
        check(b"", Ok(None));
        check(b"7", Err("without an end: 7"));
        check(b"\n", Err("EOF"));
        check(b"\xff\x00\n", Err("expected value"));
        check(&vec![b'1'; LINE_BYTES_MAX + 10], Err("too long: 111"));
        let mut longest = vec![b' '; LINE_BYTES_MAX - 2];
        longest.extend(b"7\n");
        check(&longest, Ok(Some(7)));
        assert!(write(&mut Vec::new(), &"x".repeat(LINE_BYTES_MAX)).is_err());
    }
}
