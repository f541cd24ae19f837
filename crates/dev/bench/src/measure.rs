//! One sample of one server under one load.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use load::{Continuation, Latency, Timing, Watch};

use crate::counters::{SystemCalls, cpu_ns};
use crate::cpus::ProcessCpus;
use crate::results::Metric;
use crate::rows::{Client, Load};
use crate::server::{Program, Server, Service};

/// The values of a sample.
pub(crate) type Values = BTreeMap<Metric, f64>;

/// What is read besides the requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Counting {
    CpuTime,
    /// Counting slows every system call down: in a pass of its own.
    SystemCalls,
}

/// The time before the window: caches, allocators and polling settle.
pub(crate) fn timing(runtime: Duration) -> Timing {
    Timing { ramp: (runtime / 4).min(Duration::from_millis(500)), runtime }
}

/// Starts the server, loads its first export, stops it.
pub(crate) fn serve(
    program: &Program,
    service: &Service<'_>,
    load: &Load,
    cpus: &ProcessCpus,
    timing: Timing,
    counting: Counting,
) -> Result<Values> {
    let mut server = program.start(service, cpus)?;
    let result = load_server(&mut server, load, timing, counting);
    server.stop()?;
    result
}

fn load_server(
    server: &mut Server,
    load: &Load,
    timing: Timing,
    counting: Counting,
) -> Result<Values> {
    let connection = server.connect(0, &load.workload(load.disk.bytes()))?;
    let mut meter = Meter::new(server.pid(), counting);
    let sample = match load.client {
        Client::Polling => connection.spin(timing, &mut meter),
        Client::Sleeping => connection.run(timing, &mut meter),
        Client::Arrivals { per_second } => connection.arrive(per_second, timing, &mut meter),
    }?;
    let mut values = values_of(&sample);
    if counting == Counting::SystemCalls {
        // Too slow to count as anything else.
        values.clear();
    }
    if sample.operations > 0 {
        let per_request = |count: u64| as_f64(count) / as_f64(sample.operations);
        let metric = match counting {
            Counting::CpuTime => Metric::CpuNsPerRequest,
            Counting::SystemCalls => Metric::SyscallsPerRequest,
        };
        values.extend(meter.counted.map(|count| (metric, per_request(count))));
    }
    Ok(values)
}

/// Throughput and latency of a load's sample.
pub(crate) fn values_of(sample: &load::Sample) -> Values {
    let mut values = percentiles(&sample.latency);
    values.insert(Metric::RequestsPerS, as_f64(sample.operations) / sample.elapsed.as_secs_f64());
    values
}

/// The percentiles that are shown.
pub(crate) fn percentiles(latency: &Latency) -> Values {
    let mut values = Values::new();
    for (metric, percent) in [(Metric::P50Us, 50.0), (Metric::P99Us, 99.0)] {
        let latency = latency.percentile(percent);
        values.extend(latency.map(|latency| (metric, latency.as_secs_f64() * 1e6)));
    }
    values
}

/// Counters are far below 2^52, where doubles lose whole numbers.
pub(crate) fn as_f64(count: u64) -> f64 {
    let high = u32::try_from(count >> 32).expect("the upper half of 64 bits");
    let low = u32::try_from(count & u64::from(u32::MAX)).expect("masked to 32 bits");
    f64::from(high) * 4_294_967_296.0 + f64::from(low)
}

/// Reads a counter of the server when the window opens and when it closes.
struct Meter {
    pid: u32,
    counting: Counting,
    calls: Option<SystemCalls>,
    opened: Option<u64>,
    counted: Option<u64>,
}

impl Meter {
    fn new(pid: u32, counting: Counting) -> Self {
        let calls = match counting {
            Counting::CpuTime => None,
            Counting::SystemCalls => SystemCalls::of(pid),
        };
        Self { pid, counting, calls, opened: None, counted: None }
    }

    fn read(&mut self) -> Option<u64> {
        match self.counting {
            Counting::CpuTime => cpu_ns(self.pid),
            Counting::SystemCalls => self.calls.as_mut()?.count(),
        }
    }
}

impl Watch for Meter {
    fn window_opens(&mut self) {
        self.opened = self.read();
    }

    fn window_closes(&mut self) {
        let opened = self.opened;
        self.counted = self.read().and_then(|now| Some(now.saturating_sub(opened?)));
    }

    fn tick(&mut self) -> Continuation {
        Continuation::GoOn // A load on a dead server ends by its own limit.
    }

    fn second(&mut self, _: &load::Interval) {}

    fn fifth(&mut self, _: &load::Fifth) {}
}
