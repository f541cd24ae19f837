//! Seeded random numbers for delays.
//!
//! Invariants: the same seed and stream give the same numbers on every machine and in every version: who
//! gives a seed wants the delays of the last run.
//! Not here: anything secret; this is SplitMix64 (Steele, Lea, Flood 2014).

/// What the state grows by with each number.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A generator of random numbers. Belongs to one lane.
#[derive(Debug)]
pub(super) struct Random {
    state: u64,
}

impl Random {
    /// One of the sequences that belong to a seed and a name.
    pub(super) fn new(seed: u64, name: &str, stream: u64) -> Self {
        let mut state = seed;
        for part in name.bytes().map(u64::from).chain([stream]) {
            state = mix(state.wrapping_add(STEP) ^ part);
        }
        Self { state }
    }

    /// Any number.
    pub(super) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(STEP);
        mix(self.state)
    }

    /// A number below `bound`, which is not 0. The bias is below `bound / 2^64`.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        let product = u128::from(self.next()) * u128::from(bound);
        u64::try_from(product >> 64).expect("the upper half of 128 bits has 64")
    }

    /// A fraction: at least 0, less than 1.
    pub(super) fn fraction(&mut self) -> f64 {
        const STEPS: u64 = 1 << 53;
        (self.next() >> 11) as f64 / STEPS as f64
    }
}

fn mix(state: u64) -> u64 {
    let mut mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_gives_the_published_sequence() {
        // Reference values of SplitMix64 for seed 1234567.
        let mut random = Random { state: 1_234_567 };
        assert_eq!(random.next(), 6_457_827_717_110_365_317);
        assert_eq!(random.next(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn seed_name_and_stream_choose_the_sequence() {
        let first = |seed, name, stream| Random::new(seed, name, stream).next();
        assert_eq!(first(1, "disk", 0), first(1, "disk", 0));
        let others = [first(2, "disk", 0), first(1, "disl", 0), first(1, "disk", 1)];
        assert!(others.iter().all(|other| *other != first(1, "disk", 0)));
    }

    #[test]
    fn numbers_stay_below_their_bound_and_reach_its_ends() {
        let mut random = Random::new(7, "", 0);
        let mut seen = [false; 5];
        for _ in 0..200 {
            seen[usize::try_from(random.below(5)).unwrap()] = true;
            assert!((0.0..1.0).contains(&random.fraction()));
        }
        assert_eq!(seen, [true; 5]);
    }
}
