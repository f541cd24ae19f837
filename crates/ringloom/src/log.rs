//! Hears what all parts of the program say, at the levels that are asked for, and hands it to the log.
//!
//! Not here: how a line looks and where it goes (`daemon::Log`).

use std::env;
use std::error::Error;
use std::fmt::{self, Write};
use std::io;
use std::panic;
use std::sync::Arc;

use daemon::{Log, LogEvent, Severity};
use options::{LOG_PARTS, LevelSetting, LogLevel, LogLevels};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::layer::{Context, Filter, SubscriberExt};
use tracing_subscriber::{Layer, Registry, reload};

/// The variable that sets levels.
const VARIABLE: &str = "RINGLOOM_LOG";

/// Starts the log at the levels that the environment asks for, changed by those of the line. Must be called at most once.
pub(crate) fn start(log: &Arc<Log>, settings: &[LevelSetting]) {
    let asked = env::var(VARIABLE).ok();
    let of_environment = asked.as_deref().map(LevelSetting::parse_list);
    let mut levels = LogLevels::all(LogLevel::Info);
    let settings = of_environment.iter().flatten().flatten().chain(settings);
    settings.for_each(|setting| setting.apply(&mut levels));
    let (filter, handle) = reload::Layer::new(PartFilter(levels.clone()));
    let listener = LogListener(Arc::clone(log)).with_filter(filter);
    tracing::subscriber::set_global_default(Registry::default().with(listener))
        .expect("nobody else has set it");
    options::filter_by_log_levels(levels, move |levels| {
        // It is there as long as the process is.
        drop(handle.modify(|filter| filter.0 = levels.clone()));
    });
    keep_panics(log);
    if let (Some(asked), Some(Err(error))) = (&asked, &of_environment) {
        tracing::warn!("{VARIABLE}={asked}: {error}");
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
    log.write_beside_stderr(LogEvent::error(now(), crate::output::sentence(error)));
}

/// A panic ends the process: the log says why, too.
fn keep_panics(log: &Arc<Log>) {
    let (log, say) = (Arc::clone(log), panic::take_hook());
    panic::set_hook(Box::new(move |found| {
        say(found);
        log.write_beside_stderr(LogEvent::error(now(), found.to_string()));
    }));
}

fn now() -> String {
    let mut time = String::new();
    let _infallible = SystemTime.format_time(&mut Writer::new(&mut time));
    time
}

/// The part that says something: its crate.
fn part_of<'a>(metadata: &Metadata<'a>) -> &'a str {
    let target = metadata.target();
    target.split_once("::").map_or(target, |(part, _)| part)
}

/// Lets through what is urgent enough for its part. What libraries say is for those who look for a fault: an error of theirs comes
/// back to our own code, which says it in a sentence or tries again.
struct PartFilter(LogLevels);

impl PartFilter {
    fn lets_through(&self, metadata: &Metadata<'_>) -> bool {
        let part = part_of(metadata);
        let level = tracing_level(self.0.of(part));
        *metadata.level() <= level && (LOG_PARTS.contains(&part) || level >= Level::DEBUG)
    }
}

fn tracing_level(level: LogLevel) -> Level {
    match level {
        LogLevel::Error => Level::ERROR,
        LogLevel::Warn => Level::WARN,
        LogLevel::Info => Level::INFO,
        LogLevel::Debug => Level::DEBUG,
        LogLevel::Trace => Level::TRACE,
    }
}

impl<S> Filter<S> for PartFilter {
    fn enabled(&self, metadata: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        self.lets_through(metadata)
    }

    fn callsite_enabled(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.lets_through(metadata) { Interest::always() } else { Interest::never() }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::from_level(tracing_level(self.0.least_urgent())))
    }
}

/// Hands to the log what it hears.
struct LogListener(Arc<Log>);

impl<S: Subscriber> Layer<S> for LogListener {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let metadata = event.metadata();
        let (severity, level) = match *metadata.level() {
            Level::ERROR => (Severity::Error, "error"),
            Level::WARN => (Severity::Warning, "warn"),
            Level::INFO => (Severity::Info, "info"),
            Level::DEBUG => (Severity::Debug, "debug"),
            Level::TRACE => (Severity::Debug, "trace"),
        };
        let mut sentence = Sentence::default();
        event.record(&mut sentence);
        let text = sentence.text + &sentence.fields;
        let (part, time) = (part_of(metadata), now());
        self.0.write(LogEvent { severity, level, part, time, text });
    }
}

/// What an event says: its message, and then its fields.
#[derive(Default)]
struct Sentence {
    text: String,
    fields: String,
}

impl Visit for Sentence {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let _infallible = match field.name() {
            "message" => write!(self.text, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::LOG_PARTS;

    /// The crates of the daemon that say something are those that levels can be set for.
    #[test]
    fn every_part_that_says_something_is_known() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("it is in a folder");
        let mut found = vec!["ringloom".to_owned()];
        for floor in ["path", "fronts", "nodes", "wire", "daemon"] {
            for entry in std::fs::read_dir(crates.join(floor)).expect("a floor") {
                let directory = entry.expect("a crate").path();
                let manifest = std::fs::read_to_string(directory.join("Cargo.toml"));
                if manifest.is_ok_and(|text| text.contains("\ntracing.workspace")) {
                    let name = directory.file_name().expect("it has one");
                    found.push(name.to_string_lossy().into_owned());
                }
            }
        }
        found.sort();
        assert_eq!(found, LOG_PARTS);
    }
}
