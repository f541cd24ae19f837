//! The object type `iothread`.

use syntax::{ArgumentError, Keys, OptionFields, ValueType, optional};

use super::{OBJECT_KEYS, ObjectKind, ObjectType, PollOptions};

/// `qom-type=iothread`.
pub(super) const ENTRY: ObjectType = ObjectType {
    name: "iothread",
    keys: Keys {
        of: "--object iothread",
        supported: &[
            OBJECT_KEYS,
            &[
                optional("poll-max-ns", ValueType::Int),
                optional("poll-grow", ValueType::Int),
                optional("poll-shrink", ValueType::Int),
            ],
        ],
        later: &[&["aio-max-batch", "thread-pool-max", "thread-pool-min"]],
    },
    read,
};

fn read(fields: &mut OptionFields) -> Result<ObjectKind, ArgumentError> {
    polling(fields).map(ObjectKind::Iothread)
}

/// The keys of polling.
pub(super) fn polling(fields: &mut OptionFields) -> Result<PollOptions, ArgumentError> {
    Ok(PollOptions {
        max_ns: fields.int("poll-max-ns")?,
        grow: factor("poll-grow", fields.int("poll-grow")?.unwrap_or(0))?,
        shrink: factor("poll-shrink", fields.int("poll-shrink")?.unwrap_or(0))?,
    })
}

/// A factor of polling; what is more than a million is no factor that anybody wants.
fn factor(key: &'static str, value: u64) -> Result<u32, ArgumentError> {
    const MAX: u32 = 1_000_000;
    let fits = u32::try_from(value).ok().filter(|factor| *factor <= MAX);
    fits.ok_or(ArgumentError::Expects { key: key.to_owned(), expected: "a number up to 1000000" })
}
