//! The driver `stripe`: the chunks of its children in turn. qemu-storage-daemon does not have it.

use std::sync::Arc;

use block::{ByteCount, DiscardPolicy};
use layers::{ChunkSize, MEMBERS_MAX, MEMBERS_MIN, StripeDiscards, StripeNode};
use syntax::{ArgumentError, Keys, OptionFields, ValueType, required};

use super::base::{BASE, BASE_LATER, BaseOptions, pair};
use super::driver::{
    Driver, DriverOptions, MadeNode, NodeContext, NodeError, NodeRequirements, Options,
    ThrottleGroups,
};
use crate::model::ChildRole;

/// `driver=stripe`.
pub(super) static STRIPE: Driver = Driver {
    name: "stripe",
    keys: Keys {
        of: "--blockdev driver=stripe",
        supported: &[
            BASE,
            &[
                required("children", ValueType::Nodes { least: MEMBERS_MIN, most: MEMBERS_MAX }),
                required("chunk", ValueType::Size),
            ],
        ],
        later: &[BASE_LATER],
    },
    changeable: &[],
    roles: &[("children", ChildRole::Member)],
    help: "  --blockdev [driver=]stripe,node-name=N,chunk=SIZE,children.0=NODE,children.1=NODE[,…]
                         the chunks of 2 to 64 nodes of one size in turn, as in md's RAID0; a
                         chunk is a multiple of 4 KiB up to 16 MiB
",
    as_format: None,
    read,
};

/// The options of `driver=stripe`.
#[derive(Debug)]
struct StripeOptions {
    /// How many neighbouring bytes lie on one child.
    chunk: ChunkSize,
}

/// A chunk size that no stripe can have.
#[derive(Debug, thiserror::Error)]
#[error(
    "parameter '{key}' must be a multiple of {min} between {min} and {max}, not {bytes}",
    min = ChunkSize::BYTES_MIN, max = ChunkSize::BYTES_MAX
)]
struct ChunkSizeError {
    key: String,
    bytes: u64,
}

/// There is no default chunk: mdadm has two, and a wrong one makes nonsense of what is there.
fn read(fields: &mut OptionFields, _: &BaseOptions) -> Result<Options, ArgumentError> {
    let key = fields.path("chunk");
    match fields.size("chunk")? {
        None => Err(ArgumentError::Missing(key)),
        Some(bytes) => match ChunkSize::new(ByteCount(bytes)) {
            Some(chunk) => Ok(Arc::new(StripeOptions { chunk })),
            None => Err(ArgumentError::own(ChunkSizeError { key, bytes })),
        },
    }
}

impl DriverOptions for StripeOptions {
    fn needs(&self) -> NodeRequirements<'_> {
        NodeRequirements::default()
    }

    fn describe(&self, _: &ThrottleGroups) -> Vec<(String, String)> {
        vec![pair("chunk", &self.chunk.bytes())]
    }

    fn make(&self, context: &NodeContext<'_>) -> Result<MadeNode, NodeError> {
        let members = context.children.iter().map(|(_, child)| Arc::clone(child)).collect();
        let discards = match context.base.discard {
            DiscardPolicy::Ignore => StripeDiscards::Ignored,
            DiscardPolicy::Unmap => StripeDiscards::Passed,
        };
        let access = context.base.access();
        let node = StripeNode::new(context.name, members, self.chunk, access, discards)?;
        Ok(MadeNode::of(Arc::new(node)))
    }
}
