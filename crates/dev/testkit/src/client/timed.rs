//! How long a request takes as a client sees it that never sleeps.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::{Client, REQUEST_LIMIT, Request, Status};
use crate::deadline::{Deadline, now};

impl Client {
    /// Does one request and looks for its end without a pause; nothing else may be in flight in that queue. Returns the
    /// time from making it available to seeing it used.
    pub fn time(&mut self, queue: usize, request: &Request) -> Result<Duration> {
        let deadline = Deadline::after(REQUEST_LIMIT);
        let start = now();
        self.submit(queue, request, 0)?;
        self.kick(queue)?;
        loop {
            let done = self.completions(queue);
            let end = now();
            if let [done] = done.as_slice() {
                ensure!(done.status == Status::Ok, "{request:?} ended with {:?}", done.status);
                return Ok(end.saturating_duration_since(start));
            }
            ensure!(done.is_empty(), "{request:?} came back as {done:?}");
            ensure!(!deadline.has_passed(), "{request:?} took more than {REQUEST_LIMIT:?}");
        }
    }
}
