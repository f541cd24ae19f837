//! `--export`: what exports of all types have in common, and which types there are.
//!
//! Not here: the keys of all types (`export_keys`) and of each (`vhost_user_blk_options`, `nbd_export_options`); fuse and vduse-blk exports, which are
//! refused by name.

use block::Access;
use graph::{ExportAddress, NewExport};
use serde_json::{Map, Value};
use syntax::{ArgumentError, Keys, OptionFields, is_identifier};

use crate::inherited_socket::path_of_listener;
use crate::nbd_export_options::{NBD, NbdExportOptions};
use crate::vhost_user_blk_options::{QueuePin, VHOST_USER_BLK, VhostUserBlkOptions};

/// The keys of each export type that works.
pub const EXPORT_TYPES: &[(&str, Keys)] = &[("nbd", NBD), ("vhost-user-blk", VHOST_USER_BLK)];

/// Their names.
const SUPPORTED: &[&str] = &["nbd", "vhost-user-blk"];

/// The export types that qemu-storage-daemon has and ringloom does not have.
const LATER: &[&str] = &["fuse", "vduse-blk"];

/// The argument of `--export`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportOptions {
    /// Its name.
    pub id: String,
    /// The node to offer.
    pub node_name: String,
    /// Whether clients may write.
    pub writable: bool,
    /// The iothreads that serve its sources, round-robin. Empty is `none`.
    pub iothreads: Vec<String>,
    /// Whether changes are durable as soon as they are answered; of vhost-user-blk, until a driver asks for another mode.
    pub writethrough: bool,
    /// The protocol, and what only that has.
    pub kind: ExportKind,
}

/// The protocol of an export, with its own options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExportKind {
    /// A virtio-blk device on a UNIX socket, for one client at a time.
    VhostUserBlk(VhostUserBlkOptions),
    /// A name on the NBD server, for any number of clients.
    Nbd(NbdExportOptions),
}

impl ExportKind {
    /// As `type=` names it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::VhostUserBlk(_) => "vhost-user-blk",
            Self::Nbd(_) => "nbd",
        }
    }
}

impl ExportOptions {
    /// Reads the argument of `--export`.
    pub fn parse(text: &str) -> Result<Self, ArgumentError> {
        Self::read(OptionFields::parse(text, "type")?)
    }

    /// Takes an export out of these fields.
    pub fn read(mut fields: OptionFields) -> Result<Self, ArgumentError> {
        let kind = fields.required_text("type")?;
        if LATER.contains(&kind.as_str()) {
            let accepted = SUPPORTED.to_vec();
            return Err(ArgumentError::ValueNotYet {
                key: "export type".to_owned(),
                value: kind,
                accepted,
            });
        }
        let Some((_, keys)) = EXPORT_TYPES.iter().find(|(name, _)| *name == kind) else {
            return Err(fields.unknown_value("type", kind, SUPPORTED));
        };
        fields.check_keys(keys)?;
        let id = fields.required_text("id")?;
        if !is_identifier(&id) {
            return Err(ArgumentError::NotAnIdentifier { key: "id", value: id });
        }
        let node_name = fields.required_text("node-name")?;
        let kind = match kind.as_str() {
            "nbd" => ExportKind::Nbd(NbdExportOptions::read(&mut fields, &node_name)?),
            _ => ExportKind::VhostUserBlk(VhostUserBlkOptions::read(&mut fields)?),
        };
        Ok(Self {
            id,
            node_name,
            writable: fields.flag("writable")?.unwrap_or(false),
            iothreads: fields.texts("iothread")?,
            writethrough: fields.flag("writethrough")?.unwrap_or(false),
            kind,
        })
    }

    /// The same with the path of the socket that the process was started with, if it is to listen there.
    pub fn with_inherited_socket(mut self) -> Result<Self, ArgumentError> {
        if let Some(own) = self.vhost_user_blk_mut()
            && let Some(number) = own.socket.descriptor
        {
            own.socket.path = path_of_listener(number).map_err(ArgumentError::own)?;
        }
        Ok(self)
    }

    /// The export for the model.
    pub fn entry(&self) -> NewExport<'_> {
        NewExport {
            id: &self.id,
            node: &self.node_name,
            access: self.access(),
            iothreads: &self.iothreads,
            address: match &self.kind {
                ExportKind::VhostUserBlk(own) => ExportAddress::Socket(&own.socket.path),
                ExportKind::Nbd(own) => ExportAddress::NbdName(&own.name),
            },
        }
    }

    /// What its clients may do.
    pub fn access(&self) -> Access {
        if self.writable { Access::ReadWrite } else { Access::ReadOnly }
    }

    /// The same as JSON, from which it is read again. Rights of the socket are not in it.
    pub fn written(&self) -> Map<String, Value> {
        let mut written = Map::new();
        let mut put = |key: &str, value: Value| drop(written.insert(key.to_owned(), value));
        put("type", self.kind.name().into());
        put("id", self.id.as_str().into());
        put("node-name", self.node_name.as_str().into());
        put("writable", self.writable.into());
        put("writethrough", self.writethrough.into());
        if !self.iothreads.is_empty() {
            put("iothread", self.iothreads.clone().into());
        }
        match &self.kind {
            ExportKind::VhostUserBlk(own) => own.write(&mut written),
            ExportKind::Nbd(own) => own.write(&mut written),
        }
        written
    }

    /// What only vhost-user-blk has, if it is that.
    pub fn vhost_user_blk(&self) -> Option<&VhostUserBlkOptions> {
        match &self.kind {
            ExportKind::VhostUserBlk(own) => Some(own),
            ExportKind::Nbd(_) => None,
        }
    }

    /// The same, to be changed.
    pub fn vhost_user_blk_mut(&mut self) -> Option<&mut VhostUserBlkOptions> {
        match &mut self.kind {
            ExportKind::VhostUserBlk(own) => Some(own),
            ExportKind::Nbd(_) => None,
        }
    }

    /// The queues that stay where they are put, though a pool serves them.
    pub fn pins(&self) -> &[QueuePin] {
        self.vhost_user_blk().map_or(&[], |it| &it.pins)
    }
}
