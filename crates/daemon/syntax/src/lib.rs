//! How options are written: QEMU's two notations, typed keys, and what can be wrong with a value.
//!
//! Where it stands: below all that has options. A driver, an object or an export says its keys as a table; [`OptionFields`]
//! takes values by it.
//!
//! Not here: what the keys mean.

#![forbid(unsafe_code)]

mod fault;
mod fields;
mod keys;
mod keyval;
mod nearest;
mod socket_address;
mod written;

pub use fault::ArgumentError;
pub use fault::{ConvertHint, Hint, NameList};
pub use fields::{
    ListElement, OptionFields, TextOrObject, is_identifier, parse_flag, parse_number, parse_size,
};
pub use keys::{Key, Keys, Union, ValueType, optional, required};
pub use keyval::asks_for_help;
pub use nearest::nearest;
pub use socket_address::{
    INET_KEYS, INET_LATER, UNIX_KEYS, UNIX_LATER, read_address_families, socket_mode,
};
