//! What fio prints: reports as JSON documents, one after the other, with complaints in between.
//!
//! Invariants: fed with any pieces, `Splitter` yields the same documents. Limits: a document of more
//! than `DOCUMENT_BYTES_MAX` is dropped, and of other text the first `SAID_LINES_MAX` lines are kept;
//! a guest may print what it likes.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::fio::error::FioError;

/// A report of one group of jobs has about 5600 bins at most, so it stays below 300 KiB; a guest has 16 groups, this host 256, which
/// have far fewer bins each.
const DOCUMENT_BYTES_MAX: usize = 32 << 20;
const SAID_LINES_MAX: usize = 4;
const SAID_LINE_BYTES_MAX: usize = 400;

/// The parts of a report that are used.
#[derive(Debug, Deserialize)]
pub(super) struct Document {
    pub(super) timestamp_ms: u64,
    #[serde(rename = "global options", default)]
    pub(super) options: BTreeMap<String, String>,
    pub(super) jobs: Vec<Group>,
    #[serde(default)]
    pub(super) disk_util: Vec<Disk>,
}

/// The jobs of one file together, by `group_reporting` and `new_group`.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Group {
    pub(super) error: i32,
    pub(super) read: Side,
    pub(super) write: Side,
    /// Milliseconds, summed over the jobs.
    pub(super) job_runtime: u64,
    pub(super) usr_cpu: f64,
    pub(super) sys_cpu: f64,
    pub(super) ctx: u64,
}

/// Reads or writes.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Side {
    pub(super) io_bytes: u64,
    /// Milliseconds of the job that ran longest.
    pub(super) runtime: u64,
    /// The requests that were started, where bytes and latencies are of those that completed: after
    /// the ramp the two differ by what was in flight at its end.
    pub(super) total_ios: u64,
    pub(super) lat_ns: Latencies,
}

/// Latencies from submission to completion, in nanoseconds.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Latencies {
    pub(super) max: u64,
    pub(super) mean: f64,
    pub(super) stddev: f64,
    /// Requests per bin. fio names a bin by the middle of its range, and has 64 bins for every
    /// doubling, so a latency is known to 0.8 %; below 128 ns bins are exact, above 17 s there is one.
    #[serde(default)]
    pub(super) bins: BTreeMap<u64, u64>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Disk {
    pub(super) name: String,
    #[serde(default)]
    pub(super) util: f64,
}

impl Document {
    pub(super) fn parse(text: &[u8]) -> Result<Self, FioError> {
        serde_json::from_slice(text).map_err(FioError::Json)
    }

    /// The bytes of each request.
    pub(super) fn block(&self) -> Result<u64, FioError> {
        let block = self.options.get("bs").and_then(|bs| bs.parse().ok());
        block.ok_or(FioError::Foreign { lack: "does not tell bs as a number of bytes" })
    }

    /// The jobs of all files as one.
    pub(super) fn group(&self) -> Result<Group, FioError> {
        let all = self.jobs.iter().cloned().reduce(Group::with);
        all.ok_or(FioError::Foreign { lack: "has no jobs" })
    }
}

impl Side {
    /// The requests that completed, outside of the ramp.
    pub(super) fn completed(&self) -> u64 {
        self.lat_ns.bins.values().sum()
    }

    #[expect(clippy::cast_precision_loss, reason = "requests of a run are far below 2^52")]
    fn with(mut self, other: Self) -> Self {
        let counts = [self.completed() as f64, other.completed() as f64];
        let all = counts[0] + counts[1];
        let mean_of = |values: [f64; 2]| {
            let sum = counts[0] * values[0] + counts[1] * values[1];
            if all > 0.0 { sum / all } else { 0.0 }
        };
        let each = [&self.lat_ns, &other.lat_ns];
        let mean = mean_of(each.map(|it| it.mean));
        let squares = mean_of(each.map(|it| it.stddev.powi(2) + it.mean.powi(2)));
        let max = self.lat_ns.max.max(other.lat_ns.max);
        for (bin, count) in other.lat_ns.bins {
            *self.lat_ns.bins.entry(bin).or_default() += count;
        }
        let stddev = (squares - mean.powi(2)).max(0.0).sqrt();
        Self {
            io_bytes: self.io_bytes.saturating_add(other.io_bytes),
            runtime: self.runtime.max(other.runtime),
            total_ios: self.total_ios.saturating_add(other.total_ios),
            lat_ns: Latencies { max, mean, stddev, bins: self.lat_ns.bins },
        }
    }
}

impl Group {
    /// The length of the window in milliseconds.
    pub(super) fn runtime_ms(&self) -> u64 {
        self.read.runtime.max(self.write.runtime)
    }

    /// Both together; the first error counts.
    #[expect(clippy::cast_precision_loss, reason = "milliseconds of a run are far below 2^52")]
    fn with(self, other: Self) -> Self {
        let times = [self.job_runtime as f64, other.job_runtime as f64];
        let mean = |shares: [f64; 2]| {
            (shares[0] * times[0] + shares[1] * times[1]) / (times[0] + times[1]).max(1.0)
        };
        Self {
            error: if self.error == 0 { other.error } else { self.error },
            read: self.read.with(other.read),
            write: self.write.with(other.write),
            job_runtime: self.job_runtime.saturating_add(other.job_runtime),
            usr_cpu: mean([self.usr_cpu, other.usr_cpu]),
            sys_cpu: mean([self.sys_cpu, other.sys_cpu]),
            ctx: self.ctx.saturating_add(other.ctx),
        }
    }
}

/// Cuts what fio prints into documents and keeps some of the rest.
#[derive(Debug, Default)]
pub(super) struct Splitter {
    line: Vec<u8>,
    document: Option<Vec<u8>>,
    said: Vec<String>,
}

impl Splitter {
    /// Takes the next bytes, returns the documents that they complete.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut documents = Vec::new();
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            self.line.extend_from_slice(piece);
            if piece.ends_with(b"\n") {
                documents.extend(self.end_line());
            } else if self.line.len() > DOCUMENT_BYTES_MAX {
                self.line.clear();
            }
        }
        documents
    }

    /// The document that a last line without its end completes.
    pub(super) fn finish(&mut self) -> Option<Vec<u8>> {
        self.end_line()
    }

    /// The first lines between and before the documents, as one.
    pub(super) fn said(&self) -> String {
        self.said.join("; ")
    }

    /// fio indents everything but the first and the last brace of a document.
    fn end_line(&mut self) -> Option<Vec<u8>> {
        let line = std::mem::take(&mut self.line);
        let words = line.trim_ascii_end();
        match &mut self.document {
            None if words == b"{" => self.document = Some(line),
            None => self.keep(words),
            Some(document) => {
                let ends = words == b"}";
                document.extend_from_slice(&line);
                if ends {
                    return self.document.take();
                }
                if document.len() > DOCUMENT_BYTES_MAX {
                    self.document = None;
                }
            }
        }
        None
    }

    fn keep(&mut self, words: &[u8]) {
        let words = String::from_utf8_lossy(&words[..words.len().min(SAID_LINE_BYTES_MAX)]);
        let words = words.trim();
        // Most complaints name themselves; the error names fio anyway.
        let words = words.strip_prefix("fio: ").unwrap_or(words);
        if !words.is_empty() && self.said.len() < SAID_LINES_MAX {
            self.said.push(words.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "fio: a note\n{\n  \"a\" : {\n  }\n}\nanother\r\n{\n}\n\n{\n \"b\" : 1\n}";

    #[test]
    fn pieces_of_any_length_give_the_same_documents() {
        for length in [1, 2, 3, 7, TEXT.len()] {
            let mut splitter = Splitter::default();
            let mut documents: Vec<_> =
                TEXT.as_bytes().chunks(length).flat_map(|piece| splitter.feed(piece)).collect();
            assert_eq!(documents.len(), 2, "pieces of {length}");
            documents.extend(splitter.finish());
            let texts: Vec<_> =
                documents.into_iter().map(|d| String::from_utf8(d).unwrap()).collect();
            assert_eq!(texts, ["{\n  \"a\" : {\n  }\n}\n", "{\n}\n", "{\n \"b\" : 1\n}"]);
            assert_eq!(splitter.said(), "a note; another");
        }
    }

    #[test]
    fn an_endless_document_is_dropped_and_the_next_one_found() {
        let mut splitter = Splitter::default();
        assert!(splitter.feed(b"{\n").is_empty());
        for _ in 0..=DOCUMENT_BYTES_MAX >> 20 {
            assert!(splitter.feed(&vec![b' '; 1 << 20]).is_empty());
            assert!(splitter.feed(b"\n").is_empty());
        }
        assert_eq!(splitter.feed(b"{\n}\n"), [b"{\n}\n".to_vec()]);
    }

    #[test]
    fn only_the_first_lines_are_kept() {
        let mut splitter = Splitter::default();
        splitter.feed(b"1\n2\n\n3\n4\n5\n");
        assert_eq!(splitter.said(), "1; 2; 3; 4");
    }

    #[test]
    fn a_report_needs_a_group() {
        let empty = Document::parse(b"{\"timestamp_ms\":1,\"jobs\":[]}").unwrap();
        assert!(empty.group().unwrap_err().to_string().contains("no jobs"));
        assert!(matches!(Document::parse(b"{\n}\n"), Err(FioError::Json(_))));
    }
}
