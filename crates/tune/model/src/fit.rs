//! Fits parameters to figures: the least of a function, and a walk over all parameters that fit nearly as well.
//!
//! `prediction` fits one cell with it, the test of the published sweep all of its cells.
//!
//! Invariants: seeded; parameters are in units of their prior's standard deviation, or of some such step.
//! Limits: local; so many evaluations as are asked for.

/// Steps double after a gain, and are halved below this size before a search ends.
const STEP_MIN: f64 = 0.01;

/// Looks for the least of `loss` from `start` on, one parameter after the other, with steps that adapt.
pub fn minimise(
    loss: &dyn Fn(&[f64]) -> f64,
    start: &[f64],
    evaluations: usize,
) -> (Vec<f64>, f64) {
    let (mut best, mut steps) = (start.to_vec(), vec![0.5; start.len()]);
    let mut least = loss(&best);
    let mut left = evaluations;
    while left > 0 && steps.iter().any(|step| f64::abs(*step) > STEP_MIN) {
        for place in 0..best.len() {
            let kept = best[place];
            // The other direction is tried next if this one is no gain.
            best[place] += steps[place];
            let found = loss(&best);
            left = left.saturating_sub(1);
            if found < least {
                least = found;
                steps[place] *= 2.0;
            } else {
                best[place] = kept;
                steps[place] *= -0.6;
            }
        }
    }
    (best, least)
}

/// Walks over parameters such that each is met as often as exp(−loss/2) tells (Metropolis), and returns `samples` of them.
pub fn walk(
    loss: &dyn Fn(&[f64]) -> f64,
    start: &[f64],
    samples: usize,
    seed: u64,
) -> Vec<Vec<f64>> {
    /// Between two samples, so that they differ.
    const BETWEEN: usize = 12;
    let mut chance = Chance(seed);
    let (mut here, mut value) = (start.to_vec(), loss(start));
    let mut scale = 0.5;
    let mut found = Vec::with_capacity(samples);
    // The first half only adapts the length of a step.
    for step in 0..2 * samples * BETWEEN {
        let there: Vec<f64> = here.iter().map(|it| it + scale * chance.normal()).collect();
        let other = loss(&there);
        let is_taken = chance.uniform() < f64::exp((value - other) / 2.0);
        if is_taken {
            (here, value) = (there, other);
        }
        if step < samples * BETWEEN {
            // About one step in four is taken.
            scale *= if is_taken { 1.03 } else { 0.99 };
        } else if step % BETWEEN == 0 {
            found.push(here.clone());
        }
    }
    found
}

/// A stream of random numbers (splitmix64).
#[derive(Clone, Copy, Debug)]
struct Chance(u64);

impl Chance {
    /// Between 0 and 1, never 1.
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Nearly normal with mean 0 and deviation 1: a sum of twelve.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.uniform()).sum::<f64>() - 6.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A valley whose least is at 1, 2 and whose deviations are 0.5 and 2.
    fn valley(at: &[f64]) -> f64 {
        ((at[0] - 1.0) / 0.5).powi(2) + ((at[1] - 2.0) / 2.0).powi(2)
    }

    #[test]
    fn the_least_is_found() {
        let (at, least) = minimise(&valley, &[-3.0, 9.0], 500);
        assert!(least < 1e-3 && (at[0] - 1.0).abs() < 0.05, "{at:?} {least}");
    }

    #[test]
    fn a_walk_has_the_deviations_of_its_function() {
        let walked = walk(&valley, &[1.0, 2.0], 2000, 7);
        assert_eq!(walked.len(), 2000);
        for (place, mean, deviation) in [(0, 1.0, 0.5), (1, 2.0, 2.0)] {
            let of =
                |f: &dyn Fn(f64) -> f64| walked.iter().map(|it| f(it[place])).sum::<f64>() / 2000.0;
            let found = of(&|it| (it - mean).powi(2)).sqrt();
            assert!((found / deviation - 1.0).abs() < 0.15, "{place}: {found}");
            assert!((of(&|it| it) - mean).abs() < 0.3 * deviation);
        }
    }
}
