//! What a few repeats of a measurement say: median, lowest and highest. Pure.

/// Median, lowest and highest of at least one value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The value in the middle, or the mean of the two in the middle.
    pub median: f64,
    /// The lowest value.
    pub lowest: f64,
    /// The highest value.
    pub highest: f64,
}

impl Spread {
    /// `None` without values.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (&lowest, &highest) = (values.first()?, values.last()?);
        let middle = values.len() / 2;
        let median = if values.len().is_multiple_of(2) {
            f64::midpoint(values[middle - 1], values[middle])
        } else {
            values[middle]
        };
        Some(Self { median, lowest, highest })
    }
}
