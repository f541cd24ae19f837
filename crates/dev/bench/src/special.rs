//! What is no load on one export: idle servers, their memory, the client's own ceiling.

use std::time::Duration;

use anyhow::{Context, Result};
use load::{Continuation, Fifth, Interval, Timing, Watch, loopback};

use crate::clock;
use crate::counters::{anonymous_kib, cpu_ns};
use crate::cpus::ProcessCpus;
use crate::disks::{DISK_BYTES, DiskFile};
use crate::measure::{Values, as_f64, timing, values_of};
use crate::results::Metric;
use crate::rows::{Client, Disk, Load};
use crate::server::{Iothreads, Patient, Program, Service};

const IDLE_EXPORTS: u16 = 8;
const IDLE_RINGS: u16 = 16;
const IDLE_TIME: Duration = Duration::from_secs(10);
/// Until the last poll after the connections is over.
const SETTLE: Duration = Duration::from_millis(500);
/// How long a ring is served before others come, and how long those have the CPU.
const OTHERS_RAMP: Duration = Duration::from_millis(500);
const OTHERS_AFTER: Duration = Duration::from_secs(2);
const OTHERS_TIME: Duration = Duration::from_secs(2);
const MEMORY_RINGS: u16 = 64;
const MEMORY_IOTHREADS: u16 = 4;

fn load(rings: u16, depth: u16) -> Load {
    Load {
        disk: Disk::Null,
        operation: "randread".parse().expect("an operation of fio"),
        block: load::BlockBytes::try_from(4096).expect("a multiple of 512"),
        depth,
        rings,
        client: Client::Polling,
    }
}

/// CPU time while many rings are connected and nothing is to be done.
pub(crate) fn idle(program: &Program, cpus: &ProcessCpus) -> Result<Values> {
    let workload = load(IDLE_RINGS, 1).workload(DISK_BYTES);
    let (exports, queues) = (IDLE_EXPORTS, IDLE_RINGS);
    let service = Service { file: None, exports, queues, iothreads: Iothreads::Fixed(1) };
    let mut server = program.start(&service, cpus)?;
    let connections = (0..exports).map(|export| server.connect(export, &workload));
    let connections = connections.collect::<Result<Vec<_>>>()?;
    clock::pause(SETTLE);
    let before = cpu_ns(server.pid()).context("read the server's CPU time")?;
    clock::pause(IDLE_TIME);
    let after = cpu_ns(server.pid()).context("read the server's CPU time")?;
    drop(connections);
    server.stop()?;
    Ok(Values::from([(Metric::IdleCpuMs, as_f64(after - before) / 1e6)]))
}

/// Anonymous memory after a load on many rings of 256, while they are connected.
pub(crate) fn memory(program: &Program, cpus: &ProcessCpus, runtime: Duration) -> Result<Values> {
    // Three descriptors each: a depth of 64 gives rings of 256.
    let workload = load(MEMORY_RINGS, 64).workload(DISK_BYTES);
    let (queues, iothreads) = (MEMORY_RINGS, Iothreads::Fixed(MEMORY_IOTHREADS));
    let service = Service { file: None, exports: 1, queues, iothreads };
    let mut server = program.start(&service, cpus)?;
    let connection = server.connect(0, &workload)?;
    connection.spin(timing(runtime), &mut Patient)?;
    let idle = server.connect(0, &workload)?;
    let memory = anonymous_kib(server.pid()).context("read the server's RssAnon")?;
    drop(idle);
    server.stop()?;
    Ok(Values::from([(Metric::RssAnonMib, as_f64(memory) / 1024.0)]))
}

/// Requests at depth 1 before another program has the server's CPU and after it, from a client that sleeps.
pub(crate) fn after_others(program: &Program, cpus: &ProcessCpus) -> Result<Values> {
    let workload = load(1, 1).workload(DISK_BYTES);
    let service = Service { file: None, exports: 1, queues: 1, iothreads: Iothreads::Fixed(1) };
    let mut server = program.start(&service, cpus)?;
    let connection = server.connect(0, &workload)?;
    let mut seconds = Seconds::default();
    let result = std::thread::scope(|scope| {
        let others = cpus.as_server(|| {
            scope.spawn(|| {
                clock::pause(OTHERS_RAMP + OTHERS_AFTER);
                let start = clock::now();
                while start.elapsed() < OTHERS_TIME {}
            })
        })?;
        let runtime = OTHERS_AFTER + OTHERS_TIME + Duration::from_secs(1);
        let sample = connection.run(Timing { ramp: OTHERS_RAMP, runtime }, &mut seconds);
        others.join().expect("it only looks at the clock");
        anyhow::Ok(sample?)
    });
    let sample = result?;
    server.stop()?;
    let [_, before, .., after] = seconds.rates[..] else {
        anyhow::bail!("no seconds in {:?}", sample.elapsed);
    };
    Ok(Values::from([(Metric::RequestsPerS, before), (Metric::AfterOthersShare, after / before)]))
}

/// The requests per second of each second.
#[derive(Debug, Default)]
struct Seconds {
    rates: Vec<f64>,
}

impl Watch for Seconds {
    fn window_opens(&mut self) {}

    fn window_closes(&mut self) {}

    fn tick(&mut self) -> Continuation {
        Continuation::GoOn
    }

    fn second(&mut self, interval: &Interval) {
        self.rates.push(as_f64(interval.operations) / interval.elapsed.as_secs_f64());
    }

    fn fifth(&mut self, _: &Fifth) {}
}

/// How long a server takes until it serves a file, and its anonymous memory when a client has come.
pub(crate) fn opening(
    program: &Program,
    file: Option<DiskFile<'_>>,
    cpus: &ProcessCpus,
) -> Result<Values> {
    let service = Service { file, exports: 1, queues: 1, iothreads: Iothreads::Fixed(1) };
    let start = clock::now();
    let mut server = program.start(&service, cpus)?;
    server.wait_until_it_accepts(0)?;
    let elapsed = start.elapsed();
    let connection = server.connect(0, &load(1, 1).workload(DISK_BYTES))?;
    let memory = anonymous_kib(server.pid()).context("read the server's RssAnon")?;
    drop(connection);
    server.stop()?;
    Ok(Values::from([
        (Metric::OpenMs, elapsed.as_secs_f64() * 1e3),
        (Metric::RssAnonMib, as_f64(memory) / 1024.0),
    ]))
}

/// The polling client against a device in its own thread.
pub(crate) fn ceiling(load: &Load, runtime: Duration) -> Result<Values> {
    let directory = tempfile::TempDir::with_prefix_in("rl-bench-", "/tmp")?;
    let socket = directory.path().join("s");
    let workload = load.workload(DISK_BYTES);
    let sample = loopback::ceiling(&socket, &workload, timing(runtime), &mut Patient)?;
    Ok(values_of(&sample))
}
