//! The keys of `--export` below those of each type.

use syntax::{Key, ValueType, optional, required};

/// The keys that exports of all types have.
pub const EXPORT_KEYS: &[Key] = &[
    required("type", ValueType::Text),
    required("id", ValueType::Text),
    required("node-name", ValueType::Text),
    optional("writable", ValueType::Flag),
    optional("iothread", ValueType::Texts),
    optional("writethrough", ValueType::Flag),
];
