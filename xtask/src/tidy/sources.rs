//! Rules for Rust files: headers, sizes, unsafe code, module files, notes to oneself.
//!
//! Invariants: pure; looks at lines, not at syntax, so a rule is only as clever as a reader who
//! skims the file.

use crate::tidy::{Problem, SourceFile};

/// From here a file needs a reason in its header.
const LINES_BEFORE_REASON: usize = 600;
/// No reason suffices above this.
const LINES_MAX: usize = 800;
/// The words a reason starts with.
const REASON: &str = "Long because";

/// Crates that open `unsafe` in single modules; all others forbid it.
const UNSAFE_CRATES: &[&str] =
    &["bench", "block", "host", "kernel_io", "load", "nbd", "rbd", "testkit", "virtio"];

// Put together here, so that this file does not break its own rule.
const NOTES: [&str; 2] = [concat!("TO", "DO"), concat!("FIX", "ME")];

/// Checks each Rust file.
pub(crate) fn check(files: &[SourceFile]) -> Vec<Problem> {
    let mut problems = Vec::new();
    for file in files.iter().filter(|file| file.path.ends_with(".rs")) {
        problems.extend(module_file(file));
        problems.extend(header(file));
        problems.extend(length(file));
        problems.extend(unsafe_gate(file));
        problems.extend(notes(file));
    }
    problems
}

/// The crate whose `src` directory holds the file, and the file's path in there. Crates stand in folders by floor, but for
/// those at the top.
fn place_in_crate(path: &str) -> Option<(&str, &str)> {
    let (crate_path, rest) = path.split_once("/src/")?;
    match crate_path.split('/').collect::<Vec<_>>().as_slice() {
        ["crates", _, name] | ["crates", name] | [name @ ("fuzz" | "xtask")] => Some((name, rest)),
        _ => None,
    }
}

fn module_file(file: &SourceFile) -> Option<Problem> {
    (file.path.rsplit('/').next() == Some("mod.rs"))
        .then(|| Problem::new(&file.path, "name the file after its module: thing.rs, not mod.rs"))
}

fn header(file: &SourceFile) -> Option<Problem> {
    place_in_crate(&file.path)?;
    (!file.text.starts_with("//!")).then(|| {
        Problem::new(&file.path, "does not start with a `//!` header that says what it is")
    })
}

fn length(file: &SourceFile) -> Option<Problem> {
    // The tests of a long module stand in a file of this name; they count as `mod tests` does.
    if file.path.ends_with("/tests.rs") {
        return None;
    }
    let count = lines_without_tests(&file.text);
    let message = if count > LINES_MAX {
        format!("{count} lines without tests; {LINES_MAX} is the limit: split it")
    } else if count > LINES_BEFORE_REASON && !has_reason(&file.text) {
        format!("{count} lines without tests: split it or say `{REASON} …` in its header")
    } else {
        return None;
    };
    Some(Problem::new(&file.path, message))
}

fn has_reason(text: &str) -> bool {
    text.lines().take_while(|line| line.starts_with("//!")).any(|line| line.contains(REASON))
}

/// Counts lines, leaving out `#[cfg(test)] mod … { }` blocks at the outermost level.
fn lines_without_tests(text: &str) -> usize {
    let mut count = 0;
    let mut in_tests = false;
    let mut after_cfg = false;
    for line in text.lines() {
        if in_tests {
            // rustfmt puts only the brace that closes the module into the first column.
            in_tests = line != "}";
            continue;
        }
        if after_cfg && line.starts_with("mod ") && line.ends_with('{') {
            in_tests = true;
        }
        // Other attributes may stand between the two.
        after_cfg = line.starts_with("#[cfg(") && line.contains("test")
            || after_cfg && line.starts_with('#');
        count += 1;
    }
    count
}

fn unsafe_gate(file: &SourceFile) -> Option<Problem> {
    let (crate_name, inner) = place_in_crate(&file.path)?;
    if inner != "lib.rs" && inner != "main.rs" {
        return None;
    }
    let has = |attribute: &str| file.text.lines().any(|line| line.trim_end() == attribute);
    if has("#![forbid(unsafe_code)]") {
        return None;
    }
    if !UNSAFE_CRATES.contains(&crate_name) {
        return Some(Problem::new(&file.path, "needs `#![forbid(unsafe_code)]`"));
    }
    (!has("#![deny(unsafe_code)]")).then(|| {
        Problem::new(
            &file.path,
            "needs `#![deny(unsafe_code)]`; modules open it with `#![expect(unsafe_code, …)]`",
        )
    })
}

fn notes(file: &SourceFile) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        for note in NOTES {
            if has_loose_note(line, note) {
                problems.push(Problem::new(
                    format!("{}:{}", file.path, index + 1),
                    format!("write `{note}(name): condition`, so that it ends some day"),
                ));
            }
        }
    }
    problems
}

/// Whether the word stands in the line without `(name): condition` after it.
fn has_loose_note(line: &str, note: &str) -> bool {
    line.match_indices(note).any(|(at, _)| {
        let is_part = |it: char| it.is_alphanumeric() || it == '_';
        let rest = &line[at + note.len()..];
        if line[..at].ends_with(is_part) || rest.starts_with(is_part) {
            return false;
        }
        let owned = rest.strip_prefix('(').and_then(|it| it.split_once("):")).is_some_and(
            |(name, condition)| !name.trim().is_empty() && !condition.trim().is_empty(),
        );
        !owned
    })
}

#[cfg(test)]
mod tests;
