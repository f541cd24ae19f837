//! What goes to the terminal: texts to stdout, errors to stderr.
//!
//! A reader that has gone away (`ringloom --help | head -1`) is no error; a full disk is.

use std::error::Error;
use std::io::{self, ErrorKind, Write};
use std::iter;
use std::process::ExitCode;

/// Prints a text to stdout.
pub(crate) fn print(text: &str) -> ExitCode {
    match write(&mut io::stdout().lock(), text) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Prints an error with its causes to stderr; gives the exit code of a failure, which is 1 for
/// wrong options too, as in qemu-storage-daemon.
pub(crate) fn fail(program: &str, error: &(dyn Error + 'static)) -> ExitCode {
    // Nobody is left to hear that stderr cannot be written.
    drop(write(&mut io::stderr().lock(), &message(program, error)));
    ExitCode::FAILURE
}

fn message(program: &str, error: &(dyn Error + 'static)) -> String {
    let causes = iter::successors(Some(error), |&error| error.source());
    let sentence = causes.map(ToString::to_string).collect::<Vec<_>>().join(": ");
    format!("{program}: {sentence}\n")
}

fn write(stream: &mut impl Write, text: &str) -> io::Result<()> {
    let written = stream.write_all(text.as_bytes()).and_then(|()| stream.flush());
    match written {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};

    use super::{message, write};

    #[test]
    fn an_error_is_one_sentence_with_its_causes() {
        let error = anyhow::anyhow!("no such thing").context("--object x");
        assert_eq!(message("ringloom", error.as_ref()), "ringloom: --object x: no such thing\n");
    }

    struct Closed(io::ErrorKind);

    impl Write for Closed {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_reader_that_left_is_no_error_and_a_full_disk_is_one() {
        assert!(write(&mut Closed(io::ErrorKind::BrokenPipe), "x").is_ok());
        assert!(write(&mut Closed(io::ErrorKind::StorageFull), "x").is_err());
    }
}
