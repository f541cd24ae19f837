//! The instant of a backup, in whole seconds, as its file and its bitmap name it: `20261127T080000Z`.
//!
//! Invariants: those of one disk in one place are in the order in which they were made, whatever the clock does.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

const DAY: u64 = 86_400;

/// The days from 0000-03-01 to 1970-01-01.
const DAYS_BEFORE: u64 = 719_468;

/// The days of 400 years.
const ERA: u64 = 146_097;

/// 9999-12-31T23:59:59.
const LAST: u64 = 253_402_300_799;

/// Seconds since 1970, in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BackupDate(u64);

/// How far the date of a backup may be ahead of the clock: several are made in a second.
const AHEAD_MAX: u64 = 300;

impl BackupDate {
    /// The present, or the second after the last backup if the clock has not come so far.
    pub(crate) fn now_after(last: Option<Self>) -> Self {
        let next = last.map_or(0, |Self(last)| last + 1);
        Self(now().max(next).min(LAST))
    }

    /// Since 1970.
    pub(crate) fn seconds(self) -> u64 {
        self.0
    }

    /// Whether the clock was once ahead, so that dates are no times until it has come so far again.
    pub(crate) fn is_ahead(self) -> bool {
        self.0 > now() + AHEAD_MAX
    }

    /// Reads what [`Display`](fmt::Display) writes.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        Self::parse_end(text).filter(|it| it.to_string() == text)
    }

    /// Reads a time as people write it: blanks, `-` and `:` may be between the digits. What is left out makes a span, of which it is
    /// the last second: `20261127T0800` is 08:00:59, and a day its end.
    pub(crate) fn parse_end(text: &str) -> Option<Self> {
        let is_known = |it: char| it.is_ascii_digit() || "TZ-: ".contains(it);
        let digits: String = text.chars().filter(char::is_ascii_digit).collect();
        if !text.chars().all(is_known) || !matches!(digits.len(), 8 | 10 | 12 | 14) {
            return None;
        }
        let rest = &"00000000235959"[digits.len()..];
        let digits = format!("{digits}{rest}");
        let number = |from: usize, to: usize| digits[from..to].parse::<u64>().ok();
        let (year, month, day) = (number(0, 4)?, number(4, 6)?, number(6, 8)?);
        let (hours, minutes, seconds) = (number(8, 10)?, number(10, 12)?, number(12, 14)?);
        let days = days_of(year, month, day)?;
        let found = Self(days * DAY + hours * 3600 + minutes * 60 + seconds);
        // There is no 30th of February, and no 25th hour.
        (found.to_string() == format!("{}T{}Z", &digits[..8], &digits[8..])).then_some(found)
    }
}

/// Seconds since 1970.
fn now() -> u64 {
    #[expect(clippy::disallowed_methods, reason = "backups are named by the clock of people")]
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |it| it.as_secs())
}

impl fmt::Display for BackupDate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month, day) = date_of(self.0 / DAY);
        let second = self.0 % DAY;
        let (hours, minutes, seconds) = (second / 3600, second / 60 % 60, second % 60);
        write!(formatter, "{year:04}{month:02}{day:02}T{hours:02}{minutes:02}{seconds:02}Z")
    }
}

/// Days since 1970. The year begins in March, so that the day that comes and goes is its last.
fn days_of(year: u64, month: u64, day: u64) -> Option<u64> {
    if !(1..=12).contains(&month) || year < 1970 {
        return None;
    }
    let year = if month <= 2 { year - 1 } else { year };
    let in_era = year % 400;
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day.checked_sub(1)?;
    let days = year / 400 * ERA + in_era * 365 + in_era / 4 - in_era / 100 + of_year;
    days.checked_sub(DAYS_BEFORE)
}

/// Year, month and day.
fn date_of(days: u64) -> (u64, u64, u64) {
    let days = days + DAYS_BEFORE;
    let in_era = days % ERA;
    let year = (in_era - in_era / 1460 + in_era / 36_524 - in_era / 146_096) / 365;
    let of_year = in_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = days / ERA * 400 + year + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_written_and_read() {
        for (seconds, text) in [
            (0, "19700101T000000Z"),
            (951_782_400, "20000229T000000Z"),
            (1_795_939_200, "20261129T080000Z"),
            (4_107_542_399, "21000228T235959Z"),
            (4_107_542_400, "21000301T000000Z"),
            (LAST, "99991231T235959Z"),
        ] {
            assert_eq!(BackupDate(seconds).to_string(), text);
            assert_eq!(BackupDate::parse(text), Some(BackupDate(seconds)));
        }
        for text in ["2026-11-29 08:00:00", "20261129T0800", "20261129", "20261129T080000"] {
            assert_eq!(BackupDate::parse(text), None, "{text}");
        }
    }

    #[test]
    fn what_a_time_leaves_out_makes_a_span_that_ends_with_it() {
        for (text, end) in [
            ("20261129T080000Z", "20261129T080000Z"),
            ("2026-11-29 08:00:00", "20261129T080000Z"),
            ("2026-11-29 08:00", "20261129T080059Z"),
            ("20261129T0800", "20261129T080059Z"),
            ("20261129T08", "20261129T085959Z"),
            ("2026-11-29", "20261129T235959Z"),
        ] {
            assert_eq!(BackupDate::parse_end(text), BackupDate::parse(end), "{text}");
            assert!(BackupDate::parse(end).is_some(), "{end}");
        }
        for text in ["", "2026", "20260230", "20261301", "20261129T25", "20261129T0", "vm1-full"] {
            assert_eq!(BackupDate::parse_end(text), None, "{text}");
        }
        assert_eq!(BackupDate::parse_end("19691231"), None);
    }

    #[test]
    fn a_later_backup_has_a_later_date() {
        let ahead = BackupDate(LAST - 5);
        assert_eq!(BackupDate::now_after(Some(ahead)), BackupDate(LAST - 4));
        assert!(BackupDate::now_after(None) > BackupDate(1_700_000_000));
        assert!(ahead.is_ahead() && !BackupDate::now_after(None).is_ahead());
    }
}
