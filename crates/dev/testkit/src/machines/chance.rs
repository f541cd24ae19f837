//! Random numbers with the distributions that the machines need, and their distribution functions.

use std::f64::consts::{PI, SQRT_2};

use crate::rng::Rng;

/// Between 0 and 1, never 1.
pub(super) fn uniform(rng: &mut Rng) -> f64 {
    (rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
}

/// Between two numbers.
pub(super) fn between(rng: &mut Rng, low: f64, high: f64) -> f64 {
    low + (high - low) * uniform(rng)
}

/// Between two positive numbers, each octave alike.
pub(super) fn between_octaves(rng: &mut Rng, low: f64, high: f64) -> f64 {
    between(rng, low.ln(), high.ln()).exp()
}

/// One of several.
pub(super) fn one_of<T: Copy>(rng: &mut Rng, values: &[T]) -> T {
    values[rng.index(values.len())]
}

/// Normal with mean 0 and standard deviation 1 (Box and Muller).
pub(super) fn normal(rng: &mut Rng) -> f64 {
    let (radius, angle) = (1.0 - uniform(rng), 2.0 * PI * uniform(rng));
    (-2.0 * radius.ln()).sqrt() * angle.cos()
}

/// How probable it is that a standard normal number is at most `x` (Abramowitz and Stegun 7.1.26; exact to 10⁻⁷).
pub(super) fn normal_cdf(x: f64) -> f64 {
    let (z, sign) = (x.abs() / SQRT_2, x.signum());
    let t = 1.0 / (1.0 + 0.327_591_1 * z);
    let factors = [1.061_405_429, -1.453_152_027, 1.421_413_741, -0.284_496_736, 0.254_829_592];
    let tail = factors.iter().fold(0.0, |sum, factor| (sum + factor) * t);
    0.5 * (1.0 + sign * (1.0 - tail * (-z * z).exp()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_normal_distribution_is_that_of_the_tables() {
        for (x, expected) in [(0.0, 0.5), (1.0, 0.841_345), (-1.96, 0.024_998), (3.0, 0.998_650)] {
            assert!((normal_cdf(x) - expected).abs() < 1e-6, "{x}: {}", normal_cdf(x));
        }
    }

    #[test]
    fn normal_numbers_have_their_mean_and_deviation() {
        let mut rng = Rng::new(3);
        let drawn: Vec<f64> = (0..20_000).map(|_| normal(&mut rng)).collect();
        let mean = drawn.iter().sum::<f64>() / 20_000.0;
        let variance = drawn.iter().map(|x| x * x).sum::<f64>() / 20_000.0;
        assert!(mean.abs() < 0.03 && (variance - 1.0).abs() < 0.04, "{mean} {variance}");
        let below = drawn.iter().filter(|&&x| x < 1.0).count() as f64 / 20_000.0;
        assert!((below - normal_cdf(1.0)).abs() < 0.01, "{below}");
    }
}
