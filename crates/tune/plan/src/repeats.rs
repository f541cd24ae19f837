//! How often everything is measured: a fixed number, or until it is known well enough.

use std::fmt;
use std::str::FromStr;

use crate::units::BadValue;
use serde::{Deserialize, Serialize};

/// More repeats than anybody waits for.
const REPEATS_MAX: u16 = 100;

/// `5`, or `3-12`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "RepeatsForm", into = "String")]
pub enum Repeats {
    /// All contenders so often, without a search.
    Fixed(u16),
    /// What matters at least and at most so often: until its interval is narrow.
    Until {
        /// Not fewer.
        least: u16,
        /// Not more.
        most: u16,
    },
}

impl Repeats {
    /// What a sweep has unless the user says otherwise.
    pub const DEFAULT: Self = Self::Until { least: 3, most: 12 };
}

impl FromStr for Repeats {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = |text: &str| {
            let number: Option<u16> = text.parse().ok();
            number.filter(|number| (1..=REPEATS_MAX).contains(number))
        };
        let found = match text.split_once('-') {
            None => number(text).map(Self::Fixed),
            Some((least, most)) => number(least)
                .zip(number(most))
                .filter(|(least, most)| least < most)
                .map(|(least, most)| Self::Until { least, most }),
        };
        found.ok_or_else(|| {
            let valid =
                format!("write 1 to {REPEATS_MAX}, or the least and the most, such as 3-12");
            BadValue::new(text, "number of repeats", valid)
        })
    }
}

impl fmt::Display for Repeats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(number) => write!(f, "{number}"),
            Self::Until { least, most } => write!(f, "{least}-{most}"),
        }
    }
}

impl From<Repeats> for String {
    fn from(repeats: Repeats) -> Self {
        repeats.to_string()
    }
}

/// As results have it; up to format 2 it was a number.
#[derive(Deserialize)]
#[serde(untagged)]
enum RepeatsForm {
    Number(u16),
    Text(String),
}

impl TryFrom<RepeatsForm> for Repeats {
    type Error = BadValue;

    fn try_from(stored: RepeatsForm) -> Result<Self, Self::Error> {
        match stored {
            RepeatsForm::Number(number) => number.to_string().parse(),
            RepeatsForm::Text(text) => text.parse(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeats_are_a_number_or_a_range() {
        for (text, expected) in [
            ("1", Some(Repeats::Fixed(1))),
            ("100", Some(Repeats::Fixed(100))),
            ("3-12", Some(Repeats::DEFAULT)),
            ("0", None),
            ("101", None),
            ("3-3", None),
            ("12-3", None),
            ("3-101", None),
            ("-3", None),
            ("", None),
        ] {
            let repeats: Option<Repeats> = text.parse().ok();
            assert_eq!(repeats, expected, "{text}");
            if let Some(repeats) = repeats {
                assert_eq!(repeats.to_string(), text);
            }
        }
    }

    #[test]
    fn results_of_format_2_have_a_number() {
        for (json, expected) in [("3", Repeats::Fixed(3)), (r#""3-12""#, Repeats::DEFAULT)] {
            assert_eq!(serde_json::from_str::<Repeats>(json).unwrap(), expected);
        }
        assert_eq!(serde_json::to_string(&Repeats::DEFAULT).unwrap(), r#""3-12""#);
        assert!(serde_json::from_str::<Repeats>("0").is_err());
    }
}
