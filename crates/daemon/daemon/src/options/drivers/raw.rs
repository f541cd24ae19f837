//! The driver `raw`.

use super::Entry;
use crate::options::blockdev::{BASE, BASE_LATER, Reader};
use crate::options::fault::Fault;
use crate::options::fields::Keys;
use crate::options::plan::Driver;

/// `driver=raw`.
pub(super) const ENTRY: Entry = Entry {
    name: "raw",
    keys: Keys {
        of: "--blockdev driver=raw",
        supported: &[BASE, &["file", "offset", "size"]],
        later: &[BASE_LATER],
    },
    read,
};

fn read(reader: &mut Reader) -> Result<Driver, Fault> {
    let offset = reader.number("offset")?.unwrap_or(0);
    let size = reader.number("size")?;
    reader.child("file")?;
    Ok(Driver::Raw { offset, size })
}
