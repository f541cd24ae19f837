//! A machine, solved: what each disk gets on each iothread, for a placement that stays for a while.
//!
//! Invariants: pure. Iothreads serve the disks on them in turns of equal time, and the rings of a disk evenly.
//! Limits: queues in equilibrium, rings of a disk alike; nothing happens between two windows.

use std::collections::BTreeMap;

use crate::parameters::{Op, Parameters, closed, lower};

/// What a guest does with its disk.
#[derive(Clone, Debug, PartialEq)]
pub struct Load {
    /// What the requests do.
    pub op: Op,
    /// Length of a request.
    pub bytes: f64,
    /// Requests that each busy queue has in flight, at least 1.
    pub depth: f64,
    /// The queues that are busy.
    pub queues: Vec<u16>,
    /// How much the gains of more iothreads differ from the machine's: an exponent of them, usually 1.
    pub gain_exponent: f64,
}

/// What a disk gets on one iothread.
#[derive(Clone, Copy, Debug, Default)]
pub struct Share {
    /// Requests per microsecond.
    pub rate: f64,
    /// How much of the iothread it uses.
    pub usage: f64,
    /// Requests with us on average.
    pub open: f64,
    /// Requests that wait because the iothread serves other rings.
    pub wait_for_others: f64,
    /// How many of its rings are there.
    pub rings: usize,
}

/// What a disk does, if anything, and the iothread of each of its queues.
pub type DiskOnThreads<'a> = (Option<&'a Load>, &'a dyn Fn(u16) -> u16);

/// What a disk gets, by iothread.
pub type Shares = BTreeMap<u16, Share>;

/// Requests per microsecond of a disk.
pub fn rate(shares: &Shares) -> f64 {
    shares.values().map(|it| it.rate).sum()
}

/// Microseconds of polling after a request, before the iothread sleeps.
const POLL_US: f64 = 60.0;

/// How much an iothread looks for work, if it does that much and so many requests per microsecond.
pub fn polling(usage: f64, rate: f64) -> f64 {
    (1.0 - usage).max(0.0) * (rate * POLL_US).min(1.0)
}

/// CPUs that these shares cost, polling included.
pub fn cpus(disks: &[Shares]) -> f64 {
    let mut threads: BTreeMap<u16, (f64, f64)> = BTreeMap::new();
    for (thread, share) in disks.iter().flatten() {
        let sum = threads.entry(*thread).or_default();
        (sum.0, sum.1) = (sum.0 + share.usage, sum.1 + share.rate);
    }
    threads.values().map(|(usage, rate)| usage + polling(*usage, *rate)).sum()
}

/// A disk on an iothread.
#[derive(Clone, Copy, Debug)]
struct Class {
    disk: usize,
    rings: usize,
    requests: f64,
    service: f64,
    away: f64,
    rate: f64,
}

/// What is left for each, if nobody gets more than it wants: max-min.
pub fn water_fill(wants: &[f64], capacity: f64) -> Vec<f64> {
    let mut order: Vec<usize> = (0..wants.len()).collect();
    order.sort_by(|a, b| wants[*a].total_cmp(&wants[*b]));
    let (mut left, mut given) = (capacity, vec![0.0; wants.len()]);
    for (done, at) in order.iter().enumerate() {
        given[*at] = wants[*at].min(left / (wants.len() - done) as f64);
        left -= given[*at];
    }
    given
}

/// What each disk gets, for each the load (if any) and the iothread of each queue.
pub fn solve(p: &Parameters, disks: &[DiskOnThreads<'_>]) -> Vec<Shares> {
    let mut on: BTreeMap<u16, Vec<Class>> = BTreeMap::new();
    for (disk, (load, place)) in disks.iter().enumerate() {
        let Some(load) = load else { continue };
        let mut rings: BTreeMap<u16, usize> = BTreeMap::new();
        for queue in &load.queues {
            *rings.entry(place(*queue)).or_default() += 1;
        }
        let service = p.service(load.op, load.bytes, load.depth) * p.crowding(rings.len());
        let away = p.away(load.op, load.bytes);
        for (thread, count) in rings {
            let requests = count as f64 * load.depth;
            let class = Class { disk, rings: count, requests, service, away, rate: 0.0 };
            on.entry(thread).or_default().push(class);
        }
    }
    for classes in on.values_mut() {
        share_thread(classes, p.guest_us);
    }
    let factors = ceilings(p, disks, &on);
    let mut out = vec![Shares::new(); disks.len()];
    for (thread, classes) in &on {
        let busy: f64 = classes.iter().map(|it| it.rate * factors[it.disk] * it.service).sum();
        for class in classes {
            let share =
                share_of(class, factors[class.disk], busy.min(0.98), classes.len(), p.guest_us);
            out[class.disk].insert(*thread, share);
        }
    }
    out
}

/// What the disks on an iothread get, before anything else limits them.
fn share_thread(classes: &mut [Class], guest_us: f64) {
    let limit = |it: &Class, rate: f64| lower(rate, it.rings as f64 / guest_us);
    if let [class] = classes {
        class.rate = limit(class, closed(class.requests, class.service, class.away));
        return;
    }
    let alone = |it: &Class| limit(it, closed(it.requests, it.service, it.away)) * it.service;
    let wants: Vec<f64> = classes.iter().map(alone).collect();
    let fair = water_fill(&wants, 1.0);
    let all: f64 = fair.iter().sum();
    for (class, fair) in classes.iter_mut().zip(&fair) {
        let others = all - fair;
        let slowed = closed(class.requests, class.service * (1.0 + 0.5 * others), class.away);
        let most = fair.max(1.0 - others) / class.service;
        class.rate = limit(class, lower(slowed, most));
    }
}

/// How much of what its iothreads could do each disk may do: bandwidth, CPUs, and its own curve.
fn ceilings(
    p: &Parameters,
    disks: &[DiskOnThreads<'_>],
    on: &BTreeMap<u16, Vec<Class>>,
) -> Vec<f64> {
    let mut totals = vec![0.0; disks.len()];
    for class in on.values().flatten() {
        totals[class.disk] += class.rate;
    }
    let wanted_cpus = guest_cpus(disks) + on.len() as f64;
    let by_cpus = (p.cpus / wanted_cpus).min(1.0);
    let factor = |(total, (load, _)): (&f64, &DiskOnThreads<'_>)| {
        let (Some(load), true) = (load, *total > 0.0) else { return 1.0 };
        let ceiling = p.ceiling(load.op, load.bytes);
        let factor = lower(*total, ceiling) / total * by_cpus;
        if load.gain_exponent == 1.0 {
            return factor;
        }
        let service = p.service(load.op, load.bytes, load.depth);
        let requests = load.depth * load.queues.len() as f64;
        let one = closed(requests, service, p.away(load.op, load.bytes));
        let one = lower(lower(one, load.queues.len() as f64 / p.guest_us), ceiling);
        factor * (total * factor / one).powf(load.gain_exponent - 1.0)
    };
    totals.iter().zip(disks).map(factor).collect()
}

/// CPUs that guests want: one for each busy queue, up to 16 for a guest.
pub fn guest_cpus(disks: &[DiskOnThreads<'_>]) -> f64 {
    disks.iter().filter_map(|it| it.0).map(|it| it.queues.len().min(16) as f64).sum()
}

fn share_of(class: &Class, factor: f64, busy: f64, classes: usize, guest_us: f64) -> Share {
    let rate = class.rate * factor;
    let service = class.service;
    let seen = if classes == 1 { busy * (class.requests - 1.0) / class.requests } else { busy };
    let mut response = service / (1.0 - seen).max(0.02);
    if factor > 0.99 && classes > 1 {
        response = (class.requests / rate - class.away).max(service);
    }
    let open = (class.requests - rate * guest_us).max(rate * service);
    let waiting = (rate * (response - service)).min(0.998 * open);
    let share = (rate * service / class.rings as f64 / busy.max(1e-9)).min(1.0);
    Share {
        rate,
        usage: (rate * service).min(1.0),
        open,
        wait_for_others: waiting * (1.0 - share),
        rings: class.rings,
    }
}
