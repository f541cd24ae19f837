//! How a line of the log looks: level and message. A file gets the time as well; journals, container runtimes and those
//! who read stderr have it.

use std::env;
use std::error::Error;
use std::io;
use std::panic;
use std::path::Path;
use std::sync::Arc;

use daemon::{Log, Severity};
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::time::SystemTime;

/// The variable that sets the level.
const VARIABLE: &str = "RINGLOOM_LOG";

/// Starts the log at the level that the environment asks for; `file` is where it goes, if it is a file. Must be called at
/// most once.
pub(crate) fn start(log: &Arc<Log>, file: Option<&Path>) {
    let asked = env::var(VARIABLE).ok();
    let level: Option<Level> = asked.as_deref().and_then(|asked| asked.parse().ok());
    let lines = tracing_subscriber::fmt()
        .with_writer(LogWriterFactory(Arc::clone(log)))
        // What cannot be written is counted; the library would say it on stderr, and panic if that fails.
        .log_internal_errors(false)
        .with_target(false)
        .with_max_level(level.unwrap_or(Level::INFO));
    match file {
        Some(_) => lines.with_timer(SystemTime).init(),
        None => lines.without_time().init(),
    }
    keep_panics(log);
    if let (Some(asked), None) = (asked, level) {
        tracing::warn!("{VARIABLE}={asked}: not a level (error, warn, info, debug, trace)");
    }
}

/// Starts a log on stderr for commands that end soon: warnings and errors, if nothing else is asked for.
pub(crate) fn start_quiet() {
    let asked = env::var(VARIABLE).ok().and_then(|asked| asked.parse().ok());
    let lines = tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .log_internal_errors(false)
        .with_target(false)
        .with_max_level(asked.unwrap_or(Level::WARN));
    lines.without_time().init();
}

/// Writes the error that ends the program, which is said on stderr as well.
pub(crate) fn keep_error(log: &Log, error: &(dyn Error + 'static)) {
    let line = format!("ERROR {}\n", crate::output::sentence(error));
    log.write_beside_stderr(Severity::Error, line.as_bytes());
}

/// A panic ends the process: the log says why, too.
fn keep_panics(log: &Arc<Log>) {
    let (log, say) = (Arc::clone(log), panic::take_hook());
    panic::set_hook(Box::new(move |found| {
        say(found);
        log.write_beside_stderr(Severity::Error, format!("ERROR {found}\n").as_bytes());
    }));
}

/// Makes a [`LogLineWriter`] for each event (tracing's MakeWriter).
struct LogWriterFactory(Arc<Log>);

/// Writes one formatted event to the log.
struct LogLineWriter<'a> {
    log: &'a Log,
    severity: Severity,
}

impl<'a> MakeWriter<'a> for LogWriterFactory {
    type Writer = LogLineWriter<'a>;

    fn make_writer(&'a self) -> Self::Writer {
        LogLineWriter { log: &self.0, severity: Severity::Info }
    }

    fn make_writer_for(&'a self, metadata: &Metadata<'_>) -> Self::Writer {
        let severity = match *metadata.level() {
            Level::ERROR => Severity::Error,
            Level::WARN => Severity::Warning,
            Level::INFO => Severity::Info,
            Level::DEBUG | Level::TRACE => Severity::Debug,
        };
        LogLineWriter { log: &self.0, severity }
    }
}

impl io::Write for LogLineWriter<'_> {
    /// A line comes as a whole.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.log.write(self.severity, line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
