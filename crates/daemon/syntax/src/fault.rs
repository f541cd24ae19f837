//! What can be wrong with the value of an option, in the operator's words.
//!
//! Each message names the thing and the value. What only one driver, object or export says is an error of its own
//! ([`ArgumentError::Own`]).

use std::error::Error;
use std::fmt::{self, Display};

/// What is wrong with the argument of an option.
#[derive(Debug, thiserror::Error)]
pub enum ArgumentError {
    /// Not JSON.
    #[error("not valid JSON")]
    Json(#[source] serde_json::Error),
    /// A key that no option can have.
    #[error("invalid parameter '{0}'")]
    InvalidKey(String),
    /// A key without a value.
    #[error("expected '=' after parameter '{0}'")]
    NoEquals(String),
    /// Both a value and something nested, or names and numbers mixed.
    #[error("parameters '{0}.*' used inconsistently")]
    Inconsistent(String),
    /// Nested without end.
    #[error("parameter '{key}' is nested deeper than {levels_max} levels")]
    TooDeep {
        /// The key.
        key: String,
        /// The bound.
        levels_max: usize,
    },
    /// A key that must be there.
    #[error("parameter '{0}' is missing")]
    Missing(String),
    /// A key that nobody knows.
    #[error("unknown option '{key}' of {of}{}", HintOrNames(nearest.as_deref(), supported))]
    UnknownKey {
        /// The key.
        key: String,
        /// What it was given to.
        of: &'static str,
        /// What was probably meant.
        nearest: Option<String>,
        /// What there is.
        supported: Vec<&'static str>,
    },
    /// A key of qemu-storage-daemon that ringloom does not have yet.
    #[error("option '{key}' of {of} is not supported yet")]
    KeyNotYet {
        /// The key.
        key: String,
        /// What it was given to.
        of: &'static str,
    },
    /// A value of the wrong kind.
    #[error("parameter '{key}' expects {expected}")]
    Expects {
        /// The key.
        key: String,
        /// What would be right.
        expected: &'static str,
    },
    /// A number that is none of those that the key can have.
    #[error("Value '{value}' is out of range for parameter '{key}'")]
    OutOfRange {
        /// The key.
        key: String,
        /// The value.
        value: i64,
    },
    /// A value where there are keys.
    #[error(
        "parameter '{key}' has no value but keys of its own: {key}.KEY=VALUE{}",
        CacheHint(key)
    )]
    ExpectsKeys {
        /// The key.
        key: String,
    },
    /// A top-level option's value of the wrong kind.
    #[error("expects {0}")]
    ExpectsAlone(&'static str),
    /// A value that nobody knows.
    #[error("parameter '{key}' does not accept value '{value}'{}", HintOrNames(*nearest, accepted))]
    UnknownValue {
        /// The key.
        key: String,
        /// The value.
        value: String,
        /// What was probably meant.
        nearest: Option<&'static str>,
        /// What there is.
        accepted: Vec<&'static str>,
    },
    /// A value of qemu-storage-daemon that ringloom does not have yet.
    #[error(
        "{key} '{value}' is not supported yet (supported: {}){}",
        NameList(accepted),
        ConvertHint("; ", value)
    )]
    ValueNotYet {
        /// The key.
        key: String,
        /// The value.
        value: String,
        /// What there is.
        accepted: Vec<&'static str>,
    },
    /// An object's id that is no identifier.
    #[error(
        "parameter '{key}' expects an identifier, not '{value}': letters, digits, '-', '.', '_', \
         starting with a letter"
    )]
    NotAnIdentifier {
        /// The key.
        key: &'static str,
        /// The value.
        value: String,
    },
    /// A list that must have an element.
    #[error("parameter '{0}' is an empty list; leave it out to serve without iothread")]
    EmptyList(String),
    /// No path at all.
    #[error("the {0} is empty")]
    EmptyPath(&'static str),
    /// What the thing itself says that has the options.
    #[error(transparent)]
    Own(Box<dyn Error + Send + Sync>),
}

impl ArgumentError {
    /// The key that it is about, with all that stand before it. What is missing has none.
    pub fn key(&self) -> Option<&str> {
        match self {
            Self::InvalidKey(key)
            | Self::NoEquals(key)
            | Self::Inconsistent(key)
            | Self::TooDeep { key, .. }
            | Self::UnknownKey { key, .. }
            | Self::KeyNotYet { key, .. }
            | Self::Expects { key, .. }
            | Self::OutOfRange { key, .. }
            | Self::ExpectsKeys { key }
            | Self::UnknownValue { key, .. }
            | Self::ValueNotYet { key, .. }
            | Self::EmptyList(key) => Some(key),
            Self::NotAnIdentifier { key, .. } => Some(*key),
            Self::Json(_)
            | Self::Missing(_)
            | Self::ExpectsAlone(_)
            | Self::EmptyPath(_)
            | Self::Own(_) => None,
        }
    }

    /// What only this driver, object or export says.
    pub fn own(error: impl Error + Send + Sync + 'static) -> Self {
        Self::Own(Box::new(error))
    }
}

/// A hint how to convert an image of an unsupported format.
#[derive(Debug)]
pub struct ConvertHint<'a>(pub &'a str, pub &'a str);

impl Display for ConvertHint<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(lead, format) = self;
        if formats::names().any(|known| known == *format) {
            write!(formatter, "{lead}convert it: qemu-img convert -f {format} -O qcow2 OLD NEW")?;
        }
        Ok(())
    }
}

/// A hint where QEMU's cache modes are among the options.
struct CacheHint<'a>(&'a str);

impl Display for CacheHint<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 != "cache" && !self.0.ends_with(".cache") {
            return Ok(());
        }
        formatter.write_str(
            " (cache=none is cache.direct=on, cache=unsafe is cache.no-flush=on, cache=writethrough is \
             writethrough=on of the export)",
        )
    }
}

/// `; did you mean 'x'?`, or nothing.
#[derive(Debug)]
pub struct Hint<'a>(pub Option<&'a str>);

impl Display for Hint<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(name) => write!(formatter, "; did you mean '{name}'?"),
            None => Ok(()),
        }
    }
}

/// A hint at the nearest name, or all names.
struct HintOrNames<'a>(Option<&'a str>, &'a [&'static str]);

impl Display for HintOrNames<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(_) => Hint(self.0).fmt(formatter),
            None => write!(formatter, " (supported: {})", NameList(self.1)),
        }
    }
}

/// Names with commas between them, for a message.
#[derive(Debug)]
pub struct NameList<'a>(pub &'a [&'static str]);

impl Display for NameList<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0.join(", "))
    }
}
