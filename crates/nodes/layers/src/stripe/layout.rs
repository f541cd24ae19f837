//! Where the bytes of a stripe live: the layout of md's RAID0 with equal members. Pure.
//!
//! Chunk `c` of the stripe is chunk `c / members` of member `c % members`. So what a range has on one
//! member is one range there, which is the part of that member; in the memory of the operation its
//! chunks lie apart.
//!
//! Invariants: the parts of a range cover it once; each member has at most one. Limits: a stripe ends
//! below 2^63 bytes ([`Layout::member_bytes_max`]), so that nothing here wraps.

use std::num::{NonZeroU32, NonZeroU64};
use std::ops::Range;

use block::{ByteCount, Extent, SECTOR_BYTES};

/// The fewest members of a stripe.
pub const MEMBERS_MIN: usize = 2;

/// The most members of a stripe.
pub const MEMBERS_MAX: usize = 64;

/// The chunk size of a stripe: a multiple of 4 KiB up to 16 MiB, as in md's RAID0. It need not be a power of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkSize(NonZeroU64);

impl ChunkSize {
    /// The smallest, and what the others are multiples of.
    pub const BYTES_MIN: u64 = 4 << 10;

    /// The largest.
    pub const BYTES_MAX: u64 = 16 << 20;

    /// A chunk of that size; `None` if there is no such chunk.
    pub fn new(bytes: ByteCount) -> Option<Self> {
        let ByteCount(bytes) = bytes;
        let fits = bytes <= Self::BYTES_MAX && bytes.is_multiple_of(Self::BYTES_MIN);
        NonZeroU64::new(bytes).filter(|_| fits).map(Self)
    }

    /// Its size.
    pub fn bytes(self) -> ByteCount {
        ByteCount(self.0.get())
    }
}

/// The layout of a stripe: chunk size and number of members (md's RAID0). Pure arithmetic.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    chunk: NonZeroU64,
    members: NonZeroU64,
}

/// How a range that is not empty lies in the chunks of a stripe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Split {
    /// The member of the first byte.
    pub(super) first: usize,
    /// On how many members the range has a part: the first one and those behind it, in a circle.
    pub(super) parts: usize,
    /// The chunk of the first member that the first byte is in.
    row: u64,
    /// How many bytes of that chunk lie before the range.
    lead: u64,
    /// How many bytes of the last chunk lie behind the range.
    tail: u64,
    /// The last chunk, counted from the first.
    last: u64,
}

impl Split {
    /// How many chunks the range touches.
    pub(super) fn chunks(&self) -> u64 {
        self.last + 1
    }
}

/// The part of a range that one member has, as a range of that member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MemberPart {
    /// The member.
    pub(super) member: usize,
    /// The bytes of the member.
    pub(super) bytes: Range<u64>,
}

impl Layout {
    pub(super) fn new(chunk: ChunkSize, members: usize) -> Self {
        assert!((MEMBERS_MIN..=MEMBERS_MAX).contains(&members), "a stripe has 2 to 64 members");
        let members = NonZeroU64::new(members as u64).expect("not zero");
        Self { chunk: chunk.0, members }
    }

    /// The size of a chunk.
    pub(super) fn chunk_bytes(self) -> ByteCount {
        ByteCount(self.chunk.get())
    }

    /// What is used of a member of that size: whole chunks, as md does.
    pub(super) fn used(self, member: ByteCount) -> ByteCount {
        ByteCount(member.0 - member.0 % self.chunk)
    }

    /// The most that may be used of each member, so that a place on the stripe is a file's offset.
    pub(super) fn member_bytes_max(self) -> ByteCount {
        self.used(ByteCount(i64::MAX.cast_unsigned() / self.members))
    }

    /// The size of the stripe when so much, in whole chunks, is used of each member. It is md's, to the
    /// byte: md rounds each member to the chunk a second time, as if that were a power of two, and so
    /// shows a little less if it is none.
    pub(super) fn size(self, used: ByteCount) -> ByteCount {
        let shown = used.0 & !(self.chunk.get() - SECTOR_BYTES);
        ByteCount(shown * self.members.get())
    }

    /// What ranges of the stripe should be a multiple of, so that those of a member are of this, a power
    /// of two.
    pub(super) fn granularity(self, member: NonZeroU32) -> NonZeroU32 {
        if self.chunk.get().is_multiple_of(member.get().into()) {
            return member;
        }
        // So many bytes hold as many of each member. What no limit can name is out of reach anyhow.
        let members = u32::try_from(self.members.get()).expect("there are at most 64 members");
        let all = members.checked_next_power_of_two().and_then(|it| member.get().checked_mul(it));
        all.and_then(NonZeroU32::new).unwrap_or(member)
    }

    /// Looks how a range lies. It must not be empty.
    pub(super) fn split(self, extent: Extent) -> Split {
        let Range { start, end } = extent.bytes();
        let (chunk, lead) = (start / self.chunk, start % self.chunk);
        let (row, first) = (chunk / self.members, chunk % self.members);
        // Counted from the start of the first chunk.
        let reach = lead + (end - start);
        let last = if reach <= self.chunk.get() { 0 } else { (reach - 1) / self.chunk };
        let parts = index(self.members.get().min(last + 1));
        let tail = (last + 1) * self.chunk.get() - reach;
        Split { first: index(first), parts, row, lead, tail, last }
    }

    /// The part at this place: 0 is the one of the first member.
    pub(super) fn part(self, split: &Split, place: usize) -> MemberPart {
        let chunk = self.chunk.get();
        let member = self.member(split, place);
        // Behind the last member comes the next chunk of the first one.
        let row = if member < split.first { split.row + 1 } else { split.row };
        let place = place as u64;
        let rows = if split.last == 0 { 0 } else { (split.last - place) / self.members };
        let lead = if place == 0 { split.lead } else { 0 };
        let is_last = place + rows * self.members.get() == split.last;
        let tail = if is_last { split.tail } else { 0 };
        MemberPart { member, bytes: row * chunk + lead..(row + rows + 1) * chunk - tail }
    }

    /// Whose part is at this place.
    pub(super) fn member(self, split: &Split, place: usize) -> usize {
        let (member, members) = (split.first + place, index(self.members.get()));
        if member < members { member } else { member - members }
    }

    /// The place of a member's part.
    pub(super) fn place(self, split: &Split, member: usize) -> usize {
        if member >= split.first {
            member - split.first
        } else {
            member + index(self.members.get()) - split.first
        }
    }

    /// Where bytes of a part lie in the whole range: `bytes` counts from the part's first.
    pub(super) fn runs(self, split: &Split, place: usize, bytes: Range<u64>) -> MemoryRuns {
        let lead = if place == 0 { split.lead } else { 0 };
        let at = lead + bytes.start;
        let (row, within) = (at / self.chunk, at % self.chunk);
        let chunk = row * self.members.get() + place as u64;
        MemoryRuns {
            skip: chunk * self.chunk.get() + within - split.lead,
            room: self.chunk.get() - within,
            left: bytes.end - bytes.start,
            chunk: self.chunk.get(),
            apart: (self.members.get() - 1) * self.chunk.get(),
        }
    }
}

/// Iterator over the runs of an operation's memory that a member's bytes belong to.
#[derive(Debug)]
pub(super) struct MemoryRuns {
    skip: u64,
    /// From there to the end of the chunk.
    room: u64,
    left: u64,
    chunk: u64,
    /// From the end of a chunk to the member's next one.
    apart: u64,
}

impl Iterator for MemoryRuns {
    type Item = (u64, u64);

    fn next(&mut self) -> Option<(u64, u64)> {
        if self.left == 0 {
            return None;
        }
        let (skip, count) = (self.skip, self.left.min(self.room));
        self.left -= count;
        self.skip += count + self.apart;
        self.room = self.chunk;
        Some((skip, count))
    }
}

fn index(members: u64) -> usize {
    usize::try_from(members).expect("there are at most 64 members")
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::{ByteOffset, DiskSize};

    #[track_caller]
    fn check_chunk(bytes: u64, fits: bool) {
        assert_eq!(ChunkSize::new(ByteCount(bytes)).is_some(), fits, "{bytes}");
    }

    #[test]
    fn a_chunk_is_a_multiple_of_4_kib_up_to_16_mib() {
        check_chunk(0, false);
        check_chunk(512, false);
        check_chunk(4096, true);
        check_chunk(6144, false);
        check_chunk(12288, true);
        check_chunk(16 << 20, true);
        check_chunk((16 << 20) + 4096, false);
        check_chunk(u64::MAX, false);
    }

    /// A member, its bytes, and the runs of memory that they belong to.
    type Expected<'a> = (usize, Range<u64>, &'a [(u64, u64)]);

    #[track_caller]
    fn check(members: usize, bytes: Range<u64>, expected: &[Expected<'_>]) {
        let layout = Layout::new(ChunkSize::new(ByteCount(4096)).unwrap(), members);
        let (start, count) = (ByteOffset(bytes.start), ByteCount(bytes.end - bytes.start));
        let extent = DiskSize(ByteCount(u64::MAX)).check(start, count).unwrap();
        let split = layout.split(extent);
        let found: Vec<_> = (0..split.parts)
            .map(|place| {
                let MemberPart { member, bytes } = layout.part(&split, place);
                assert_eq!(layout.place(&split, member), place);
                let count = bytes.end - bytes.start;
                (member, bytes, layout.runs(&split, place, 0..count).collect::<Vec<_>>())
            })
            .collect();
        let expected: Vec<_> = expected
            .iter()
            .map(|(member, bytes, runs)| (*member, bytes.clone(), runs.to_vec()))
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn a_range_inside_a_chunk_has_one_part() {
        check(2, 0..512, &[(0, 0..512, &[(0, 512)])]);
        check(2, 4608..8192, &[(1, 512..4096, &[(0, 3584)])]);
        check(3, 12288..16384, &[(0, 4096..8192, &[(0, 4096)])]);
    }

    #[test]
    fn chunks_of_one_member_are_neighbours_there_and_apart_in_memory() {
        check(
            2,
            0..16384,
            &[
                (0, 0..8192, &[(0, 4096), (8192, 4096)]),
                (1, 0..8192, &[(4096, 4096), (12288, 4096)]),
            ],
        );
    }

    #[test]
    fn a_part_begins_and_ends_with_the_range() {
        check(
            2,
            512..8704,
            &[(0, 512..4608, &[(0, 3584), (7680, 512)]), (1, 0..4096, &[(3584, 4096)])],
        );
        check(
            3,
            8192 + 512..16384 + 512,
            &[
                (2, 512..4096, &[(0, 3584)]),
                (0, 4096..8192, &[(3584, 4096)]),
                (1, 4096..4608, &[(7680, 512)]),
            ],
        );
    }

    #[test]
    fn the_last_bytes_of_the_largest_stripe_have_a_place() {
        let layout = Layout::new(ChunkSize::new(ByteCount(16 << 20)).unwrap(), 64);
        let used = layout.member_bytes_max();
        let size = layout.size(used);
        assert!(i64::try_from(size.0).is_ok() && i64::try_from(size.0 + (64 << 24)).is_err());
        let extent = DiskSize(size).check(ByteOffset(0), size).unwrap();
        let split = layout.split(extent);
        assert_eq!(layout.part(&split, 63), MemberPart { member: 63, bytes: 0..used.0 });
    }
}
