//! What the file systems of this crate say of their files.

use std::time::UNIX_EPOCH;

use fuser::{FileAttr, FileType, INodeNo};

/// A directory, or a file of so many bytes, of root's, that has never changed.
pub(crate) fn attributes(ino: INodeNo, kind: FileType, perm: u16, size: u64) -> FileAttr {
    FileAttr {
        ino,
        size,
        blocks: size / 512,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind,
        perm,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}
