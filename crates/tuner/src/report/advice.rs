//! The recommendation of the report and the line to paste. Pure functions.

use std::path::Path;

use super::Style;
use super::text::wrapped;
use crate::contender::{Iothreads, Subject};
use crate::recommend::{Recommendation, recommend, sentence};
use crate::results::Header;
use crate::summary::{CellSummary, compared};
use crate::target::Origin;

/// What to use, for each subject that compares numbers of iothreads.
pub(super) fn render(style: Style, header: &Header, cells: &[CellSummary]) -> String {
    let subjects = compared(cells);
    let alone = subjects.len() == 1;
    let heading = match style {
        Style::Markdown if !subjects.is_empty() => "\n## Recommendation\n",
        Style::Markdown | Style::Plain => "",
    };
    let recommended = subjects.into_iter().filter_map(|subject| recommend(subject, cells));
    let mut text = heading.to_owned();
    for recommendation in recommended {
        let subject = recommendation.subject;
        let who = if alone { String::new() } else { format!("{subject}: ") };
        let sentence = format!("{who}{}", sentence(&recommendation, cells));
        text.push_str(&advice(style, header, &recommendation, &sentence));
    }
    text
}

fn advice(
    style: Style,
    header: &Header,
    recommendation: &Recommendation,
    sentence: &str,
) -> String {
    let sentence = wrapped(style, sentence);
    let command = match recommendation.subject {
        // What to write for QEMU's own iothreads depends on the machine it is put into.
        Subject::VmQemu | Subject::VmGiven | Subject::Host => None,
        Subject::Client | Subject::VmRingloom => Some(command(header, recommendation.iothreads)),
    };
    match (style, command) {
        (Style::Plain, Some(command)) => format!("\n{sentence}\n    {command}\n"),
        (Style::Markdown, Some(command)) => format!("\n{sentence}\n```sh\n{command}\n```\n"),
        (Style::Plain | Style::Markdown, None) => format!("\n{sentence}"),
    }
}

/// The line to paste. A scratch file is gone by then, so it names no path.
fn command(header: &Header, iothreads: Iothreads) -> String {
    let path = match header.disk.origin {
        Origin::Scratch | Origin::Guest => "PATH".to_owned(),
        Origin::User => quoted(&header.disk.path),
    };
    let threads = match iothreads {
        Iothreads::NONE => String::new(),
        count => format!(" --iothreads {count}"),
    };
    format!("ringloom serve {path} --socket /run/ringloom/disk.sock{threads}")
}

/// Quotes for a shell if need be.
fn quoted(path: &Path) -> String {
    let path = path.display().to_string();
    let harmless = |c: char| c.is_ascii_alphanumeric() || "/._-+,:@%".contains(c);
    if path.chars().all(harmless) { path } else { format!("'{}'", path.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::results::tests::header;

    #[test]
    fn the_line_to_paste_survives_a_shell() {
        for (path, text) in [
            ("/images/disk-1.img", "/images/disk-1.img"),
            ("/my disk", "'/my disk'"),
            ("/it's", r"'/it'\''s'"),
        ] {
            assert_eq!(quoted(Path::new(path)), text);
        }
        let mut header = header("");
        header.disk.origin = Origin::User;
        header.disk.path = PathBuf::from("/d.img");
        let line = command(&header, Iothreads::NONE);
        assert_eq!(line, "ringloom serve /d.img --socket /run/ringloom/disk.sock");
    }
}
