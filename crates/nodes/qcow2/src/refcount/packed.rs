//! A refcount block in memory: refcounts of 1 to 64 bits, and which of its bytes are not yet in the file.
//!
//! Limits: at most 2^24 refcounts, of 1 bit in a cluster of 2 MiB.

use std::ops::Range;

/// A refcount block in memory, and which of its bytes are not written yet.
#[derive(Debug)]
pub(crate) struct RefcountBlock {
    pub(super) bytes: Vec<u8>,
    /// What is not yet in the file.
    pub(super) changed: Option<Range<usize>>,
}

impl RefcountBlock {
    /// One that counts nothing.
    pub(crate) fn zeroed(bytes: usize) -> Self {
        Self { bytes: vec![0; bytes], changed: None }
    }

    /// One that is in the file.
    pub(crate) fn of(bytes: Vec<u8>) -> Self {
        Self { bytes, changed: None }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn get(&self, order: u32, index: u64) -> u64 {
        let index = usize::try_from(index).expect("a block has at most 2^24 refcounts");
        match order {
            0..=2 => {
                let bits = 1 << order;
                let per_byte = 8 / bits;
                let byte = self.bytes[index / per_byte];
                u64::from(byte >> (index % per_byte * bits)) & ((1 << bits) - 1)
            }
            _ => {
                let bytes = 1 << (order - 3);
                let word = &self.bytes[index * bytes..(index + 1) * bytes];
                word.iter().fold(0, |value, byte| value << 8 | u64::from(*byte))
            }
        }
    }

    pub(crate) fn set(&mut self, order: u32, index: u64, value: u64) {
        let index = usize::try_from(index).expect("a block has at most 2^24 refcounts");
        let place = match order {
            0..=2 => {
                let bits = 1 << order;
                let per_byte = 8 / bits;
                let shift = index % per_byte * bits;
                let mask = u8::try_from((1_u16 << bits) - 1).expect("at most 4 bits") << shift;
                let byte = &mut self.bytes[index / per_byte];
                let low = u8::try_from(value & 0xff).expect("masked");
                *byte = *byte & !mask | low << shift & mask;
                index / per_byte..index / per_byte + 1
            }
            _ => {
                let bytes = 1 << (order - 3);
                let place = index * bytes..(index + 1) * bytes;
                self.bytes[place.clone()].copy_from_slice(&value.to_be_bytes()[8 - bytes..]);
                place
            }
        };
        self.changed = Some(match self.changed.take() {
            None => place,
            Some(old) => old.start.min(place.start)..old.end.max(place.end),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refcounts_of_all_widths_stand_beside_each_other() {
        for order in 0..=6 {
            let mut block = RefcountBlock { bytes: vec![0; 512], changed: None };
            let most = if order == 6 { u64::MAX } else { (1 << (1_u32 << order)) - 1 };
            let count = (512 * 8) >> order;
            for index in (0..count).step_by(3) {
                block.set(order, index, most - index % 2);
            }
            for index in 0..count {
                let expected = if index % 3 == 0 { most - index % 2 } else { 0 };
                assert_eq!(block.get(order, index), expected, "order {order}, index {index}");
            }
            block.set(order, 3, 0);
            assert_eq!(block.get(order, 3), 0);
        }
    }
}
