//! The object type `throttle-group`.
//!
//! QEMU has two names for each limit: a key of `limits`, and the same with `x-` before it as a property of
//! the object.

use layers::{Limit, LimitKind, ThrottleLimits, ThrottleSettings};
use serde_json::{Map, Value};
use syntax::{ArgumentError, Key, Keys, OptionFields, ValueType, optional};

use super::{OBJECT_KEYS, ObjectKind, ObjectType};

macro_rules! limits {
    ($($name:literal)*) => { (&[$(limit($name)),*], &[$(limit(concat!("x-", $name))),*]) };
}

/// `qom-type=throttle-group`.
pub(super) const ENTRY: ObjectType = ObjectType {
    name: "throttle-group",
    keys: Keys {
        of: "--object throttle-group",
        supported: &[OBJECT_KEYS, &[optional("limits", ValueType::Object(&LIMITS))], OF_LIMITS.1],
        later: &[],
    },
    read,
};

/// The keys of `limits`.
static LIMITS: Keys =
    Keys { of: "--object throttle-group limits", supported: &[OF_LIMITS.0], later: &[] };

/// The limits as keys of `limits`, and as properties.
const OF_LIMITS: (&[Key], &[Key]) = limits!(
    "bps-total" "bps-total-max" "bps-total-max-length"
    "bps-read" "bps-read-max" "bps-read-max-length"
    "bps-write" "bps-write-max" "bps-write-max-length"
    "iops-total" "iops-total-max" "iops-total-max-length"
    "iops-read" "iops-read-max" "iops-read-max-length"
    "iops-write" "iops-write-max" "iops-write-max-length"
    "iops-size"
);

const fn limit(name: &'static str) -> Key {
    optional(name, ValueType::Number)
}

/// A throttle limit that was given under both of its names, `limits.X` and `x-X`, with different values.
#[derive(Debug, thiserror::Error)]
#[error("{key}={limit} and {property}={other} are the same limit")]
struct LimitAliasConflict {
    /// The key in `limits`.
    key: String,
    limit: u64,
    property: String,
    other: u64,
}

/// The limits as JSON, in `limits`.
pub(super) fn written(limits: &ThrottleLimits) -> Map<String, Value> {
    let settings = limits.settings();
    let mut all = Map::new();
    for kind in LimitKind::ALL {
        let Limit { rate, burst, burst_seconds } = *settings.limit(kind);
        all.insert(kind.name().to_owned(), rate.into());
        all.insert(format!("{kind}-max"), burst.into());
        all.insert(format!("{kind}-max-length"), burst_seconds.into());
    }
    all.insert("iops-size".to_owned(), settings.iops_size.into());
    Map::from_iter([("limits".to_owned(), all.into())])
}

fn read(fields: &mut OptionFields) -> Result<ObjectKind, ArgumentError> {
    let mut limits = fields.object("limits")?;
    let mut take = |key: &str| {
        let property = format!("x-{key}");
        let as_property = fields.number(&property)?;
        let as_limit = limits.as_mut().map(|limits| limits.number(key)).transpose()?.flatten();
        match (as_limit, as_property) {
            (Some(limit), Some(other)) if limit != other => {
                let key = format!("limits.{key}");
                Err(ArgumentError::own(LimitAliasConflict { key, limit, property, other }))
            }
            (limit, property) => Ok(limit.or(property)),
        }
    };
    let mut settings = ThrottleSettings::default();
    for kind in LimitKind::ALL {
        let limit = settings.limit_mut(kind);
        limit.rate = take(kind.name())?.unwrap_or(limit.rate);
        limit.burst = take(&format!("{kind}-max"))?.unwrap_or(limit.burst);
        let length = take(&format!("{kind}-max-length"))?;
        limit.burst_seconds = length.unwrap_or(limit.burst_seconds);
    }
    settings.iops_size = take("iops-size")?.unwrap_or(settings.iops_size);
    ThrottleLimits::check(settings).map(ObjectKind::ThrottleGroup).map_err(ArgumentError::own)
}
