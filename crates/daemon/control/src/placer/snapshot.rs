//! What the policy sees, read from the gauges of a pool.

use std::sync::Arc;
use std::time::{Duration, Instant};

use block::nanoseconds;
use iothread::{Iothread, IothreadPool, PlacedSource};
use kernel_io::ProcessCpus;
use placement::{DiskCounters, DiskMode, IothreadCounters, IothreadSlot, RingCounters, Snapshot};

use super::PoolExport;

/// How long idle time is measured: the kernel counts it in hundredths of a second.
const IDLE_WINDOW: Duration = Duration::from_millis(200);

/// Reads snapshots.
#[derive(Debug)]
pub(crate) struct SnapshotReader {
    cpus: Option<ProcessCpus>,
    /// When idle time was read last, and how much it was.
    idle: Option<(Instant, Duration)>,
    /// CPUs that were idle in the last window, on average.
    idle_cpus: f64,
}

impl SnapshotReader {
    /// All CPUs are idle at first. Call it before the fences are up.
    pub(crate) fn new() -> Self {
        let cpus = ProcessCpus::of_process().ok();
        let count = cpus.as_ref().map_or(1, ProcessCpus::count);
        let idle_cpus = f64::from(u32::try_from(count).unwrap_or(1));
        Self { cpus, idle: None, idle_cpus }
    }

    /// The counters of all rings and iothreads of the pool now.
    pub(super) fn read(
        &mut self,
        pool: &IothreadPool,
        sources: &[Arc<PlacedSource>],
        exports: &[PoolExport],
        (mode, now): (impl Fn(&PoolExport) -> DiskMode, Instant),
    ) -> Snapshot {
        self.measure_idle(now);
        let running = pool.running();
        let disk = |export: &PoolExport| DiskCounters {
            id: export.disk,
            storage: export.storage,
            mode: mode(export),
            rings: sources
                .iter()
                .filter(|source| source.name().export == export.name)
                .filter_map(|source| ring(source, &running, export))
                .collect(),
        };
        Snapshot {
            iothreads: running.iter().map(|(slot, it)| iothread(*slot, it)).collect(),
            disks: exports.iter().map(disk).collect(),
            idle_cpus: self.idle_cpus,
        }
    }

    fn measure_idle(&mut self, now: Instant) {
        let due = |(at, _): (Instant, Duration)| now.saturating_duration_since(at) >= IDLE_WINDOW;
        if !self.idle.is_none_or(due) {
            return;
        }
        let Some(idle) = self.cpus.as_ref().and_then(ProcessCpus::idle_time) else { return };
        if let Some((at, before)) = self.idle.replace((now, idle)) {
            let passed = now.saturating_duration_since(at);
            self.idle_cpus = idle.saturating_sub(before).as_secs_f64() / passed.as_secs_f64();
        }
    }
}

fn slot(number: usize) -> IothreadSlot {
    IothreadSlot(u16::try_from(number).expect("a pool has at most 64"))
}

fn iothread(number: usize, iothread: &Iothread) -> IothreadCounters {
    let (gauges, times) = (iothread.usage().gauges(), iothread.usage().thread_times());
    let (work_ns, poll_ns) = (gauges.work_ns.get(), gauges.poll_ns.get());
    IothreadCounters {
        slot: slot(number),
        work_ns,
        poll_ns,
        cpu_ns: times.map_or(work_ns + poll_ns, |it| nanoseconds(it.cpu)),
        run_delay_ns: times.map_or(0, |it| nanoseconds(it.run_delay)),
    }
}

/// A ring of the pool; `None` if it has stopped, or is served elsewhere.
fn ring(
    source: &PlacedSource,
    running: &[(usize, Arc<Iothread>)],
    export: &PoolExport,
) -> Option<RingCounters> {
    let served_by = source.iothread()?;
    let (number, _) = running.iter().find(|(_, it)| Arc::ptr_eq(it, &served_by))?;
    let gauges = source.gauges();
    Some(RingCounters {
        queue: source.name().queue,
        iothread: slot(*number),
        is_pinned: export.pin_of(source.name().queue).is_some(),
        requests: gauges.requests(),
        bytes: gauges.bytes(),
        in_flight: gauges.in_flight.get(),
        turns: gauges.turns.get(),
        turn_ns: gauges.turn_ns.get(),
        open_ns: gauges.open_ns.get(),
        take_wait_ns: gauges.take_wait_ns.get(),
        answer_wait_ns: gauges.answer_wait_ns.get(),
    })
}
