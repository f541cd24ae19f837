//! The time by which rates are told.

use std::time::Instant;

/// Now.
#[expect(clippy::disallowed_methods, reason = "rates and ages for people, by their clock")]
pub(crate) fn now() -> Instant {
    Instant::now()
}
