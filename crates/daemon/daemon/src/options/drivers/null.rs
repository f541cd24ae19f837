//! The driver `null-co`.

use std::time::Duration;

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
        supported: &[BASE, &["latency-ns", "size", "read-zeroes"]],
        later: &[BASE_LATER],
    },
    read,
};

fn read(reader: &mut Reader) -> Result<Driver, Fault> {
    Ok(Driver::NullCo {
        size: reader.number("size")?.unwrap_or(BYTES),
        latency: latency(reader)?,
        read_zeroes: reader.fields.flag("read-zeroes")?.unwrap_or(false),
    })
}

/// As long as in QEMU: 292 years.
fn latency(reader: &mut Reader) -> Result<Duration, Fault> {
    Ok(Duration::from_nanos(reader.number("latency-ns")?.unwrap_or(0)))
}
