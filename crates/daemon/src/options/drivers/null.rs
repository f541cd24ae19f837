//! The driver `null-co`.

use super::Entry;
use crate::options::blockdev::{BASE, BASE_LATER, Reader};
use crate::options::fault::Fault;
use crate::options::fields::Keys;
use crate::options::plan::Driver;

/// QEMU's default size of a null-co disk: 1 GiB.
const BYTES: u64 = 1 << 30;

/// `driver=null-co`.
pub(super) const ENTRY: Entry = Entry {
    name: "null-co",
    keys: Keys {
        of: "--blockdev driver=null-co",
        supported: &[BASE, &["size", "read-zeroes"]],
        later: &[BASE_LATER, &["latency-ns"]],
    },
    read,
};

fn read(reader: &mut Reader) -> Result<Driver, Fault> {
    Ok(Driver::NullCo {
        size: size(reader)?,
        read_zeroes: reader.fields.flag("read-zeroes")?.unwrap_or(false),
    })
}

/// A disk's size fits a signed file offset, as in QEMU.
fn size(reader: &mut Reader) -> Result<u64, Fault> {
    let size = reader.fields.number("size")?.unwrap_or(BYTES);
    if i64::try_from(size).is_err() {
        let (key, expected) = (reader.fields.path("size"), "at most 2^63 - 1");
        return Err(Fault::Expects { key, expected });
    }
    Ok(size)
}
