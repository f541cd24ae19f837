//! What a disk may hold: one known byte string, except where a discard left a choice.
//!
//! Invariants: a discarded sector holds its old bytes or zeroes as a whole until it is written again
//! (virtio 1.2, section 5.2.6.2 allows any content; the file nodes under test promise this much).

use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use crate::image::SECTOR_BYTES;

/// The model of one disk.
#[derive(Clone, Debug)]
pub struct DiskModel {
    bytes: Vec<u8>,
    /// One entry per sector: whether a discard may have zeroed it.
    discarded: Vec<bool>,
}

impl DiskModel {
    /// A disk with this content, whose length must be a multiple of a sector.
    pub fn new(bytes: Vec<u8>) -> Self {
        assert!(bytes.len().is_multiple_of(SECTOR_BYTES), "a disk of {} bytes", bytes.len());
        let discarded = vec![false; bytes.len() / SECTOR_BYTES];
        Self { bytes, discarded }
    }

    /// The bytes of the disk.
    pub fn length(&self) -> usize {
        self.bytes.len()
    }

    /// A completed write.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) {
        let range = offset..offset + bytes.len();
        self.bytes[range.clone()].copy_from_slice(bytes);
        self.discarded[sectors(&range)].fill(false);
    }

    /// A completed write-zeroes request.
    pub fn zero(&mut self, range: Range<usize>) {
        self.discarded[sectors(&range)].fill(false);
        self.bytes[range].fill(0);
    }

    /// A completed discard.
    pub fn discard(&mut self, range: Range<usize>) {
        self.discarded[sectors(&range)].fill(true);
    }

    /// Compares what was found at `offset`, which must be a multiple of a sector.
    pub fn check(&self, offset: usize, found: &[u8]) -> Result<()> {
        let expected = &self.bytes[offset..offset + found.len()];
        if expected == found {
            return Ok(());
        }
        let first = offset / SECTOR_BYTES;
        let pairs = expected.chunks(SECTOR_BYTES).zip(found.chunks(SECTOR_BYTES));
        for (sector, (expected, found)) in (first..).zip(pairs) {
            let may_be_zero = self.discarded[sector];
            if expected == found || (may_be_zero && found.iter().all(|byte| *byte == 0)) {
                continue;
            }
            bail!("sector {sector} (discarded: {may_be_zero}): {}", difference(expected, found));
        }
        Ok(())
    }

    /// Compares the whole image on the host.
    pub fn check_image(&self, path: &Path) -> Result<()> {
        let found = std::fs::read(path).with_context(|| format!("read {}", path.display()))?;
        ensure!(found.len() == self.bytes.len(), "the image has {} bytes now", found.len());
        self.check(0, &found).with_context(|| format!("image {}", path.display()))
    }
}

fn sectors(range: &Range<usize>) -> Range<usize> {
    debug_assert!(
        range.start.is_multiple_of(SECTOR_BYTES) && range.end.is_multiple_of(SECTOR_BYTES)
    );
    range.start / SECTOR_BYTES..range.end / SECTOR_BYTES
}

fn difference(expected: &[u8], found: &[u8]) -> String {
    let same = expected.iter().zip(found).take_while(|(left, right)| left == right).count();
    let end = expected.len().min(same + 16);
    let (expected, found) = (&expected[same..end], &found[same..end]);
    format!("at byte {same} of it expected {expected:02x?}, found {found:02x?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ones() -> DiskModel {
        DiskModel::new(vec![1; 4 * SECTOR_BYTES])
    }

    #[test]
    fn a_discarded_sector_may_be_old_or_zero_but_not_torn() {
        let mut model = ones();
        model.discard(SECTOR_BYTES..2 * SECTOR_BYTES);
        let mut found = vec![1; 4 * SECTOR_BYTES];
        model.check(0, &found).expect("old data is fine");
        found[SECTOR_BYTES..2 * SECTOR_BYTES].fill(0);
        model.check(0, &found).expect("zeroes are fine");
        found[SECTOR_BYTES] = 1;
        model.check(0, &found).expect_err("a torn sector is not");
    }

    #[test]
    fn a_write_after_a_discard_must_be_found() {
        let mut model = ones();
        model.discard(0..4 * SECTOR_BYTES);
        model.write(0, &[2; SECTOR_BYTES]);
        model.check(0, &[0; SECTOR_BYTES]).expect_err("the late zeroes lost a write");
        model.check(0, &[2; SECTOR_BYTES]).expect("the written bytes are right");
        model.zero(0..SECTOR_BYTES);
        model.check(0, &[2; SECTOR_BYTES]).expect_err("zeroed sectors hold no old data");
    }

    #[test]
    fn one_wrong_byte_is_named() {
        let mut found = vec![1; 4 * SECTOR_BYTES];
        found[3 * SECTOR_BYTES + 7] = 9;
        let error = ones().check(0, &found).expect_err("a byte is wrong").to_string();
        assert!(error.contains("sector 3") && error.contains("at byte 7"), "{error}");
    }
}
