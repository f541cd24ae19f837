//! What each sector carries: the write it is of, so that a reader knows what it sees.
//!
//! A sector's words are: the sequence number of its write, its own number, the seed of the run, and then 61 words that
//! follow from these three.

use std::fmt;

use crate::image::SECTOR_BYTES;
use crate::rng::Rng;

const WORD: usize = 8;
/// Words before those that follow from them.
const HEAD: usize = 3;

/// Makes and reads the sectors of one run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stamp {
    seed: u64,
}

/// Why bytes are no sector of this run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Foreign {
    /// The first words are no head of this sector.
    Head([u64; HEAD]),
    /// The head is of this write, but the sector is not, from this byte on.
    Torn { sequence: u64, byte: usize },
}

impl fmt::Display for Foreign {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Head([sequence, sector, seed]) => write!(
                formatter,
                "bytes that are none of its own: {sequence:#x}, {sector:#x}, {seed:#x}"
            ),
            Self::Torn { sequence, byte } => {
                write!(formatter, "write {sequence} up to byte {byte} and something else there")
            }
        }
    }
}

impl Stamp {
    pub(super) fn new(seed: u64) -> Self {
        Self { seed }
    }

    /// Fills one sector.
    pub(super) fn fill(self, sector: u64, sequence: u64, bytes: &mut [u8]) {
        assert_eq!(bytes.len(), SECTOR_BYTES, "one sector");
        let head = [sequence, sector, self.seed];
        let mut tail = tail(head);
        for (index, word) in bytes.chunks_exact_mut(WORD).enumerate() {
            let value = head.get(index).copied().unwrap_or_else(|| tail.next_u64());
            word.copy_from_slice(&value.to_le_bytes());
        }
    }

    /// The write that a sector is of.
    pub(super) fn read(self, sector: u64, bytes: &[u8]) -> Result<u64, Foreign> {
        assert_eq!(bytes.len(), SECTOR_BYTES, "one sector");
        let word = |index: usize| {
            let at = index * WORD;
            u64::from_le_bytes(bytes[at..at + WORD].try_into().expect("eight bytes"))
        };
        let head = [word(0), word(1), word(2)];
        if head[1..] != [sector, self.seed] {
            return Err(Foreign::Head(head));
        }
        let mut tail = tail(head);
        match (HEAD..SECTOR_BYTES / WORD).find(|index| word(*index) != tail.next_u64()) {
            None => Ok(head[0]),
            Some(index) => Err(Foreign::Torn { sequence: head[0], byte: index * WORD }),
        }
    }
}

fn tail([sequence, sector, seed]: [u64; HEAD]) -> Rng {
    let mixed = Rng::new(sequence).next_u64() ^ Rng::new(!sector).next_u64();
    Rng::new(seed ^ mixed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sector(stamp: Stamp, sector: u64, sequence: u64) -> [u8; SECTOR_BYTES] {
        let mut bytes = [0; SECTOR_BYTES];
        stamp.fill(sector, sequence, &mut bytes);
        bytes
    }

    #[test]
    fn a_sector_says_which_write_it_is_of() {
        let stamp = Stamp::new(5);
        assert_eq!(stamp.read(17, &sector(stamp, 17, 4711)), Ok(4711));
    }

    #[test]
    fn a_torn_misplaced_or_foreign_sector_is_told() {
        let stamp = Stamp::new(5);
        let mut torn = sector(stamp, 17, 4711);
        torn[256..].copy_from_slice(&sector(stamp, 17, 4712)[256..]);
        assert_eq!(stamp.read(17, &torn), Err(Foreign::Torn { sequence: 4711, byte: 256 }));
        assert!(matches!(stamp.read(18, &sector(stamp, 17, 1)), Err(Foreign::Head(_))));
        let other = sector(Stamp::new(6), 17, 1);
        assert!(matches!(stamp.read(17, &other), Err(Foreign::Head(_))));
        assert!(matches!(stamp.read(17, &[0; SECTOR_BYTES]), Err(Foreign::Head(_))));
    }
}
