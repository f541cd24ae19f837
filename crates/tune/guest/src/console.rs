//! The ends of logs, for messages.

use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;

/// Lines shown of a guest that went wrong.
const TAIL_LINES: usize = 20;
/// Bytes looked at; lines are shorter than 3 KiB.
const TAIL_BYTES: u64 = 64 << 10;

/// The end of a log as text; if it cannot be read, why.
pub(crate) fn end_of(path: &Path) -> String {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = std::fs::File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
        let mut bytes = Vec::new();
        file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    match read() {
        Ok(bytes) => readable(&String::from_utf8_lossy(&bytes)),
        Err(error) => format!("{} cannot be read: {error}", path.display()),
    }
}

/// The last lines of a text.
pub(crate) fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
}

/// Without what would move a terminal's cursor, and without empty lines.
fn readable(text: &str) -> String {
    let kept = |it: &char| *it == '\n' || *it == '\t' || !it.is_control();
    let text: String = text.chars().filter(kept).collect();
    text.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n")
}

/// The line that says why a kernel gave up.
pub(crate) fn panic_in(console: &str) -> Option<&str> {
    console.lines().find_map(|line| line.find("Kernel panic").map(|at| line[at..].trim()))
}

/// The line of QEMU's log that tells most of why a guest does not run.
pub(crate) fn reason_in(log: &str) -> Option<&str> {
    let tells = |line: &&str| {
        let line = line.to_lowercase();
        ["error", "fail", "denied", "not supported", "unsupported", "could not", "invalid"]
            .iter()
            .any(|word| line.contains(word))
    };
    let lines = || log.lines().map(str::trim).filter(|line| !line.is_empty());
    lines().find(tells).or_else(|| lines().next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_and_empty_lines_are_left_out() {
        assert_eq!(readable("a\r\n\x1bc\r\n\r\nb\tc  "), "a\nc\nb\tc");
        let long: String = (0..30).map(|it| format!("{it}\n")).collect();
        assert!(tail(&long).starts_with("10\n"));
    }

    #[test]
    fn the_telling_line_is_found() {
        let log = "warning: x\nKVM internal error. Suberror: 1\nEAX=0";
        assert_eq!(reason_in(log), Some("KVM internal error. Suberror: 1"));
        assert_eq!(reason_in("\n only this\nthat"), Some("only this"));
        assert_eq!(reason_in(""), None);
        let console = "[    1.2] Kernel panic - not syncing: No init\n[    1.3] CPU: 0";
        assert_eq!(panic_in(console), Some("Kernel panic - not syncing: No init"));
    }
}
