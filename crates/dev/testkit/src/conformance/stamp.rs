//! What a sector holds: a pattern that says who wrote it, and where.
//!
//! Invariants: two requests never write the same stamp, so a sector that is found at a wrong place or time names its
//! origin; a sector that is made of two is found to be torn.

use std::fmt;

/// The unit in which places are asked for and remembered.
pub const SECTOR_BYTES: usize = 512;

const BACKGROUND: u64 = 1 << 63;
const SECTOR_BITS: u32 = 24;
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The content of one sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stamp(u64);

impl Stamp {
    /// Nothing but zeroes.
    pub const ZEROES: Self = Self(0);

    /// What the request of this number (from 1) writes to a sector of the disk.
    pub fn of_request(number: u64, sector: u64) -> Self {
        assert!(number > 0 && number < 1 << 38 && sector < 1 << SECTOR_BITS, "beyond a stamp");
        Self(number << SECTOR_BITS | sector)
    }

    /// What a sector of a file below holds before the first request.
    pub fn of_file(file: usize, sector: u64) -> Self {
        let file = u64::try_from(file).expect("a usize fits 64 bits");
        assert!(file < 1 << 16 && sector < 1 << SECTOR_BITS, "beyond a stamp");
        Self(BACKGROUND | file << SECTOR_BITS | sector)
    }

    /// Fills a sector.
    pub fn fill(self, sector: &mut [u8]) {
        if self == Self::ZEROES {
            sector.fill(0);
            return;
        }
        // By hand, because suites fill and find millions of sectors without optimisation.
        let (words, _) = sector.as_chunks_mut::<8>();
        let (mut word, mut place) = (self.0, 0);
        while place < words.len() {
            words[place] = word.to_le_bytes();
            word = word.wrapping_add(STEP);
            place += 1;
        }
    }

    /// What a sector holds, or `None` if it is no stamp as a whole.
    pub fn find(sector: &[u8]) -> Option<Self> {
        let stamp = Self(word(sector));
        let mut expected = [0; SECTOR_BYTES];
        if stamp != Self::ZEROES {
            stamp.fill(&mut expected);
        }
        (sector == expected).then_some(stamp)
    }

    /// Says what is wrong with a sector that holds no stamp.
    pub fn describe_torn(sector: &[u8]) -> String {
        let mut runs: Vec<(usize, Self)> = Vec::new();
        for (place, bytes) in sector.chunks_exact(8).enumerate() {
            let steps = u64::try_from(place).expect("a usize fits 64 bits");
            let origin = match word(bytes) {
                0 => Self::ZEROES,
                word => Self(word.wrapping_sub(steps.wrapping_mul(STEP))),
            };
            if runs.last().is_none_or(|(_, last)| *last != origin) {
                runs.push((place * 8, origin));
            }
        }
        let shown = runs.iter().take(4).map(|(at, stamp)| format!("from byte {at} {stamp}"));
        format!("no whole stamp: {}", shown.collect::<Vec<_>>().join(", "))
    }
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sector = self.0 & ((1 << SECTOR_BITS) - 1);
        let who = (self.0 & !BACKGROUND) >> SECTOR_BITS;
        match self.0 {
            0 => write!(f, "zeroes"),
            word if word & BACKGROUND != 0 && who < 1 << 16 => {
                write!(f, "the first content of sector {sector} of file {who}")
            }
            word if word & BACKGROUND != 0 => write!(f, "{word:#x}"),
            _ => write!(f, "what request {who} wrote to sector {sector}"),
        }
    }
}

fn word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sector(stamp: Stamp) -> Vec<u8> {
        let mut bytes = vec![0xee; SECTOR_BYTES];
        stamp.fill(&mut bytes);
        bytes
    }

    #[test]
    fn a_sector_names_who_wrote_it() {
        for stamp in [Stamp::ZEROES, Stamp::of_request(1, 0), Stamp::of_file(3, 77)] {
            assert_eq!(Stamp::find(&sector(stamp)), Some(stamp));
        }
        let found = Stamp::of_request(17, 5).to_string();
        assert_eq!(found, "what request 17 wrote to sector 5");
    }

    #[test]
    fn a_sector_of_two_writes_is_torn_and_both_are_named() {
        let mut bytes = sector(Stamp::of_request(17, 5));
        bytes[256..].copy_from_slice(&sector(Stamp::of_request(18, 5))[256..]);
        assert_eq!(Stamp::find(&bytes), None);
        let told = Stamp::describe_torn(&bytes);
        assert!(told.contains("request 17") && told.contains("from byte 256"), "{told}");
        let mut bytes = sector(Stamp::ZEROES);
        bytes[511] = 1;
        assert_eq!(Stamp::find(&bytes), None);
    }
}
