//! Throughput over the number of iothreads by formula: the shapes that a search could be wrong about.

use super::{COUNTS, Load, Subject};
use crate::rng::Rng;

use super::chance::{between, between_octaves, one_of};

/// The shape of a curve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Rises to a peak, then falls.
    Falls,
    /// Only powers of two are good.
    SawTooth,
    /// Two peaks, at 2 and at 12, one a little higher.
    TwoOptima,
    /// The number makes no difference.
    Flat,
    /// None is best, and each iothread hurts.
    Hurts,
    /// 2 iothreads reach exactly 90 % of the best.
    OnTheLine,
    /// One load wants 1 iothread, another many: no number suits both.
    Conflict,
    /// Only one number helps, and it is no power of two.
    Lonely,
}

/// A machine of one shape.
#[derive(Clone, Debug)]
pub struct Shape {
    form: Form,
    /// The number of iothreads at the peak of `Falls`.
    peak: u16,
    /// How deep the shape is cut: a share.
    depth: f64,
    /// How much one of two optima is higher: a share, less than 0 if it is the first.
    tilt: f64,
    scale: f64,
    host: f64,
    /// The one that helps in `Lonely`.
    lonely: u16,
}

impl Shape {
    /// A shape with its parameters drawn from a seed.
    pub fn new(form: Form, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        Self {
            form,
            peak: one_of(&mut rng, &[2, 3, 4, 6]),
            depth: between(&mut rng, 0.08, 0.25),
            tilt: between(&mut rng, -0.06, 0.06),
            scale: between_octaves(&mut rng, 2_000.0, 50_000.0),
            host: between(&mut rng, 1.0, 1.6),
            lonely: one_of(&mut rng, &[3, 6, 12]),
        }
    }

    /// IOPS without noise.
    pub(super) fn iops(&self, subject: Subject, iothreads: u16, load: Load) -> f64 {
        let scale = self.scale * load.in_flight().powf(0.5);
        match subject {
            Subject::Host => {
                let most = COUNTS.map(|n| self.curve(n, load)).into_iter().fold(0.0, f64::max);
                scale * most * self.host
            }
            Subject::Vm => scale * self.curve(iothreads, load),
        }
    }

    /// Relative to none, or nearly.
    fn curve(&self, iothreads: u16, load: Load) -> f64 {
        let n = f64::from(iothreads);
        match self.form {
            Form::Falls => {
                let peak = f64::from(self.peak);
                if n <= peak {
                    1.0 + n / peak
                } else {
                    2.0 * (1.0 - self.depth * (n / peak).log2())
                }
            }
            Form::SawTooth => {
                let rise = 1.0 + 0.3 * (n + 1.0).log2();
                let good = iothreads == 0 || iothreads.is_power_of_two();
                if good { rise } else { rise * (1.0 - self.depth) }
            }
            Form::TwoOptima => {
                let peak =
                    |at: f64, width: f64| (-((n + 1.0) / (at + 1.0)).log2().powi(2) / width).exp();
                1.0 + peak(2.0, 0.5).max((1.0 + self.tilt) * peak(12.0, 0.3))
            }
            Form::Flat => 1.0,
            Form::Hurts => 1.0 - self.depth * (1.0 + n.max(1.0).log2() / 8.0) * f64::from(n > 0.0),
            Form::OnTheLine => match iothreads {
                0 => 0.5,
                1 => 0.7,
                2 => 0.9,
                3 | 4 => 0.93,
                6 => 0.97,
                _ => 1.0,
            },
            Form::Conflict if load.jobs < 8 => match iothreads {
                0 => 0.8,
                _ => 1.3 * (1.0 - 0.6 * self.depth * n.log2()),
            },
            Form::Conflict => 1.0 + n.sqrt(),
            Form::Lonely => 1.0 + if iothreads == self.lonely { 2.0 * self.depth } else { 0.0 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machines::{Op, ROUNDING};

    fn load(jobs: u16) -> Load {
        Load { op: Op::RandomRead, bytes: 4096, jobs, iodepth: 16 }
    }

    fn curve(form: Form, seed: u64, jobs: u16) -> [f64; COUNTS.len()] {
        let shape = Shape::new(form, seed);
        COUNTS.map(|n| shape.iops(Subject::Vm, n, load(jobs)))
    }

    /// The places in `COUNTS` that are higher than their neighbours.
    fn peaks(curve: &[f64]) -> Vec<u16> {
        let at = |place: usize| {
            let lower = |other: Option<&f64>| other.is_none_or(|it| *it < curve[place]);
            lower(place.checked_sub(1).and_then(|it| curve.get(it))) && lower(curve.get(place + 1))
        };
        (0..curve.len()).filter(|&place| at(place)).map(|place| COUNTS[place]).collect()
    }

    #[test]
    fn each_form_has_its_peaks() {
        for seed in 0..50 {
            let falls = Shape::new(Form::Falls, seed);
            assert_eq!(peaks(&curve(Form::Falls, seed, 16)), [falls.peak]);
            assert_eq!(peaks(&curve(Form::TwoOptima, seed, 16)), [2, 12]);
            assert_eq!(peaks(&curve(Form::Hurts, seed, 16)), [0]);
            assert_eq!(peaks(&curve(Form::Conflict, seed, 4)), [1]);
            assert_eq!(peaks(&curve(Form::Conflict, seed, 16)), [16]);
            let lonely = Shape::new(Form::Lonely, seed).lonely;
            assert_eq!(peaks(&curve(Form::Lonely, seed, 16)), [lonely]);
        }
    }

    #[test]
    fn in_the_saw_tooth_the_numbers_between_are_worse_than_both_powers() {
        for seed in 0..50 {
            let curve = curve(Form::SawTooth, seed, 16);
            let at = |n| curve[COUNTS.iter().position(|&it| it == n).unwrap()];
            assert!(at(16) > at(12) && at(8) > at(6) && at(4) > at(3), "{curve:?}");
        }
    }

    #[test]
    fn flat_is_flat_and_the_line_is_met_exactly() {
        assert!(curve(Form::Flat, 1, 4).windows(2).all(|pair| pair[0] == pair[1]));
        let line = curve(Form::OnTheLine, 1, 4);
        assert!((line[2] / line[8] - 0.9).abs() < ROUNDING);
    }
}
