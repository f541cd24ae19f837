//! Memory that answers name in place of a file: what a lane had to make first, such as a cluster that was
//! compressed.
//!
//! Where it stands in the life of a request: a lane enters the memory through its [`crate::LaneIo`] and
//! answers with [`Target::Kept`]; layers above pass the pieces on, cut or held like any others; who
//! carries them out copies the bytes and lets the memory go.
//!
//! Invariants: memory that was entered belongs to one answer. Pieces that are carried out or dropped are
//! let go once, all of an answer together. What is forgotten all the same goes when nothing of the
//! top-level lane is in flight.
//! Threads: belongs to the iothread of the lanes. Limits: [`KEPT_BYTES_MAX`].

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use crate::{HostMemory, MemoryId, Piece, Target};

/// The most bytes that are kept for the answers of one top-level lane, counted where they are shared as
/// often as they are kept: twice what the requests of a lane that holds them may ask for, 1 GiB.
const KEPT_BYTES_MAX: usize = 2 << 30;

/// Memory cannot be kept, or an answer names memory that is not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeptError {
    /// There is too much of it.
    #[error("answers that are not carried out keep {bytes} bytes of memory")]
    Full {
        /// How much.
        bytes: usize,
    },
    /// A lane has let it go too early.
    #[error("an answer names memory that is not kept: {memory:?} from byte {offset}")]
    Gone {
        /// Its name.
        memory: MemoryId,
        /// From there on.
        offset: u64,
    },
}

/// The memory that the answers of some lanes name.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    memory: BTreeMap<MemoryId, Rc<HostMemory>>,
    bytes: usize,
    /// The next name. It comes round when the first ones are long over.
    next: u32,
}

impl Kept {
    pub(crate) fn keep(&mut self, memory: Rc<HostMemory>) -> Result<MemoryId, KeptError> {
        let bytes = self.bytes + memory.len();
        if bytes > KEPT_BYTES_MAX {
            return Err(KeptError::Full { bytes: self.bytes });
        }
        let mut name = MemoryId(self.next);
        while self.memory.contains_key(&name) {
            name.0 = name.0.wrapping_add(1);
        }
        self.next = name.0.wrapping_add(1);
        self.bytes = bytes;
        self.memory.insert(name, memory);
        Ok(name)
    }

    pub(crate) fn read(
        &self,
        piece: &Piece,
        mut put: impl FnMut(usize, &[u8]),
    ) -> Result<(), KeptError> {
        let Target::Kept { memory, offset } = piece.target else { return Ok(()) };
        let gone = KeptError::Gone { memory, offset };
        let kept = self.memory.get(&memory).ok_or(gone)?;
        let bytes = range(offset, piece.count.0).and_then(|bytes| kept.get(bytes)).ok_or(gone)?;
        put(usize::try_from(piece.skip).expect("64-bit host"), bytes);
        Ok(())
    }

    pub(crate) fn let_go(&mut self, pieces: &[Piece]) {
        for piece in pieces {
            if let Target::Kept { memory, .. } = piece.target
                && let Some(gone) = self.memory.remove(&memory)
            {
                self.bytes -= gone.len();
            }
        }
    }

    pub(crate) fn let_all_go(&mut self) {
        self.memory.clear();
        self.bytes = 0;
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

fn range(offset: u64, count: u64) -> Option<Range<usize>> {
    let end = offset.checked_add(count)?;
    Some(usize::try_from(offset).ok()?..usize::try_from(end).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ByteCount;

    fn piece(skip: u64, count: u64, memory: MemoryId, offset: u64) -> Piece {
        Piece { skip, count: ByteCount(count), target: Target::Kept { memory, offset } }
    }

    fn read(kept: &Kept, piece: &Piece) -> Result<Vec<(usize, Vec<u8>)>, KeptError> {
        let mut found = Vec::new();
        kept.read(piece, |skip, bytes| found.push((skip, bytes.to_vec())))?;
        Ok(found)
    }

    #[test]
    fn memory_is_there_until_its_answer_is_let_go() {
        let mut kept = Kept::default();
        let one = kept.keep(Rc::new(HostMemory::of(b"one"))).unwrap();
        let two = kept.keep(Rc::new(HostMemory::of(b"second"))).unwrap();
        let pieces = [piece(7, 2, one, 1), piece(0, 1, one, 0)];
        assert_eq!(read(&kept, &pieces[0]), Ok(vec![(7, b"ne".to_vec())]));
        assert_eq!(kept.bytes(), 9);
        kept.let_go(&pieces);
        assert_eq!(read(&kept, &pieces[1]), Err(KeptError::Gone { memory: one, offset: 0 }));
        assert_eq!(read(&kept, &piece(0, 6, two, 0)), Ok(vec![(0, b"second".to_vec())]));
        kept.let_all_go();
        assert_eq!(kept.bytes(), 0);
        assert!(read(&kept, &piece(0, 1, two, 0)).is_err());
    }

    #[test]
    fn bytes_that_are_not_in_the_memory_are_refused() {
        let mut kept = Kept::default();
        let memory = kept.keep(Rc::new(HostMemory::zeroed(512))).unwrap();
        for (offset, count) in [(0, 513), (512, 1), (u64::MAX, 2)] {
            let gone = Err(KeptError::Gone { memory, offset });
            assert_eq!(read(&kept, &piece(0, count, memory, offset)), gone);
        }
    }

    #[test]
    fn names_that_are_in_use_are_passed_over_and_what_is_kept_is_bounded() {
        let mut kept = Kept::default();
        let memory = Rc::new(HostMemory::zeroed(64 << 20));
        let first = kept.keep(Rc::clone(&memory)).unwrap();
        kept.next = first.0;
        let second = kept.keep(Rc::clone(&memory)).unwrap();
        assert_ne!(first, second);
        for _ in 2..32 {
            kept.keep(Rc::clone(&memory)).unwrap();
        }
        assert_eq!(kept.keep(memory), Err(KeptError::Full { bytes: KEPT_BYTES_MAX }));
    }
}
