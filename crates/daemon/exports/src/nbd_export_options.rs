//! `--export type=nbd`: a name on the NBD server.
//!
//! Limits: names and descriptions of 4096 bytes (the NBD protocol's limit of a string).
//! Not here: where the server listens (`--nbd-server`).

use serde_json::{Map, Value};
use syntax::{ArgumentError, Keys, OptionFields, ValueType, optional};

use crate::export_keys::EXPORT_KEYS;

/// The longest name and description, in bytes.
const STRING_BYTES_MAX: usize = 4096;

/// The keys of `type=nbd`.
pub const NBD: Keys = Keys {
    of: "--export type=nbd",
    supported: &[
        EXPORT_KEYS,
        &[
            optional("name", ValueType::Text),
            optional("description", ValueType::Text),
            optional("allocation-depth", ValueType::Flag),
        ],
    ],
    later: &[&["bitmaps", "allow-inactive", "fixed-iothread"]],
};

/// What only NBD exports have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NbdExportOptions {
    /// What clients call it; the node's name if nothing is said. At most 4096 bytes.
    pub name: String,
    /// What clients are told of it. At most 4096 bytes.
    pub description: Option<String>,
    /// Whether clients may ask how deep in the backing chain data lie (`qemu:allocation-depth`).
    pub allocation_depth: bool,
}

/// A text that the protocol cannot carry.
#[derive(Debug, thiserror::Error)]
#[error("parameter {key} has {bytes} bytes; the limit is 4096")]
struct TooLong {
    key: &'static str,
    bytes: usize,
}

impl NbdExportOptions {
    pub(crate) fn read(fields: &mut OptionFields, node_name: &str) -> Result<Self, ArgumentError> {
        let name = fields.text("name")?.unwrap_or_else(|| node_name.to_owned());
        let description = fields.text("description")?;
        for (key, text) in [("name", Some(&name)), ("description", description.as_ref())] {
            let bytes = text.map_or(0, String::len);
            if bytes > STRING_BYTES_MAX {
                return Err(ArgumentError::own(TooLong { key, bytes }));
            }
        }
        let allocation_depth = fields.flag("allocation-depth")?.unwrap_or(false);
        Ok(Self { name, description, allocation_depth })
    }

    pub(crate) fn write(&self, written: &mut Map<String, Value>) {
        written.insert("name".to_owned(), self.name.as_str().into());
        if let Some(description) = &self.description {
            written.insert("description".to_owned(), description.as_str().into());
        }
        written.insert("allocation-depth".to_owned(), self.allocation_depth.into());
    }
}

#[cfg(test)]
mod tests {
    use crate::ExportOptions;

    #[test]
    fn a_name_is_the_nodes_if_none_is_said_and_has_a_bound() {
        let parse = |more: &str| ExportOptions::parse(&format!("nbd,id=e,node-name=n{more}"));
        let written = |more: &str| parse(more).unwrap().written();
        assert_eq!(written("")["name"], "n");
        assert_eq!(written(",name=")["name"], "");
        assert_eq!(written(",description=d,allocation-depth=on")["description"], "d");
        let long = parse(&format!(",name={}", "x".repeat(4097))).unwrap_err();
        assert_eq!(long.to_string(), "parameter name has 4097 bytes; the limit is 4096");
        let bitmaps = parse(",bitmaps.0=b").unwrap_err().to_string();
        assert!(bitmaps.contains("bitmaps"), "{bitmaps}");
    }
}
