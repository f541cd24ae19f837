//! Numbers in few characters, for columns: as `ringloom ctl` has them (powers of 1024 for bytes), with three digits at most.

use std::time::Duration;

/// A rate or a count: `7`, `0.4`, `86.6k`, `1.2M`.
pub(crate) fn count(value: f64) -> String {
    scaled(value, 1000.0, &["", "k", "M", "G", "T"])
}

/// Bytes: `512`, `4.0K`, `338M`, `1.2G`.
pub(crate) fn bytes(value: f64) -> String {
    scaled(value, 1024.0, &["", "K", "M", "G", "T", "P"])
}

/// Nanoseconds: `256ns`, `84µs`, `1.2ms`, `12s`.
pub(crate) fn time(nanoseconds: Option<u64>) -> String {
    let Some(nanoseconds) = nanoseconds else { return NOTHING.to_owned() };
    let steps = [(1_000_000_000, "s"), (1_000_000, "ms"), (1000, "µs"), (1, "ns")];
    let (step, unit) =
        steps.into_iter().find(|(step, _)| nanoseconds >= *step).unwrap_or((1, "ns"));
    match nanoseconds / step {
        whole if whole < 10 && step > 1 => {
            format!("{whole}.{}{unit}", nanoseconds % step * 10 / step)
        }
        whole => format!("{whole}{unit}"),
    }
}

/// Where there is no number.
pub(crate) const NOTHING: &str = "-";

/// A share as percent.
pub(crate) fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| NOTHING.to_owned(), |share| format!("{:.0}%", share * 100.0))
}

/// How long something lasts, for people who wait: `8 s`, `2 min 05 s`, `3 h 20 min`.
pub(crate) fn duration(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {:02} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {:02} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} d {:02} h", seconds / 86_400, seconds / 3600 % 24),
    }
}

fn scaled(value: f64, step: f64, units: &[&str]) -> String {
    if !value.is_finite() || value <= 0.0 {
        return "0".to_owned();
    }
    let mut value = value;
    let mut units = units.iter();
    let mut unit = units.next().copied().unwrap_or_default();
    // What would be rounded up to a thousand has the next unit.
    while value >= 999.5 {
        let Some(next) = units.next() else { break };
        value /= step;
        unit = next;
    }
    match (unit, value) {
        ("", _) if value >= 9.95 || value.fract() == 0.0 => format!("{value:.0}"),
        (_, value) if value < 9.95 => format!("{value:.1}{unit}"),
        (_, value) if value < 99.95 && step < 1024.0 => format!("{value:.1}{unit}"),
        _ => format!("{value:.0}{unit}"),
    }
}

/// The heights of a history, one character each, the tallest the largest of them; it ends now.
pub(crate) fn sparkline(values: impl DoubleEndedIterator<Item = f64>, width: usize) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let mut last: Vec<f64> = values.rev().take(width).collect();
    last.reverse();
    let largest = last.iter().copied().fold(0.0, f64::max);
    let bar = |value: f64| {
        if value <= 0.0 || largest <= 0.0 {
            return ' ';
        }
        // As many limits as it is above: no cast of a float.
        let reached = (1..8).filter(|step| value * 8.0 > largest * f64::from(*step)).count();
        BARS[reached]
    };
    let bars: String = last.iter().map(|value| bar(*value)).collect();
    format!("{bars:>width$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_a_unit() {
        for (value, expected) in [
            (0.0, "0"),
            (0.4, "0.4"),
            (7.0, "7"),
            (9.96, "10"),
            (523.2, "523"),
            (999.4, "999"),
            (999.6, "1.0k"),
            (86_600.0, "86.6k"),
            (104_000.0, "104k"),
            (1_234_567.0, "1.2M"),
            (f64::NAN, "0"),
            (-1.0, "0"),
        ] {
            assert_eq!(count(value), expected, "{value}");
        }
        for (value, expected) in [
            (512.0, "512"),
            (1000.0, "1.0K"),
            (4096.0, "4.0K"),
            (338.0 * 1024.0 * 1024.0, "338M"),
            (12.3 * 1024.0 * 1024.0, "12M"),
        ] {
            assert_eq!(bytes(value), expected, "{value}");
        }
    }

    #[test]
    fn times_have_the_unit_that_suits_them() {
        for (value, expected) in [
            (None, "-"),
            (Some(256), "256ns"),
            (Some(1536), "1.5µs"),
            (Some(84_300), "84µs"),
            (Some(1_250_000), "1.2ms"),
            (Some(12_000_000_000), "12s"),
        ] {
            assert_eq!(time(value), expected);
        }
        for (seconds, expected) in
            [(8, "8 s"), (125, "2 min 05 s"), (12_000, "3 h 20 min"), (100_000, "1 d 03 h")]
        {
            assert_eq!(duration(Duration::from_secs(seconds)), expected);
        }
        assert_eq!(percent(Some(0.256)), "26%");
    }

    #[test]
    fn a_history_ends_at_the_right_and_its_largest_is_full() {
        assert_eq!(sparkline([1.0, 0.0, 4.0, 8.0].into_iter(), 6), "  ▁ ▄█");
        assert_eq!(sparkline([1.0, 2.0, 3.0].into_iter(), 2), "▆█");
        assert_eq!(sparkline([0.0, 0.0].into_iter(), 3), "   ");
    }
}
