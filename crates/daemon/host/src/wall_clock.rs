//! The time on the wall, for what is compared with that of other programs.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What time it is, since 1970.
#[expect(
    clippy::disallowed_methods,
    reason = "clients compare the time with that of other programs"
)]
pub fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
