//! All gauges at one moment as a line of JSON, for programs that watch a daemon (`--gauges-fd`).
//!
//! Where it stands: beside the request path. It reads what iothreads, queues and pools count anyway. What each field means
//! is in docs/gauges.md, which a test holds against this file.
//!
//! Invariants: counters only grow as long as what they belong to lives, so whoever misses lines loses no sums.
//! Threads: the one that asks.

use std::collections::BTreeMap;
use std::time::Duration;

use block::nanoseconds;
use iothread::{Iothread, PlacedSource};
use request_path::Counters;
use serde::Serialize;

use crate::DaemonState;
use crate::placer::{PlacedPool, PoolExport};

/// The form of the lines: another number when a field changes its meaning or goes.
const FORMAT: u32 = 1;

#[derive(Debug, Serialize)]
struct Line<'a> {
    format: u32,
    at_s: f64,
    iothreads: Vec<IothreadGauges<'a>>,
    queues: Vec<QueueGauges<'a>>,
    disks: Vec<DiskGauges<'a>>,
    pools: Vec<PoolGauges<'a>>,
}

#[derive(Debug, Serialize)]
struct IothreadGauges<'a> {
    name: &'a str,
    queues: usize,
    work_ns: u64,
    poll_ns: u64,
    sleep_ns: u64,
    rounds: u64,
    polls: u64,
    sleeps: u64,
    cpu_ns: Option<u64>,
    run_delay_ns: Option<u64>,
}

#[derive(Debug, Serialize)]
struct QueueGauges<'a> {
    export: &'a str,
    queue: u16,
    iothread: String,
    reads: u64,
    writes: u64,
    flushes: u64,
    discards: u64,
    write_zeroes: u64,
    errors: u64,
    read_bytes: u64,
    written_bytes: u64,
    in_flight: u64,
    moves: u64,
    move_ns: u64,
    turns: u64,
    turns_cut: u64,
    turn_ns: u64,
    open_ns: u64,
    take_wait_ns: u64,
    answer_wait_ns: u64,
    /// From, to, and how many requests.
    latency_ns: Vec<(u64, u64, u64)>,
}

#[derive(Debug, Default, Serialize)]
struct DiskGauges<'a> {
    export: &'a str,
    queues: usize,
    requests: u64,
    bytes: u64,
    in_flight: u64,
    moves: u64,
    placement: Option<DiskPlacement<'a>>,
}

#[derive(Debug, Serialize)]
struct DiskPlacement<'a> {
    pool: &'a str,
    iothreads: Option<usize>,
    gain_max: Option<f64>,
    trying: bool,
    tries: Option<usize>,
    gain_predicted: Option<f64>,
    note: Option<&'a str>,
}

#[derive(Debug, Serialize)]
struct PoolGauges<'a> {
    name: &'a str,
    max: usize,
    mode: &'static str,
    iothreads: Vec<String>,
    disks: usize,
}

impl DaemonState {
    /// All gauges now, as one line of JSON with its end. `at` is the time since the daemon began to serve.
    ///
    /// # Panics
    /// Never: the line has nothing that JSON has not.
    pub fn gauges_line(&self, at: Duration) -> String {
        let (iothreads, sources) = (self.iothreads(), self.sources());
        let queues: Vec<_> = sources.iter().map(|it| QueueGauges::of(it)).collect();
        let pools: Vec<(&PlacedPool, Vec<PoolExport>)> =
            self.pools().map(|pool| (pool, pool.exports())).collect();
        let mut disks = BTreeMap::new();
        for queue in &queues {
            let disk = disks.entry(queue.export).or_insert_with(|| DiskGauges {
                export: queue.export,
                placement: pools.iter().find_map(|it| placement(it, queue.export)),
                ..DiskGauges::default()
            });
            disk.add(queue);
        }
        let served_by = |name: &str| queues.iter().filter(|queue| queue.iothread == name).count();
        let line = Line {
            format: FORMAT,
            at_s: at.as_secs_f64(),
            iothreads: iothreads
                .iter()
                .map(|it| IothreadGauges::of(it, served_by(it.name())))
                .collect(),
            disks: disks.into_values().collect(),
            pools: pools.iter().map(|(pool, exports)| PoolGauges::of(pool, exports)).collect(),
            queues,
        };
        let mut text = serde_json::to_string(&line).expect("names and numbers");
        text.push('\n');
        text
    }
}

fn placement<'a>(
    (pool, exports): &'a (&PlacedPool, Vec<PoolExport>),
    export: &str,
) -> Option<DiskPlacement<'a>> {
    let PoolExport { iothreads, gain_max, is_trying, trial, note, .. } =
        exports.iter().find(|it| it.name == export)?;
    Some(DiskPlacement {
        pool: pool.pool().name(),
        iothreads: *iothreads,
        gain_max: *gain_max,
        trying: *is_trying,
        tries: trial.map(|(iothreads, _)| iothreads),
        gain_predicted: trial.map(|(_, gain)| gain),
        note: note.as_deref(),
    })
}

impl<'a> IothreadGauges<'a> {
    fn of(iothread: &'a Iothread, queues: usize) -> Self {
        let (gauges, times) = (iothread.usage().gauges(), iothread.usage().thread_times());
        Self {
            name: iothread.name(),
            queues,
            work_ns: gauges.work_ns.get(),
            poll_ns: gauges.poll_ns.get(),
            sleep_ns: gauges.sleep_ns.get(),
            rounds: gauges.rounds.get(),
            polls: gauges.polls.get(),
            sleeps: gauges.sleeps.get(),
            cpu_ns: times.map(|it| nanoseconds(it.cpu)),
            run_delay_ns: times.map(|it| nanoseconds(it.run_delay)),
        }
    }
}

impl<'a> QueueGauges<'a> {
    fn of(source: &'a PlacedSource) -> Self {
        let (name, gauges) = (source.name(), source.gauges());
        let Counters {
            reads,
            writes,
            flushes,
            discards,
            write_zeroes,
            errors,
            read_bytes,
            written_bytes,
        } = gauges.counters();
        let bucket = |(from, to, count)| (nanoseconds(from), nanoseconds(to), count);
        Self {
            export: &name.export,
            queue: name.queue,
            iothread: source.iothread_name(),
            reads,
            writes,
            flushes,
            discards,
            write_zeroes,
            errors,
            read_bytes,
            written_bytes,
            in_flight: gauges.in_flight.get(),
            moves: gauges.moves.get(),
            move_ns: gauges.move_ns.get(),
            turns: gauges.turns.get(),
            turns_cut: gauges.turns_cut.get(),
            turn_ns: gauges.turn_ns.get(),
            open_ns: gauges.open_ns.get(),
            take_wait_ns: gauges.take_wait_ns.get(),
            answer_wait_ns: gauges.answer_wait_ns.get(),
            latency_ns: gauges.latency.buckets().map(bucket).collect(),
        }
    }

    fn requests(&self) -> u64 {
        self.reads + self.writes + self.flushes + self.discards + self.write_zeroes
    }
}

impl<'a> DiskGauges<'a> {
    fn add(&mut self, queue: &QueueGauges<'a>) {
        self.queues += 1;
        self.requests += queue.requests();
        self.bytes += queue.read_bytes + queue.written_bytes;
        self.in_flight += queue.in_flight;
        self.moves += queue.moves;
    }
}

impl<'a> PoolGauges<'a> {
    fn of(pool: &'a PlacedPool, exports: &[PoolExport]) -> Self {
        let mode = pool.mode().word();
        let pool = pool.pool();
        let iothreads = pool.running().iter().map(|(_, it)| it.name().to_owned()).collect();
        Self { name: pool.name(), max: pool.slots(), mode, iothreads, disks: exports.len() }
    }
}
