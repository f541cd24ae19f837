//! Numbers with units as users write and read them.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

const SUFFIXES: [(char, u64); 4] = [('k', 1 << 10), ('M', 1 << 20), ('G', 1 << 30), ('T', 1 << 40)];

/// A number of bytes: `512`, `4k`, `64k`, `1M`, `1G`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bytes(pub u64);

/// Text that names no value of an option.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is no {kind}: {valid}")]
pub struct BadValue {
    text: String,
    kind: &'static str,
    /// A sentence's end that says what is.
    valid: String,
}

impl BadValue {
    /// What cannot be read, of which kind it should be, and what is valid.
    pub fn new(text: &str, kind: &'static str, valid: impl Into<String>) -> Self {
        Self { text: text.to_owned(), kind, valid: valid.into() }
    }
}

/// Gives types that print themselves and read that back the same form in results.
#[macro_export]
macro_rules! stored_as_text {
    ($($name:ty),+) => {$(
        impl TryFrom<String> for $name {
            type Error = $crate::units::BadValue;

            fn try_from(text: String) -> Result<Self, Self::Error> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(value: $name) -> Self {
                value.to_string()
            }
        }
    )+};
}
pub use stored_as_text;

impl FromStr for Bytes {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = || {
            let valid = "write bytes or a number with k, M, G or T, such as 4k or 1G";
            BadValue::new(text, "size", valid)
        };
        let last = text.chars().last().ok_or_else(bad)?;
        let unit = SUFFIXES.iter().find(|(suffix, _)| suffix.eq_ignore_ascii_case(&last));
        let (digits, factor) = match unit {
            Some((_, factor)) => (&text[..text.len() - 1], *factor),
            None => (text, 1),
        };
        let number: Option<u64> = digits.parse().ok();
        number.and_then(|n| n.checked_mul(factor)).map(Self).ok_or_else(bad)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exact = |(_, factor): &&(char, u64)| self.0 > 0 && self.0.is_multiple_of(*factor);
        match SUFFIXES.iter().rev().find(exact) {
            Some((suffix, factor)) => write!(f, "{}{suffix}", self.0 / factor),
            None => write!(f, "{}", self.0),
        }
    }
}

/// A time in seconds, with a fraction if wanted.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Seconds(f64);

/// One day.
const SECONDS_MAX: f64 = 86_400.0;

impl FromStr for Seconds {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let seconds: Option<f64> = text.parse().ok();
        let legal = seconds.filter(|s| (0.0..=SECONDS_MAX).contains(s));
        let valid = "write seconds between 0 and 86400, such as 2 or 0.5";
        legal.map(Self).ok_or_else(|| BadValue::new(text, "time", valid))
    }
}

impl Seconds {
    /// So many seconds.
    pub const fn new(seconds: f64) -> Self {
        Self(seconds)
    }

    /// As the standard library has it.
    pub fn duration(self) -> Duration {
        Duration::from_secs_f64(self.0)
    }
}

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A stretch of time: `90`, `90s`, `10m`, `2h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Span {
    seconds: u64,
}

/// A year: more than anybody measures.
const SPAN_MAX: u64 = 365 * 86_400;

impl FromStr for Span {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let units = [('s', 1), ('m', 60), ('h', 3600)];
        let unit =
            units.iter().find_map(|(unit, factor)| Some((text.strip_suffix(*unit)?, *factor)));
        let (digits, factor) = unit.unwrap_or((text, 1));
        let number: Option<u64> = digits.parse().ok();
        let seconds = number.and_then(|number| number.checked_mul(factor));
        let legal = seconds.filter(|seconds| (1..=SPAN_MAX).contains(seconds));
        let valid = "write seconds above 0, or a number with s, m or h, such as 90, 10m or 2h";
        legal.map(|seconds| Self { seconds }).ok_or_else(|| BadValue::new(text, "time", valid))
    }
}

impl Span {
    /// As the standard library has it.
    pub fn duration(self) -> Duration {
        Duration::from_secs(self.seconds)
    }
}

/// `12,345`.
pub fn grouped(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `45 s`, `2 min 5 s`, `1 h 3 min`.
pub fn human_time(duration: Duration) -> String {
    let seconds = duration.as_millis().div_ceil(1000);
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

/// The text without control characters but the end of a line: names of files and processes may have any, and a terminal
/// obeys them.
pub fn printable(text: &str) -> String {
    let is_obeyed = |it: char| it.is_control() && it != '\n' || turns(it);
    let shown = |it: char| if is_obeyed(it) { '\u{fffd}' } else { it };
    text.chars().map(shown).collect()
}

/// Whether it changes the direction of the text behind it (Unicode Standard Annex 9).
fn turns(letter: char) -> bool {
    matches!(letter, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// `2 jobs`, `1 job`.
pub fn counted(number: usize, thing: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {thing}{plural}")
}

/// `+12 %`, `−3 %`, `±0 %`.
pub fn percent_gain(ratio: f64) -> String {
    let percent = (ratio - 1.0) * 100.0;
    if percent.round() == 0.0 {
        "±0 %".to_owned()
    } else if percent > 0.0 {
        format!("+{percent:.0} %")
    } else {
        format!("−{:.0} %", -percent)
    }
}

/// Three digits: `950`, `9.50k`, `95.0k`, `950k`, `1.25M`.
pub fn short(number: f64) -> String {
    let (scaled, suffix) = if number < 999.5 {
        return format!("{number:.0}");
    } else if number < 999_500.0 {
        (number / 1e3, "k")
    } else {
        (number / 1e6, "M")
    };
    let decimals = if scaled < 9.995 { 2 } else { usize::from(scaled < 99.95) };
    format!("{scaled:.decimals$}{suffix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gains_print_with_their_sign() {
        for (ratio, text) in
            [(1.0, "±0 %"), (0.9999, "±0 %"), (1.117, "+12 %"), (0.9, "−10 %"), (3.0, "+200 %")]
        {
            assert_eq!(percent_gain(ratio), text);
        }
    }

    #[test]
    fn what_a_terminal_or_a_page_obeys_is_not_printed() {
        let text = "a\u{1b}[2Jb\u{202e}c\u{2069}d\u{200f}\te\nf \u{5d0}";
        let shown = "a\u{fffd}[2Jb\u{fffd}c\u{fffd}d\u{fffd}\u{fffd}e\nf \u{5d0}";
        assert_eq!(printable(text), shown);
    }

    #[test]
    fn spans_have_a_unit_or_are_seconds() {
        for (text, seconds) in
            [("90", 90), ("90s", 90), ("10m", 600), ("2h", 7200), ("8760h", 31_536_000)]
        {
            assert_eq!(text.parse::<Span>().unwrap().duration(), Duration::from_secs(seconds));
        }
        for text in ["", "m", "0", "1.5h", "-1", "8761h", "1d", "99999999999999999999h"] {
            let error = text.parse::<Span>().unwrap_err().to_string();
            assert!(error.contains("seconds above 0") && error.contains("10m"), "{error}");
        }
    }

    #[test]
    fn sizes_are_read_and_printed() {
        for (text, bytes, printed) in [
            ("512", 512, "512"),
            ("4k", 4096, "4k"),
            ("4K", 4096, "4k"),
            ("64k", 65_536, "64k"),
            ("1M", 1 << 20, "1M"),
            ("1m", 1 << 20, "1M"),
            ("1536k", 1_572_864, "1536k"),
            ("2G", 2 << 30, "2G"),
            ("1025", 1025, "1025"),
        ] {
            let size: Bytes = text.parse().unwrap();
            assert_eq!((size.0, size.to_string().as_str()), (bytes, printed), "{text}");
        }
    }

    #[test]
    fn other_sizes_are_refused() {
        for text in ["", "k", "4x", "-1", "4 k", "1.5M", "99999999999T", "µ"] {
            let message = text.parse::<Bytes>().unwrap_err().to_string();
            assert!(message.contains("such as 4k"), "{message}");
        }
    }

    #[test]
    fn times_are_bounded() {
        assert_eq!("1.5".parse::<Seconds>().unwrap().duration(), Duration::from_millis(1500));
        for text in ["", "-1", "nan", "inf", "1e9", "2s"] {
            assert!(text.parse::<Seconds>().is_err(), "{text}");
        }
    }

    #[test]
    fn numbers_are_grouped() {
        for (number, text) in
            [(0.0, "0"), (999.4, "999"), (1000.0, "1,000"), (1_234_567.0, "1,234,567")]
        {
            assert_eq!(grouped(number), text);
        }
    }

    #[test]
    fn durations_read_well() {
        for (seconds, text) in [
            (0.0, "0 s"),
            (0.2, "1 s"),
            (59.0, "59 s"),
            (125.0, "2 min 5 s"),
            (3780.0, "1 h 3 min"),
        ] {
            assert_eq!(human_time(Duration::from_secs_f64(seconds)), text);
        }
    }
}
