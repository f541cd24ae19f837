//! The driver `throttle`.

use super::Entry;
use crate::options::blockdev::{BASE, BASE_LATER, Reader};
use crate::options::fault::Fault;
use crate::options::fields::Keys;
use crate::options::plan::Driver;

/// `driver=throttle`.
pub(super) const ENTRY: Entry = Entry {
    name: "throttle",
    keys: Keys {
        of: "--blockdev driver=throttle",
        supported: &[BASE, &["throttle-group", "file"]],
        later: &[BASE_LATER],
    },
    read,
};

fn read(reader: &mut Reader) -> Result<Driver, Fault> {
    let group = reader.fields.required_text("throttle-group")?;
    reader.child("file")?;
    Ok(Driver::Throttle { group })
}
