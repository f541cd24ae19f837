//! What makes two runs of the same thing differ.
//!
//! Invariants: `cdf` is the distribution of what `draw` draws, whatever came before.

use super::chance::{between, normal, normal_cdf, uniform};
use crate::rng::Rng;

/// Stalled runs reach between these shares of the others.
const STALLED: (f64, f64) = (0.3, 0.6);

/// The distribution of the factor of one run. Deviations are standard deviations, relative to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Noise {
    /// Normal.
    Normal {
        /// Below 0.2, so that nothing is negative.
        sd: f64,
    },
    /// The logarithm is normal: skewed, now and then much faster.
    Lognormal {
        /// Of the logarithm.
        sd: f64,
    },
    /// Normal, but some runs stall to 30 to 60 %.
    Stalls {
        /// How many do: 0 to 1.
        share: f64,
        /// Of the others.
        sd: f64,
    },
    /// Two states, such as of heat or turbo; each run is wholly in one.
    Bimodal {
        /// How many runs are in the lower state: 0 to 1.
        share: f64,
        /// The lower state.
        low: f64,
        /// Of both.
        sd: f64,
    },
    /// Normal, but a run is like the one before it.
    Correlated {
        /// Of all runs together.
        sd: f64,
        /// Correlation of neighbours: 0 to 1.
        rho: f64,
    },
}

impl Noise {
    /// The factor of the next run; `last` is what correlated noise remembers.
    pub(super) fn draw(self, rng: &mut Rng, last: &mut f64) -> f64 {
        match self {
            Self::Normal { sd } => 1.0 + sd * normal(rng),
            Self::Lognormal { sd } => (sd * normal(rng)).exp(),
            Self::Stalls { share, sd } => {
                if uniform(rng) < share {
                    between(rng, STALLED.0, STALLED.1)
                } else {
                    1.0 + sd * normal(rng)
                }
            }
            Self::Bimodal { share, low, sd } => {
                let state = if uniform(rng) < share { low } else { 1.0 };
                state * (1.0 + sd * normal(rng))
            }
            Self::Correlated { sd, rho } => {
                *last = rho * *last + (1.0 - rho * rho).sqrt() * normal(rng);
                1.0 + sd * *last
            }
        }
    }

    /// How probable it is that a factor is at most `x`.
    pub(super) fn cdf(self, x: f64) -> f64 {
        match self {
            Self::Normal { sd } | Self::Correlated { sd, .. } => normal_cdf((x - 1.0) / sd),
            Self::Lognormal { sd } => normal_cdf(x.max(f64::MIN_POSITIVE).ln() / sd),
            Self::Stalls { share, sd } => {
                let stalled = ((x - STALLED.0) / (STALLED.1 - STALLED.0)).clamp(0.0, 1.0);
                share * stalled + (1.0 - share) * normal_cdf((x - 1.0) / sd)
            }
            Self::Bimodal { share, low, sd } => {
                share * normal_cdf((x / low - 1.0) / sd)
                    + (1.0 - share) * normal_cdf((x - 1.0) / sd)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Noise; 5] = [
        Noise::Normal { sd: 0.03 },
        Noise::Lognormal { sd: 0.15 },
        Noise::Stalls { share: 0.2, sd: 0.02 },
        Noise::Bimodal { share: 0.3, low: 0.8, sd: 0.02 },
        Noise::Correlated { sd: 0.04, rho: 0.8 },
    ];

    fn drawn(noise: Noise) -> Vec<f64> {
        let (mut rng, mut last) = (Rng::new(11), 0.0);
        (0..40_000).map(|_| noise.draw(&mut rng, &mut last)).collect()
    }

    #[test]
    fn what_is_drawn_has_the_distribution_it_claims() {
        for noise in ALL {
            let drawn = drawn(noise);
            for x in [0.5, 0.7, 0.8, 0.9, 0.97, 1.0, 1.03, 1.2] {
                let below = drawn.iter().filter(|&&it| it <= x).count() as f64 / 40_000.0;
                assert!((below - noise.cdf(x)).abs() < 0.02, "{noise:?} at {x}: {below}");
            }
        }
    }

    #[test]
    fn only_correlated_noise_makes_neighbours_alike() {
        for noise in ALL {
            let drawn = drawn(noise);
            let mean = drawn.iter().sum::<f64>() / drawn.len() as f64;
            let product = |lag: usize| -> f64 {
                drawn.iter().zip(&drawn[lag..]).map(|(a, b)| (a - mean) * (b - mean)).sum()
            };
            let correlation = product(1) / product(0);
            let expected = if let Noise::Correlated { rho, .. } = noise { rho } else { 0.0 };
            assert!((correlation - expected).abs() < 0.03, "{noise:?}: {correlation}");
        }
    }
}
