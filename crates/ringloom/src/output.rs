//! What goes to the terminal: texts to stdout, errors to stderr.
//!
//! Not here: how it is written, which is as the tuner writes (`tuner::output`).

use std::error::Error;
use std::io;
use std::iter;
use std::process::ExitCode;

use tuner::output::write;

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
    format!("{program}: {}\n", sentence(error))
}

/// An error with its causes.
pub(crate) fn sentence(error: &(dyn Error + 'static)) -> String {
    let causes = iter::successors(Some(error), |&error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
mod tests {
    use super::message;

    #[test]
    fn an_error_is_one_sentence_with_its_causes() {
        let error = anyhow::anyhow!("no such thing").context("--object x");
        assert_eq!(message("ringloom", error.as_ref()), "ringloom: --object x: no such thing\n");
    }
}
