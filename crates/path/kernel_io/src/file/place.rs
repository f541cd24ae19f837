//! Whether a file is still where it was opened: others may remove it, rename it, or put another one in its place.
//!
//! Invariants: what cannot be found out is not said to be wrong.
//! Threads: any that may wait for a file system.

use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::{FileIdentity, FileKind, OpenFile};

/// Where a regular file is that was opened at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilePlace {
    /// There; or nobody knows.
    InPlace,
    /// It was renamed, or another file has taken its place.
    Elsewhere,
    /// It has no name any more: it is gone as soon as nobody has it open.
    Removed,
}

impl OpenFile {
    /// Whether it is where it was opened. Of a path that cannot be looked at nothing is said. Blocks as far as the file
    /// system does.
    pub fn look_for_place(&self) -> io::Result<FilePlace> {
        let found = rustix::fs::fstat(&self.fd)?;
        if self.kind != FileKind::Regular {
            return Ok(FilePlace::InPlace);
        }
        if found.st_nlink == 0 {
            return Ok(FilePlace::Removed);
        }
        let Some(place) = &self.place else { return Ok(FilePlace::InPlace) };
        match rustix::fs::stat(place) {
            Ok(there) if FileIdentity::of(&there) == FileIdentity::of(&found) => {
                Ok(FilePlace::InPlace)
            }
            Ok(_) | Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(FilePlace::Elsewhere),
            Err(_) => Ok(FilePlace::InPlace),
        }
    }
}

/// Where a file is to be found again that is opened at this path. What a path below these leads to depends on what the process
/// has open.
pub(super) fn place_of(path: &Path) -> Option<PathBuf> {
    let place = std::path::absolute(path).ok()?;
    let is_of_process = ["/dev/fd", "/dev/fdset", "/proc"].iter().any(|it| place.starts_with(it));
    (!is_of_process).then_some(place)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use block::Access;

    use super::*;
    use crate::OpenOptions;

    #[test]
    fn a_file_is_where_it_was_opened_or_elsewhere_or_gone() {
        let directory = tempfile::tempdir().unwrap();
        let (path, other) = (directory.path().join("a"), directory.path().join("b"));
        fs::write(&path, "x").unwrap();
        let file = OpenFile::open(&OpenOptions::regular(&path, Access::ReadOnly)).unwrap();
        let check = |expected| assert_eq!(file.look_for_place().unwrap(), expected);
        check(FilePlace::InPlace);
        fs::rename(&path, &other).unwrap();
        check(FilePlace::Elsewhere);
        fs::write(&path, "x").unwrap();
        check(FilePlace::Elsewhere);
        // By whatever name it is found there.
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(&other, &path).unwrap();
        check(FilePlace::InPlace);
        fs::remove_file(&other).unwrap();
        check(FilePlace::Removed);
    }

    #[test]
    fn a_path_that_depends_on_who_looks_says_nothing() {
        for path in ["/dev/fd/7", "/proc/self/fd/7", "/dev/fdset/1"] {
            assert_eq!(place_of(Path::new(path)), None);
        }
        let here = std::env::current_dir().unwrap().join("disk");
        assert_eq!(place_of(Path::new("disk")), Some(here));
    }
}
