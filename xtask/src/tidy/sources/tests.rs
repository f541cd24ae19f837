//! Tests of the rules for Rust files.

use super::*;

fn file(path: &str, text: impl Into<String>) -> SourceFile {
    SourceFile { path: path.to_owned(), text: text.into() }
}

/// Which words the problems of one file contain, or none at all.
#[track_caller]
fn check_file(path: &str, text: &str, expected: &[&str]) {
    let problems: Vec<String> =
        check(&[file(path, text)]).iter().map(ToString::to_string).collect();
    assert_eq!(problems.len(), expected.len(), "{problems:?}");
    for (problem, words) in problems.iter().zip(expected) {
        assert!(problem.contains(words), "{problem}");
    }
}

fn lines(count: usize) -> String {
    "fn f() {}\n".repeat(count)
}

#[test]
fn a_module_file_has_the_name_of_its_module() {
    check_file("crates/nodes/disk/src/a/mod.rs", "//! A.\n", &["not mod.rs"]);
    check_file("crates/nodes/disk/src/a.rs", "//! A.\n", &[]);
}

#[test]
fn only_sources_of_crates_need_a_header() {
    check_file("crates/nodes/disk/src/a.rs", "fn a() {}\n", &["header"]);
    check_file("xtask/src/a.rs", "", &["header"]);
    check_file("crates/nodes/disk/tests/it/a.rs", "fn a() {}\n", &[]);
}

#[test]
fn a_file_above_the_limit_needs_a_reason_and_then_a_split() {
    let path = "crates/nodes/disk/src/a.rs";
    let reason = format!("//! A.\n//! {REASON} it is a table.\n");
    check_file(path, &format!("//! A.\n{}", lines(599)), &[]);
    check_file(path, &format!("//! A.\n{}", lines(600)), &["601 lines"]);
    check_file(path, &format!("{reason}{}", lines(798)), &[]);
    check_file(path, &format!("{reason}{}", lines(799)), &["800 is the limit"]);
}

#[test]
fn a_reason_counts_only_in_the_header() {
    let text = format!("//! A.\n{}// {REASON} I say so.\n", lines(700));
    check_file("crates/nodes/disk/src/a.rs", &text, &["702 lines"]);
}

#[test]
fn tests_are_not_counted() {
    let tests =
        format!("#[cfg(test)]\nmod tests {{\n    fn f() {{}}\n{}\n}}\n", "    x\n".repeat(900));
    let text = format!("//! A.\n{tests}fn after() {{}}\n");
    assert_eq!(lines_without_tests(&text), 4);
    let text = text.replace("mod tests", "#[expect(x)]\nmod tests");
    assert_eq!(lines_without_tests(&text), 5);
    check_file("crates/nodes/disk/src/a/tests.rs", &format!("//! A.\n{}", lines(900)), &[]);
}

#[test]
fn every_crate_closes_unsafe_at_its_root() {
    check_file("crates/nodes/disk/src/lib.rs", "//! A.\n", &["#![forbid(unsafe_code)]"]);
    check_file("crates/nodes/disk/src/lib.rs", "//! A.\n#![deny(unsafe_code)]\n", &["forbid"]);
    check_file("crates/nodes/disk/src/lib.rs", "//! A.\n#![forbid(unsafe_code)]\n", &[]);
    check_file("crates/fronts/virtio/src/lib.rs", "//! A.\n", &["#![deny(unsafe_code)]"]);
    check_file("crates/fronts/virtio/src/lib.rs", "//! A.\n#![deny(unsafe_code)]\n", &[]);
    check_file("crates/fronts/virtio/src/a/lib.rs", "//! A.\n", &[]);
    check_file("fuzz/src/lib.rs", "//! A.\n", &["#![forbid(unsafe_code)]"]);
    check_file("docs/src/lib.rs", "//! A.\n", &[]);
    check_file("crates/ringloom/src/main.rs", "//! A.\n// #![forbid(unsafe_code)]\n", &["forbid"]);
}

#[test]
fn a_note_needs_an_owner_and_a_condition() {
    let note = NOTES[0];
    for (line, loose) in [
        (format!("// {note}: later"), true),
        (format!("// {note}(ada) later"), true),
        (format!("// {note}(): later"), true),
        (format!("// {note}(ada):"), true),
        (format!("// {note}(ada): when issue 4 is done"), false),
        (format!("const {note}S: u8 = 1;"), false),
    ] {
        assert_eq!(has_loose_note(&line, note), loose, "{line}");
    }
}
