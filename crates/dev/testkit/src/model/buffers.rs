//! Where the data of a random request lies in memory: in one piece or many, aligned or deliberately not.
//!
//! Invariants: the segments of a request lie in its own slot, in order and without overlap; the bytes between and
//! around them belong to nobody, so a server that writes there is caught by the canary.

use anyhow::{Result, ensure};

use super::REQUEST_BYTES_MAX;
use crate::client::Segment;
use crate::memory::SharedMemory;
use crate::rng::Rng;

/// Most segments of a request.
const SEGMENTS_MAX: usize = 8;
/// Most bytes between two segments, and before the first.
const GAP_MAX: usize = 8192;
/// Bytes that one request in flight has in memory.
pub(super) const SLOT_BYTES: usize = REQUEST_BYTES_MAX + (SEGMENTS_MAX + 1) * GAP_MAX;
/// What lies in a read's memory before the read.
const CANARY: u8 = 0x5c;
const PAGE: usize = 4096;

/// The segments of one request.
#[derive(Clone, Debug)]
pub(super) struct Spread {
    start: usize,
    segments: Vec<Segment>,
}

impl Spread {
    /// Spreads `length` bytes over the slot that begins at `start`.
    pub(super) fn choose(rng: &mut Rng, start: usize, length: usize) -> Self {
        let aligned = rng.one_in(2);
        let pieces = if rng.one_in(2) { 1 } else { 1 + rng.index(SEGMENTS_MAX) };
        let mut cursor = start;
        let mut left = length;
        let mut segments = Vec::with_capacity(pieces);
        for piece in (0..pieces).rev() {
            if left == 0 {
                break;
            }
            cursor += if aligned { 0 } else { 1 + rng.index(GAP_MAX - PAGE - 1) };
            cursor = if aligned { cursor.next_multiple_of(PAGE) } else { cursor };
            let any = 1 + rng.index(left);
            let any = if aligned { any.next_multiple_of(512).min(left) } else { any };
            let taken = if piece == 0 { left } else { any };
            segments.push(Segment { offset: cursor, length: taken });
            cursor += taken;
            left -= taken;
        }
        Self { start, segments }
    }

    pub(super) fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Puts a write's data in place.
    pub(super) fn store(&self, memory: &SharedMemory, bytes: &[u8]) {
        let mut rest = bytes;
        for segment in &self.segments {
            let (piece, more) = rest.split_at(segment.length);
            memory.write(segment.offset, piece);
            rest = more;
        }
    }

    /// Makes the memory of a read recognisable.
    pub(super) fn lay_canary(&self, memory: &SharedMemory) {
        memory.fill(self.start, self.end() - self.start, CANARY);
    }

    /// Takes a read's data, and checks that nothing around it was touched.
    pub(super) fn load(&self, memory: &SharedMemory) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let mut gap_start = self.start;
        for segment in &self.segments {
            check_gap(memory, gap_start, segment.offset)?;
            bytes.extend(memory.read(segment.offset, segment.length));
            gap_start = segment.offset + segment.length;
        }
        check_gap(memory, gap_start, self.end())?;
        Ok(bytes)
    }

    /// The end of the last segment and some bytes, still inside the slot.
    fn end(&self) -> usize {
        let last = self.segments.last().map_or(self.start, |last| last.offset + last.length);
        (last + 64).min(self.start + SLOT_BYTES)
    }
}

fn check_gap(memory: &SharedMemory, start: usize, end: usize) -> Result<()> {
    let touched = memory.read(start, end - start).iter().position(|byte| *byte != CANARY);
    ensure!(touched.is_none(), "memory outside the read's buffers changed near {start}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_stay_in_their_slot_and_hold_all_bytes() {
        let mut rng = Rng::new(1);
        for _ in 0..2000 {
            let length = 512 * (1 + rng.index(REQUEST_BYTES_MAX / 512));
            let spread = Spread::choose(&mut rng, SLOT_BYTES, length);
            let total: usize = spread.segments().iter().map(|segment| segment.length).sum();
            assert_eq!(total, length);
            assert!(spread.end() <= 2 * SLOT_BYTES, "{spread:?}");
            let in_order = spread
                .segments()
                .windows(2)
                .all(|pair| pair[0].offset + pair[0].length <= pair[1].offset);
            assert!(in_order, "{spread:?}");
        }
    }

    #[test]
    fn a_write_beside_the_segments_is_noticed() {
        let memory = SharedMemory::new(SLOT_BYTES).expect("memory");
        let spread = Spread::choose(&mut Rng::new(3), 0, 4096);
        spread.lay_canary(&memory);
        spread.load(&memory).expect("nothing was touched");
        memory.write(spread.end() - 1, &[0]);
        spread.load(&memory).expect_err("a byte behind the buffer changed");
    }
}
