//! Memory that answers name in place of a file: what a lane had to make first, such as a cluster that was
//! compressed.
//!
//! Where it stands in the life of a request: a lane counts the memory with its [`crate::LaneContext`] and answers with
//! [`crate::Target::Memory`]; layers above pass the pieces on, cut or held like any others; whoever carries them out
//! copies the bytes.
//!
//! Invariants: memory is there as long as a piece names it, and counts as long.
//! Threads: belongs to the iothread of the lanes. Limits: [`BYTES_MAX`].

use std::cell::Cell;
use std::rc::Rc;

use crate::{ByteCount, HostMemory};

/// The most bytes in the answers of one top-level lane, counted where they are shared as often as they are
/// counted: twice what the requests of a lane that holds them may ask for, 1 GiB.
const BYTES_MAX: usize = 2 << 30;

/// The answers of one lane that are not carried out yet keep as much memory as they may (`BYTES_MAX`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("answers that are not carried out keep {bytes} bytes of memory")]
pub struct AnswerMemoryError {
    bytes: usize,
}

/// Host memory that a read is answered from in place of a file, such as a decompressed cluster. Clones share it.
#[derive(Debug, Clone)]
pub struct AnswerBuffer(Rc<ChargedMemory>);

/// The memory, charged to its lane's counter until it is dropped.
#[derive(Debug)]
struct ChargedMemory {
    memory: Rc<HostMemory>,
    counter: MemoryCounter,
}

/// The bytes of [`AnswerBuffer`] that one lane's answers keep alive. Clones count together.
#[derive(Debug, Clone, Default)]
pub(crate) struct MemoryCounter(Rc<Cell<usize>>);

impl MemoryCounter {
    pub(crate) fn add(&self, memory: Rc<HostMemory>) -> Result<AnswerBuffer, AnswerMemoryError> {
        let bytes = self.0.get() + memory.len();
        if bytes > BYTES_MAX {
            return Err(AnswerMemoryError { bytes: self.0.get() });
        }
        self.0.set(bytes);
        Ok(AnswerBuffer(Rc::new(ChargedMemory { memory, counter: self.clone() })))
    }

    pub(crate) fn bytes(&self) -> usize {
        self.0.get()
    }
}

impl AnswerBuffer {
    pub(crate) fn get(&self, offset: u32, count: ByteCount) -> &[u8] {
        let count = usize::try_from(count.0).expect("64-bit host");
        &self.0.memory[offset as usize..][..count]
    }
}

impl PartialEq for AnswerBuffer {
    fn eq(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for AnswerBuffer {}

impl Drop for ChargedMemory {
    fn drop(&mut self) {
        self.counter.0.set(self.counter.0.get() - self.memory.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_counts_as_long_as_something_names_it() {
        let counter = MemoryCounter::default();
        let cluster = Rc::new(HostMemory::of(b"cluster"));
        let one = counter.add(Rc::clone(&cluster)).unwrap();
        let other = counter.add(cluster).unwrap();
        assert_ne!(one, other);
        assert_eq!((counter.bytes(), one.get(1, ByteCount(3))), (14, &b"lus"[..]));
        let part = one.clone();
        drop((one, other));
        assert_eq!((counter.bytes(), part.get(6, ByteCount(1))), (7, &b"r"[..]));
        drop(part);
        assert_eq!(counter.bytes(), 0);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let counter = MemoryCounter::default();
        let memory = Rc::new(HostMemory::zeroed(64 << 20));
        let mut kept: Vec<_> = (0..32).map(|_| counter.add(Rc::clone(&memory)).unwrap()).collect();
        assert_eq!(counter.add(Rc::clone(&memory)), Err(AnswerMemoryError { bytes: BYTES_MAX }));
        kept.pop();
        kept.push(counter.add(memory).unwrap());
    }
}
