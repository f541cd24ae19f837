//! The object type `throttle-group`.
//!
//! QEMU has two names for each limit: a key of `limits`, and the same with `x-` before it as a property of
//! the object.

use layers::{LimitKind, ThrottleLimits, ThrottleSettings};

use super::Entry;
use crate::options::fault::Fault;
use crate::options::fields::{Fields, Keys};
use crate::options::plan::{Object, ThrottleGroupObject};

/// `qom-type=throttle-group`.
pub(super) const ENTRY: Entry = Entry {
    name: "throttle-group",
    keys: Keys {
        of: "--object throttle-group",
        supported: &[&["qom-type", "id", "limits"], PROPERTIES],
        later: &[],
    },
    read,
};

/// The keys of `limits`.
pub(in crate::options) const LIMITS: Keys = Keys {
    of: "--object throttle-group limits",
    supported: &[&[
        "bps-total",
        "bps-total-max",
        "bps-total-max-length",
        "bps-read",
        "bps-read-max",
        "bps-read-max-length",
        "bps-write",
        "bps-write-max",
        "bps-write-max-length",
        "iops-total",
        "iops-total-max",
        "iops-total-max-length",
        "iops-read",
        "iops-read-max",
        "iops-read-max-length",
        "iops-write",
        "iops-write-max",
        "iops-write-max-length",
        "iops-size",
    ]],
    later: &[],
};

/// The same as properties.
const PROPERTIES: &[&str] = &[
    "x-bps-total",
    "x-bps-total-max",
    "x-bps-total-max-length",
    "x-bps-read",
    "x-bps-read-max",
    "x-bps-read-max-length",
    "x-bps-write",
    "x-bps-write-max",
    "x-bps-write-max-length",
    "x-iops-total",
    "x-iops-total-max",
    "x-iops-total-max-length",
    "x-iops-read",
    "x-iops-read-max",
    "x-iops-read-max-length",
    "x-iops-write",
    "x-iops-write-max",
    "x-iops-write-max-length",
    "x-iops-size",
];

fn read(id: String, fields: &mut Fields) -> Result<Object, Fault> {
    let mut limits = fields.object("limits")?;
    if let Some(limits) = &limits {
        limits.check_keys(&LIMITS)?;
    }
    let mut take = |key: &str| {
        let property = format!("x-{key}");
        let as_property = fields.number(&property)?;
        let as_limit = limits.as_mut().map(|limits| limits.number(key)).transpose()?.flatten();
        match (as_limit, as_property) {
            (Some(limit), Some(other)) if limit != other => {
                Err(Fault::SaidTwice { key: format!("limits.{key}"), limit, property, other })
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
    let limits = ThrottleLimits::check(settings)?;
    Ok(Object::ThrottleGroup(ThrottleGroupObject { id, limits }))
}
