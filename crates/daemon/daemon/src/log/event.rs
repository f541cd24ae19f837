//! What is said at one time: how urgent it is, which part of the program says it, and how that looks in each place.
//!
//! A sentence begins with what it is about, as `export vm1: the client has left`. From there come the fields that a journal
//! and a program which reads JSON can be asked for.

use std::fmt::{self, Write};

use options::LogFormat;

/// How urgent a line is, with its number in syslog(3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// Something has failed.
    Error = 3,
    /// Something is not as it should be.
    Warning = 4,
    /// Something that an operator wants to know.
    Info = 6,
    /// Everything else.
    Debug = 7,
}

/// A line of the log before it has a form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogEvent {
    /// How urgent it is.
    pub severity: Severity,
    /// The name of its level, in lower case.
    pub level: &'static str,
    /// The part of the program that says it.
    pub part: &'static str,
    /// When it was said, as RFC 3339 has it.
    pub time: String,
    /// What is said.
    pub text: String,
}

impl LogEvent {
    /// An event of the program as a whole that ends it.
    pub fn error(time: String, text: String) -> Self {
        Self { severity: Severity::Error, level: "error", part: "ringloom", time, text }
    }

    /// As a line, with its end.
    pub(super) fn line(&self, format: LogFormat, with_time: bool) -> String {
        let Self { level, time, text, .. } = self;
        match format {
            LogFormat::Json => self.json(),
            LogFormat::Text => {
                let level = level.to_uppercase();
                let time = if with_time { format!("{time} ") } else { String::new() };
                format!("{time}{level:>5} {}\n", OneLine(text))
            }
        }
    }

    fn json(&self) -> String {
        let Self { level, part, time, text, .. } = self;
        let mut line = format!("{{\"time\":\"{time}\",\"level\":\"{level}\",\"part\":\"{part}\"");
        if let Some((key, name)) = subject(text) {
            let _infallible = write!(line, ",\"{key}\":{}", serde_json::Value::from(name));
        }
        let _infallible = write!(line, ",\"message\":{}", serde_json::Value::from(text.as_str()));
        line.push_str("}\n");
        line
    }
}

/// A text as one line that no terminal obeys: whoever named a file or a client chose what is in it.
pub(super) struct OneLine<'a>(pub(super) &'a str);

impl fmt::Display for OneLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in self.0.split_inclusive(char::is_control) {
            let plain = part.trim_end_matches(char::is_control);
            f.write_str(plain)?;
            part[plain.len()..]
                .chars()
                .try_for_each(|char| write!(f, "{}", char.escape_default()))?;
        }
        Ok(())
    }
}

/// What sentences begin with, and the field that it is.
const SUBJECTS: &[(&str, &str)] = &[
    ("export ", "export"),
    ("node ", "node"),
    ("block job ", "job"),
    ("monitor ", "monitor"),
    ("disk ", "disk"),
    ("pool ", "pool"),
    ("iothread ", "iothread"),
    ("chardev ", "chardev"),
    ("image ", "image"),
    ("file ", "file"),
];

/// What a sentence is about: the field, and the name of the thing. A name ends at its colon, or where its quotes do.
pub(super) fn subject(text: &str) -> Option<(&'static str, &str)> {
    let (rest, key) =
        SUBJECTS.iter().find_map(|(words, key)| Some((text.strip_prefix(words)?, *key)))?;
    let name = match rest.strip_prefix('\'') {
        Some(quoted) => quoted.split_once('\'')?.0,
        None => rest.split_once(": ")?.0,
    };
    let is_name = !name.is_empty() && !name.contains(|char: char| char.is_whitespace());
    is_name.then_some((key, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(text: &str) -> LogEvent {
        let (time, text) = ("2026-11-27T11:00:00.000001Z".to_owned(), text.to_owned());
        LogEvent { severity: Severity::Warning, level: "warn", part: "exports", time, text }
    }

    #[test]
    fn a_line_has_its_level_and_where_it_is_wanted_the_time() {
        let event = event("export e: the disk is full");
        let text = |with_time| event.line(LogFormat::Text, with_time);
        assert_eq!(text(false), " WARN export e: the disk is full\n");
        assert_eq!(text(true), "2026-11-27T11:00:00.000001Z  WARN export e: the disk is full\n");
    }

    #[test]
    fn a_line_is_one_whatever_is_said() {
        let event = event("disk /a\u{1b}[2J\nb\u{9b}\t\r\u{7f}ü\n: gone");
        let line = event.line(LogFormat::Text, false);
        assert_eq!(line, " WARN disk /a\\u{1b}[2J\\nb\\u{9b}\\t\\r\\u{7f}ü\\n: gone\n");
    }

    #[test]
    fn json_is_one_line_whatever_is_said() {
        let line = event("export e: \"a\nb\"").line(LogFormat::Json, false);
        let expected = "{\"time\":\"2026-11-27T11:00:00.000001Z\",\"level\":\"warn\",\"part\":\"exports\",\
                        \"export\":\"e\",\"message\":\"export e: \\\"a\\nb\\\"\"}\n";
        assert_eq!(line, expected);
    }

    #[test]
    fn a_sentence_begins_with_what_it_is_about() {
        let found = |text| subject(text);
        assert_eq!(found("export vm1: the client has left"), Some(("export", "vm1")));
        assert_eq!(found("block job 'j': ended"), Some(("job", "j")));
        assert_eq!(found("node 'a' stays writable: why"), Some(("node", "a")));
        assert_eq!(found("disk /a/b: write at byte 4096"), Some(("disk", "/a/b")));
        assert_eq!(found("node a cannot be taken back: why"), None);
        assert_eq!(found("SIGTERM: stopping"), None);
        assert_eq!(found("export : x"), None);
    }
}
