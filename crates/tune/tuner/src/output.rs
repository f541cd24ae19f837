//! What goes to the terminal: reports, and for `progress` and the command line what else is said.
//!
//! Invariants: what is printed has no control characters, whatever it says.
//! Not here: what is written to files (`kept`), and the bar of `progress`, which has nothing of others in it.

use std::io::{self, ErrorKind, Write};

use anyhow::{Context, Result};
use plan::units::printable;

/// Prints to standard output. A reader that has gone away is no error.
///
/// # Errors
/// If it cannot be written, as on a full disk.
pub(crate) fn print(text: &str) -> Result<()> {
    write(&mut io::stdout().lock(), text).context("write the report to standard output")
}

/// Writes all of a text to a terminal, without the control characters that it would obey. A reader that has gone away
/// (`ringloom --help | head -1`) is no error; a full disk is.
///
/// # Errors
/// If it cannot be written.
pub fn write(stream: &mut impl Write, text: &str) -> io::Result<()> {
    let written = stream.write_all(printable(text).as_bytes());
    match written.and_then(|()| stream.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails when it is written, or when it is flushed.
    struct Closed(ErrorKind, bool);

    impl Write for Closed {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.1 { Ok(bytes.len()) } else { Err(self.0.into()) }
        }

        fn flush(&mut self) -> io::Result<()> {
            Err(self.0.into())
        }
    }

    #[test]
    fn a_terminal_obeys_nothing_that_is_written() {
        let mut written = Vec::new();
        write(&mut written, "a\u{1b}[2J\nb\u{202e}\n").unwrap();
        assert_eq!(String::from_utf8(written).unwrap(), "a\u{fffd}[2J\nb\u{fffd}\n");
    }

    #[test]
    fn a_reader_that_left_is_no_error_and_a_full_disk_is_one() {
        for at_flush in [false, true] {
            assert!(write(&mut Closed(ErrorKind::BrokenPipe, at_flush), "x").is_ok());
            assert!(write(&mut Closed(ErrorKind::StorageFull, at_flush), "x").is_err());
        }
    }
}
