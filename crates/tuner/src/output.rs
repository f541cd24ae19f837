//! What goes to standard output: the report of a run and those of results.
//!
//! Invariants: what is printed has no control characters, whatever it says.
//! Not here: what is said beside it, on standard error (`progress`).

use std::io::{self, ErrorKind, Write};

use anyhow::{Context, Result};

use crate::units::printable;

/// Prints to standard output. A reader that has gone away is no error.
///
/// # Errors
/// If it cannot be written, as on a full disk.
pub(crate) fn print(text: &str) -> Result<()> {
    write(&mut io::stdout().lock(), &printable(text)).context("write the report to standard output")
}

fn write(stream: &mut impl Write, text: &str) -> io::Result<()> {
    match stream.write_all(text.as_bytes()).and_then(|()| stream.flush()) {
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
    fn a_reader_that_left_is_no_error_and_a_full_disk_is_one() {
        for at_flush in [false, true] {
            assert!(write(&mut Closed(ErrorKind::BrokenPipe, at_flush), "x").is_ok());
            assert!(write(&mut Closed(ErrorKind::StorageFull, at_flush), "x").is_err());
        }
    }
}
