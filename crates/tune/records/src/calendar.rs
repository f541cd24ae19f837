//! Dates and times of day in UTC, from seconds since 1970. Pure functions.

use std::fmt;

const DAY_S: u64 = 86_400;
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// A day of the Gregorian calendar; printed as `2026-11-22`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Date {
    year: u64,
    /// 0 is January.
    month: usize,
    day: u64,
}

impl Date {
    /// H. Hinnant, "chrono-Compatible Low-Level Date Algorithms": years begin in March, so that
    /// the day of the leap year is the last.
    pub fn of(unix_s: u64) -> Self {
        let days = unix_s / DAY_S + 719_468;
        let (era, day_of_era) = (days / 146_097, days % 146_097);
        let year_of_era =
            (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
        let month = usize::try_from((month_from_march + 2) % 12).expect("a month fits a usize");
        Self { year: era * 400 + year_of_era + u64::from(month < 2), month, day }
    }

    /// `Nov 22, 2026`.
    pub fn in_words(self) -> String {
        format!("{} {:02}, {:04}", MONTHS[self.month], self.day, self.year)
    }
}

impl fmt::Display for Date {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04}-{:02}-{:02}", self.year, self.month + 1, self.day)
    }
}

/// `14:02`.
pub fn time_of_day(unix_s: u64) -> String {
    let minutes = unix_s % DAY_S / 60;
    format!("{:02}:{:02}", minutes / 60, minutes % 60)
}

/// `14:02:09.051`.
pub fn exact_time_of_day(unix_ms: u64) -> String {
    let (seconds, milliseconds) = (unix_ms / 1000, unix_ms % 1000);
    format!("{}:{:02}.{milliseconds:03}", time_of_day(seconds), seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (unix_s, expected, words) in [
            (0, "1970-01-01", "Jan 01, 1970"),
            (951_782_399, "2000-02-28", "Feb 28, 2000"),
            (951_782_400, "2000-02-29", "Feb 29, 2000"),
            (951_868_800, "2000-03-01", "Mar 01, 2000"),
            (1_798_761_599, "2026-12-31", "Dec 31, 2026"),
            (1_798_761_600, "2027-01-01", "Jan 01, 2027"),
            (4_107_542_400, "2100-03-01", "Mar 01, 2100"),
        ] {
            assert_eq!(Date::of(unix_s).to_string(), expected, "{unix_s}");
            assert_eq!(Date::of(unix_s).in_words(), words, "{unix_s}");
        }
    }

    #[test]
    fn times_are_those_of_the_day() {
        assert_eq!(time_of_day(1_795_356_000 + 59 * 60 + 59), "14:59");
        assert_eq!(exact_time_of_day(1_795_356_009_051), "14:00:09.051");
    }
}
