//! Seeded pseudo-random numbers: offsets, the order of runs and incompressible data.
//!
//! Invariants: the same seed gives the same sequence on every machine and in every version, because
//! a report names its seed and a resumed run must continue the same plan.
//! Not here: anything secret; this is SplitMix64 (Steele, Lea, Flood 2014), not a cipher.

/// A SplitMix64 generator.
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// Starts the sequence that belongs to `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Starts a sequence that depends on `seed` and `stream`; different streams are independent.
    #[must_use]
    pub fn stream(seed: u64, stream: u64) -> Self {
        let mut parent = Self::new(seed);
        let base = parent.next_u64();
        Self::new(base ^ Self::new(stream).next_u64())
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number in `0..bound`; `bound` must not be 0.
    ///
    /// Multiplies and takes the upper half; the bias is below `bound / 2^64`.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "a random number below 0 was asked for");
        let product = u128::from(self.next_u64()) * u128::from(bound);
        u64::try_from(product >> 64).expect("the upper half of a 128-bit product has 64 bits")
    }

    /// Fills `bytes` with data that does not compress.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let word = self.next_u64().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }

    /// Brings `items` into a random order (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let bound = u64::try_from(last + 1).expect("a length fits 64 bits");
            let chosen = usize::try_from(self.below(bound)).expect("smaller than a length");
            items.swap(last, chosen);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_published_sequence() {
        // Reference values of SplitMix64 for seed 1234567.
        let mut random = Random::new(1_234_567);
        assert_eq!(random.next_u64(), 6_457_827_717_110_365_317);
        assert_eq!(random.next_u64(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn numbers_stay_below_their_bound_and_reach_its_ends() {
        let mut random = Random::new(7);
        let mut seen = [false; 5];
        for _ in 0..200 {
            seen[usize::try_from(random.below(5)).unwrap()] = true;
        }
        assert_eq!(seen, [true; 5]);
    }

    #[test]
    fn a_shuffle_keeps_every_item() {
        let mut items: Vec<u32> = (0..20).collect();
        Random::new(3).shuffle(&mut items);
        assert_ne!(items, (0..20).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..20).collect::<Vec<_>>());
    }

    #[test]
    fn streams_of_one_seed_differ() {
        let first = Random::stream(9, 0).next_u64();
        assert_ne!(first, Random::stream(9, 1).next_u64());
        assert_eq!(first, Random::stream(9, 0).next_u64());
    }
}
