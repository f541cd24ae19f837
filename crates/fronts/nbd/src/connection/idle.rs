//! When a connection is idle.
//!
//! Limits: one timed turn at a time, and none of a connection that keeps nothing.

use std::time::{Duration, Instant};

use request_path::FrontEndContext;

/// After so long without a request memory is given back.
pub(crate) const IDLE_TIME: Duration = Duration::from_secs(1);

/// Whether requests come.
#[derive(Debug, Default)]
pub(crate) struct IdleWatch {
    /// When the next look is.
    at: Option<Instant>,
    /// Whether a request came since the last one.
    is_used: bool,
}

impl IdleWatch {
    /// A request came.
    pub(crate) fn used(&mut self) {
        self.is_used = true;
    }

    /// Another iothread serves it now, which has heard of no timed turn.
    pub(crate) fn arrived(&mut self) {
        self.at = None;
    }

    /// Whether no request came for a while; looks again later as long as something is kept.
    pub(crate) fn is_over(&mut self, port: &mut FrontEndContext<'_>, keeps: bool) -> bool {
        match self.at {
            None if keeps => self.look_later(port, port.now()),
            None => {}
            Some(at) => {
                let now = port.now();
                if now < at {
                    return false;
                }
                self.at = None;
                if !std::mem::take(&mut self.is_used) {
                    return true;
                }
                self.look_later(port, now);
            }
        }
        false
    }

    fn look_later(&mut self, port: &mut FrontEndContext<'_>, now: Instant) {
        self.is_used = false;
        self.at = Some(now + IDLE_TIME);
        port.call_at(now + IDLE_TIME);
    }
}
