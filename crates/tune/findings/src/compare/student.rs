//! Welch's test: how likely two small samples would differ as much if their means were the same. Pure functions.

use statrs::function::beta::beta_reg;

/// The two-sided probability; both samples have at least two values. `between` is a variance of the difference of the means
/// that no value of the samples shows, and that is known. Without any scatter it is 1 for the same mean and 0 for another.
pub(super) fn welch(a: &[f64], b: &[f64], between: f64) -> f64 {
    let ((mean_a, error_a), (mean_b, error_b)) = (mean_and_error(a), mean_and_error(b));
    let difference = mean_b - mean_a;
    let error = error_a + error_b + between;
    if error <= 0.0 {
        return if difference == 0.0 { 1.0 } else { 0.0 };
    }
    let share = |error: f64, count: usize| error * error / (count as f64 - 1.0);
    let freedom = error * error / (share(error_a, a.len()) + share(error_b, b.len()));
    // Without any scatter there are infinitely many degrees; so many are as good.
    two_sided(difference / error.sqrt(), freedom.min(1e6))
}

/// The mean, and its variance.
fn mean_and_error(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (mean, squares / (count - 1.0) / count)
}

/// How likely Student's t with so many degrees of freedom is at least as far from 0 (Abramowitz and Stegun, 26.7.1).
fn two_sided(t: f64, freedom: f64) -> f64 {
    beta_reg(freedom / 2.0, 0.5, (freedom / (freedom + t * t)).clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn near(found: f64, expected: f64) {
        assert!((found - expected).abs() <= 1e-4 * expected.abs().max(1e-6), "{found}, {expected}");
    }

    #[test]
    fn probabilities_are_those_of_the_tables() {
        // The 97.5th and 99.95th percentile.
        for (freedom, t, probability) in [
            (1.0, 12.706_205, 0.05),
            (2.0, 4.302_653, 0.05),
            (4.0, 2.776_445, 0.05),
            (10.0, 2.228_139, 0.05),
            (30.0, 2.042_272, 0.05),
            (4.0, 8.610_302, 0.001),
            (10.0, 4.586_894, 0.001),
            (1000.0, 3.300_283, 0.001),
        ] {
            near(two_sided(t, freedom), probability);
            near(two_sided(-t, freedom), probability);
        }
        near(two_sided(0.0, 5.0), 1.0);
    }

    #[test]
    fn samples_of_unequal_scatter_are_compared() {
        // t = -2.835 with 27.71 degrees of freedom: the third example of Welch's test in common use.
        let a = [
            27.5, 21.0, 19.0, 23.6, 17.0, 17.9, 16.9, 20.1, 21.9, 22.6, 23.1, 19.6, 19.0, 21.7,
            21.4,
        ];
        let b = [
            27.1, 22.0, 20.8, 23.4, 23.4, 23.5, 25.8, 22.0, 24.8, 20.2, 21.9, 22.1, 22.9, 30.5,
            24.2,
        ];
        let probability = welch(&a, &b, 0.0);
        assert!((0.005..0.012).contains(&probability), "{probability}");
        near(welch(&a, &b, 0.0), welch(&b, &a, 0.0));
    }

    #[test]
    fn values_without_scatter_differ_or_do_not() {
        assert_eq!(welch(&[2.0; 3], &[2.0; 3], 0.0), 1.0);
        assert_eq!(welch(&[2.0; 3], &[2.1; 3], 0.0), 0.0);
    }
}
