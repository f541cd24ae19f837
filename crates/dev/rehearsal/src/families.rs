//! Machines and loads on which the bars are held.

pub mod faults;
pub mod many;
pub mod moving;
pub mod published;
pub mod still;

/// The value below which that share of the values lies.
pub fn quantile(values: &[f64], share: f64) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let at = (share * values.len() as f64).floor();
    let place = (0..values.len()).find(|it| *it as f64 >= at);
    place.or(values.len().checked_sub(1)).map_or(f64::NAN, |it| values[it])
}

/// The least.
pub fn least(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, f64::min)
}

/// The largest.
pub fn most(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::NEG_INFINITY, f64::max)
}
