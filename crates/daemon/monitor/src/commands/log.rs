//! How much the log says: `ringloom-log-set`, `query-ringloom-log`. Levels are those of the process, and last as long as it
//! does.

use host::{LOG_LEVELS, LOG_PARTS, LogLevel, log_levels, set_log_levels};
use serde_json::Value;
use syntax::{Keys, OptionFields, ValueType, optional};

use super::{CommandContext, answer, done};
use crate::qmp_error::QmpError;
use crate::types::{RingloomLogInfo, RingloomLogPart};

pub(super) static SET: Keys = Keys {
    of: "ringloom-log-set",
    supported: &[&[
        optional("level", ValueType::Word(LOG_LEVELS)),
        optional("part", ValueType::Word(LOG_PARTS)),
    ]],
    later: &[],
};

/// A level for all, or for a part; a part without a level has that of all again.
pub(super) fn set(_: &mut CommandContext<'_>, mut fields: OptionFields) -> Result<Value, QmpError> {
    let level = fields.word("level")?.and_then(LogLevel::parse);
    let part = fields.word("part")?;
    let mut levels = log_levels();
    match (part, level) {
        (part, Some(level)) => levels.set(part, level),
        (Some(part), None) => drop(levels.parts.remove(part)),
        (None, None) => return Err(QmpError::generic("parameter 'level' is missing")),
    }
    set_log_levels(levels);
    done()
}

pub(super) fn query(_: &mut CommandContext<'_>, _: OptionFields) -> Result<Value, QmpError> {
    let levels = log_levels();
    let part = |part: &&'static str| RingloomLogPart {
        part,
        level: levels.of(part).name(),
        is_own: levels.parts.contains_key(*part),
    };
    let parts = LOG_PARTS.iter().map(part).collect();
    answer(RingloomLogInfo { level: levels.common.name(), parts })
}
