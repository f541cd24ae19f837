//! Whether bytes are zero, for whoever can say that with fewer bytes than they are.

/// So many bytes are looked at together, which the compiler does with vectors.
const BLOCK_BYTES: usize = 128;

/// The word by which memory is looked through.
const WORD_BYTES: usize = 16;

/// Whether all bytes are zero. Of data that are none the first bytes nearly always show it, and no more are looked at.
pub fn is_zero(bytes: &[u8]) -> bool {
    let (words, rest) = bytes.as_chunks::<WORD_BYTES>();
    let is_none = |word: &[u8; WORD_BYTES]| u128::from_ne_bytes(*word) == 0;
    if !words.first().is_none_or(is_none) || rest.iter().any(|byte| *byte != 0) {
        return false;
    }
    let (blocks, rest) = words.as_chunks::<{ BLOCK_BYTES / WORD_BYTES }>();
    let any = |sum: u128, word: &[u8; WORD_BYTES]| sum | u128::from_ne_bytes(*word);
    blocks.iter().all(|block| block.iter().fold(0, any) == 0) && rest.iter().all(is_none)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_byte_is_found_wherever_it_is() {
        for count in [0, 1, 15, 16, 17, 127, 128, 129, 400, 4096] {
            let mut bytes = vec![0; count];
            assert!(is_zero(&bytes), "{count}");
            for place in 0..count {
                bytes[place] = 128;
                assert!(!is_zero(&bytes), "{place} of {count}");
                bytes[place] = 0;
            }
        }
    }
}
