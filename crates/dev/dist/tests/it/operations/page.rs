//! The page as a test reads it: what is run, what has to be printed, and what has to happen before.

use anyhow::{Result, bail, ensure};

/// What stands for anything.
const ELLIPSIS: char = '…';

/// A part of the page, in its order.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Part<'a> {
    /// What happens now.
    Act(&'a str),
    /// What an administrator types; whether it is to fail.
    Run { line: usize, script: String, fails: bool },
    /// What the commands before have printed, in this order, among other lines.
    Shown { line: usize, lines: Vec<&'a str> },
}

/// The parts. A block of another language than `sh` would never be run, and is refused.
pub(super) fn parts(text: &str) -> Result<Vec<Part<'_>>> {
    let (mut parts, mut lines) = (Vec::new(), text.lines().enumerate());
    while let Some((at, line)) = lines.next() {
        let number = at + 1;
        let act = line.strip_prefix("<!-- test: ").and_then(|rest| rest.strip_suffix(" -->"));
        if let Some(what) = act {
            parts.push(Part::Act(what));
        }
        let Some(language) = line.strip_prefix("```") else {
            // It would be code for a reader, and no part for a test.
            ensure!(!line.trim_start().starts_with("```"), "line {number}: a block is indented");
            continue;
        };
        let block: Vec<&str> =
            lines.by_ref().map(|(_, line)| line).take_while(|line| *line != "```").collect();
        parts.push(match language {
            "sh" | "sh fails" => {
                Part::Run { line: number, script: block.join("\n"), fails: language != "sh" }
            }
            "" => Part::Shown { line: number, lines: block },
            other => bail!("line {number}: a block of {other:?}"),
        });
    }
    ensure!(parts.iter().any(|part| matches!(part, Part::Run { .. })), "no command");
    Ok(parts)
}

/// Whether each of the lines is among those that were printed, in this order. How many blanks are between words is nothing to a
/// reader.
pub(super) fn compare(lines: &[&str], printed: &str) -> Result<()> {
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut all = printed.lines().map(words);
    for line in lines {
        let pattern = words(line);
        ensure!(
            all.any(|found| matches(&pattern, &found)),
            "{line:?} is not printed, or not there: {printed}"
        );
    }
    Ok(())
}

/// Whether a text is what a pattern shows.
pub(super) fn matches(pattern: &str, text: &str) -> bool {
    let Some((head, tail)) = pattern.split_once(ELLIPSIS) else { return pattern == text };
    let Some(mut rest) = text.strip_prefix(head) else { return false };
    let mut pieces = tail.split(ELLIPSIS).peekable();
    while let Some(piece) = pieces.next() {
        if pieces.peek().is_none() {
            return rest.ends_with(piece);
        }
        let Some(at) = rest.find(piece) else { return false };
        rest = &rest[at + piece.len()..];
    }
    true
}

#[test]
fn a_page_is_read_in_its_order() {
    let text = "a\n```sh\none\ntwo\n```\n\n```\nout …\n```\n<!-- test: it rains -->\n```sh fails\nno\n```\n";
    let run = |line, script: &str, fails| Part::Run { line, script: script.to_owned(), fails };
    let shown = Part::Shown { line: 7, lines: vec!["out …"] };
    let expected = [run(2, "one\ntwo", false), shown, Part::Act("it rains"), run(11, "no", true)];
    assert_eq!(parts(text).expect("it is a page"), expected);
    for wrong in ["```toml\na\n```\n", "  ```sh\na\n  ```\n", "text"] {
        assert!(parts(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn what_is_shown_has_to_be_printed() {
    let printed = "EXPORT   SIZE\nvm1     2 GiB   t0\nend\n";
    for (lines, is_right) in [
        (&["EXPORT SIZE", "vm1 … t0"][..], true),
        (&["vm1 2 GiB …"], true),
        (&["vm1 … t1"], false),
        (&["vm1 2 GiB"], false),
        (&["end", "EXPORT SIZE"], false),
        (&["… GiB t0", "end"], true),
        (&["…vm1…GiB…"], true),
    ] {
        assert_eq!(compare(lines, printed).is_ok(), is_right, "{lines:?}");
    }
}
