//! The predictions against machines that share no code with them, and the published sweep.
//!
//! docs/statistics.md has the tables of many seeds: `RINGLOOM_SEEDS=100 cargo test --release -p model --test it -- --nocapture` makes
//! them again. Without seeds few are tried. The bounds of the model were chosen with the help of others.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod curves;
mod published;
mod rehearsed;

use std::fmt;
use std::ops::Range as Seeds;

use model::{Claim, N90, NoAnswer, Prediction, Range};

/// The numbers of iothreads that are compared; 0 is none.
const COUNTS: [u16; 9] = [0, 1, 2, 3, 4, 6, 8, 12, 16];

/// So many seeds are tried unless `RINGLOOM_SEEDS` says otherwise; then the table is printed, too.
const FIRST_SEED: u64 = 1000;

fn seeds(few: u64) -> Seeds<u64> {
    let seeds = std::env::var("RINGLOOM_SEEDS").map_or(few, |seeds| seeds.parse().unwrap());
    FIRST_SEED..FIRST_SEED + seeds
}

#[expect(clippy::print_stdout, reason = "the table is for a reader")]
fn print(name: &str, row: &dyn fmt::Display) {
    if std::env::var_os("RINGLOOM_SEEDS").is_some() {
        println!("| {name} | {row} |");
    }
}

/// Random numbers of its own (PCG).
#[derive(Clone, Debug)]
struct Chance(u64);

impl Chance {
    fn new(seed: u64) -> Self {
        let mut new = Self(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) | 1);
        new.uniform();
        new
    }

    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        let mixed = (self.0 >> 22 ^ self.0) >> (22 + (self.0 >> 61));
        f64::from(u32::try_from(mixed & 0xffff_ffff).unwrap()) / 4_294_967_296.0
    }

    fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.uniform()
    }

    fn octaves(&mut self, low: f64, high: f64) -> f64 {
        low * (high / low).powf(self.uniform())
    }

    fn below(&mut self, bound: u16) -> u16 {
        let at = self.uniform() * f64::from(bound);
        (0..bound).rfind(|&it| f64::from(it) <= at).unwrap_or(0)
    }

    fn normal(&mut self) -> f64 {
        (-2.0 * (1.0 - self.uniform()).ln()).sqrt() * (std::f64::consts::TAU * self.uniform()).cos()
    }
}

/// How often what is told is true.
#[derive(Clone, Debug, Default)]
struct Tally {
    asked: u32,
    /// Of which nothing is told.
    nothing: u32,
    holds: Share,
    /// Of these, how many are within 10 % of the middle: ranges are not wider.
    near: Share,
    /// Of these, whose n90 is within a step.
    n90: Share,
    wide: Share,
    assumed: Share,
    at_least: Share,
    /// How wide ranges that are assumed are.
    widths: Vec<f64>,
}

/// So many of so many.
#[derive(Clone, Copy, Debug, Default)]
struct Share(u32, u32);

impl Share {
    fn add(&mut self, is_so: bool) {
        self.0 += u32::from(is_so);
        self.1 += 1;
    }

    /// In percent; of none all.
    fn percent(self) -> f64 {
        if self.1 == 0 { 100.0 } else { 100.0 * f64::from(self.0) / f64::from(self.1) }
    }
}

impl Tally {
    /// `truth` gives requests per second of a number of iothreads.
    fn add(&mut self, told: &Result<Prediction, NoAnswer>, truth: &dyn Fn(u16) -> f64) {
        self.asked += 1;
        let Ok(told) = told else {
            self.nothing += 1;
            return;
        };
        let Range { low, high } = told.iops;
        let is = truth(told.iothreads);
        let contains = (low..=high).contains(&is);
        match told.claim {
            Claim::Holds => {
                self.holds.add(contains);
                self.near.add((is / (low * high).sqrt() - 1.0).abs() <= 0.1);
            }
            Claim::Wide => self.wide.add(contains),
            Claim::Assumed { .. } => {
                self.assumed.add(contains);
                self.widths.push(told.iops.width());
            }
        }
        let all = || COUNTS.into_iter().filter(|&n| n <= told.iothreads);
        let best = all().map(truth).fold(0.0, f64::max);
        let least = all().find(|&n| truth(n) >= 0.9 * best).unwrap();
        let place = |n| COUNTS.iter().position(|&it| it == n).unwrap();
        match told.n90 {
            Some(N90::Between(low, high)) => {
                let steps = place(low)..=place(high) + 1;
                self.n90.add(steps.contains(&place(least)) || place(least) + 1 == place(low));
            }
            Some(N90::AtLeast(low)) => self.at_least.add(least >= low),
            None => {}
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let told = Share(self.asked - self.nothing, self.asked).percent();
        write!(f, "{} | {told:.0}", self.asked)?;
        for share in [self.holds, self.n90, self.wide, self.assumed, self.at_least] {
            match share.1 {
                0 => f.write_str(" | –")?,
                of => write!(f, " | {:.0} of {of}", share.percent())?,
            }
        }
        if self.widths.is_empty() {
            return Ok(());
        }
        write!(f, " | ±{:.0} %", 100.0 * quantile(&self.widths, 0.5))
    }
}

impl Tally {
    /// What is claimed to hold does so, and so does what is only a range.
    #[track_caller]
    fn check(&self, name: &str, least: f64) {
        let shares = [self.holds, self.near, self.n90, self.wide, self.assumed, self.at_least];
        let is_kept = shares.iter().all(|share| share.1 < 10 || share.percent() >= least);
        assert!(is_kept, "{name}: {self:?}");
    }
}

/// The value that so large a share of them does not exceed.
fn quantile(values: &[f64], share: f64) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let below = |place: &usize| *place as f64 <= share * (values.len() - 1) as f64;
    (0..values.len()).rfind(below).map_or(0.0, |it| values[it])
}
