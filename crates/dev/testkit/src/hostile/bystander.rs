//! A client that keeps all rules, and must notice nothing.
//!
//! Where it stands: a thread for each; `Survivor` checks every answer and what each block holds, this one when it came.
//!
//! Invariants: what a bystander has seen while the rig itself had killed or stopped the server does not count (`Service`).
//! Limits: a window is judged when it has [`WINDOW_SAMPLES`] times; with fewer, percentiles mean nothing.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::STALL_MAX;
use super::service::{Phase, Service};
use crate::deadline::{Deadline, now, pause};
use crate::rawring::{Collected, Span, Survivor};
use crate::rng::Rng;

/// How long a bystander tries to connect to the next daemon, and its rest between two tries.
const RECONNECT_LIMIT: Duration = Duration::from_secs(60);
const RECONNECT_REST: Duration = Duration::from_millis(50);
/// Times of requests that are judged together.
const WINDOW_SAMPLES: usize = 2000;
/// How many times as long as in its quiet run a request may take at the 99th percentile; and what is always allowed,
/// since the machine has other things to do than to be measured.
const QUIET_FACTOR: u32 = 50;
pub(super) const P99_ALWAYS: Duration = Duration::from_millis(500);
/// The longest rest between two rounds, in microseconds: a bystander does not use the processors up.
const REST_MICROS_MAX: u64 = 4000;

/// What a bystander's requests took.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Times {
    /// At the 99th percentile, before anybody attacked.
    pub(super) quiet: Duration,
    /// The same of the worst window since.
    pub(super) worst: Duration,
    /// The longest request, but for those that the rig has held up.
    pub(super) longest: Duration,
    /// All requests.
    pub(super) requests: u64,
}

/// One of them.
#[derive(Debug)]
pub(super) struct Bystander<'a> {
    name: &'static str,
    /// What its requests may take at the 99th percentile in any case.
    p99_always: Duration,
    service: &'a Service,
    rounds: AtomicU64,
}

impl<'a> Bystander<'a> {
    pub(super) fn new(name: &'static str, p99_always: Duration, service: &'a Service) -> Self {
        Self { name, p99_always, service, rounds: AtomicU64::new(0) }
    }

    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// Rounds of requests that were completed.
    pub(super) fn rounds(&self) -> u64 {
        self.rounds.load(Ordering::Relaxed)
    }

    /// Works until the campaign is over; every error is a fault of the daemon.
    pub(super) fn work(&self, mut client: Survivor, seed: u64) -> Result<(Survivor, Times)> {
        let mut rng = Rng::new(seed);
        let mut watch = Watch { bystander: self, window: Vec::new(), times: Times::default() };
        let mut starts = self.service.starts();
        while self.service.goes_on(Phase::Rest) {
            client.submit(&mut rng)?;
            while client.in_flight() > 0 {
                match client.collect()? {
                    Collected::Requests(_) => watch.note(client.spans())?,
                    Collected::Gone => {
                        starts = self.reconnect(&mut client, starts).context("hung up on")?;
                    }
                }
            }
            self.rounds.fetch_add(1, Ordering::Relaxed);
            pause(Duration::from_micros(rng.below(REST_MICROS_MAX)));
        }
        watch.judge()?;
        Ok((client, watch.times))
    }

    /// Goes on with the next daemon, which may be killed as well; how many were started by then.
    fn reconnect(&self, client: &mut Survivor, starts: u64) -> Result<u64> {
        self.service.wait_for_start(starts)?;
        let deadline = Deadline::after(RECONNECT_LIMIT);
        loop {
            let (starts, start) = (self.service.starts(), now());
            match client.reconnect() {
                Ok(()) => return Ok(starts),
                Err(error) => {
                    let what = format!("{}: cannot connect again: {error:#}", self.name);
                    ensure!(!deadline.has_passed() && self.service.goes_on(Phase::Rest), "{what}");
                    self.service.suspect(what, Span { start, end: now() });
                    self.service.rest(RECONNECT_REST, Phase::Rest);
                }
            }
        }
    }
}

/// Times that come in.
#[derive(Debug)]
struct Watch<'a> {
    bystander: &'a Bystander<'a>,
    window: Vec<Duration>,
    times: Times,
}

impl Watch<'_> {
    fn note(&mut self, spans: &[Span]) -> Result<()> {
        let Bystander { name, service, .. } = self.bystander;
        for span in spans {
            let time = span.end.saturating_duration_since(span.start);
            self.times.requests += 1;
            if time > STALL_MAX {
                service.suspect(format!("{name}: a request took {time:?}"), *span);
            }
            if !service.is_excused(*span) {
                self.times.longest = self.times.longest.max(time);
                self.window.push(time);
            }
        }
        if service.phase() == Phase::Quiet {
            self.times.quiet = percentile_99(&mut self.window);
        } else if self.times.worst.is_zero() || self.window.len() >= WINDOW_SAMPLES {
            self.judge()?;
        }
        Ok(())
    }

    /// Judges the window, and begins another.
    fn judge(&mut self) -> Result<()> {
        let found = percentile_99(&mut self.window);
        let enough = self.window.len() >= WINDOW_SAMPLES / 2;
        self.window.clear();
        let allowed = (self.times.quiet * QUIET_FACTOR).max(self.bystander.p99_always);
        ensure!(
            !enough || found <= allowed,
            "the 99th percentile was {found:?}; {:?} when nobody attacked",
            self.times.quiet
        );
        self.times.worst = self.times.worst.max(found).max(Duration::from_nanos(1));
        Ok(())
    }
}

/// The 99th percentile; sorts.
fn percentile_99(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times.get(times.len() * 99 / 100).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hundredth_of_the_times_lies_behind_the_percentile() {
        let mut times: Vec<Duration> = (0..1000).rev().map(Duration::from_millis).collect();
        assert_eq!(percentile_99(&mut times), Duration::from_millis(990));
        assert_eq!(percentile_99(&mut []), Duration::ZERO);
    }

    #[test]
    fn a_window_of_slow_requests_is_a_fault() {
        let service = Service::new(1);
        let bystander = Bystander::new("calm", P99_ALWAYS, &service);
        let quiet = Duration::from_millis(20);
        let times = Times { quiet, ..Times::default() };
        let judge = |time: Duration| {
            Watch { bystander: &bystander, window: vec![time; WINDOW_SAMPLES], times }.judge()
        };
        judge(quiet * QUIET_FACTOR).expect("as slow as it may be");
        judge(quiet * QUIET_FACTOR * 2).expect_err("slower");
    }
}
