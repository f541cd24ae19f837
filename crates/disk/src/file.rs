//! A file or block device of the host as a node (drivers `file` and `host_device`).
//!
//! Invariants: one open file description for all iothreads, opened with the node and open as long
//! as the file table lives.

use std::num::NonZeroU32;
use std::sync::Arc;

use block::{
    Access, Answer, ByteCount, ByteOffset, DiskSize, FailKind, FileId, Lane, LaneError, Limits,
    Mapping, Node, Operation, Piece, Pieces, Target, Unmap,
};
use kernel_io::{FileTable, OpenError, OpenFile, OpenOptions};

/// Whether discards reach the host (`discard=`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiscardPolicy {
    /// They complete without any effect.
    Ignore,
    /// They give space back to the host.
    Unmap,
}

/// A file or block device.
#[derive(Debug)]
pub struct FileNode {
    name: String,
    file: Arc<OpenFile>,
    id: FileId,
    access: Access,
    discard: DiscardPolicy,
}

impl FileNode {
    /// Opens the file and enters it in the table. Blocks.
    pub fn open(
        name: &str,
        options: &OpenOptions,
        discard: DiscardPolicy,
        table: &FileTable,
    ) -> Result<Self, OpenError> {
        let file = Arc::new(OpenFile::open(options)?);
        let id = table.insert(Arc::clone(&file));
        Ok(Self { name: name.to_owned(), file, id, access: options.access, discard })
    }
}

impl Node for FileNode {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> DiskSize {
        DiskSize(ByteCount(self.file.bytes()))
    }

    fn limits(&self) -> Limits {
        let least = NonZeroU32::new(512).expect("512 is not zero");
        let at_least = |value: u32| NonZeroU32::new(value).map_or(least, |value| value.max(least));
        Limits {
            request_alignment: at_least(self.file.offset_alignment()),
            physical_block: at_least(self.file.physical_block()),
            discard: self.discard == DiscardPolicy::Unmap,
        }
    }

    fn access(&self) -> Access {
        self.access
    }

    fn open_lane(&self) -> Result<Box<dyn Lane>, LaneError> {
        let (file, access, discard) = (self.id, self.access, self.discard);
        Ok(Box::new(FileLane { file, access, discard }))
    }
}

#[derive(Debug)]
struct FileLane {
    file: FileId,
    access: Access,
    discard: DiscardPolicy,
}

impl Lane for FileLane {
    fn map(&mut self, batch: &mut [Mapping]) {
        for mapping in batch {
            self.answer(mapping);
        }
    }
}

impl FileLane {
    fn answer(&self, mapping: &mut Mapping) {
        if mapping.operation.is_change() && self.access == Access::ReadOnly {
            mapping.answer = Answer::Refused(FailKind::ReadOnly);
            return;
        }
        mapping.answer = Answer::Now(match mapping.operation {
            Operation::Discard(..) if self.discard == DiscardPolicy::Ignore => Pieces::none(),
            Operation::WriteZeroes(extent, Unmap::Allowed, durability)
                if self.discard == DiscardPolicy::Ignore =>
            {
                mapping.operation = Operation::WriteZeroes(extent, Unmap::Keep, durability);
                self.whole(extent.count(), extent.start())
            }
            Operation::Read(extent)
            | Operation::Write(extent, _)
            | Operation::Discard(extent, _)
            | Operation::WriteZeroes(extent, _, _) => self.whole(extent.count(), extent.start()),
            Operation::Flush => self.whole(ByteCount(0), ByteOffset(0)),
        });
    }

    fn whole(&self, count: ByteCount, offset: ByteOffset) -> Pieces {
        Pieces::one(Piece { count, target: Target::File { file: self.file, offset } })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::{Durability, Extent};
    use kernel_io::{Aio, Caching, FileKind};

    fn node(access: Access, discard: DiscardPolicy) -> FileNode {
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(8192).unwrap();
        let path = image.path().to_path_buf();
        let options = OpenOptions {
            path,
            kind: FileKind::Regular,
            access,
            caching: Caching::Buffered,
            aio: Aio::Automatic,
        };
        FileNode::open("disk", &options, discard, &FileTable::default()).unwrap()
    }

    fn extent() -> Extent {
        DiskSize(ByteCount(8192)).check(ByteOffset(512), ByteCount(1024)).unwrap()
    }

    #[track_caller]
    fn check(
        access: Access,
        discard: DiscardPolicy,
        operation: Operation,
        becomes: Operation,
        pieces: Result<usize, FailKind>,
    ) {
        let node = node(access, discard);
        let mut lane = node.open_lane().unwrap();
        let mut batch = [Mapping { operation, answer: Answer::Refused(FailKind::Io) }];
        lane.map(&mut batch);
        assert_eq!(batch[0].operation, becomes);
        match batch[0].answer {
            Answer::Now(found) => assert_eq!(Ok(found.as_slice().len()), pieces),
            Answer::Refused(kind) => assert_eq!(Err(kind), pieces),
        }
    }

    #[test]
    fn a_file_answers_with_its_own_bytes_or_refuses() {
        use DiscardPolicy::{Ignore, Unmap as Pass};
        let (read, write) = (Access::ReadOnly, Access::ReadWrite);
        let discard = Operation::Discard(extent(), Durability::Cached);
        let zeroes = |unmap| Operation::WriteZeroes(extent(), unmap, Durability::Cached);
        let store = Operation::Write(extent(), Durability::Stable);
        check(write, Ignore, store, store, Ok(1));
        check(read, Ignore, store, store, Err(FailKind::ReadOnly));
        check(read, Ignore, Operation::Read(extent()), Operation::Read(extent()), Ok(1));
        check(read, Ignore, Operation::Flush, Operation::Flush, Ok(1));
        check(write, Ignore, discard, discard, Ok(0));
        check(write, Pass, discard, discard, Ok(1));
        check(read, Pass, discard, discard, Err(FailKind::ReadOnly));
        check(write, Ignore, zeroes(Unmap::Allowed), zeroes(Unmap::Keep), Ok(1));
        check(write, Pass, zeroes(Unmap::Allowed), zeroes(Unmap::Allowed), Ok(1));
    }

    #[test]
    fn a_directory_is_refused_by_name() {
        let options = OpenOptions {
            path: "/proc".into(),
            kind: FileKind::Regular,
            access: Access::ReadOnly,
            caching: Caching::Buffered,
            aio: Aio::Automatic,
        };
        let error = OpenFile::open(&options).unwrap_err();
        assert_eq!(error.to_string(), "/proc is a directory, not a disk image");
    }
}
