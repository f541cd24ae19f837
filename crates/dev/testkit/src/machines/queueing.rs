//! A disk behind iothreads as a network of queues: jobs, rings, threads, and a device that serves many requests at once.
//!
//! Each thread is a closed system of its own: the requests of the jobs that landed on it either wait for that thread or
//! are at the device (a delay). Its throughput is the approximation of Bard and Schweitzer, exact for one request. All
//! threads together are bounded by the device and its bandwidth; where more threads are busy than there are
//! cores, all slow down.
//!
//! Limits: one guest with one queue per virtual CPU; threads do not share work.

use super::chance::{between, between_octaves, one_of};
use super::landing::landings;
use super::{Ask, Busy, Limit, Load, Outcome, Subject};
use crate::rng::Rng;

/// How sharply two bounds meet: the higher, the sharper.
const SHARPNESS: i32 = 8;
/// An iothread with nothing to do looks for requests in this share of the time.
const LOOKS: f64 = 0.3;
/// A sequential request finds its data read ahead, or its place at hand: this share of the latency.
const SEQUENTIAL: f64 = 0.4;
/// How many times as fast a spinning disk is where the head stays.
const SPINNING_SEQUENTIAL: f64 = 0.02;

/// What kind of disk it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Media {
    /// NVMe flash.
    Nvme,
    /// Flash behind SATA.
    Ssd,
    /// A volume across a network.
    Network,
    /// A spinning disk.
    Spinning,
}

/// The parameters of the network. Times in seconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Queueing {
    media: Media,
    /// Of the host.
    cores: u16,
    /// Queues of the disk, one per virtual CPU.
    queues: u16,
    /// Of the device, for a small request.
    latency_s: f64,
    /// What a write takes of that.
    write_share: f64,
    /// Requests that the device serves at once.
    parallel: f64,
    /// Bytes per second.
    bandwidth: f64,
    /// CPU time of an iothread for a request.
    service_s: f64,
    /// How much slower the main thread is, which does not poll: at least 1.
    none_slower: f64,
    /// How long the main thread takes to wake up.
    wake_s: f64,
    /// CPU time of a job for a request: in the guest, on the host.
    submit_s: f64,
    host_submit_s: f64,
    /// How much is lost to too few cores: 0 nothing, 1 as much as is missing.
    contention: f64,
}

impl Queueing {
    /// A machine with a disk of this kind, its parameters drawn from a plausible range.
    pub fn new(media: Media, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let r = &mut rng;
        let (latency_s, parallel, bandwidth) = match media {
            Media::Nvme => {
                (between(r, 60e-6, 110e-6), between(r, 40.0, 128.0), between(r, 3e9, 7e9))
            }
            Media::Ssd => (between(r, 90e-6, 180e-6), between(r, 8.0, 16.0), 0.53e9),
            Media::Network => {
                (between_octaves(r, 0.3e-3, 1.2e-3), between(r, 48.0, 256.0), between(r, 1e9, 3e9))
            }
            Media::Spinning => (between(r, 4e-3, 10e-3), between(r, 1.0, 2.0), 0.2e9),
        };
        Self {
            media,
            cores: one_of(r, &[16, 20, 24, 32, 48]),
            queues: 16,
            latency_s,
            write_share: between(r, 0.2, 1.0),
            parallel,
            bandwidth,
            service_s: between_octaves(r, 2.5e-6, 10e-6),
            none_slower: between(r, 1.1, 2.5),
            wake_s: between(r, 5e-6, 30e-6),
            submit_s: between(r, 3e-6, 10e-6),
            host_submit_s: between(r, 1.5e-6, 4e-6),
            contention: between(r, 0.4, 1.0),
        }
    }

    /// Where the jobs may land, and the throughput of each.
    pub(super) fn outcomes(&self, subject: Subject, iothreads: u16, load: Load) -> Vec<Outcome> {
        if subject == Subject::Host {
            return vec![Outcome { probability: 1.0, iops: self.host(load) }];
        }
        let threads = iothreads.max(1);
        let all = landings(load.jobs, self.queues, threads).into_iter();
        all.map(|landing| {
            let on_threads = landing.jobs.iter().map(|&jobs| self.thread(jobs, iothreads, load));
            let busy = landing.jobs.iter().filter(|&&jobs| jobs > 0).count();
            let iops = self.bounded(on_threads.sum(), load) * self.crowding(busy, load);
            Outcome { probability: landing.probability, iops }
        })
        .collect()
    }

    /// CPU time per request of what serves the disk, in µs: the requests, and looking for them in vain.
    pub(super) fn cpu_us(&self, ask: &Ask, iops: f64) -> f64 {
        let (service, threads) = match (ask.subject, ask.iothreads) {
            (Subject::Host, _) => (self.host_submit_s, 0.0),
            (Subject::Vm, 0) => (self.service_s * self.none_slower, 0.0),
            (Subject::Vm, n) => (self.service_s, f64::from(n.min(ask.load.jobs))),
        };
        let idle = (threads - iops * service).max(0.0);
        1e6 * (service + LOOKS * idle / iops)
    }

    /// How busy threads and CPUs are.
    pub(super) fn busy(&self, ask: &Ask, iops: f64) -> Busy {
        let (jobs, cores) = (f64::from(ask.load.jobs.min(self.queues)), f64::from(self.cores));
        let (serving, busiest, submit_s) = match ask.subject {
            Subject::Host => (0.0, 0.0, self.host_submit_s),
            Subject::Vm => {
                (self.cpu_us(ask, iops) * 1e-6 * iops, self.busiest(ask, iops), self.submit_s)
            }
        };
        let submitting = iops * submit_s;
        let threads = usize::from(ask.iothreads.max(1).min(ask.load.jobs));
        // Where threads wait for a core, none is free.
        let is_crowded = ask.subject == Subject::Vm && self.crowding(threads, ask.load) < 1.0;
        let cpus = if is_crowded { cores } else { (serving + submitting).min(cores) };
        let submitting = (submitting / jobs).min(1.0);
        Busy { serving: busiest, submitting, cpus, cores: self.cores }
    }

    /// How busy the busiest of the threads is, on average over where the jobs may land.
    fn busiest(&self, ask: &Ask, iops: f64) -> f64 {
        let slower = if ask.iothreads == 0 { self.none_slower } else { 1.0 };
        let most = |jobs: &[u16]| f64::from(jobs.iter().copied().max().unwrap_or(0));
        let all = landings(ask.load.jobs, self.queues, ask.iothreads.max(1)).into_iter();
        let share: f64 = all.map(|it| it.probability * most(&it.jobs)).sum();
        let serves = (iops * self.service_s * slower * share / f64::from(ask.load.jobs)).min(1.0);
        let looks = if ask.iothreads == 0 { 0.0 } else { LOOKS };
        serves + looks * (1.0 - serves)
    }

    /// What a quarter more of each thing brings.
    pub(super) fn limits(&self, iothreads: u16, load: Load) -> Vec<(Limit, f64)> {
        const MORE: f64 = 1.25;
        let mean = |machine: &Self, load: Load| -> f64 {
            let all = machine.outcomes(Subject::Vm, iothreads, load);
            all.iter().map(|it| it.probability * it.iops).sum()
        };
        let now = mean(self, load);
        let with = |machine: Self| mean(&machine, load) / now - 1.0;
        let own = self.clone();
        let disk = Self {
            parallel: self.parallel * MORE,
            bandwidth: self.bandwidth * MORE,
            // A request takes no less time.
            latency_s: self.latency_s + f64::from(load.bytes) / self.bandwidth * (1.0 - 1.0 / MORE),
            ..own.clone()
        };
        let service = Self { service_s: self.service_s / MORE, ..own.clone() };
        let submit = Self { submit_s: self.submit_s / MORE, ..own.clone() };
        let cores = Self { cores: self.cores + self.cores / 4, ..own };
        // A depth is a whole number, so what four times as many bring is broken down.
        let deeper = mean(self, Load { iodepth: load.iodepth * 4, ..load }) / now;
        vec![
            (Limit::Disk, with(disk)),
            (Limit::InFlight, MORE.powf(deeper.ln() / 4.0_f64.ln()) - 1.0),
            (Limit::Iothread, with(service)),
            (Limit::GuestCpu, with(submit)),
            (Limit::HostCpu, with(cores)),
        ]
    }

    fn host(&self, load: Load) -> f64 {
        let job = closed(f64::from(load.iodepth), self.host_submit_s, self.latency(load));
        self.bounded(f64::from(load.jobs) * job, load)
    }

    /// The throughput of one thread with so many jobs.
    fn thread(&self, jobs: u16, iothreads: u16, load: Load) -> f64 {
        let (service, wake) = match iothreads {
            0 => (self.service_s * self.none_slower, self.wake_s),
            _ => (self.service_s, 0.0),
        };
        let requests = f64::from(jobs) * f64::from(load.iodepth);
        let served = closed(requests, service, self.latency(load) + self.submit_s + wake);
        // A job is one virtual CPU, and no CPU submits more than it has time for.
        lower(served, f64::from(jobs) / self.submit_s)
    }

    /// All threads together get no more than the device gives.
    fn bounded(&self, iops: f64, load: Load) -> f64 {
        let device = self.parallel / self.latency(load);
        lower(lower(iops, device), self.bandwidth / f64::from(load.bytes))
    }

    fn latency(&self, load: Load) -> f64 {
        let kind = match (load.op.is_sequential(), self.media) {
            (false, _) => 1.0,
            (true, Media::Spinning) => SPINNING_SEQUENTIAL,
            (true, Media::Nvme | Media::Ssd | Media::Network) => SEQUENTIAL,
        };
        let write = if load.op.writes() { self.write_share } else { 1.0 };
        self.latency_s * kind * write + f64::from(load.bytes) / self.bandwidth
    }

    /// The share that is left where busy threads and virtual CPUs want more cores than there are. Idle threads sleep.
    fn crowding(&self, busy: usize, load: Load) -> f64 {
        let wanted = f64::from(load.jobs.min(self.queues)) + busy as f64;
        (f64::from(self.cores) / wanted).min(1.0).powf(self.contention)
    }
}

/// The throughput of so many requests that take turns at one server and then spend `away_s` elsewhere.
fn closed(requests: f64, service_s: f64, away_s: f64) -> f64 {
    if requests <= 0.0 {
        return 0.0;
    }
    // x·(away + service·(1 + (n−1)/n·q)) = n and q = n − x·away give a quadratic for x.
    let others = (requests - 1.0) / requests;
    let a = others * service_s * away_s;
    let b = away_s + service_s * (1.0 + others * requests);
    if a == 0.0 {
        return requests / b;
    }
    2.0 * requests / (b + (b * b - 4.0 * a * requests).max(0.0).sqrt())
}

/// Nearly the lower one: bounds meet in a bend, not in a corner.
fn lower(a: f64, b: f64) -> f64 {
    if a <= 0.0 {
        return 0.0;
    }
    let (low, high) = (a.min(b), a.max(b));
    low / (1.0 + (low / high).powi(SHARPNESS)).powf(1.0 / f64::from(SHARPNESS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machines::{COUNTS, Op};

    fn load(op: Op, bytes: u32, jobs: u16, iodepth: u16) -> Load {
        Load { op, bytes, jobs, iodepth }
    }

    fn mean(machine: &Queueing, n: u16, load: Load) -> f64 {
        let all = machine.outcomes(Subject::Vm, n, load);
        all.iter().map(|it| it.probability * it.iops).sum()
    }

    #[test]
    fn a_closed_system_keeps_its_asymptotes() {
        assert!((closed(1.0, 2e-6, 8e-6) - 1e5).abs() < 1e-6, "one request waits for nobody");
        let many = closed(1000.0, 2e-6, 8e-6);
        assert!(many <= 5e5 && many > 4.9e5, "the server is the bound: {many}");
        for n in 1..50_u16 {
            let n = f64::from(n);
            let x = closed(n, 3e-6, 80e-6);
            assert!(x <= (n / 83e-6).min(1.0 / 3e-6) + 1e-6 && x >= n / (80e-6 + n * 3e-6) - 1e-6);
        }
    }

    #[test]
    fn one_job_gains_nothing_beyond_one_thread() {
        for seed in 0..50 {
            let machine = Queueing { cores: 64, ..Queueing::new(Media::Nvme, seed) };
            let load = load(Op::RandomRead, 4096, 1, 16);
            let one = mean(&machine, 1, load);
            assert!(one > mean(&machine, 0, load), "none is slower");
            for n in COUNTS.into_iter().skip(2) {
                assert!((mean(&machine, n, load) / one - 1.0).abs() < 1e-9, "{n}");
            }
        }
    }

    #[test]
    fn four_jobs_gain_until_every_queue_has_its_thread() {
        for seed in 0..50 {
            let machine = Queueing {
                cores: 64,
                parallel: 1e4,
                bandwidth: 1e12,
                service_s: 8e-6,
                ..Queueing::new(Media::Nvme, seed)
            };
            let load = load(Op::RandomRead, 4096, 4, 16);
            let iops = [1, 4, 8, 16].map(|n| mean(&machine, n, load));
            assert!(iops.windows(2).all(|pair| pair[1] > pair[0]), "{seed}: {iops:?}");
        }
    }

    #[test]
    fn too_few_cores_make_the_curve_fall_again() {
        let machine = Queueing { cores: 20, ..Queueing::new(Media::Nvme, 1) };
        let load = load(Op::RandomRead, 4096, 16, 4);
        assert!(mean(&machine, 16, load) < mean(&machine, 4, load));
    }

    #[test]
    fn large_blocks_and_slow_disks_need_no_iothread() {
        for seed in 0..50 {
            for (media, load, within) in [
                (Media::Nvme, load(Op::Read, 1 << 20, 4, 16), 0.02),
                (Media::Spinning, load(Op::RandomRead, 4096, 4, 16), 0.01),
            ] {
                let machine = Queueing { cores: 64, ..Queueing::new(media, seed) };
                let (none, four) = (mean(&machine, 0, load), mean(&machine, 4, load));
                assert!((four / none - 1.0).abs() < within, "{media:?} {seed}: {none} {four}");
            }
        }
    }

    #[test]
    fn the_host_is_not_slower_than_the_guest() {
        for seed in 0..50 {
            let machine = Queueing::new(Media::Nvme, seed);
            let load = load(Op::RandomWrite, 4096, 16, 16);
            let host = machine.outcomes(Subject::Host, 0, load)[0].iops;
            assert!(COUNTS.iter().all(|&n| mean(&machine, n, load) <= host * 1.001), "{seed}");
        }
    }
}
