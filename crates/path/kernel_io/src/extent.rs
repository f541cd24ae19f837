//! What a file has at a place: bytes that were written, or a hole.
//!
//! Where it stands in the life of a request: a worker looks for it, or a thread that owns no ring: some file systems take
//! long.

use std::os::fd::BorrowedFd;

use block::{BlockStatus, ByteCount, ByteOffset};
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

/// A run of a file that is data or a hole (SEEK_DATA, SEEK_HOLE).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileExtent {
    /// How many bytes; none only if the range has none.
    pub count: ByteCount,
    /// Whether they are a hole, which reads as zeroes.
    pub is_hole: bool,
}

impl FileExtent {
    /// The longest: it leaves a bit of a result.
    const COUNT_MAX: u64 = 1 << 62;

    /// What the file has from there on, of so many bytes. What a file system does not tell is not a hole. Moves the
    /// description's position, which nobody uses. Blocks.
    pub fn find(fd: BorrowedFd<'_>, offset: ByteOffset, count: u64) -> Self {
        let (at, count) = (offset.0, count.min(Self::COUNT_MAX));
        let until = |end: u64| ByteCount(end.saturating_sub(at).min(count));
        let hole = |count| Self { count, is_hole: true };
        let data = |count| Self { count, is_hole: false };
        match seek(fd, SeekFrom::Data(at)) {
            Ok(next) if next > at => hole(until(next)),
            Ok(_) => match seek(fd, SeekFrom::Hole(at)) {
                Ok(end) if end > at => data(until(end)),
                Ok(_) | Err(_) => data(ByteCount(count)),
            },
            // Nothing follows, or the file ends before. What a file does not have is not said to be zero: it may have been
            // cut off, and a read of it fails.
            Err(Errno::NXIO) => match seek(fd, SeekFrom::End(0)) {
                Ok(end) if end > at => hole(until(end)),
                Ok(_) | Err(_) => data(ByteCount(count)),
            },
            Err(_) => data(ByteCount(count)),
        }
    }

    /// What such bytes are.
    pub fn status(self) -> BlockStatus {
        if self.is_hole { BlockStatus::ZEROES } else { BlockStatus::DATA }
    }

    pub(crate) fn to_result(self) -> i64 {
        (self.count.0 << 1 | u64::from(self.is_hole)).cast_signed()
    }

    pub(crate) fn of_result(result: i64) -> Self {
        let result = result.cast_unsigned();
        Self { count: ByteCount(result >> 1), is_hole: result & 1 != 0 }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn holes_and_what_was_written_are_told_apart() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(3 << 20).unwrap();
        file.write_all_at(&[1; 4096], 1 << 20).unwrap();
        let find = |at, count| {
            let found = FileExtent::find(file.as_fd(), ByteOffset(at), count);
            assert_eq!(FileExtent::of_result(found.to_result()), found);
            (found.count.0, found.is_hole)
        };
        assert_eq!(find(0, 3 << 20), (1 << 20, true));
        assert_eq!(find(512, 512), (512, true));
        assert_eq!(find(1 << 20, 2 << 20), (4096, false));
        assert_eq!(find((1 << 20) + 4096, u64::MAX), ((2 << 20) - 4096, true));
        assert_eq!(find(4 << 20, 7), (7, false));
        assert_eq!(find(0, 0), (0, true));
    }

    #[test]
    fn what_cannot_tell_has_no_holes() {
        let (reader, _writer) = rustix::pipe::pipe().unwrap();
        let found = FileExtent::find(reader.as_fd(), ByteOffset(0), 512);
        assert_eq!(found, FileExtent { count: ByteCount(512), is_hole: false });
    }
}
