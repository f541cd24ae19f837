//! Understands what libtest prints: counts results and skips, and picks what a person wants to
//! see while the tests run.
//!
//! Invariants: pure; one line in, at most one line out. Every line that contains `skipped: `
//! outside the report of a failure counts as one skipped test.

use std::fmt;

/// A test that said it could not run.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Skip {
    /// The test, if its output was captured under its name.
    pub(crate) test: Option<String>,
    pub(crate) reason: String,
}

impl fmt::Display for Skip {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let test = self.test.as_deref().unwrap_or("(a test that writes past the capture)");
        write!(formatter, "{test}: {}", self.reason)
    }
}

/// Whether a line is worth showing on the terminal; the log has all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Show {
    Line,
    LogOnly,
}

/// Which part of libtest's output the next line belongs to.
#[derive(Debug, Default, PartialEq, Eq)]
enum Section {
    #[default]
    Running,
    /// Output of passed tests, printed because of `--show-output`.
    Successes,
    /// Output of failed tests: shown in full.
    Failures,
}

/// Counts over all test binaries of a run.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) ignored: usize,
    pub(crate) skips: Vec<Skip>,
    /// Tests that failed beside others and passed alone; they are among those that passed.
    pub(crate) passed_alone: Vec<String>,
    section: Section,
    test: Option<String>,
}

impl Tally {
    /// Takes in one line.
    pub(crate) fn feed(&mut self, line: &str) -> Show {
        match line.trim_end() {
            "successes:" => return self.enter(Section::Successes),
            "failures:" => return self.enter(Section::Failures),
            _ => {}
        }
        if let Some(result) = line.strip_prefix("test result: ") {
            self.count(result);
            self.enter(Section::Running);
            // Most crates have no doc tests; their results would hide the others.
            let is_empty = result.starts_with("ok. 0 passed; 0 failed; 0 ignored;");
            return if is_empty { Show::LogOnly } else { Show::Line };
        }
        if let Some(name) = captured_test(line) {
            self.test = Some(name.to_owned());
        } else if self.section != Section::Failures
            && let Some((_, reason)) = line.split_once("skipped: ")
        {
            self.skips.push(Skip { test: self.test.clone(), reason: reason.trim().to_owned() });
            return Show::Line;
        }
        match self.section {
            Section::Failures => Show::Line,
            Section::Successes => Show::LogOnly,
            Section::Running if is_news(line) => Show::Line,
            Section::Running => Show::LogOnly,
        }
    }

    /// Adds the counts of another run.
    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
        self.skips.extend(other.skips);
        self.passed_alone.extend(other.passed_alone);
    }

    /// Tests that were counted as failed have passed alone.
    pub(crate) fn have_passed_alone(&mut self, tests: Vec<String>) {
        self.failed = self.failed.saturating_sub(tests.len());
        self.passed += tests.len();
        self.passed_alone.extend(tests);
    }

    /// One line for the end of the run.
    pub(crate) fn summary(&self) -> String {
        format!(
            "== {} passed ({} of them skipped their work, {} passed only alone), {} failed, {} ignored",
            tests(self.passed),
            self.skips.len(),
            self.passed_alone.len(),
            self.failed,
            self.ignored,
        )
    }

    fn enter(&mut self, section: Section) -> Show {
        self.test = None;
        self.section = section;
        if self.section == Section::Failures { Show::Line } else { Show::LogOnly }
    }

    /// Reads `ok. 12 passed; 0 failed; 1 ignored; 0 measured; 3 filtered out; finished in 0.1s`.
    fn count(&mut self, result: &str) {
        let numbers = result.split_once(". ").map_or("", |(_, it)| it);
        for part in numbers.split("; ") {
            match part.split_once(' ').map(|(number, what)| (number.parse(), what)) {
                Some((Ok(number), "passed")) => self.passed += number,
                Some((Ok::<usize, _>(number), "failed")) => self.failed += number,
                Some((Ok(number), "ignored")) => self.ignored += number,
                _ => {}
            }
        }
    }
}

/// `1 test`, `2 tests`.
pub(crate) fn tests(count: usize) -> String {
    if count == 1 { "1 test".to_owned() } else { format!("{count} tests") }
}

/// The name in `---- name stdout ----`, the head of one test's captured output.
fn captured_test(line: &str) -> Option<&str> {
    line.trim_end().strip_prefix("---- ")?.strip_suffix(" stdout ----")
}

/// Lines of a running test binary that a person waits for.
fn is_news(line: &str) -> bool {
    let word = line.trim_start();
    ["Running ", "Doc-tests ", "error", "warning"].iter().any(|it| word.starts_with(it))
        || line.contains("has been running for over")
        || line.ends_with("FAILED")
        || line.contains("SIG")
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: &str = "     Running unittests src/lib.rs (target/debug/deps/disk-1)

running 3 tests
test reads_back ... ok
test guest_boots ... ok

successes:

---- guest_boots stdout ----
skipped: no qemu-system-x86_64 (package qemu-system-x86)

---- reads_back stdout ----
seed 12

successes:
    guest_boots
    reads_back

failures:

---- flushes stdout ----
thread 'flushes' panicked at src/lib.rs:1:1:
left: 1

test result: FAILED. 2 passed; 1 failed; 4 ignored; 0 measured; 0 filtered out; finished in 0.1s
";

    fn fed() -> (Tally, Vec<&'static str>) {
        let mut tally = Tally::default();
        let shown = RUN.lines().filter(|line| tally.feed(line) == Show::Line).collect();
        (tally, shown)
    }

    #[test]
    fn results_are_counted() {
        let (mut tally, _) = fed();
        assert_eq!((tally.passed, tally.failed, tally.ignored), (2, 1, 4));
        tally.feed("test result: ok. 5 passed; 0 failed; 0 ignored; finished in 0.00s");
        assert_eq!(tally.passed, 7);
    }

    #[test]
    fn a_test_that_passes_alone_has_passed_and_is_told() {
        let (mut tally, _) = fed();
        tally.have_passed_alone(vec!["disk: flushes".to_owned()]);
        assert_eq!(
            tally.summary(),
            "== 3 tests passed (1 of them skipped their work, 1 passed only alone), 0 failed, 4 ignored"
        );
    }

    #[test]
    fn a_skip_is_counted_once_under_the_name_of_its_test() {
        let (tally, _) = fed();
        let reason = "no qemu-system-x86_64 (package qemu-system-x86)".to_owned();
        assert_eq!(tally.skips, [Skip { test: Some("guest_boots".to_owned()), reason }]);
    }

    #[test]
    fn a_skip_written_past_the_capture_counts_too() {
        let mut tally = Tally::default();
        assert_eq!(tally.feed("test a::b ... skipped: no fio"), Show::Line);
        assert_eq!(tally.skips, [Skip { test: None, reason: "no fio".to_owned() }]);
    }

    #[test]
    fn the_result_of_no_tests_is_not_shown() {
        let mut tally = Tally::default();
        let empty = "test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out";
        assert_eq!(tally.feed(empty), Show::LogOnly);
        assert_eq!(tally.feed(&empty.replace("ok. 0", "ok. 1")), Show::Line);
    }

    #[test]
    fn failures_are_shown_in_full_and_chatter_is_not() {
        let (_, shown) = fed();
        assert!(shown.contains(&"left: 1"));
        assert!(!shown.contains(&"seed 12"));
        assert!(!shown.contains(&"test reads_back ... ok"));
    }
}
