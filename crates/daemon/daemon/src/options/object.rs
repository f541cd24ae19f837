//! `--object`: one entry for each type, with its keys and what reads them.
//!
//! A new type is a file in `object/`, an entry in [`TABLE`] and a variant of [`ObjectKind`].
//!
//! Not here: the other objects of qemu-storage-daemon; they are refused by name.

mod iothread;
pub(super) mod throttle_group;

use super::plan::{ObjectKind, ObjectOptions};
use crate::syntax::{ArgumentError, Keys, OptionFields, is_identifier};

/// A type of `--object`: its name and keys, and how it is read.
#[derive(Debug, Clone, Copy)]
pub(super) struct ObjectType {
    /// Its name, as in `qom-type=`.
    name: &'static str,
    /// All its keys.
    pub(super) keys: Keys,
    /// Reads the keys that only this type has.
    read: fn(&mut OptionFields) -> Result<ObjectKind, ArgumentError>,
}

/// The object types that work.
pub(super) const TABLE: &[ObjectType] = &[iothread::ENTRY, throttle_group::ENTRY];

/// The object types that qemu-storage-daemon has and ringloom does not have yet.
const LATER: &str = "authz-list authz-listfile authz-pam authz-simple main-loop pr-manager-helper \
    secret secret_keyring thread-context tls-cipher-suites tls-creds-anon tls-creds-psk tls-creds-x509";

/// Reads the argument of `--object`.
pub(super) fn parse(text: &str) -> Result<ObjectOptions, ArgumentError> {
    let mut fields = OptionFields::parse(text, "qom-type")?;
    let kind = fields.required_text("qom-type")?;
    let Some(entry) = TABLE.iter().find(|entry| entry.name == kind) else {
        let accepted: Vec<&str> = TABLE.iter().map(|entry| entry.name).collect();
        if LATER.split(' ').any(|known| known == kind) {
            return Err(ArgumentError::ValueNotYet {
                key: "object type".to_owned(),
                value: kind,
                accepted,
            });
        }
        return Err(fields.unknown_value("qom-type", kind, &accepted));
    };
    fields.check_keys(&entry.keys)?;
    let id = fields.required_text("id")?;
    if !is_identifier(&id) {
        return Err(ArgumentError::NotAnIdentifier { key: "id", value: id });
    }
    Ok(ObjectOptions { id, kind: (entry.read)(&mut fields)? })
}
