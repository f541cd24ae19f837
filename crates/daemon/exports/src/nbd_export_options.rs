//! `--export type=nbd`: a name on the NBD server.
//!
//! Limits: names and descriptions of 4096 bytes (the NBD protocol's limit of a string).
//! Not here: where the server listens (`--nbd-server`).

use serde_json::{Map, Value, json};
use syntax::{ArgumentError, Keys, OptionFields, TextOrObject, ValueType, optional, required};

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
            optional("bitmaps", ValueType::List(BITMAP)),
        ],
    ],
    later: &[&["allow-inactive", "fixed-iothread"]],
};

/// A dirty bitmap, by name, or with the name of its node.
const BITMAP: &ValueType = &ValueType::TextOrObject(BITMAP_OF_NODE);

const BITMAP_OF_NODE: &Keys = &Keys {
    of: "a dirty bitmap",
    supported: &[&[required("node", ValueType::Text), required("name", ValueType::Text)]],
    later: &[],
};

/// A dirty bitmap that an export shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportedBitmap {
    /// The node that has it; without one, the export's node, or one that it passes on or stands on as its backing file.
    pub node: Option<String>,
    /// Its name.
    pub name: String,
}

/// What only NBD exports have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NbdExportOptions {
    /// What clients call it; the node's name if nothing is said. At most 4096 bytes.
    pub name: String,
    /// What clients are told of it. At most 4096 bytes.
    pub description: Option<String>,
    /// Whether clients may ask how deep in the backing chain data lie (`qemu:allocation-depth`).
    pub allocation_depth: bool,
    /// The dirty bitmaps that clients may ask about (`qemu:dirty-bitmap:NAME`).
    pub bitmaps: Vec<ExportedBitmap>,
    /// What becomes of the export if one of them cannot be shown.
    pub missing_bitmaps: MissingBitmaps,
}

/// What becomes of an export one of whose bitmaps cannot be shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MissingBitmaps {
    /// It is not made.
    Refused,
    /// It is made without that bitmap, which is said: most bitmaps do not outlive the daemon that an export was kept by.
    LeftOut,
}

/// A text that the protocol cannot carry.
#[derive(Debug, thiserror::Error)]
#[error("parameter {key} has {bytes} bytes; the limit is 4096")]
struct TooLong {
    key: &'static str,
    bytes: usize,
}

impl ExportedBitmap {
    /// As it is written.
    fn written(&self) -> Value {
        match &self.node {
            None => self.name.as_str().into(),
            Some(node) => json!({"node": node, "name": self.name}),
        }
    }

    fn read(written: TextOrObject) -> Result<Self, ArgumentError> {
        match written {
            TextOrObject::Text(name) => Ok(Self { node: None, name }),
            TextOrObject::Object(mut fields) => {
                let (node, name) = (fields.required_text("node")?, fields.required_text("name")?);
                Ok(Self { node: Some(node), name })
            }
        }
    }
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
        let all = fields.names_or_objects("bitmaps")?.unwrap_or_default();
        let bitmaps = all.into_iter().map(ExportedBitmap::read).collect::<Result<_, _>>()?;
        let missing_bitmaps = MissingBitmaps::Refused;
        Ok(Self { name, description, allocation_depth, bitmaps, missing_bitmaps })
    }

    pub(crate) fn write(&self, written: &mut Map<String, Value>) {
        written.insert("name".to_owned(), self.name.as_str().into());
        if let Some(description) = &self.description {
            written.insert("description".to_owned(), description.as_str().into());
        }
        written.insert("allocation-depth".to_owned(), self.allocation_depth.into());
        if !self.bitmaps.is_empty() {
            let all: Vec<Value> = self.bitmaps.iter().map(ExportedBitmap::written).collect();
            written.insert("bitmaps".to_owned(), all.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::{ExportKind, ExportOptions};

    #[test]
    fn a_name_is_the_nodes_if_none_is_said_and_has_a_bound() {
        let parse = |more: &str| ExportOptions::parse(&format!("nbd,id=e,node-name=n{more}"));
        let written = |more: &str| parse(more).unwrap().written();
        assert_eq!(written("")["name"], "n");
        assert_eq!(written(",name=")["name"], "");
        assert_eq!(written(",description=d,allocation-depth=on")["description"], "d");
        let long = parse(&format!(",name={}", "x".repeat(4097))).unwrap_err();
        assert_eq!(long.to_string(), "parameter name has 4097 bytes; the limit is 4096");
        let bitmaps = parse(",bitmaps.0=b,bitmaps.1.node=n,bitmaps.1.name=c").unwrap();
        assert_eq!(bitmaps.written()["bitmaps"], json!(["b", {"node": "n", "name": "c"}]));
        let ExportKind::Nbd(own) = bitmaps.kind else { panic!("it is one") };
        let [b, c] = &own.bitmaps[..] else { panic!("there are two") };
        assert_eq!((&b.node, &b.name[..]), (&None, "b"));
        assert_eq!((c.node.as_deref(), &c.name[..]), (Some("n"), "c"));
    }
}
