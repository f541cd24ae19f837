//! A file or block device of the host as a node (drivers `file` and `host_device`).
//!
//! Invariants: one open file description for all iothreads, opened with the node and closed when the node
//! and all claims on it are gone, and the iothreads that have used it.

mod claims;
mod write_threshold;

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;

use block::{
    Access, BatchPieces, BlockLimits, ByteCount, Claim, ClaimError, DiscardPolicy, DiskSize,
    FileId, Lane, LaneContext, LaneError, LeafLane, Mapping, Node, Operation, ResizeError,
    RetryHint, Rights, StoragePolicy, Target,
};
use claims::FileClaims;
use kernel_io::{FileKind, FileTable, OpenError, OpenFile, OpenOptions};
pub use write_threshold::{ExceededThreshold, WriteThreshold};

/// A file or block device of the host as a node (`file`, `host_device`).
#[derive(Debug)]
pub struct FileNode {
    name: String,
    file: Arc<OpenFile>,
    id: FileId,
    policy: StoragePolicy,
    claims: Arc<FileClaims>,
    write_threshold: Arc<WriteThreshold>,
}

impl FileNode {
    /// Opens the file and enters it in the table. Blocks. Nothing is locked before it is claimed.
    pub fn open(
        name: &str,
        options: &OpenOptions,
        discard: DiscardPolicy,
        table: &Arc<FileTable>,
    ) -> Result<Self, OpenError> {
        let file = Arc::new(OpenFile::open(options)?);
        let id = table.insert(Arc::clone(&file));
        let policy = StoragePolicy { access: options.access, discard, flushes: options.flushes };
        let claims = FileClaims::new(Arc::clone(table), id, options.lock.sharing);
        Ok(Self {
            name: name.to_owned(),
            file,
            id,
            policy,
            claims: Arc::new(claims),
            write_threshold: Arc::default(),
        })
    }

    /// The same with the threshold of a file whose place it takes.
    #[must_use]
    pub fn with_write_threshold(self, write_threshold: Arc<WriteThreshold>) -> Self {
        Self { write_threshold, ..self }
    }

    /// What tells when a change goes beyond a place.
    pub fn write_threshold(&self) -> &Arc<WriteThreshold> {
        &self.write_threshold
    }

    /// The file that it opened.
    pub fn file(&self) -> &Arc<OpenFile> {
        &self.file
    }
}

impl Node for FileNode {
    fn name(&self) -> &str {
        &self.name
    }

    fn image_file(&self) -> Option<PathBuf> {
        Some(self.file.path().to_path_buf())
    }

    fn size(&self) -> DiskSize {
        DiskSize(ByteCount(self.file.bytes()))
    }

    fn limits(&self) -> BlockLimits {
        let least = NonZeroU32::new(512).expect("512 is not zero");
        let at_least = |value: u32| NonZeroU32::new(value).map_or(least, |value| value.max(least));
        let request_alignment = at_least(self.file.medium().alignments().offset);
        BlockLimits {
            request_alignment,
            physical_block: at_least(self.file.physical_block()),
            discard: self.policy.discard == DiscardPolicy::Unmap,
            discard_granularity: at_least(self.file.discard_granularity()),
            allocation_unit: request_alignment,
        }
    }

    fn access(&self) -> Access {
        self.policy.access
    }

    fn flush(&self) -> std::io::Result<()> {
        self.file.sync()
    }

    fn claim(&self, rights: Rights) -> Result<Claim, ClaimError> {
        self.claims.claim(rights).map_err(|error| ClaimError {
            node: self.name.clone(),
            outlook: if error.may_pass() { RetryHint::Transient } else { RetryHint::Permanent },
            source: Box::new(error),
        })
    }

    /// A device keeps its size, of which less may be used.
    fn resize(&self, DiskSize(ByteCount(bytes)): DiskSize) -> Result<(), ResizeError> {
        if self.policy.access == Access::ReadOnly {
            return Err(ResizeError::refused(self, "Image is read-only"));
        }
        let resized = match self.file.kind() {
            FileKind::Regular => self.file.resize(bytes),
            FileKind::BlockDevice => match self.file.measure() {
                Ok(there) if bytes > there => {
                    return Err(ResizeError::refused(self, "Cannot grow device files"));
                }
                measured => measured.map(drop),
            },
        };
        resized.map_err(|error| ResizeError::failed(self, "Failed to resize the file", error))
    }

    fn open_lane(&self, _: &LaneContext) -> Result<Box<dyn Lane>, LaneError> {
        let write_threshold = Arc::clone(&self.write_threshold);
        Ok(Box::new(FileLane { file: self.id, policy: self.policy, write_threshold }))
    }
}

/// One iothread's handle on a [`FileNode`].
#[derive(Debug)]
struct FileLane {
    file: FileId,
    policy: StoragePolicy,
    write_threshold: Arc<WriteThreshold>,
}

impl LeafLane for FileLane {
    fn answer(&mut self, mapping: &mut Mapping, pieces: &mut BatchPieces) {
        if let Operation::Write(extent, _) | Operation::WriteZeroes(extent, ..) = mapping.operation
            && self.policy.access == Access::ReadWrite
        {
            self.write_threshold.reached(extent.start().0 + extent.count().0);
        }
        let file = self.file;
        self.policy.answer(mapping, pieces, |offset| Target::File { file, offset });
    }

    fn locate(&mut self, operation: Operation) -> Option<Target> {
        let offset = self.policy.located(operation)?;
        if let Operation::Write(extent, _) = operation {
            self.write_threshold.reached(extent.start().0 + extent.count().0);
        }
        Some(Target::File { file: self.file, offset })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::{
        Answer, ByteOffset, Durability, Extent, FailKind, FlushPolicy, Piece, Token, ZeroTerms,
    };
    use kernel_io::{Caching, LockOptions, Locking};

    fn node(access: Access, discard: DiscardPolicy, flushes: FlushPolicy) -> FileNode {
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(8192).unwrap();
        let path = image.path().to_path_buf();
        let options = OpenOptions { flushes, ..OpenOptions::regular(path, access) };
        FileNode::open("disk", &options, discard, &Arc::default()).unwrap()
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
        check_on(&node(access, discard, FlushPolicy::Obeyed), operation, becomes, pieces);
    }

    #[track_caller]
    fn check_on(
        node: &FileNode,
        operation: Operation,
        becomes: Operation,
        pieces: Result<usize, FailKind>,
    ) {
        let mut lane = node.open_lane(&LaneContext::idle()).unwrap();
        let mut batch = [Mapping::new(Token(0), operation)];
        let mut list = BatchPieces::default();
        lane.map(&mut batch, &mut list);
        assert_eq!(batch[0].operation, becomes);
        let located = lane.locate(operation);
        match batch[0].answer {
            Answer::Now(found) if let Some(target) = located => {
                let count = extent().count();
                assert_eq!(list.get(found), [Piece { skip: 0, count, target }]);
                assert_eq!(operation, becomes, "it is carried out as it is");
            }
            Answer::Now(found) => {
                let is_fast = matches!(operation, Operation::Read(_) | Operation::Write(..));
                assert!(!is_fast || operation != becomes, "{operation:?} is located");
                assert_eq!(Ok(list.get(found).len()), pieces);
            }
            Answer::Held => panic!("a file holds nothing"),
            Answer::Refused(kind) => assert_eq!((Err(kind), None), (pieces, located)),
        }
    }

    #[test]
    fn a_file_answers_with_its_own_bytes_or_refuses() {
        use DiscardPolicy::{Ignore, Unmap as Pass};
        let (read, write) = (Access::ReadOnly, Access::ReadWrite);
        let discard = Operation::Discard(extent(), Durability::Cached);
        let zeroes = |terms| Operation::WriteZeroes(extent(), terms, Durability::Cached);
        let store = Operation::Write(extent(), Durability::Stable);
        check(write, Ignore, store, store, Ok(1));
        check(read, Ignore, store, store, Err(FailKind::ReadOnly));
        check(read, Ignore, Operation::Read(extent()), Operation::Read(extent()), Ok(1));
        check(read, Ignore, Operation::Flush, Operation::Flush, Ok(1));
        check(write, Ignore, discard, discard, Ok(0));
        check(write, Pass, discard, discard, Ok(1));
        check(read, Pass, discard, discard, Err(FailKind::ReadOnly));
        check(write, Ignore, zeroes(ZeroTerms::UNMAP), zeroes(ZeroTerms::KEEP), Ok(1));
        check(write, Pass, zeroes(ZeroTerms::UNMAP), zeroes(ZeroTerms::UNMAP), Ok(1));
    }

    #[test]
    fn without_flushes_nothing_waits_for_the_device() {
        let node = node(Access::ReadWrite, DiscardPolicy::Unmap, FlushPolicy::Ignored);
        check_on(&node, Operation::Flush, Operation::Flush, Ok(0));
        let with = |durability| {
            [
                Operation::Write(extent(), durability),
                Operation::Discard(extent(), durability),
                Operation::WriteZeroes(extent(), ZeroTerms::KEEP, durability),
            ]
        };
        for (stable, cached) in with(Durability::Stable).into_iter().zip(with(Durability::Cached)) {
            check_on(&node, stable, cached, Ok(1));
        }
        check_on(&node, Operation::Read(extent()), Operation::Read(extent()), Ok(1));
    }

    #[test]
    fn a_file_gets_another_size_and_has_zeroes_where_it_is_new() {
        let image = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(image.path(), [7; 8192]).unwrap();
        let open = |access| {
            let options = OpenOptions::regular(image.path(), access);
            FileNode::open("disk", &options, DiscardPolicy::Ignore, &Arc::default()).unwrap()
        };
        let node = open(Access::ReadWrite);
        for bytes in [4096, 12288, 1 << 40, 512, 0, 8192] {
            node.resize(DiskSize(ByteCount(bytes))).unwrap();
            assert_eq!(node.size(), DiskSize(ByteCount(bytes)));
            assert_eq!(std::fs::metadata(image.path()).unwrap().len(), bytes);
        }
        assert_eq!(std::fs::read(image.path()).unwrap(), [0; 8192]);
        let error = node.resize(DiskSize(ByteCount(u64::MAX))).unwrap_err();
        assert_eq!(error.to_string(), "node disk: Failed to resize the file");
        let error = open(Access::ReadOnly).resize(DiskSize(ByteCount(1))).unwrap_err();
        assert_eq!(error.to_string(), "node disk: Image is read-only");
        assert_eq!(node.size(), DiskSize(ByteCount(8192)));
    }

    #[test]
    fn a_directory_is_refused_by_name() {
        let options = OpenOptions::regular("/proc", Access::ReadOnly);
        let error = OpenFile::open(&options).unwrap_err();
        assert_eq!(error.to_string(), "/proc is a directory, not a disk image");
    }

    /// Opens an image for writing, as a daemon of its own or beside the others of a table.
    fn claimable(
        image: &tempfile::NamedTempFile,
        table: &Arc<FileTable>,
        locking: Locking,
    ) -> FileNode {
        let options = OpenOptions {
            lock: LockOptions { locking, ..LockOptions::default() },
            ..OpenOptions::regular(image.path(), Access::ReadWrite)
        };
        FileNode::open("disk", &options, DiscardPolicy::Ignore, table).unwrap()
    }

    #[test]
    fn a_file_is_closed_with_its_node_and_the_last_claim_on_it() {
        let image = tempfile::NamedTempFile::new().unwrap();
        let table = Arc::default();
        let kept = claimable(&image, &table, Locking::Automatic);
        let node = claimable(&image, &table, Locking::Automatic);
        let file = Arc::downgrade(node.file());
        let claim = node.claim(Rights::of_user(Access::ReadOnly)).unwrap();
        drop(node);
        assert!(file.upgrade().is_some() && table.all().len() == 2);
        drop(claim);
        assert!(file.upgrade().is_none() && table.all().len() == 1);
        assert!(Arc::ptr_eq(&table.all()[0], kept.file()));
    }

    #[test]
    fn claims_on_one_node_add_up_and_keep_others_out_until_the_last_is_gone() {
        let image = tempfile::NamedTempFile::new().unwrap();
        let ours = claimable(&image, &Arc::default(), Locking::On);
        let other = claimable(&image, &Arc::default(), Locking::Automatic);
        let (reader, writer) =
            (Rights::of_user(Access::ReadOnly), Rights::of_user(Access::ReadWrite));
        let first = ours.claim(writer).unwrap();
        let second = ours.claim(writer).unwrap();
        let third = ours.claim(reader).unwrap();
        drop(first);
        let error = other.claim(writer).unwrap_err();
        assert_eq!(
            (error.outlook, error.to_string()),
            (RetryHint::Transient, "node disk".to_owned())
        );
        let reads = other.claim(reader).unwrap();
        drop(second);
        let writes = other.claim(writer).unwrap();
        assert_eq!(ours.claim(writer).unwrap_err().outlook, RetryHint::Transient);
        drop((third, reads, writes));
        drop(ours.claim(writer).unwrap());
    }

    #[test]
    fn two_nodes_of_one_daemon_that_cannot_be_are_told_apart_from_another_process() {
        let image = tempfile::NamedTempFile::new().unwrap();
        let table = Arc::default();
        let one = claimable(&image, &table, Locking::Automatic);
        let two = claimable(&image, &table, Locking::Automatic);
        let writer = Rights::of_user(Access::ReadWrite);
        let held = one.claim(writer).unwrap();
        assert_eq!(two.claim(writer).unwrap_err().outlook, RetryHint::Permanent);
        drop(two.claim(Rights::of_user(Access::ReadOnly)).unwrap());
        drop(held);
        drop(two.claim(writer).unwrap());
    }

    #[test]
    fn a_reader_may_ask_for_others_not_to_write() {
        let image = tempfile::NamedTempFile::new().unwrap();
        let ours = claimable(&image, &Arc::default(), Locking::Automatic);
        let other = claimable(&image, &Arc::default(), Locking::Automatic);
        let rights = Rights::unchanged_by_others(Access::ReadOnly);
        let held = ours.claim(rights).unwrap();
        other.claim(Rights::of_user(Access::ReadWrite)).unwrap_err();
        drop(other.claim(rights).unwrap());
        drop(held);
    }

    #[test]
    fn without_locking_nobody_is_kept_out() {
        let image = tempfile::NamedTempFile::new().unwrap();
        let ours = claimable(&image, &Arc::default(), Locking::Off);
        let other = claimable(&image, &Arc::default(), Locking::On);
        let writer = Rights::of_user(Access::ReadWrite);
        let held = (ours.claim(writer).unwrap(), other.claim(writer).unwrap());
        drop(held);
    }

    /// An image grows with what is written to it, and need not end with a block.
    #[test]
    fn who_claims_a_file_that_has_grown_sees_how_far() {
        for caching in [Caching::Buffered, Caching::Direct] {
            // In memory there is no direct I/O on older kernels.
            let image = tempfile::NamedTempFile::new_in(".").unwrap();
            image.as_file().set_len(8200).unwrap();
            let options = OpenOptions {
                caching,
                lock: LockOptions { locking: Locking::Off, ..LockOptions::default() },
                ..OpenOptions::regular(image.path(), Access::ReadWrite)
            };
            let policy = DiscardPolicy::Ignore;
            let node = FileNode::open("disk", &options, policy, &Arc::default()).unwrap();
            let claim = node.claim(Rights::of_user(Access::ReadWrite)).unwrap();
            claim.refresh().unwrap();
            claim.refresh().unwrap();
            image.as_file().set_len(1 << 20).unwrap();
            claim.refresh().unwrap();
            assert_eq!(node.size(), DiskSize(ByteCount(1 << 20)), "{caching:?}");
            image.as_file().set_len(8192).unwrap();
            claim.refresh().unwrap_err();
        }
    }
}
