//! What the bytes of a disk are, without reading them: block status.
//!
//! Where it stands in the life of a request: a [`crate::Operation::Status`] goes through the lanes as a read does. Their
//! pieces say where the bytes live, or ([`crate::Target::Status`]) what they are; whoever carries the pieces out
//! collects runs of them, asks sparse files where their holes are, and leaves records in the memory of the request.
//!
//! Invariants: what is said to be zero reads as zeroes as long as nobody changes it. Records follow each other from the
//! first byte asked about, without a gap; an answer may end early, but has that byte.
//! Limits: as many records as the memory has room for.

use crate::{Buffers, ByteCount, FailKind};

/// The block status of bytes: data, zero, allocated, and in which backing file. The words are those of QEMU's block
/// status, so that its `base:allocation` and `qemu-img map` follow from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockStatus {
    /// They take storage, which a read asks.
    pub is_data: bool,
    /// They read as zeroes; otherwise nobody knows.
    pub is_zero: bool,
    /// Some node has them. The others are zeroes because nothing is there.
    pub is_allocated: bool,
    /// From how many backing files below the node asked this is: 0 if it says so itself. Steps through layers do not
    /// count. The most that can be said is 255.
    pub depth: u8,
}

impl BlockStatus {
    /// Bytes that are stored.
    pub const DATA: Self = Self { is_data: true, is_zero: false, is_allocated: true, depth: 0 };

    /// Zeroes that take no storage.
    pub const ZEROES: Self = Self { is_data: false, is_zero: true, is_allocated: true, depth: 0 };

    /// Zeroes because nothing is there.
    pub const UNALLOCATED: Self =
        Self { is_data: false, is_zero: true, is_allocated: false, depth: 0 };

    /// Neither stored nor zero.
    pub const NOTHING: Self =
        Self { is_data: false, is_zero: false, is_allocated: false, depth: 0 };

    /// The same for the node whose backing file was asked.
    #[must_use]
    pub fn of_overlay(self) -> Self {
        Self { depth: self.depth.saturating_add(1), ..self }
    }
}

/// A run of bytes of one block status, as it is written to a status request's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatusRecord {
    /// How many; never 0.
    pub count: ByteCount,
    /// What they are.
    pub status: BlockStatus,
}

impl StatusRecord {
    /// The bytes that a record takes in memory: the count in 8 bytes, flags, the depth, and 6 that are zero. All are
    /// little-endian. A count of 0 stands behind the last record, if there is room.
    pub const BYTES: usize = 16;

    const DATA: u8 = 1;
    const ZERO: u8 = 2;
    const ALLOCATED: u8 = 4;

    /// The records in the memory of a status that was carried out.
    pub fn read_all(memory: &[u8]) -> impl Iterator<Item = Self> + '_ {
        memory.chunks_exact(Self::BYTES).map_while(|record| {
            let count = u64::from_le_bytes(record[..8].try_into().expect("8 bytes"));
            let has = |flag| record[8] & flag != 0;
            let status = BlockStatus {
                is_data: has(Self::DATA),
                is_zero: has(Self::ZERO),
                is_allocated: has(Self::ALLOCATED),
                depth: record[9],
            };
            (count > 0).then_some(Self { count: ByteCount(count), status })
        })
    }

    fn encode(self) -> [u8; Self::BYTES] {
        let BlockStatus { is_data, is_zero, is_allocated, depth } = self.status;
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        let mut record = [0; Self::BYTES];
        record[..8].copy_from_slice(&self.count.0.to_le_bytes());
        record[8] = flag(is_data, Self::DATA)
            | flag(is_zero, Self::ZERO)
            | flag(is_allocated, Self::ALLOCATED);
        record[9] = depth;
        record
    }
}

/// A run of bytes of one block status, and where it begins in the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatusRun {
    /// How many bytes lie before it.
    pub skip: u64,
    /// Its length and what it is.
    pub record: StatusRecord,
}

/// The runs of a block status request while they are collected. Runs come in any order.
#[derive(Debug, Default)]
pub struct StatusRuns {
    runs: Vec<StatusRun>,
}

impl StatusRuns {
    /// Adds a run; none if it has no bytes. What was told of bytes before stays.
    pub fn add(&mut self, skip: u64, count: ByteCount, status: BlockStatus) {
        if count.0 == 0 {
            return;
        }
        if let Some(StatusRun { skip: before, record }) = self.runs.last_mut()
            && *before + record.count.0 == skip
            && record.status == status
        {
            record.count.0 += count.0;
            return;
        }
        self.runs.push(StatusRun { skip, record: StatusRecord { count, status } });
    }

    /// How many runs there are.
    pub fn count(&self) -> usize {
        self.runs.len()
    }

    /// Forgets all of them, and keeps room for no more than so many.
    pub fn clear(&mut self, kept: usize) {
        self.runs.clear();
        self.runs.shrink_to(kept);
    }

    /// The runs in the order of the disk, from the first byte to the first one that nobody has told about. Neighbours are
    /// different.
    pub fn in_order(&mut self) -> &[StatusRun] {
        // Of the same bytes, what came first stays first.
        self.runs.sort_by_key(|run| run.skip);
        let (mut end, mut told) = (0, 0);
        for place in 0..self.runs.len() {
            let StatusRun { skip, record: StatusRecord { count, status } } = self.runs[place];
            if skip > end {
                break;
            }
            let next = skip + count.0;
            if next <= end {
                continue;
            }
            let count = ByteCount(next - end);
            match self.runs[..told].last_mut() {
                Some(last) if last.record.status == status => last.record.count.0 += count.0,
                Some(_) | None => {
                    self.runs[told] =
                        StatusRun { skip: end, record: StatusRecord { count, status } };
                    told += 1;
                }
            }
            end = next;
        }
        self.runs.truncate(told);
        &self.runs
    }

    /// Leaves the records in the memory of the request, as many as there is room for. Fails if there is none for the first.
    pub fn write(&mut self, memory: &mut Buffers) -> Result<(), FailKind> {
        self.write_with(memory.count(), |at, record| {
            memory.copy_from(at, record);
        })
    }

    /// The same for so many bytes of memory, to whose places records are brought.
    pub fn write_with(
        &mut self,
        bytes: usize,
        mut put: impl FnMut(usize, &[u8; StatusRecord::BYTES]),
    ) -> Result<(), FailKind> {
        let room = bytes / StatusRecord::BYTES;
        if room == 0 {
            return Err(FailKind::Malformed);
        }
        let runs = self.in_order();
        if runs.is_empty() {
            return Err(FailKind::Io);
        }
        let end = [0; StatusRecord::BYTES];
        let records = runs.iter().map(|run| run.record.encode()).chain([end]);
        for (place, record) in records.take(room).enumerate() {
            put(place * StatusRecord::BYTES, &record);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HostMemory;

    const DATA: BlockStatus = BlockStatus::DATA;
    const ZEROES: BlockStatus = BlockStatus::ZEROES;

    fn runs(runs: &[(u64, u64, BlockStatus)]) -> StatusRuns {
        let mut all = StatusRuns::default();
        runs.iter().for_each(|(skip, count, status)| all.add(*skip, ByteCount(*count), *status));
        all
    }

    /// What is found in the memory of a request with room for so many records.
    #[track_caller]
    fn check(told: &[(u64, u64, BlockStatus)], room: usize, expected: &[(u64, BlockStatus)]) {
        let mut memory = HostMemory::zeroed(room * StatusRecord::BYTES + 5);
        memory.fill(0xa5);
        runs(told).write(&mut memory.name()).unwrap();
        let found = StatusRecord::read_all(&memory).map(|it| (it.count.0, it.status));
        assert_eq!(found.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn records_are_in_order_without_gaps_and_neighbours_differ() {
        check(&[(0, 512, DATA)], 1, &[(512, DATA)]);
        let mixed = [(1024, 512, ZEROES), (0, 512, DATA), (512, 512, ZEROES), (1536, 1, DATA)];
        check(&mixed, 4, &[(512, DATA), (1024, ZEROES), (1, DATA)]);
        check(&mixed, 2, &[(512, DATA), (1024, ZEROES)]);
        // Behind a gap nothing is told.
        check(&[(0, 512, DATA), (513, 512, ZEROES)], 4, &[(512, DATA)]);
        // What was told twice counts once.
        check(&[(0, 512, DATA), (0, 1024, ZEROES)], 4, &[(512, DATA), (512, ZEROES)]);
        check(&[(0, 1024, DATA), (512, 256, ZEROES)], 4, &[(1024, DATA)]);
        check(&[(0, 0, ZEROES), (0, 1, DATA.of_overlay())], 4, &[(1, DATA.of_overlay())]);
    }

    #[test]
    fn an_answer_has_the_first_byte_or_is_none() {
        let write = |told: &[_], bytes| runs(told).write(&mut HostMemory::zeroed(bytes).name());
        assert_eq!(write(&[], 16), Err(FailKind::Io));
        assert_eq!(write(&[(1, 1, DATA)], 16), Err(FailKind::Io));
        assert_eq!(write(&[(0, 1, DATA)], 15), Err(FailKind::Malformed));
    }
}
