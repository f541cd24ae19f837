//! What the agent sends back for one order: any bytes, between two markers.
//!
//! Invariants: pure. The markers hold a word that nothing in the guest but the agent knows, so whatever a script
//! prints is not taken for one. What came before the first marker is nobody's and is dropped.
//! Limits: `OUTPUT_MAX` for one order.

use anyhow::{Context as _, Result, ensure};

/// More than any program that is run here prints; a script that goes on for ever ends here.
const OUTPUT_MAX: usize = 256 << 20;

/// An answer that arrives piece by piece.
#[derive(Debug)]
pub(crate) struct Answer {
    begin: Vec<u8>,
    end: Vec<u8>,
    bytes: Vec<u8>,
    has_begun: bool,
    /// Where no end marker begins before.
    searched: usize,
}

/// How far it has come.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    Arriving,
    /// The exit status.
    Whole(i32),
}

impl Answer {
    /// The answer to the order with this word.
    pub(crate) fn new(word: &str) -> Self {
        Self {
            begin: format!("@@begin {word}\n").into_bytes(),
            end: format!("@@end {word} ").into_bytes(),
            bytes: Vec::new(),
            has_begun: false,
            searched: 0,
        }
    }

    /// Takes what has arrived.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Result<Progress> {
        self.bytes.extend_from_slice(bytes);
        if !self.has_begun && !self.begins() {
            return Ok(Progress::Arriving);
        }
        ensure!(self.bytes.len() <= OUTPUT_MAX, "a script printed more than {OUTPUT_MAX} bytes");
        let Some(found) = find(&self.bytes[self.searched..], &self.end) else {
            self.searched = (self.bytes.len() + 1).saturating_sub(self.end.len());
            return Ok(Progress::Arriving);
        };
        self.searched += found;
        let rest = &self.bytes[self.searched + self.end.len()..];
        let Some(line) = rest.iter().position(|byte| *byte == b'\n') else {
            return Ok(Progress::Arriving);
        };
        let status = String::from_utf8_lossy(&rest[..line]);
        let status = status
            .trim()
            .parse()
            .with_context(|| format!("the agent ends a script with {status:?}"))?;
        self.bytes.truncate(self.searched);
        Ok(Progress::Whole(status))
    }

    /// The output so far, without what may turn out to be the end marker.
    pub(crate) fn output(&self) -> &[u8] {
        if !self.has_begun {
            return &[];
        }
        let tail = &self.bytes[self.searched..];
        let mark = (0..tail.len()).find(|at| {
            let rest = &tail[*at..];
            self.end.starts_with(rest) || rest.starts_with(&self.end)
        });
        &self.bytes[..self.searched + mark.unwrap_or(tail.len())]
    }

    /// The output of an answer that is whole.
    pub(crate) fn into_output(self) -> Vec<u8> {
        self.bytes
    }

    fn begins(&mut self) -> bool {
        let Some(place) = find(&self.bytes, &self.begin) else {
            // Keep what may be the beginning of the marker.
            let kept = self.bytes.len().min(self.begin.len() - 1);
            self.bytes.drain(..self.bytes.len() - kept);
            return false;
        };
        self.bytes.drain(..place + self.begin.len());
        self.has_begun = true;
        true
    }
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUTS: &[&[u8]] = &[
        b"",
        b"one\ntwo",
        b"\n\n",
        b"\0\xff\r\n@@",
        b"@@end other 0\n@@begin w\n@@end w",
        b"@@end @@end w",
    ];

    fn message(output: &[u8]) -> Vec<u8> {
        [b"noise @@begin x\n@@begin w\n", output, b"@@end w 3\n"].concat()
    }

    #[test]
    fn an_answer_is_the_same_however_it_is_cut() {
        for output in OUTPUTS {
            let message = message(output);
            for size in 1..=message.len() {
                let mut answer = Answer::new("w");
                let mut last = Progress::Arriving;
                for piece in message.chunks(size) {
                    assert_eq!(last, Progress::Arriving, "{output:?} in pieces of {size}");
                    last = answer.feed(piece).expect("a status");
                    assert!(output.starts_with(answer.output()), "{output:?} by {size}");
                }
                assert_eq!(last, Progress::Whole(3), "{output:?} in pieces of {size}");
                assert_eq!(answer.into_output(), *output);
            }
        }
    }

    #[test]
    fn what_was_printed_can_be_seen_before_the_end() {
        let mut answer = Answer::new("w");
        assert_eq!(answer.feed(b"@@begin w\nfirst\n").expect("so far"), Progress::Arriving);
        assert_eq!(answer.output(), b"first\n");
        assert_eq!(answer.feed(b"second @@en").expect("so far"), Progress::Arriving);
        assert_eq!(answer.output(), b"first\nsecond ");
        assert_eq!(answer.feed(b"d of it").expect("so far"), Progress::Arriving);
        assert_eq!(answer.output(), b"first\nsecond @@end of it");
    }

    #[test]
    fn a_status_that_is_no_number_is_an_error() {
        Answer::new("w").feed(b"@@begin w\n@@end w much\n").expect_err("no number");
    }
}
