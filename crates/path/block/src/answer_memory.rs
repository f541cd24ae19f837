//! Memory that answers name in place of a file: what a lane had to make first, such as a cluster that was
//! compressed; and what it takes the bytes of a write into that it has to see, such as a cluster that is to be compressed.
//!
//! Where it stands in the life of a request: a lane counts the memory with its [`crate::LaneContext`] and answers with
//! [`crate::Target::Memory`]; layers above pass the pieces on, cut or held like any others; whoever carries them out
//! copies the bytes: out of the memory for a read, into it for a write.
//!
//! Invariants: memory is there as long as a piece names it, and counts as long.
//! Threads: belongs to the iothread of the lanes. Limits: [`BYTES_MAX`].

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::{Buffers, ByteCount, HostMemory};

/// The most bytes in the answers of one top-level lane, counted where they are shared as often as they are
/// counted: twice what the requests of a lane that holds them may ask for, 1 GiB.
const BYTES_MAX: usize = 2 << 30;

/// The answers of one lane that are not carried out yet keep as much memory as they may (`BYTES_MAX`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("answers that are not carried out keep {bytes} bytes of memory")]
pub struct AnswerMemoryError {
    bytes: usize,
}

/// Host memory that a read is answered from in place of a file, such as a decompressed cluster, or that a write is copied
/// into. Clones share it.
#[derive(Debug, Clone)]
pub struct AnswerBuffer(Rc<ChargedMemory>);

/// The memory, charged to its lane's counter until it is dropped.
#[derive(Debug)]
struct ChargedMemory {
    content: AnswerContent,
    bytes: usize,
    counter: MemoryCounter,
}

/// What the memory is for.
#[derive(Debug)]
enum AnswerContent {
    /// Reads are copied out of it.
    Found(Rc<HostMemory>),
    /// A write is copied into it.
    Captured(RefCell<HostMemory>),
}

/// The bytes of [`AnswerBuffer`] that one lane's answers keep alive. Clones count together.
#[derive(Debug, Clone, Default)]
pub(crate) struct MemoryCounter(Rc<Cell<usize>>);

impl MemoryCounter {
    pub(crate) fn add(&self, memory: Rc<HostMemory>) -> Result<AnswerBuffer, AnswerMemoryError> {
        self.charge(memory.len(), || AnswerContent::Found(memory))
    }

    /// Memory of so many bytes for a write.
    pub(crate) fn capture(&self, bytes: usize) -> Result<AnswerBuffer, AnswerMemoryError> {
        self.charge(bytes, || AnswerContent::Captured(RefCell::new(HostMemory::zeroed(bytes))))
    }

    fn charge(
        &self,
        bytes: usize,
        content: impl FnOnce() -> AnswerContent,
    ) -> Result<AnswerBuffer, AnswerMemoryError> {
        let all = self.0.get() + bytes;
        if all > BYTES_MAX {
            return Err(AnswerMemoryError { bytes: self.0.get() });
        }
        self.0.set(all);
        let (content, counter) = (content(), self.clone());
        Ok(AnswerBuffer(Rc::new(ChargedMemory { content, bytes, counter })))
    }

    pub(crate) fn bytes(&self) -> usize {
        self.0.get()
    }
}

impl AnswerBuffer {
    /// What a read finds there; `None` of memory for a write.
    pub(crate) fn get(&self, offset: u32, count: ByteCount) -> Option<&[u8]> {
        let count = usize::try_from(count.0).expect("64-bit host");
        match &self.0.content {
            AnswerContent::Found(memory) => Some(&memory[offset as usize..][..count]),
            AnswerContent::Captured(_) => None,
        }
    }

    /// Copies bytes of a write, from `skip` on in its memory, to this place. Memory for reads stays as it is.
    pub(crate) fn put(&self, offset: usize, write: &Buffers, skip: usize, count: usize) {
        if let AnswerContent::Captured(memory) = &self.0.content {
            write.copy_to(skip, &mut memory.borrow_mut()[offset..offset + count]);
        }
    }

    /// Takes what a write has brought, all of which was carried out; nothing is left. Of memory for reads that is nothing.
    pub fn take_captured(&self) -> HostMemory {
        match &self.0.content {
            AnswerContent::Found(_) => HostMemory::zeroed(0),
            AnswerContent::Captured(memory) => memory.replace(HostMemory::zeroed(0)),
        }
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
        self.counter.0.set(self.counter.0.get() - self.bytes);
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
        assert_eq!((counter.bytes(), one.get(1, ByteCount(3))), (14, Some(&b"lus"[..])));
        let part = one.clone();
        drop((one, other));
        assert_eq!((counter.bytes(), part.get(6, ByteCount(1))), (7, Some(&b"r"[..])));
        drop(part);
        assert_eq!(counter.bytes(), 0);
    }

    #[test]
    fn a_write_is_copied_into_memory_and_taken_once() {
        let counter = MemoryCounter::default();
        let captured = counter.capture(4).unwrap();
        let mut written = HostMemory::of(b"writing");
        let named = written.name();
        captured.clone().put(0, &named, 2, 2);
        captured.put(2, &named, 5, 2);
        assert_eq!(
            (&*captured.take_captured(), captured.get(0, ByteCount(1))),
            (&b"itng"[..], None)
        );
        assert!(captured.take_captured().is_empty());
        assert_eq!(counter.bytes(), 4);
        drop(captured);
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
