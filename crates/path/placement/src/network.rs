//! The closed network of a disk: what its requests would do with another number of iothreads, as far as it was measured.
//!
//! Where it stands: a screen before trials. Guests and devices that are full are not in it.
//!
//! Limits: an approximation (Bard and Schweitzer), exact for a single request.

/// The shortest delay elsewhere, in seconds: 0.1 µs.
const AWAY_MIN: f64 = 1e-7;

/// A number that is a count.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "counts of rings and iothreads, far below 2^52, and not negative"
)]
pub(crate) fn whole(value: f64) -> usize {
    value.max(0.0) as usize
}

/// Throughput of so many requests at one server (`service` seconds each), which are `away` seconds between visits.
pub(crate) fn closed(requests: f64, service: f64, away: f64) -> f64 {
    let requests = requests.max(1.0);
    let others = (requests - 1.0) / requests;
    let a = others * service * away;
    let b = away + service * (1.0 + others * requests);
    let root = (b * b - 4.0 * a * requests).max(0.0).sqrt();
    2.0 * requests / (b + root)
}

/// What was measured of requests that share iothreads.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Flow {
    /// Progress per second.
    pub(crate) rate: f64,
    /// Requests in the daemon on average, those that wait to be taken as well.
    pub(crate) open: f64,
    /// Of these, how many wait because the iothread serves others or their own ring.
    pub(crate) waiting: f64,
    /// Of these, how many wait because the iothread serves other rings.
    pub(crate) wait_for_others: f64,
    /// Iothreads that they use.
    pub(crate) usage: f64,
}

impl Flow {
    pub(crate) fn add(&mut self, other: &Self) {
        self.rate += other.rate;
        self.open += other.open;
        self.waiting += other.waiting;
        self.wait_for_others += other.wait_for_others;
        self.usage += other.usage;
    }

    fn service(&self) -> f64 {
        self.usage / self.rate.max(1e-9)
    }

    fn away(&self) -> f64 {
        ((self.open - self.waiting) / self.rate.max(1e-9) - self.service()).max(AWAY_MIN)
    }

    /// The most that another iothread could bring, as a share of the progress now.
    pub(crate) fn gain_max(&self) -> f64 {
        self.wait_for_others / (self.open - self.wait_for_others).max(1e-9)
    }

    /// Progress of so many equal rings on so many iothreads.
    pub(crate) fn predict(&self, iothreads: usize, rings: usize) -> f64 {
        let (service, away) = (self.service(), self.away());
        let each = self.open / rings as f64;
        let on = |thread: usize| rings / iothreads + usize::from(thread < rings % iothreads);
        let rate = |thread| closed(on(thread) as f64 * each, service, away);
        (0..iothreads.min(rings)).map(rate).sum()
    }

    /// How much of an iothread a ring would use if it had one for itself.
    pub(crate) fn usage_alone(&self) -> f64 {
        let service = self.service();
        (service * closed(self.open, service, self.away())).min(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_request_is_exact_and_many_fill_the_server() {
        assert!((closed(1.0, 5e-6, 15e-6) - 50_000.0).abs() < 1e-6);
        let full = closed(1000.0, 5e-6, 15e-6);
        assert!((0.98..=1.0).contains(&(full * 5e-6)), "{full}");
    }

    #[test]
    fn rings_that_wait_for_each_other_gain_from_another_iothread_and_one_alone_does_not() {
        let mut flow =
            Flow { rate: 1e5, open: 40.0, waiting: 30.0, wait_for_others: 20.0, usage: 1.0 };
        assert!((flow.gain_max() - 1.0).abs() < 1e-9);
        assert!(flow.predict(2, 4) > 1.6 * flow.predict(1, 4));
        flow.wait_for_others = 0.0;
        assert!(flow.gain_max() < 1e-9);
    }
}
