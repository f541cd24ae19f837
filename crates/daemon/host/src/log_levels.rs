//! How much the process says: a level for all, and others for parts of the program, changed while it runs.
//!
//! A part is a crate: what speaks is known by it. Levels belong to the process, as its log does.
//!
//! Threads: any; whoever filters lines is told of a change before the change returns.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::sync::{Mutex, MutexGuard};

/// The parts that say something, in the order of their names.
pub const LOG_PARTS: &[&str] = &[
    "control",
    "convert",
    "daemon",
    "disk",
    "exports",
    "graph",
    "host",
    "iothread",
    "kernel_io",
    "layers",
    "metrics",
    "monitor",
    "nbd_client",
    "nbd_server",
    "qcow2",
    "rbd",
    "request_path",
    "ringloom",
    "sandbox",
    "takeover",
    "vhost_user",
];

/// The least urgent of what is said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// What has failed.
    Error,
    /// And what is not as it should be.
    Warn,
    /// And what an operator wants to know.
    Info,
    /// And what helps to find a fault.
    Debug,
    /// And everything else.
    Trace,
}

/// The names of levels, from the most urgent to the least.
pub const LOG_LEVELS: &[&str] = &["error", "warn", "info", "debug", "trace"];

impl LogLevel {
    const ALL: [Self; 5] = [Self::Error, Self::Warn, Self::Info, Self::Debug, Self::Trace];

    /// The level of that name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.name() == name)
    }

    /// As it is written.
    pub fn name(self) -> &'static str {
        LOG_LEVELS[self as usize]
    }
}

impl Display for LogLevel {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// What is said: a level, and other ones for parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLevels {
    /// Of all parts that have none of their own.
    pub common: LogLevel,
    /// Of parts, by name.
    pub parts: BTreeMap<String, LogLevel>,
}

impl LogLevels {
    /// The same for all parts.
    pub const fn all(common: LogLevel) -> Self {
        Self { common, parts: BTreeMap::new() }
    }

    /// The level of a part.
    pub fn of(&self, part: &str) -> LogLevel {
        self.parts.get(part).copied().unwrap_or(self.common)
    }

    /// The least urgent that any part says.
    pub fn least_urgent(&self) -> LogLevel {
        self.parts.values().copied().fold(self.common, LogLevel::max)
    }

    /// Has a part, or all that have no level of their own, say as much as that.
    pub fn set(&mut self, part: Option<&str>, level: LogLevel) {
        match part {
            Some(part) => drop(self.parts.insert(part.to_owned(), level)),
            None => self.common = level,
        }
    }
}

/// What filters lines by the levels.
type LevelsHook = Box<dyn Fn(&LogLevels) + Send>;

/// The levels of this process, and what is told of a change.
struct ProcessLevels {
    levels: LogLevels,
    hook: Option<LevelsHook>,
}

static PROCESS: Mutex<ProcessLevels> =
    Mutex::new(ProcessLevels { levels: LogLevels::all(LogLevel::Info), hook: None });

fn process() -> MutexGuard<'static, ProcessLevels> {
    PROCESS.lock().expect("no holder of this lock panics")
}

/// The levels of the process as they are now.
pub fn log_levels() -> LogLevels {
    process().levels.clone()
}

/// Sets the levels of the process.
pub fn set_log_levels(levels: LogLevels) {
    let mut process = process();
    if let Some(hook) = &process.hook {
        hook(&levels);
    }
    process.levels = levels;
}

/// Sets the levels of the process, and has `hook` told of each change from now on. The hook must not log.
pub fn filter_by_log_levels(levels: LogLevels, hook: impl Fn(&LogLevels) + Send + 'static) {
    let mut process = process();
    hook(&levels);
    process.levels = levels;
    process.hook = Some(Box::new(hook));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_has_its_own_level_or_that_of_all() {
        let mut levels = LogLevels::all(LogLevel::Warn);
        levels.set(Some("qcow2"), LogLevel::Trace);
        levels.set(Some("exports"), LogLevel::Error);
        assert_eq!(levels.of("qcow2"), LogLevel::Trace);
        assert_eq!((levels.of("exports"), levels.of("disk")), (LogLevel::Error, LogLevel::Warn));
        assert_eq!(levels.least_urgent(), LogLevel::Trace);
        levels.set(None, LogLevel::Debug);
        assert_eq!((levels.of("disk"), levels.of("exports")), (LogLevel::Debug, LogLevel::Error));
    }

    #[test]
    fn levels_are_read_as_they_are_written() {
        for level in LogLevel::ALL {
            assert_eq!(LogLevel::parse(level.name()), Some(level));
        }
        assert_eq!((LogLevel::parse("WARN"), LogLevel::parse("")), (None, None));
        assert!(LOG_PARTS.is_sorted());
    }
}
