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
        size: size(reader)?,
        latency: latency(reader)?,
        read_zeroes: reader.fields.flag("read-zeroes")?.unwrap_or(false),
    })
}

/// As long as in QEMU: 292 years.
fn latency(reader: &mut Reader) -> Result<Duration, Fault> {
    let ns = reader.fields.number("latency-ns")?.unwrap_or(0);
    if i64::try_from(ns).is_err() {
        let (key, expected) = (reader.fields.path("latency-ns"), "at most 2^63 - 1");
        return Err(Fault::Expects { key, expected });
    }
    Ok(Duration::from_nanos(ns))
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
