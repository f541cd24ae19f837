//! The network of queues: what a number of iothreads brings, if all parameters are known.
//!
//! Invariants: no chance: landings count by their probability.
//! Limits: queues in equilibrium; threads do not share work. The throughput of a thread is the approximation of Bard and
//! Schweitzer, exact for one request; threads slow each other by the mean number of busy ones.

/// How sharply two bounds meet: the higher, the sharper.
const SHARPNESS: i32 = 8;

/// How the jobs of a load share iothreads, where each job keeps a queue of its own busy.
///
/// The scheduler of a guest spreads jobs over its CPUs, and so over queues; which queues have one more is chance.
#[derive(Clone, Debug, PartialEq)]
pub struct Landing {
    /// Numbers of jobs above 0, and on how many iothreads so many land, on average.
    threads: Vec<(f64, f64)>,
}

impl Landing {
    /// Of `jobs` on `queues` that `iothreads` serve, all at least 1.
    pub fn new(jobs: u16, queues: u16, iothreads: u16) -> Self {
        let (each, extra) = (jobs / queues, jobs % queues);
        let (few, more) = (queues / iothreads, queues % iothreads);
        let choose = Choose::up_to(queues);
        let mut threads: Vec<(f64, f64)> = Vec::new();
        let kinds = [(few, iothreads - more), (few + 1, more)];
        for (own, count) in kinds.into_iter().filter(|(_, count)| *count > 0) {
            for here in 0..=own.min(extra) {
                let others = choose.ln(queues.saturating_sub(own), extra - here);
                let share = choose.ln(own, here) + others - choose.ln(queues, extra);
                let expected = f64::from(count) * share.exp();
                let jobs = f64::from(each) * f64::from(own) + f64::from(here);
                if jobs > 0.0 && expected > 0.0 {
                    threads.push((jobs, expected));
                }
            }
        }
        Self { threads }
    }

    /// How many iothreads have a job, on average.
    pub fn busy(&self) -> f64 {
        self.threads.iter().map(|(_, expected)| expected).sum()
    }
}

/// In how many ways some of many can be taken, as logarithms: the numbers are too large for queues of many disks.
struct Choose {
    ln_factorials: Vec<f64>,
}

impl Choose {
    fn up_to(most: u16) -> Self {
        let mut ln_factorials = vec![0.0];
        let mut sum = 0.0;
        for number in 1..=most {
            sum += f64::from(number).ln();
            ln_factorials.push(sum);
        }
        Self { ln_factorials }
    }

    /// Of `k` of `n`; there are none if `n` is less.
    fn ln(&self, n: u16, k: u16) -> f64 {
        let of = |number: u16| self.ln_factorials[usize::from(number)];
        n.checked_sub(k).map_or(f64::NEG_INFINITY, |left| of(n) - of(k) - of(left))
    }
}

/// The parameters of the network. Times in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Network {
    /// CPU time of an iothread for a request, alone.
    pub service_s: f64,
    /// How long a request is neither with an iothread nor waiting for one.
    pub away_s: f64,
    /// CPU time of a job for a request; 0 if that is no bound.
    pub submit_s: f64,
    /// How much dearer a request becomes with each further busy iothread, and with each pair of them: shares.
    pub contention: f64,
    /// See `contention`.
    pub coherence: f64,
    /// A request costs (requests of its iothread, by those of a reference) to the power of minus that: batches.
    pub batching: f64,
    /// Requests of one iothread at which `service_s` holds.
    pub batch: f64,
    /// Requests per second that all have at most.
    pub ceiling: f64,
}

impl Network {
    /// Requests per second of jobs that keep `iodepth` requests in flight each.
    pub fn iops(&self, landing: &Landing, iodepth: f64) -> f64 {
        let busy = landing.busy().max(1.0);
        let slower = 1.0 + (busy - 1.0) * (self.contention + self.coherence * busy);
        let thread = |jobs: f64| {
            let requests = jobs * iodepth;
            let batched = (requests / self.batch).powf(-self.batching);
            let served = closed(requests, self.service_s * slower * batched, self.away_s);
            if self.submit_s > 0.0 { lower(served, jobs / self.submit_s) } else { served }
        };
        let all = landing.threads.iter().map(|&(jobs, expected)| expected * thread(jobs)).sum();
        lower(all, self.ceiling)
    }
}

/// The throughput of so many requests that take turns at one server and then spend `away` elsewhere.
pub fn closed(requests: f64, service: f64, away: f64) -> f64 {
    // x·(away + service·(1 + (n−1)/n·q)) = n and q = n − x·away give a quadratic for x.
    let others = (requests - 1.0).max(0.0) / requests;
    let (a, b) = (others * service * away, away + service * (1.0 + others * requests));
    2.0 * requests / (b + (b * b - 4.0 * a * requests).max(0.0).sqrt())
}

/// Nearly the lower one of two positive numbers: bounds meet in a bend, not in a corner.
pub fn lower(a: f64, b: f64) -> f64 {
    let (low, high) = (a.min(b), a.max(b));
    low / (1.0 + (low / high).powi(SHARPNESS)).powf(1.0 / f64::from(SHARPNESS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_jobs_hit_fewer_than_four_threads_until_there_is_one_per_queue() {
        for (threads, expected) in
            [(1, 1.0), (4, 2.91), (6, 3.33), (8, 3.60), (12, 3.80), (16, 4.0), (20, 4.0)]
        {
            let busy = Landing::new(4, 16, threads).busy();
            assert!((busy - expected).abs() < 0.005, "{threads} threads: {busy}");
        }
    }

    #[test]
    fn no_job_is_lost() {
        for (jobs, queues, threads) in [
            (1, 16, 3),
            (4, 16, 6),
            (16, 16, 12),
            (20, 16, 4),
            (8, 4, 3),
            (1024, 256, 200),
            (3, 1, 9),
            (5000, 4096, 3),
            (2000, 4096, 1),
        ] {
            let landing = Landing::new(jobs, queues, threads);
            let sum: f64 = landing.threads.iter().map(|(jobs, expected)| jobs * expected).sum();
            assert!((sum / f64::from(jobs) - 1.0).abs() < 1e-9, "{jobs} {queues} {threads}: {sum}");
        }
    }

    #[test]
    fn a_closed_system_keeps_its_asymptotes() {
        assert!((closed(1.0, 2e-6, 8e-6) - 1e5).abs() < 1e-6, "one request waits for nobody");
        for n in 1..50_u16 {
            let n = f64::from(n);
            let x = closed(n, 3e-6, 80e-6);
            assert!(x <= (n / 83e-6).min(1.0 / 3e-6) + 1e-6 && x >= n / (80e-6 + n * 3e-6) - 1e-6);
        }
    }

    #[test]
    fn the_lowest_bound_rules() {
        let network = Network {
            service_s: 5e-6,
            away_s: 50e-6,
            submit_s: 0.0,
            contention: 0.0,
            coherence: 0.0,
            batching: 0.0,
            batch: 64.0,
            ceiling: 1e9,
        };
        let at = |network: Network, n| network.iops(&Landing::new(4, 16, n), 16.0);
        assert!((at(network, 1) / 2e5 - 1.0).abs() < 0.02, "the thread");
        assert!((at(Network { ceiling: 1e5, ..network }, 16) / 1e5 - 1.0).abs() < 0.01);
        let guest = Network { submit_s: 40e-6, ..network };
        assert!((at(guest, 16) / 1e5 - 1.0).abs() < 0.01, "the CPUs of four jobs");
        assert!(at(Network { contention: 0.1, ..network }, 4) < at(network, 4));
    }
}
