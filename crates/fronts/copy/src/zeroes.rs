//! Which parts of copied bytes are zeroes.
//!
//! Limits: a part is at least as long as the job says, so that there are not more of them than bytes are worth.

use std::ops::Range;

use block::is_zero;

/// A part of a chunk: which bytes, and whether all of them are zero.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) bytes: Range<usize>,
    pub(crate) is_zero: bool,
}

/// Cuts bytes into parts that are zero and parts that are not, at multiples of `unit`, which is a power of two.
pub(crate) fn parts(bytes: &[u8], unit: usize, into: &mut Vec<Part>) {
    into.clear();
    for (place, block) in bytes.chunks(unit).enumerate() {
        let (start, is_zero) = (place * unit, is_zero(block));
        let end = start + block.len();
        match into.last_mut() {
            Some(last) if last.is_zero == is_zero => last.bytes.end = end,
            Some(_) | None => into.push(Part { bytes: start..end, is_zero }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(bytes: &[u8], expected: &[(Range<usize>, bool)]) {
        let mut found = vec![Part { bytes: 0..9, is_zero: true }];
        parts(bytes, 32, &mut found);
        let found: Vec<_> = found.into_iter().map(|part| (part.bytes, part.is_zero)).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn neighbours_are_different_and_nothing_is_left_out() {
        check(&[], &[]);
        check(&[0; 100], &[(0..100, true)]);
        check(&[1; 64], &[(0..64, false)]);
        let mut mixed = [0; 130];
        mixed[40] = 1;
        mixed[129] = 1;
        check(&mixed, &[(0..32, true), (32..64, false), (64..128, true), (128..130, false)]);
    }
}
