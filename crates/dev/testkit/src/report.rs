//! What tests tell the reader of their output: skips and measured facts.
//!
//! Invariants: a skip is always printed as `skipped: <reason>`, which `cargo xtask test` counts.

/// Says that a test cannot run here. The caller returns right after.
#[expect(clippy::print_stdout, reason = "a skip is counted from the output of the test")]
pub fn skipped(reason: &str) {
    println!("skipped: {reason}");
}

/// Prints one fact a reader of a failing test needs, such as its seed.
#[expect(clippy::print_stdout, reason = "shown by the test harness when the test fails")]
pub fn note(fact: &str) {
    println!("{fact}");
}
