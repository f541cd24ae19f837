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

/// As root it is made as it has to be.
pub(crate) fn repair(user: User) -> Result<()> {
    let found = fs::metadata(PLACE).ok();
    let Some(fault) = fault(found.as_ref()) else { return Ok(()) };
    println!("   {fault}");
    if user != User::Root {
        return Ok(());
    }
    if !found.is_some_and(|it| is_null(&it)) {
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

/// What is wrong with it, if anything.
fn fault(found: Option<&Metadata>) -> Option<String> {
    let Some(found) = found.filter(|it| is_null(it)) else {
        return Some(format!("{PLACE} is not the device of that name, which tests need"));
    };
    let mode = found.mode() & 0o7777;
    (mode & MODE != MODE).then(|| format!("{PLACE} has mode {mode:o}, and tests need {MODE:o}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_device_that_all_may_use_is_right() {
        let fault = |place: &str| fault(fs::metadata(place).ok().as_ref());
        assert_eq!(fault(PLACE), None);
        for other in ["/dev/zero", "/proc/self/status", "/dev/no-such-device"] {
            assert!(fault(other).expect("another one").contains("not the device"));
        }
    }
}
