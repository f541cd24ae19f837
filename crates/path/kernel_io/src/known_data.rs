//! Where a file was last found to have data: some file systems look through all of a long run to tell where it ends, and
//! whoever asks for block status asks for one part of it after the other.
//!
//! Invariants: what is known is what was found, and what was zeroed or discarded here after that is forgotten. Where others
//! have made holes it says data, which is never wrong. Threads: shared by all iothreads; the lock is held for an
//! instant. Limits: one run.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard};

use block::{ByteCount, ByteOffset};

use crate::FileExtent;

/// What somebody asks of a file: what so many bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExtentQuery {
    pub(crate) count: u64,
    /// How many changes there had been when it was asked.
    changes: u64,
}

/// The run of a file that was last found to be data.
#[derive(Debug, Default)]
pub(crate) struct KnownData(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    run: Range<u64>,
    changes: u64,
}

impl KnownData {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no holder of this lock panics")
    }

    /// What is known there, of so many bytes; or what has to be asked.
    pub(crate) fn look(
        &self,
        offset: ByteOffset,
        count: ByteCount,
    ) -> Result<FileExtent, ExtentQuery> {
        let state = self.state();
        if state.run.contains(&offset.0) {
            let known = ByteCount(count.0.min(state.run.end - offset.0));
            return Ok(FileExtent { count: known, is_hole: false });
        }
        Err(ExtentQuery { count: count.0, changes: state.changes })
    }

    /// A query has found this, of which whoever asked hears what is about the bytes that it asked for. A run that goes
    /// beyond the size of the file is none.
    pub(crate) fn found(
        &self,
        offset: ByteOffset,
        query: ExtentQuery,
        found: FileExtent,
        size: u64,
    ) -> FileExtent {
        let end = offset.0.saturating_add(found.count.0);
        let mut state = self.state();
        if !found.is_hole && end <= size && query.changes == state.changes {
            state.run = offset.0..end;
        }
        FileExtent { count: ByteCount(found.count.0.min(query.count)), ..found }
    }

    /// Something was discarded or zeroed.
    pub(crate) fn forget(&self) {
        let mut state = self.state();
        state.run = 0..0;
        state.changes += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 1 << 20;

    fn data(count: u64) -> FileExtent {
        FileExtent { count: ByteCount(count), is_hole: false }
    }

    #[test]
    fn a_run_is_looked_for_once() {
        let known = KnownData::default();
        let query = known.look(ByteOffset(4096), ByteCount(512)).unwrap_err();
        assert_eq!(known.found(ByteOffset(4096), query, data(8192), SIZE), data(512));
        let look = |offset| known.look(ByteOffset(offset), ByteCount(4096));
        assert_eq!(look(4096), Ok(data(4096)));
        assert_eq!(look(12287), Ok(data(1)));
        assert!(look(12288).is_err() && look(4095).is_err());
    }

    #[test]
    fn what_was_changed_meanwhile_is_not_kept() {
        let known = KnownData::default();
        let look = || known.look(ByteOffset(0), ByteCount(512));
        let query = look().unwrap_err();
        known.forget();
        assert_eq!(known.found(ByteOffset(0), query, data(512), SIZE), data(512));
        let query = look().unwrap_err();
        let hole = FileExtent { is_hole: true, ..data(512) };
        assert_eq!(known.found(ByteOffset(0), query, hole, SIZE), hole);
        // Behind the end nothing is known.
        assert_eq!(known.found(ByteOffset(0), query, data(SIZE + 1), SIZE), data(512));
        let query = look().unwrap_err();
        known.found(ByteOffset(0), query, data(512), SIZE);
        assert_eq!(look(), Ok(data(512)));
        known.forget();
        assert!(look().is_err());
    }
}
