//! An error and its causes in one line.

use std::error::Error;
use std::fmt;

/// Shows an error followed by its causes, each after a colon.
pub fn chain_of(error: &dyn Error) -> impl fmt::Display + '_ {
    ErrorChain(error)
}

/// An error shown with its causes, each after a colon.
struct ErrorChain<'a>(&'a dyn Error);

impl fmt::Display for ErrorChain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}
