//! The object type `main-loop`, which qemu-storage-daemon has for the settings of its first thread.
//!
//! Of these settings none has a meaning here, and they are refused by name. The object itself is taken, once, since
//! management software makes it.

use syntax::{ArgumentError, Keys, OptionFields};

use super::{OBJECT_KEYS, ObjectKind, ObjectType};

/// `qom-type=main-loop`.
pub(super) const ENTRY: ObjectType = ObjectType {
    name: "main-loop",
    keys: Keys {
        of: "--object main-loop",
        supported: &[OBJECT_KEYS],
        later: &[&["aio-max-batch", "thread-pool-max", "thread-pool-min"]],
    },
    read,
};

#[expect(clippy::unnecessary_wraps, reason = "the table has one type for all readers")]
fn read(_: &mut OptionFields) -> Result<ObjectKind, ArgumentError> {
    Ok(ObjectKind::MainLoop)
}
