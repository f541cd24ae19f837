//! The object type `throttle-group`.
//!
//! QEMU has two names for each limit: a key of `limits`, and the same with `x-` before it as a property of
//! the object.

use layers::{LimitKind, ThrottleLimits, ThrottleSettings};

use super::Entry;
use crate::options::plan::{Object, ThrottleGroupObject};
use crate::syntax::{Fault, Fields, Key, Keys, Takes, optional, required};

/// `qom-type=throttle-group`.
pub(super) const ENTRY: Entry = Entry {
    name: "throttle-group",
    keys: Keys {
        of: "--object throttle-group",
        supported: &[
            &[
                required("qom-type", Takes::Text),
                required("id", Takes::Text),
                optional("limits", Takes::Object(&LIMITS)),
            ],
            PROPERTIES,
        ],
        later: &[],
    },
    read,
};

/// The keys of `limits`.
static LIMITS: Keys = Keys {
    of: "--object throttle-group limits",
    supported: &[&[
        limit("bps-total"),
        limit("bps-total-max"),
        limit("bps-total-max-length"),
        limit("bps-read"),
        limit("bps-read-max"),
        limit("bps-read-max-length"),
        limit("bps-write"),
        limit("bps-write-max"),
        limit("bps-write-max-length"),
        limit("iops-total"),
        limit("iops-total-max"),
        limit("iops-total-max-length"),
        limit("iops-read"),
        limit("iops-read-max"),
        limit("iops-read-max-length"),
        limit("iops-write"),
        limit("iops-write-max"),
        limit("iops-write-max-length"),
        limit("iops-size"),
    ]],
    later: &[],
};

/// The same as properties.
const PROPERTIES: &[Key] = &[
    limit("x-bps-total"),
    limit("x-bps-total-max"),
    limit("x-bps-total-max-length"),
    limit("x-bps-read"),
    limit("x-bps-read-max"),
    limit("x-bps-read-max-length"),
    limit("x-bps-write"),
    limit("x-bps-write-max"),
    limit("x-bps-write-max-length"),
    limit("x-iops-total"),
    limit("x-iops-total-max"),
    limit("x-iops-total-max-length"),
    limit("x-iops-read"),
    limit("x-iops-read-max"),
    limit("x-iops-read-max-length"),
    limit("x-iops-write"),
    limit("x-iops-write-max"),
    limit("x-iops-write-max-length"),
    limit("x-iops-size"),
];

const fn limit(name: &'static str) -> Key {
    optional(name, Takes::Number)
}

/// One limit with two values.
#[derive(Debug, thiserror::Error)]
#[error("{key}={limit} and {property}={other} are the same limit")]
struct SaidTwice {
    /// The key in `limits`.
    key: String,
    limit: u64,
    property: String,
    other: u64,
}

fn read(id: String, fields: &mut Fields) -> Result<Object, Fault> {
    let mut limits = fields.object("limits")?;
    let mut take = |key: &str| {
        let property = format!("x-{key}");
        let as_property = fields.number(&property)?;
        let as_limit = limits.as_mut().map(|limits| limits.number(key)).transpose()?.flatten();
        match (as_limit, as_property) {
            (Some(limit), Some(other)) if limit != other => {
                let key = format!("limits.{key}");
                Err(Fault::own(SaidTwice { key, limit, property, other }))
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
    let limits = ThrottleLimits::check(settings).map_err(Fault::own)?;
    Ok(Object::ThrottleGroup(ThrottleGroupObject { id, limits }))
}
