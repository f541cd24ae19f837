//! Reads the lines in which ringloom says, at the end of a session, what each queue carried.
//!
//! The form is `export <id>: queue <n> on <iothread>: reads=<n> writes=<n> flushes=<n> discards=<n> write-zeroes=<n>
//! errors=<n>`, anywhere in a line of stderr, so that a log prefix does no harm.

/// What one queue carried.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueReport {
    /// The export's id.
    pub export: String,
    /// The index of the queue.
    pub queue: usize,
    /// The iothread that served the queue at the end.
    pub iothread: String,
    /// Completed reads.
    pub reads: u64,
    /// Completed writes.
    pub writes: u64,
    /// Completed flushes.
    pub flushes: u64,
    /// Completed discards.
    pub discards: u64,
    /// Completed write-zeroes requests.
    pub write_zeroes: u64,
    /// Requests that ended with another status than OK.
    pub errors: u64,
}

impl QueueReport {
    /// All requests that ended well.
    pub fn requests(&self) -> u64 {
        self.reads + self.writes + self.flushes + self.discards + self.write_zeroes
    }
}

/// All reports in a log, in its order; other lines are passed over.
pub fn parse(log: &str) -> Vec<QueueReport> {
    log.lines().filter_map(parse_line).collect()
}

fn parse_line(line: &str) -> Option<QueueReport> {
    let (_, rest) = line.split_once("export ")?;
    let (export, rest) = rest.split_once(": queue ")?;
    let (queue, rest) = rest.split_once(" on ")?;
    let (iothread, counts) = rest.split_once(": ")?;
    let count = |name: &str| -> Option<u64> {
        counts.split_whitespace().find_map(|field| {
            let (key, value) = field.split_once('=')?;
            (key == name).then(|| value.parse().ok()).flatten()
        })
    };
    Some(QueueReport {
        export: export.to_owned(),
        queue: queue.parse().ok()?,
        iothread: iothread.to_owned(),
        reads: count("reads")?,
        writes: count("writes")?,
        flushes: count("flushes")?,
        discards: count("discards")?,
        write_zeroes: count("write-zeroes")?,
        errors: count("errors")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_found_behind_a_log_prefix_and_other_lines_are_passed_over() {
        let log = "hello\n\
            INFO ringloom: export e0: queue 3 on t1: reads=1 writes=2 flushes=3 discards=4 write-zeroes=5 errors=6\n\
            export e0: queue x on t1: reads=1\n";
        let reports = parse(log);
        assert_eq!(reports.len(), 1);
        assert_eq!(reports[0].queue, 3);
        assert_eq!(reports[0].iothread, "t1");
        assert_eq!(reports[0].requests(), 15);
        assert_eq!(reports[0].errors, 6);
    }
}
