//! The driver `stripe`: the chunks of its children in turn. qemu-storage-daemon does not have it.

use std::sync::Arc;

use block::ByteCount;
use disk::DiscardPolicy;
use layers::{Chunk, MEMBERS_MAX, MEMBERS_MIN, StripeDiscards, StripeNode};

use super::base::{BASE, BASE_LATER, BaseOptions, pair};
use super::driver::{
    Driver, DriverOptions, Made, Making, Needs, NodeError, Options, ThrottleGroups,
};
use crate::model::ChildRole;
use crate::syntax::{Fault, Fields, Keys, Takes, required};

/// `driver=stripe`.
pub(super) static STRIPE: Driver = Driver {
    name: "stripe",
    keys: Keys {
        of: "--blockdev driver=stripe",
        supported: &[
            BASE,
            &[
                required("children", Takes::Nodes { least: MEMBERS_MIN, most: MEMBERS_MAX }),
                required("chunk", Takes::Size),
            ],
        ],
        later: &[BASE_LATER],
    },
    roles: &[("children", ChildRole::Member)],
    help: "  --blockdev [driver=]stripe,node-name=N,chunk=SIZE,children.0=NODE,children.1=NODE[,…]
                         the chunks of 2 to 64 nodes of one size in turn, as in md's RAID0; a
                         chunk is a multiple of 4 KiB up to 16 MiB
",
    as_format: None,
    read,
};

#[derive(Debug)]
struct StripeOptions {
    /// How many neighbouring bytes lie on one child.
    chunk: Chunk,
}

/// A chunk that no stripe can have.
#[derive(Debug, thiserror::Error)]
#[error(
    "parameter '{key}' must be a multiple of {min} between {min} and {max}, not {bytes}",
    min = Chunk::BYTES_MIN, max = Chunk::BYTES_MAX
)]
struct WrongChunk {
    key: String,
    bytes: u64,
}

/// There is no default chunk: mdadm has two, and a wrong one makes nonsense of what is there.
fn read(fields: &mut Fields, _: &BaseOptions) -> Result<Options, Fault> {
    let key = fields.path("chunk");
    match fields.size("chunk")? {
        None => Err(Fault::Missing { key }),
        Some(bytes) => match Chunk::new(ByteCount(bytes)) {
            Some(chunk) => Ok(Arc::new(StripeOptions { chunk })),
            None => Err(Fault::own(WrongChunk { key, bytes })),
        },
    }
}

impl DriverOptions for StripeOptions {
    fn needs(&self) -> Needs<'_> {
        Needs::default()
    }

    fn describe(&self, _: &ThrottleGroups) -> Vec<(String, String)> {
        vec![pair("chunk", &self.chunk.bytes())]
    }

    fn make(&self, making: &Making<'_>) -> Result<Made, NodeError> {
        let members = making.children.iter().map(|(_, child)| Arc::clone(child)).collect();
        let discards = match making.base.discard {
            DiscardPolicy::Ignore => StripeDiscards::Ignored,
            DiscardPolicy::Unmap => StripeDiscards::Passed,
        };
        let access = making.base.access();
        let node = StripeNode::new(making.name, members, self.chunk, access, discards)?;
        Ok(Made::of(Arc::new(node)))
    }
}
