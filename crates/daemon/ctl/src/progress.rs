//! How far something has come that takes long, on one line of a terminal.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use crate::client::write;
use crate::units::bytes;

/// For how long a rate is taken as that of now.
const RATE_TIME: Duration = Duration::from_secs(3);

/// How far something has come, on a terminal.
pub(crate) struct ProgressLine {
    label: String,
    is_shown: bool,
    /// When how much was done.
    seen: Vec<(Instant, u64)>,
}

impl ProgressLine {
    /// A line that begins with that.
    pub(crate) fn new(label: String) -> Self {
        Self { label, is_shown: io::stderr().is_terminal(), seen: Vec::new() }
    }

    /// Shows what was done, and of how much.
    pub(crate) fn show(&mut self, (current, total): (u64, u64)) {
        if !self.is_shown {
            return;
        }
        let now = now();
        self.seen.retain(|(at, _)| now.duration_since(*at) < RATE_TIME);
        self.seen.push((now, current));
        let (first, before) = self.seen[0];
        let seconds = now.duration_since(first).as_secs_f64();
        let more = current.saturating_sub(before);
        let rate = Duration::from_secs_f64(seconds.max(0.001)).as_millis().max(1);
        let rate = u64::try_from(u128::from(more) * 1000 / rate).unwrap_or(u64::MAX);
        let left = total.saturating_sub(current);
        let remaining = match left.checked_div(rate) {
            Some(seconds) if left > 0 => format!(", {seconds} s left"),
            Some(_) | None => String::new(),
        };
        let text = format!(
            "{}: {} of {}, {} %, {}/s{remaining}",
            self.label,
            bytes(current),
            bytes(total),
            percent(current, total),
            bytes(rate)
        );
        let mut stderr = io::stderr().lock();
        // Nobody is left to hear that stderr cannot be written.
        let _lost = stderr.write_all(b"\r\x1b[K").and_then(|()| write(&mut stderr, &text));
    }

    /// Takes the line away.
    pub(crate) fn end(&mut self) {
        if self.is_shown {
            let _lost = io::stderr().lock().write_all(b"\r\x1b[K");
        }
    }
}

/// How much of the whole that is.
pub(crate) fn percent(current: u64, total: u64) -> u64 {
    current.saturating_mul(100).checked_div(total).unwrap_or(100)
}

/// The time by which rates are told.
#[expect(clippy::disallowed_methods, reason = "rates and times for people, by their clock")]
pub(crate) fn now() -> Instant {
    Instant::now()
}
