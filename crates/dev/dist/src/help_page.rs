//! The help of `ringloom serve` as a manual page: what the program prints, cut into headings, options and what is said of
//! them.
//!
//! Invariants: each line of the help is in the page.

use roff::{Roff, bold, roman};

/// In the help, what is said of an option begins here.
const DESCRIPTION_COLUMN: usize = 25;

/// A piece of a help text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HelpPart {
    /// A line that ends in a colon, without it.
    Heading(String),
    /// Lines that begin at the margin.
    Paragraph(String),
    /// Options or arguments, one in a line, and what is said of them.
    Entry {
        /// As they are written.
        terms: Vec<String>,
        /// What is said, line by line; lines that are set in further keep that.
        said: Vec<String>,
    },
    /// Lines of an example.
    Example(Vec<String>),
}

/// Cuts a help text into its parts. What stands before its first empty line is left out: it is how the command is called.
pub fn parts(help: &str) -> Vec<HelpPart> {
    let mut parts = Vec::new();
    let mut is_example = false;
    for line in help.lines() {
        let indentation = line.len() - line.trim_start().len();
        let text = line.trim();
        if text.is_empty() {
            continue;
        }
        if indentation == 0 {
            is_example = text == "Examples:";
            match text.strip_suffix(':') {
                Some(heading) => parts.push(HelpPart::Heading(heading.to_owned())),
                None => add_to_paragraph(&mut parts, text),
            }
        } else if is_example {
            add_to_example(&mut parts, line.get(2..).unwrap_or(text));
        } else if indentation < DESCRIPTION_COLUMN {
            add_term(&mut parts, line, indentation == 2);
        } else {
            add_said(&mut parts, &line[DESCRIPTION_COLUMN..]);
        }
    }
    parts
}

fn add_to_paragraph(parts: &mut Vec<HelpPart>, text: &str) {
    if let Some(HelpPart::Paragraph(before)) = parts.last_mut() {
        before.push('\n');
        before.push_str(text);
    } else {
        parts.push(HelpPart::Paragraph(text.to_owned()));
    }
}

fn add_to_example(parts: &mut Vec<HelpPart>, text: &str) {
    if let Some(HelpPart::Example(lines)) = parts.last_mut() {
        lines.push(text.to_owned());
    } else {
        parts.push(HelpPart::Example(vec![text.to_owned()]));
    }
}

/// A line that names something: another one than before, or the rest of it.
fn add_term(parts: &mut Vec<HelpPart>, line: &str, is_new: bool) {
    // What is short has its description beside it.
    let (term, said) = match line.get(DESCRIPTION_COLUMN..) {
        Some(said) if line[..DESCRIPTION_COLUMN].ends_with(' ') => {
            (line[..DESCRIPTION_COLUMN].trim(), Some(said))
        }
        _ => (line.trim(), None),
    };
    match parts.last_mut() {
        Some(HelpPart::Entry { terms, said: before }) if before.is_empty() => {
            match terms.last_mut() {
                Some(last) if !is_new => {
                    last.push(' ');
                    last.push_str(term);
                }
                _ => terms.push(term.to_owned()),
            }
        }
        _ => parts.push(HelpPart::Entry { terms: vec![term.to_owned()], said: Vec::new() }),
    }
    if let Some(said) = said {
        add_said(parts, said);
    }
}

fn add_said(parts: &mut [HelpPart], line: &str) {
    if let Some(HelpPart::Entry { said, .. }) = parts.last_mut() {
        said.push(line.to_owned());
    }
}

/// Puts the parts into a page, below a heading.
pub fn set(page: &mut Roff, parts: &[HelpPart]) {
    let mut is_first = true;
    for part in parts {
        let begins = is_first;
        is_first = matches!(part, HelpPart::Heading(_));
        match part {
            HelpPart::Heading(heading) => {
                page.control("SS", [heading.as_str()]);
            }
            HelpPart::Paragraph(text) => {
                if !begins {
                    page.control("PP", []);
                }
                page.text([roman(text.as_str())]);
            }
            HelpPart::Example(lines) => {
                if !begins {
                    page.control("PP", []);
                }
                set_as_written(page, lines);
            }
            HelpPart::Entry { terms, said } => {
                for (index, term) in terms.iter().enumerate() {
                    page.control(if index == 0 { "TP" } else { "TQ" }, []);
                    page.text([bold(with_breaks(term))]);
                }
                set_said(page, said);
            }
        }
    }
}

/// Where a line may be broken; roff has it as `\\:`, which the library would write out.
const BREAK: char = '\u{200b}';

/// A term that a line can be broken in, before each key.
fn with_breaks(term: &str) -> String {
    let mut broken = String::new();
    let mut last = ' ';
    for char in term.chars() {
        let is_key = char == '[' || char == ',' && last != '[';
        if is_key && last != ' ' {
            broken.push(BREAK);
        }
        broken.push(char);
        last = char;
    }
    broken
}

/// The text of a page.
pub fn text(page: &Roff) -> String {
    page.to_roff().replace(BREAK, "\\:")
}

fn set_said(page: &mut Roff, said: &[String]) {
    let (mut text, mut table) = (Vec::new(), Vec::new());
    for line in said {
        if line.starts_with(' ') {
            table.push(line.clone());
            continue;
        }
        if !table.is_empty() {
            page.text([roman(text.join("\n"))]);
            page.control("RS", []);
            set_as_written(page, &table);
            page.control("RE", []);
            page.control("IP", []);
            (text, table) = (Vec::new(), Vec::new());
        }
        text.push(line.clone());
    }
    if !text.is_empty() {
        page.text([roman(text.join("\n"))]);
    }
}

fn set_as_written(page: &mut Roff, lines: &[String]) {
    page.control("nf", []);
    for line in lines {
        page.text([roman(line.as_str())]);
    }
    page.control("fi", []);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_help_is_cut_into_headings_options_and_text() {
        let help = "\
Some disks:
  IMAGE                  a disk
  --object a,id=ID[,x=N]
           [,y=N]
                         make one
                           a b
                         of two
  --one
  --two                  both
                         of them
Other words
of it.
Examples:
  ringloom serve \\
    --x
";
        let entry = |terms: &[&str], said: &[&str]| HelpPart::Entry {
            terms: terms.iter().map(|it| (*it).to_owned()).collect(),
            said: said.iter().map(|it| (*it).to_owned()).collect(),
        };
        let expected = [
            HelpPart::Heading("Some disks".to_owned()),
            entry(&["IMAGE"], &["a disk"]),
            entry(&["--object a,id=ID[,x=N] [,y=N]"], &["make one", "  a b", "of two"]),
            entry(&["--one", "--two"], &["both", "of them"]),
            HelpPart::Paragraph("Other words\nof it.".to_owned()),
            HelpPart::Heading("Examples".to_owned()),
            HelpPart::Example(vec!["ringloom serve \\".to_owned(), "  --x".to_owned()]),
        ];
        assert_eq!(parts(help), expected);
    }
}
