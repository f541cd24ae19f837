//! The log: level and message to stderr, without time, which journald and container runtimes add.

use std::env;
use std::io;

use tracing::Level;

/// The variable that sets the level.
const VARIABLE: &str = "RINGLOOM_LOG";

/// Starts the log at the level that the environment asks for. Must be called at most once.
pub(crate) fn start() {
    let asked = env::var(VARIABLE).ok();
    let level: Option<Level> = asked.as_deref().and_then(|asked| asked.parse().ok());
    tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .without_time()
        .with_target(false)
        .with_max_level(level.unwrap_or(Level::INFO))
        .init();
    if let (Some(asked), None) = (asked, level) {
        tracing::warn!("{VARIABLE}={asked}: not a level (error, warn, info, debug, trace)");
    }
}
