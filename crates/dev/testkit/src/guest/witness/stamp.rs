//! What stands in the sectors of a disk that the witness works on, and how the disk is divided.
//!
//! Where it stands: the host fills and checks the image with it, the guest writes and reads with it.
//!
//! Invariants: a sector's content says which sector it is and which generation of it; nothing else has
//! the same content. Offsets and sizes are multiples of [`BLOCK_BYTES`].

/// Bytes of a sector.
pub(super) const SECTOR_BYTES: usize = 512;
/// Bytes that one generation covers: a page of the guest.
pub(super) const BLOCK_BYTES: usize = 4096;
/// Sectors of a block.
pub(super) const BLOCK_SECTORS: u64 = (BLOCK_BYTES / SECTOR_BYTES) as u64;
/// Blocks at the start of the disk that are only read; their generation is 0.
pub(super) const FIXED_BLOCKS: u64 = 8192;
/// Blocks of each of the regions that follow, which one thread writes.
pub(super) const REGION_BLOCKS: u64 = 1024;
/// Regions: the last one is written through the guest's page cache.
pub(super) const REGIONS: u64 = 5;
/// Blocks of which the guest knows the content.
pub(super) const KNOWN_BLOCKS: u64 = FIXED_BLOCKS + REGIONS * REGION_BLOCKS;

const MAGIC: u64 = 0x7269_6e67_6c6f_6f6d;
const WORD_BYTES: usize = size_of::<u64>();

/// Fills whole sectors, the first of which is `sector`.
pub(super) fn fill(bytes: &mut [u8], sector: u64, generation: u64) {
    for (content, sector) in bytes.chunks_exact_mut(SECTOR_BYTES).zip(sector..) {
        for (word, index) in content.chunks_exact_mut(WORD_BYTES).zip(0..) {
            word.copy_from_slice(&word_of(sector, generation, index).to_le_bytes());
        }
    }
}

/// The first sector that does not have this content, and what seems to be there instead.
pub(super) fn wrong(bytes: &[u8], sector: u64, generation: u64) -> Option<String> {
    for (content, sector) in bytes.chunks_exact(SECTOR_BYTES).zip(sector..) {
        let words = || {
            content.chunks_exact(WORD_BYTES).map(|word| {
                u64::from_le_bytes(word.try_into().expect("chunks of words are words long"))
            })
        };
        if words().zip(0..).any(|(word, index)| word != word_of(sector, generation, index)) {
            let head: Vec<u64> = words().take(2).collect();
            let (found, found_generation) = (head[0] ^ MAGIC, head[1]);
            return Some(format!(
                "sector {sector} has not generation {generation} but sector {found} generation \
                 {found_generation}"
            ));
        }
    }
    None
}

/// Goes on with a digest, which depends on the order of what it is given.
pub(super) fn digest(state: u64, bytes: &[u8]) -> u64 {
    bytes.chunks_exact(WORD_BYTES).fold(state, |state, word| {
        let word = u64::from_le_bytes(word.try_into().expect("chunks of words are words long"));
        (state ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23)
    })
}

fn word_of(sector: u64, generation: u64, index: u64) -> u64 {
    match index {
        0 => sector ^ MAGIC,
        1 => generation,
        _ => {
            let seed = (sector << 24) ^ (generation << 8) ^ index;
            seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_sector_another_generation_and_a_torn_one_are_seen() {
        let mut bytes = [0; BLOCK_BYTES];
        fill(&mut bytes, 40, 7);
        assert_eq!(wrong(&bytes, 40, 7), None);
        let found = "sector 40 has not generation 8 but sector 40 generation 7";
        assert_eq!(wrong(&bytes, 40, 8).as_deref(), Some(found));
        let found = "sector 48 has not generation 7 but sector 40 generation 7";
        assert_eq!(wrong(&bytes, 48, 7).as_deref(), Some(found));
        bytes[BLOCK_BYTES - 1] ^= 1;
        let found = "sector 47 has not generation 7 but sector 47 generation 7";
        assert_eq!(wrong(&bytes, 40, 7).as_deref(), Some(found));
    }

    #[test]
    fn a_digest_depends_on_order() {
        let (one, two) = ([1; 8], [2; 8]);
        assert_ne!(digest(digest(0, &one), &two), digest(digest(0, &two), &one));
    }
}
