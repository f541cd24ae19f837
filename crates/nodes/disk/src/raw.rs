//! The raw format: a disk whose bytes are its child's bytes, or some of them (driver `raw`).
//!
//! Where it stands in the life of a request: its lane moves each request to where the bytes are in the
//! child and asks the lane below. Of a disk that is the whole child and may do what the child may, the
//! lane is the child's own.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;

use block::{
    Access, Answer, BatchPieces, BlockLimits, ByteCount, ByteOffset, Child, Claim, ClaimError,
    DiscardPolicy, DiskSize, Extent, FailKind, Lane, LaneContext, LaneError, Mapping, Node,
    Operation, ResizeError, Rights, Target,
};

/// What a size must be a multiple of, in bytes, as in QEMU.
const SIZE_UNIT: u64 = 512;

/// The part of its child that a raw disk shows (`offset=`, `size=`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RawWindow {
    /// Where they begin (`offset=`).
    pub offset: u64,
    /// How many they are (`size=`); `None` is all that follow.
    pub size: Option<u64>,
}

/// A window that does not fit the child. QEMU's sentences.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RawWindowError {
    /// The child ends before it begins.
    #[error("Offset ({offset}) cannot be greater than size of the containing file ({bytes})")]
    Offset {
        /// Where it begins.
        offset: u64,
        /// The child's size.
        bytes: u64,
    },
    /// The child ends before it ends.
    #[error(
        "The sum of offset ({offset}) and size ({size}) has to be smaller or equal to the actual \
         size of the containing file ({bytes})"
    )]
    Size {
        /// Where it begins.
        offset: u64,
        /// How long it is.
        size: u64,
        /// The child's size.
        bytes: u64,
    },
    /// No disk has that size.
    #[error("Specified size is not multiple of 512")]
    Unit,
}

impl RawWindow {
    /// The whole child.
    pub const WHOLE: Self = Self { offset: 0, size: None };

    /// Proves that it lies inside a child of that many bytes; returns how many it has itself.
    pub fn check(self, bytes: u64) -> Result<u64, RawWindowError> {
        let Self { offset, size } = self;
        let Some(rest) = bytes.checked_sub(offset) else {
            return Err(RawWindowError::Offset { offset, bytes });
        };
        match size {
            None => Ok(rest),
            Some(size) if size > rest => Err(RawWindowError::Size { offset, size, bytes }),
            Some(size) if !size.is_multiple_of(SIZE_UNIT) => Err(RawWindowError::Unit),
            Some(size) => Ok(size),
        }
    }

    /// Where it ends on the child, which may grow.
    fn end(self) -> DiskSize {
        let end = self.size.and_then(|size| self.offset.checked_add(size));
        DiskSize(ByteCount(end.unwrap_or(u64::MAX)))
    }
}

/// The raw format as a node: its bytes are its child's, or a part of them.
#[derive(Debug)]
pub struct RawNode {
    name: String,
    child: Arc<Child>,
    window: RawWindow,
    access: Access,
    discard: DiscardPolicy,
}

impl RawNode {
    /// Shows the child, or a part of it, as a disk of its own name.
    pub fn new(
        name: &str,
        child: Arc<Child>,
        window: RawWindow,
        access: Access,
        discard: DiscardPolicy,
    ) -> Result<Self, RawWindowError> {
        window.check(child.node().size().0.0)?;
        Ok(Self { name: name.to_owned(), child, window, access, discard })
    }
}

impl Node for RawNode {
    fn name(&self) -> &str {
        &self.name
    }

    fn image_file(&self) -> Option<PathBuf> {
        self.child.node().image_file()
    }

    fn size(&self) -> DiskSize {
        // What no longer fits, because the child has shrunk since, cannot be reached.
        let bytes = self.child.node().size().0.0;
        let rest = bytes.saturating_sub(self.window.offset);
        DiskSize(ByteCount(self.window.size.map_or(rest, |size| size.min(rest))))
    }

    fn limits(&self) -> BlockLimits {
        let below = self.child.node().limits();
        let fits = |unit: NonZeroU32| self.window.offset.is_multiple_of(unit.get().into());
        let least = NonZeroU32::new(512).expect("512 is not zero");
        BlockLimits {
            discard: below.discard && self.discard == DiscardPolicy::Unmap,
            // Of blocks that a window cuts, its guest can align to nothing.
            physical_block: if fits(below.physical_block) { below.physical_block } else { least },
            ..below
        }
    }

    fn access(&self) -> Access {
        self.access
    }

    fn flush(&self) -> std::io::Result<()> {
        self.child.node().flush()
    }

    /// Raw needs of its child what is asked of it.
    fn claim(&self, rights: Rights) -> Result<Claim, ClaimError> {
        self.child.node().claim(rights)
    }

    fn resize(&self, DiskSize(ByteCount(bytes)): DiskSize) -> Result<(), ResizeError> {
        if self.access == Access::ReadOnly {
            return Err(ResizeError::refused(self, "Image is read-only"));
        }
        if self.window.size.is_some() {
            return Err(ResizeError::refused(self, "Cannot resize fixed-size raw disks"));
        }
        let end = bytes.checked_add(self.window.offset).filter(|end| *end <= i64::MAX as u64);
        let too_large = "Disk size too large for the chosen offset";
        let end = end.ok_or_else(|| ResizeError::refused(self, too_large))?;
        self.child.node().resize(DiskSize(ByteCount(end)))
    }

    fn open_lane(&self, io: &LaneContext) -> Result<Box<dyn Lane>, LaneError> {
        let child = self.child.node();
        let below = child.open_lane(io)?;
        let changes_nothing = self.window == RawWindow::WHOLE
            && self.discard == DiscardPolicy::Unmap
            && self.access == child.access();
        if changes_nothing {
            return Ok(below);
        }
        let Self { window, access, discard, .. } = *self;
        Ok(Box::new(RawLane { below, offset: window.offset, end: window.end(), access, discard }))
    }
}

/// One iothread's handle on a [`RawNode`].
#[derive(Debug)]
struct RawLane {
    below: Box<dyn Lane>,
    /// Where the disk begins on the child.
    offset: u64,
    /// What lies behind it there is somebody else's.
    end: DiskSize,
    access: Access,
    discard: DiscardPolicy,
}

impl Lane for RawLane {
    fn map(&mut self, batch: &mut [Mapping], pieces: &mut BatchPieces) {
        let mut passed_on = 0;
        for place in 0..batch.len() {
            match self.prepare(batch[place].operation, pieces) {
                Ok(operation) => batch[place].operation = operation,
                Err(answer) => {
                    self.pass_on(&mut batch[passed_on..place], pieces);
                    batch[place].answer = answer;
                    passed_on = place + 1;
                }
            }
        }
        self.pass_on(&mut batch[passed_on..], pieces);
    }

    fn locate(&mut self, operation: Operation) -> Option<Target> {
        if operation.is_change() && self.access == Access::ReadOnly {
            return None;
        }
        match operation {
            Operation::Read(extent) | Operation::Write(extent, _) => {
                self.below.locate(operation.on(self.moved(extent)?))
            }
            Operation::Status(_)
            | Operation::Discard(..)
            | Operation::WriteZeroes(..)
            | Operation::Flush => None,
        }
    }

    block::pass_on_to!(below);
}

impl RawLane {
    /// Where bytes of the disk are on the child, if it has them.
    fn moved(&self, extent: Extent) -> Option<Extent> {
        let start = extent.start().0.checked_add(self.offset).map(ByteOffset)?;
        self.end.check(start, extent.count()).ok()
    }

    /// What to ask the lane below, or the answer.
    fn prepare(&self, operation: Operation, pieces: &BatchPieces) -> Result<Operation, Answer> {
        if operation.is_change() && self.access == Access::ReadOnly {
            return Err(Answer::Refused(FailKind::ReadOnly));
        }
        let Some(extent) = operation.extent() else { return Ok(operation) };
        let moved = self.moved(extent).ok_or(Answer::Refused(FailKind::OutOfRange))?;
        match (operation.on(moved), self.discard) {
            (Operation::Discard(..), DiscardPolicy::Ignore) => Err(Answer::Now(pieces.none())),
            (Operation::WriteZeroes(extent, terms, durability), DiscardPolicy::Ignore) => {
                Ok(Operation::WriteZeroes(extent, terms.keeping_space(), durability))
            }
            (operation, _) => Ok(operation),
        }
    }

    fn pass_on(&mut self, batch: &mut [Mapping], pieces: &mut BatchPieces) {
        if !batch.is_empty() {
            self.below.map(batch, pieces);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{NullNode, ReadContent};
    use block::{Durability, LeafLane, Piece, Token, ZeroTerms};

    /// A child whose pieces say where they are.
    #[derive(Debug)]
    struct Places(Arc<dyn Node>);

    #[derive(Debug)]
    struct PlacesLane;

    impl Node for Places {
        fn name(&self) -> &str {
            self.0.name()
        }

        fn size(&self) -> DiskSize {
            self.0.size()
        }

        fn limits(&self) -> BlockLimits {
            BlockLimits { physical_block: NonZeroU32::new(4096).unwrap(), ..self.0.limits() }
        }

        fn access(&self) -> Access {
            self.0.access()
        }

        fn flush(&self) -> std::io::Result<()> {
            Ok(())
        }

        fn claim(&self, rights: Rights) -> Result<Claim, ClaimError> {
            self.0.claim(rights)
        }

        fn open_lane(&self, _: &LaneContext) -> Result<Box<dyn Lane>, LaneError> {
            Ok(Box::new(PlacesLane))
        }
    }

    impl LeafLane for PlacesLane {
        fn answer(&mut self, mapping: &mut Mapping, pieces: &mut BatchPieces) {
            mapping.answer = Answer::Now(match mapping.operation.extent() {
                None => pieces.none(),
                Some(extent) => {
                    let target = Target::File { file: block::FileId(0), offset: extent.start() };
                    pieces.one(Piece { skip: 0, count: extent.count(), target })
                }
            });
        }

        fn locate(&mut self, operation: Operation) -> Option<Target> {
            let offset = operation.extent()?.start();
            Some(Target::File { file: block::FileId(0), offset })
        }
    }

    const BYTES: u64 = 8192;

    fn raw(
        window: RawWindow,
        access: Access,
        discard: DiscardPolicy,
    ) -> Result<RawNode, RawWindowError> {
        let size = DiskSize(ByteCount(BYTES));
        let null = NullNode::new("null", size, Access::ReadWrite, ReadContent::Zeroes);
        RawNode::new("raw", Child::new(Arc::new(Places(Arc::new(null)))), window, access, discard)
    }

    /// What comes of these operations: where the bytes are, or why not.
    fn mapped(node: &RawNode, operations: &[Operation]) -> Vec<Result<Vec<u64>, FailKind>> {
        let mut batch: Vec<Mapping> =
            operations.iter().map(|operation| Mapping::new(Token(0), *operation)).collect();
        let mut list = BatchPieces::default();
        let mut lane = node.open_lane(&LaneContext::idle()).unwrap();
        lane.map(&mut batch, &mut list);
        let place = |piece: &Piece| match piece.target {
            Target::File { offset, .. } => offset.0,
            Target::Channel { .. }
            | Target::Zeroes
            | Target::Nothing
            | Target::Memory { .. }
            | Target::Status(_) => {
                panic!("{piece:?}")
            }
        };
        let answer = |mapping: &Mapping| match mapping.answer {
            Answer::Now(range) => Ok(list.get(range).iter().map(place).collect()),
            Answer::Refused(kind) => Err(kind),
            Answer::Held => panic!("nobody holds"),
        };
        for (mapping, operation) in batch.iter().zip(operations) {
            let pieces = match mapping.answer {
                Answer::Now(range) => list.get(range),
                Answer::Held | Answer::Refused(_) => &[],
            };
            if let Operation::Read(extent) | Operation::Write(extent, _) = *operation {
                let located = lane.locate(*operation);
                let expected = |target| Piece { skip: 0, count: extent.count(), target };
                assert_eq!(Vec::from_iter(located.map(expected)), pieces, "{operation:?}");
            }
        }
        batch.iter().map(answer).collect()
    }

    fn operations(start: u64, count: u64) -> [Operation; 5] {
        let extent = DiskSize(ByteCount(BYTES)).check(ByteOffset(start), ByteCount(count)).unwrap();
        [
            Operation::WriteZeroes(extent, ZeroTerms::UNMAP, Durability::Cached),
            Operation::Discard(extent, Durability::Cached),
            Operation::Flush,
            Operation::Read(extent),
            Operation::Write(extent, Durability::Stable),
        ]
    }

    #[test]
    fn discards_pass_raw_only_if_it_may_unmap() {
        for (discard, kept) in [(DiscardPolicy::Unmap, vec![512]), (DiscardPolicy::Ignore, vec![])]
        {
            let node = raw(RawWindow::WHOLE, Access::ReadWrite, discard).unwrap();
            let [here, none] = [Ok(vec![512]), Ok(vec![])];
            let expected = [here.clone(), Ok(kept), none, here.clone(), here];
            assert_eq!(mapped(&node, &operations(512, 512)), expected, "{discard:?}");
        }
    }

    #[test]
    fn every_request_is_moved_to_where_the_window_is() {
        for discard in [DiscardPolicy::Unmap, DiscardPolicy::Ignore] {
            let window = RawWindow { offset: 1536, size: Some(4096) };
            let node = raw(window, Access::ReadWrite, discard).unwrap();
            assert_eq!(node.size(), DiskSize(ByteCount(4096)));
            let [here, none] = [Ok(vec![2048]), Ok(vec![])];
            let discarded =
                if discard == DiscardPolicy::Unmap { here.clone() } else { none.clone() };
            let expected = [here.clone(), discarded, none, here.clone(), here];
            assert_eq!(mapped(&node, &operations(512, 512)), expected, "{discard:?}");
        }
    }

    #[test]
    fn what_the_window_has_not_is_refused_and_nothing_beside_it() {
        let window = RawWindow { offset: 2048, size: Some(4096) };
        let node = raw(window, Access::ReadWrite, DiscardPolicy::Unmap).unwrap();
        let [_, _, _, inside, _] = operations(0, 512);
        let [_, _, _, beyond, _] = operations(3584, 1024);
        let found = mapped(&node, &[inside, beyond, Operation::Flush, beyond, inside]);
        let (here, out) = (Ok(vec![2048]), Err(FailKind::OutOfRange));
        assert_eq!(found, [here.clone(), out.clone(), Ok(vec![]), out, here]);
    }

    #[test]
    fn a_read_only_disk_over_a_writable_child_takes_no_changes() {
        let node = raw(RawWindow::WHOLE, Access::ReadOnly, DiscardPolicy::Unmap).unwrap();
        let [here, no] = [Ok(vec![512]), Err(FailKind::ReadOnly)];
        let expected = [no.clone(), no.clone(), Ok(vec![]), here, no];
        assert_eq!(mapped(&node, &operations(512, 512)), expected);
    }

    #[track_caller]
    fn check(offset: u64, size: Option<u64>, expected: Result<u64, &str>) {
        let found = raw(RawWindow { offset, size }, Access::ReadWrite, DiscardPolicy::Unmap);
        let found = found.map(|node| node.size().0.0).map_err(|error| error.to_string());
        assert_eq!(found, expected.map_err(str::to_owned));
    }

    #[test]
    fn windows_fit_as_in_qemu() {
        check(0, None, Ok(BYTES));
        check(1, None, Ok(BYTES - 1));
        check(BYTES, None, Ok(0));
        check(0, Some(0), Ok(0));
        check(512, Some(BYTES - 512), Ok(BYTES - 512));
        let beyond = "Offset (8193) cannot be greater than size of the containing file (8192)";
        check(BYTES + 1, None, Err(beyond));
        check(BYTES + 1, Some(512), Err(beyond));
        check(
            512,
            Some(BYTES),
            Err(
                "The sum of offset (512) and size (8192) has to be smaller or equal to the actual \
                 size of the containing file (8192)",
            ),
        );
        check(
            u64::MAX,
            Some(u64::MAX),
            Err(
                "Offset (18446744073709551615) cannot be greater than size of the containing file \
                 (8192)",
            ),
        );
        check(0, Some(513), Err("Specified size is not multiple of 512"));
    }

    #[test]
    fn a_disk_that_ends_with_its_child_has_it_end_elsewhere() {
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(BYTES).unwrap();
        let options = kernel_io::OpenOptions::regular(image.path(), Access::ReadWrite);
        let file =
            crate::FileNode::open("file", &options, DiscardPolicy::Unmap, &Arc::default()).unwrap();
        let child = Child::new(Arc::new(file));
        let resized = |offset, size, access, bytes| {
            let window = RawWindow { offset, size };
            let node =
                RawNode::new("raw", Arc::clone(&child), window, access, DiscardPolicy::Unmap);
            let node = node.unwrap();
            let resized = node.resize(DiskSize(ByteCount(bytes)));
            resized
                .map(|()| (node.size().0.0, child.node().size().0.0))
                .map_err(|it| it.to_string())
        };
        let write = Access::ReadWrite;
        assert_eq!(resized(0, None, write, 4096), Ok((4096, 4096)));
        assert_eq!(resized(1024, None, write, 4096), Ok((4096, 5120)));
        let refused = |why| Err(format!("node raw: {why}"));
        let fixed = refused("Cannot resize fixed-size raw disks");
        assert_eq!(resized(0, Some(4096), write, 512), fixed);
        assert_eq!(resized(0, None, Access::ReadOnly, 512), refused("Image is read-only"));
        let large = refused("Disk size too large for the chosen offset");
        assert_eq!(resized(512, None, write, i64::MAX as u64), large);
        let size = DiskSize(ByteCount(BYTES));
        let null = NullNode::new("null", size, Access::ReadWrite, ReadContent::Zeroes);
        let refused = null.resize(size).unwrap_err().to_string();
        assert_eq!(refused, "node null: Image format driver does not support resize");
    }

    #[test]
    fn a_window_that_cuts_blocks_does_not_speak_of_them() {
        let block = |offset| {
            let window = RawWindow { offset, size: None };
            let node = raw(window, Access::ReadWrite, DiscardPolicy::Unmap).unwrap();
            node.limits().physical_block.get()
        };
        assert_eq!((block(4096), block(512)), (4096, 512));
    }
}
