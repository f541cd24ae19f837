//! Rules for documents, and for all text: ARCHITECTURE.md names every crate, CHANGELOG.md exists,
//! no file names a directory of somebody's own machine, or has the marks of a merge in it.

use crate::tidy::{Problem, SourceFile};

const ARCHITECTURE: &str = "ARCHITECTURE.md";
const CHANGELOG: &str = "CHANGELOG.md";

// Put together here, so that this file does not break its own rule.
const MACHINE_PATHS: [&str; 2] = [concat!("/ho", "me/"), concat!("/wo", "rk/")];

const MERGE_MARKS: [&str; 2] = [concat!("<<<<", "<<< "), concat!(">>>>", ">>> ")];

/// Checks all text files of the repository.
pub(crate) fn check(files: &[SourceFile], crates: &[&str]) -> Vec<Problem> {
    let mut problems = Vec::new();
    match files.iter().find(|file| file.path == ARCHITECTURE) {
        Some(file) => problems.extend(crates.iter().filter_map(|name| mention(file, name))),
        None => problems.push(Problem::new(ARCHITECTURE, "is missing")),
    }
    if !files.iter().any(|file| file.path == CHANGELOG) {
        problems.push(Problem::new(CHANGELOG, "is missing"));
    }
    problems.extend(files.iter().flat_map(machine_paths));
    problems.extend(files.iter().flat_map(merge_marks));
    problems
}

/// A crate is mentioned by its directory, in backticks, or as a row of a map of directories;
/// names such as `block` and `load` are also plain words.
fn mention(file: &SourceFile, name: &str) -> Option<Problem> {
    let forms = [format!("crates/{name}"), format!("`{name}`")];
    let row = format!("{name}/");
    let found = forms.iter().any(|form| file.text.contains(form))
        || file.text.lines().any(|line| line.trim_start().starts_with(&row));
    (!found).then(|| Problem::new(&file.path, format!("does not mention the crate `{name}`")))
}

fn machine_paths(file: &SourceFile) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        for path in MACHINE_PATHS {
            if starts_a_path(line, path) {
                problems.push(Problem::new(
                    format!("{}:{}", file.path, index + 1),
                    format!("`{path}…` exists on one machine only; use a relative path"),
                ));
            }
        }
    }
    problems
}

fn merge_marks(file: &SourceFile) -> impl Iterator<Item = Problem> + '_ {
    let has_mark = |line: &str| MERGE_MARKS.iter().any(|mark| line.starts_with(mark));
    file.text.lines().enumerate().filter(move |(_, line)| has_mark(line)).map(|(index, _)| {
        Problem::new(format!("{}:{}", file.path, index + 1), "the mark of a merge")
    })
}

/// Whether the words begin an absolute path, rather than stand in the middle of another path.
fn starts_a_path(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(at, _)| {
        !line[..at].ends_with(|it: char| it.is_alphanumeric() || "._-/~}>)".contains(it))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> SourceFile {
        SourceFile { path: path.to_owned(), text: text.to_owned() }
    }

    #[track_caller]
    fn check_mention(text: &str, expected: bool) {
        assert_eq!(mention(&file(ARCHITECTURE, text), "block").is_none(), expected, "{text}");
    }

    #[test]
    fn a_crate_must_be_mentioned_as_a_crate() {
        check_mention("see crates/block", true);
        check_mention("the contracts of `block`", true);
        check_mention("    block/   words and contracts", true);
        check_mention("a block device", false);
    }

    #[test]
    fn missing_documents_are_told() {
        let places: Vec<String> = check(&[], &["block"]).into_iter().map(|it| it.place).collect();
        assert_eq!(places, [ARCHITECTURE, CHANGELOG]);
    }

    #[test]
    fn a_path_of_one_machine_is_found_with_its_line() {
        let [home, _] = MACHINE_PATHS;
        let text = format!("fine\nrun {home}ada/ringloom\n");
        let problems = machine_paths(&file("README.md", &text));
        assert_eq!(problems.len(), 1);
        assert_eq!(problems[0].place, "README.md:2");
    }

    #[test]
    fn marks_of_a_merge_are_found_with_their_lines() {
        let [ours, theirs] = MERGE_MARKS;
        let text = format!("{ours}HEAD\none\n=======\ntwo\n{theirs}f53f54b\nfine {ours}\n");
        let problems: Vec<String> = merge_marks(&file("a.md", &text)).map(|it| it.place).collect();
        assert_eq!(problems, ["a.md:1", "a.md:5"]);
    }

    #[test]
    fn the_middle_of_another_path_is_fine() {
        let [_, work] = MACHINE_PATHS;
        assert!(!starts_a_path(&format!("target{work}x"), work));
        assert!(!starts_a_path(&format!("\"$OUT\"/a{work}x"), work));
        assert!(starts_a_path(&format!("\"{work}x\""), work));
        assert!(starts_a_path(work, work));
    }
}
