//! `--log-format` and `--log-level`: how the log looks, and how much it says.

use host::{LOG_LEVELS, LOG_PARTS, LogLevel, LogLevels};
use syntax::{ArgumentError, Hint, nearest};

/// How lines of the log look on stderr and in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// For programs: an object a line.
    Json,
}

impl LogFormat {
    pub(crate) const NAMES: &[&str] = &["text", "json"];

    pub(crate) fn parse(text: &str) -> Result<Self, ArgumentError> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err(ArgumentError::ExpectsAlone("'text' or 'json'")),
        }
    }
}

/// What `--log-level` says: a level for a part, or for all that have none of their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LevelSetting {
    part: Option<String>,
    level: LogLevel,
}

/// What is wrong with a level.
#[derive(Debug, thiserror::Error)]
pub enum LevelError {
    /// No such level.
    #[error("'{0}' is not a level ({levels})", levels = LOG_LEVELS.join(", "))]
    Level(String),
    /// No such part.
    #[error("no part of the program is called '{part}'{}", Hint(*nearest))]
    Part {
        /// As it was given.
        part: String,
        /// What was probably meant.
        nearest: Option<&'static str>,
    },
}

impl LevelSetting {
    /// Reads `LEVEL` or `PART=LEVEL`.
    pub(crate) fn parse(text: &str) -> Result<Self, LevelError> {
        let (part, name) = match text.split_once('=') {
            Some((part, level)) => (Some(part), level),
            None => (None, text),
        };
        let level = LogLevel::parse(name).ok_or_else(|| LevelError::Level(name.to_owned()))?;
        if let Some(part) = part.filter(|part| !LOG_PARTS.contains(part)) {
            let nearest = nearest(part, LOG_PARTS.iter().copied());
            let nearest = LOG_PARTS.iter().copied().find(|known| Some(*known) == nearest);
            return Err(LevelError::Part { part: part.to_owned(), nearest });
        }
        Ok(Self { part: part.map(str::to_owned), level })
    }

    /// Reads several with commas between them, as an environment variable has them. All or none.
    pub fn parse_list(text: &str) -> Result<Vec<Self>, LevelError> {
        text.split(',').map(Self::parse).collect()
    }

    /// Sets it.
    pub fn apply(&self, levels: &mut LogLevels) {
        levels.set(self.part.as_deref(), self.level);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_set_for_all_or_for_a_part() {
        let mut levels = LogLevels::all(LogLevel::Info);
        for setting in LevelSetting::parse_list("warn,qcow2=debug,exports=error").unwrap() {
            setting.apply(&mut levels);
        }
        let found = ["qcow2", "exports", "disk"].map(|part| levels.of(part));
        assert_eq!(found, [LogLevel::Debug, LogLevel::Error, LogLevel::Warn]);
    }

    #[test]
    fn what_is_no_level_or_no_part_is_said() {
        let refused = |text| LevelSetting::parse_list(text).unwrap_err().to_string();
        assert_eq!(refused("loud"), "'loud' is not a level (error, warn, info, debug, trace)");
        assert_eq!(refused("warn,"), "'' is not a level (error, warn, info, debug, trace)");
        let part = "no part of the program is called 'exprts'; did you mean 'exports'?";
        assert_eq!(refused("exprts=debug"), part);
    }
}
