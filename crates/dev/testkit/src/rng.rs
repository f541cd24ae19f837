//! A small seeded generator of random numbers (splitmix64): the same seed gives the same test.

/// A stream of random numbers that depends on its seed alone.
#[derive(Clone, Debug)]
pub struct Rng {
    state: u64,
}

impl Rng {
    /// The stream of this seed.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The next number, any of the 2⁶⁴.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which must not be zero. The bias is below 2⁻³² for the bounds tests use.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "no number is below zero");
        self.next_u64() % bound
    }

    /// An index into something of this length, which must not be zero.
    pub fn index(&mut self, length: usize) -> usize {
        let bound = u64::try_from(length).expect("a length fits 64 bits");
        usize::try_from(self.below(bound)).expect("below a usize")
    }

    /// True once in `times`.
    pub fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// Fills the bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let word = self.next_u64().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_bytes() {
        let mut first = [0; 13];
        let mut second = [0; 13];
        Rng::new(7).fill(&mut first);
        Rng::new(7).fill(&mut second);
        assert_eq!(first, second);
        Rng::new(8).fill(&mut second);
        assert_ne!(first, second);
    }
}
