//! The driver `stripe`, which qemu-storage-daemon does not have.

use std::collections::HashSet;

use block::ByteCount;
use layers::{Chunk, MEMBERS_MAX, MEMBERS_MIN};

use super::Entry;
use crate::options::blockdev::{BASE, BASE_LATER, Reader};
use crate::options::fault::Fault;
use crate::options::fields::Keys;
use crate::options::plan::Driver;

const CHILDREN: &str = "children";

/// `driver=stripe`.
pub(super) const ENTRY: Entry = Entry {
    name: "stripe",
    keys: Keys {
        of: "--blockdev driver=stripe",
        supported: &[BASE, &[CHILDREN, "chunk"]],
        later: &[BASE_LATER],
    },
    read,
};

fn read(reader: &mut Reader) -> Result<Driver, Fault> {
    let chunk = chunk(reader)?;
    reader.children(CHILDREN, MEMBERS_MIN, MEMBERS_MAX)?;
    let mut names = HashSet::new();
    match reader.references().find(|name| !names.insert(*name)) {
        Some(name) => {
            let (key, name) = (reader.fields.path(CHILDREN), name.to_owned());
            Err(Fault::ChildTwice { key, name })
        }
        None => Ok(Driver::Stripe { chunk }),
    }
}

/// There is no default: mdadm has two, and a wrong chunk makes nonsense of what is there.
fn chunk(reader: &mut Reader) -> Result<Chunk, Fault> {
    let key = reader.fields.path("chunk");
    match reader.fields.size("chunk")? {
        None => Err(Fault::Missing { key }),
        Some(bytes) => Chunk::new(ByteCount(bytes)).ok_or(Fault::Chunk { key, bytes }),
    }
}
