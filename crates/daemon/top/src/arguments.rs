//! The options of `ringloom top`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

/// Which daemons, and how they are shown.
#[derive(Debug, Args)]
pub struct TopArgs {
    /// Monitors: sockets, patterns as '/run/*/qmp.sock', or directories (sockets with qmp or monitor in their names, there and
    /// one level below)
    #[arg(value_name = "SOCKET|PATTERN|DIR")]
    pub(crate) sockets: Vec<PathBuf>,
    /// The monitor of one daemon; default: $RINGLOOM_MONITOR
    #[arg(short, long, value_name = "SOCKET")]
    pub(crate) socket: Option<PathBuf>,
    /// Seconds between two looks, from 0.1
    #[arg(short, long, value_name = "S", default_value = "1", value_parser = parse_interval)]
    pub(crate) interval: Duration,
    /// What is at the top
    #[arg(long, value_enum, default_value = "trouble")]
    pub(crate) sort: SortKey,
    /// Only what has this text in its names
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(crate) filter: String,
    /// Print one interval as tables, and leave
    #[arg(long)]
    pub(crate) once: bool,
    /// Print N intervals as tables, and leave
    #[arg(long, value_name = "N", conflicts_with = "once", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// Print JSON, an object for each interval on one line (--once: indented)
    #[arg(long)]
    pub(crate) json: bool,
}

/// By what rows are sorted: the largest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SortKey {
    /// What is wrong, then what does most
    Trouble,
    /// Names, from a to z
    Name,
    /// Requests in a second
    Iops,
    /// Bytes in a second
    Bytes,
    /// Of how long requests take, what 99 % stay below
    P99,
    /// Requests that are open
    Open,
    /// Requests that failed
    Errors,
    /// CPU time
    Cpu,
}

impl SortKey {
    /// The next one, or the one before.
    pub(crate) fn next(self, step: isize) -> Self {
        let all = Self::value_variants();
        let place = all.iter().position(|it| *it == self).unwrap_or(0);
        let next = place.cast_signed() + step;
        all[next.rem_euclid(all.len().cast_signed()).cast_unsigned()]
    }

    /// Its word of `--sort`.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Trouble => "trouble",
            Self::Name => "name",
            Self::Iops => "iops",
            Self::Bytes => "bytes",
            Self::P99 => "p99",
            Self::Open => "open",
            Self::Errors => "errors",
            Self::Cpu => "cpu",
        }
    }
}

impl TopArgs {
    /// How many intervals are printed; none if they are shown in a terminal. Without an end if nobody said one.
    pub(crate) fn batch(&self) -> Option<u64> {
        match self.count {
            Some(count) => Some(count),
            None if self.once => Some(1),
            None if self.json => Some(u64::MAX),
            None => None,
        }
    }
}

/// The shortest interval: asking costs the daemon's first thread, and too few requests say nothing.
const INTERVAL_MIN: f64 = 0.1;
/// The longest: an hour.
const INTERVAL_MAX: f64 = 3600.0;

fn parse_interval(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|error| format!("'{text}': {error}"))?;
    if !(INTERVAL_MIN..=INTERVAL_MAX).contains(&seconds) {
        return Err(format!("'{text}': say {INTERVAL_MIN} to {INTERVAL_MAX} seconds"));
    }
    Ok(Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_bounded() {
        for (text, expected) in [
            ("1", Some(1000)),
            ("0.5", Some(500)),
            ("0.1", Some(100)),
            ("0.05", None),
            ("-1", None),
            ("NaN", None),
            ("inf", None),
            ("", None),
            ("1s", None),
        ] {
            let found = parse_interval(text).ok().map(|it| it.as_millis());
            assert_eq!(found, expected, "{text}");
        }
    }

    #[test]
    fn sorting_goes_round() {
        assert_eq!(SortKey::Trouble.next(1), SortKey::Name);
        assert_eq!(SortKey::Trouble.next(-1), SortKey::Cpu);
        assert_eq!(SortKey::Cpu.next(1), SortKey::Trouble);
        for key in SortKey::value_variants() {
            assert_eq!(SortKey::from_str(key.word(), false), Ok(*key));
        }
    }
}
