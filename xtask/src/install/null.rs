//! `/dev/null`, which programs of all users write to. One that root alone may use, or a plain file in its place, has tests fail that
//! start programs as another user, each with a sentence of its own; it happens to machines where root runs a careless program.

use std::fs::{self, Metadata};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::install::User;
use crate::steps::must_succeed;

const PLACE: &str = "/dev/null";
const MODE: u32 = 0o666;
/// Major number 1, minor number 3.
const DEVICE: u64 = 1 << 8 | 3;

/// What is wrong with it, if anything.
pub(crate) fn fault() -> Result<Option<String>> {
    Ok(fault_of(&fs::metadata(PLACE).context(PLACE)?))
}

/// As root it is made as it has to be.
pub(crate) fn repair(user: User) -> Result<()> {
    let Some(fault) = fault()? else { return Ok(()) };
    println!("   {fault}");
    if user != User::Root {
        return Ok(());
    }
    if !is_null(&fs::metadata(PLACE).context(PLACE)?) {
        let new = Path::new("/dev/null.new");
        must_succeed(Command::new("mknod").arg(new).args(["c", "1", "3"]))?;
        fs::rename(new, PLACE).context(PLACE)?;
    }
    fs::set_permissions(PLACE, fs::Permissions::from_mode(MODE)).context(PLACE)?;
    println!("   {PLACE} is what it was again");
    Ok(())
}

fn is_null(found: &Metadata) -> bool {
    found.file_type().is_char_device() && found.rdev() == DEVICE
}

fn fault_of(found: &Metadata) -> Option<String> {
    let mode = found.mode() & 0o7777;
    match is_null(found) {
        false => Some(format!("{PLACE} is not the device of that name, which tests need")),
        true if mode & MODE != MODE => {
            Some(format!("{PLACE} has mode {mode:o}, and tests need {MODE:o}"))
        }
        true => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_device_that_all_may_use_is_right() {
        let fault = |place: &str| fault_of(&fs::metadata(place).expect("it is there"));
        assert_eq!(fault(PLACE), None);
        for other in ["/dev/zero", "/proc/self/status"] {
            assert!(fault(other).expect("another one").contains("not the device"));
        }
    }
}
