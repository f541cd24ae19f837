//! What the policy sees: counters of iothreads and rings at one moment, as their gauges have them.
//!
//! Where it stands: the daemon fills it before each call of `Placer::decide`; the policy takes differences.
//!
//! Invariants: counters only grow while a ring or an iothread lives; one that shrank is taken for a new one.
//! Limits: counters of one snapshot may be a turn of an iothread apart, which is microseconds in a window of 50 ms.

/// A disk, that is all rings of one export, as long as it lives. The daemon gives the numbers and uses none again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DiskId(pub u64);

/// What disks have below them: trials of disks with the same one do not overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StorageId(pub u64);

/// One of the iothreads that the pool may have: 0 to `max` - 1. Whether it runs is another matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IothreadSlot(pub u16);

/// What an iothread of the pool has done since it started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IothreadCounters {
    /// Which it is.
    pub slot: IothreadSlot,
    /// Nanoseconds in which it worked: `LoopGauges::work_ns`.
    pub work_ns: u64,
    /// Nanoseconds in which it looked for work and found none: `LoopGauges::poll_ns`.
    pub poll_ns: u64,
    /// Nanoseconds on a CPU: `ThreadSchedulerTimes::cpu`; work and polls together if the kernel does not say.
    pub cpu_ns: u64,
    /// Nanoseconds in which it could have run and had no CPU: `ThreadSchedulerTimes::run_delay`; 0 if the kernel does not
    /// say.
    pub run_delay_ns: u64,
}

/// What may be done with the rings of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskMode {
    /// They are placed by the policy.
    Auto,
    /// They stay where they are. A trial that is under way is taken back first.
    Frozen,
    /// They cannot be moved now, because of a migration, a takeover, a drain or a change of the graph. A trial goes on
    /// afterwards, without what was counted meanwhile.
    Suspended,
}

/// A disk and its rings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskCounters {
    /// Which it is.
    pub id: DiskId,
    /// What is below it.
    pub storage: StorageId,
    /// What may be done with it.
    pub mode: DiskMode,
    /// Its rings that are served by iothreads of the pool, those that are idle as well.
    pub rings: Vec<RingCounters>,
}

/// What a ring has done since it was made; counters go with it when it is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingCounters {
    /// Number of the queue in its disk.
    pub queue: u16,
    /// The iothread that serves it.
    pub iothread: IothreadSlot,
    /// A user has placed it: the policy lets it be and counts with its load.
    pub is_pinned: bool,
    /// Requests of all kinds that were answered.
    pub requests: u64,
    /// Bytes of reads and writes that were answered.
    pub bytes: u64,
    /// Requests that are open now.
    pub in_flight: u64,
    /// Turns that did something: `SourceGauges::turns`.
    pub turns: u64,
    /// Nanoseconds in turns: `SourceGauges::turn_ns`, which is sampled.
    pub turn_ns: u64,
    /// Nanoseconds that requests were open, summed: `SourceGauges::open_ns`.
    pub open_ns: u64,
    /// Nanoseconds that new requests waited while others were served: `SourceGauges::take_wait_ns`, sampled.
    pub take_wait_ns: u64,
    /// The same of requests that waited to be answered: `SourceGauges::answer_wait_ns`, sampled.
    pub answer_wait_ns: u64,
}

/// All counters at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// The iothreads of the pool that run.
    pub iothreads: Vec<IothreadCounters>,
    /// The disks of the pool.
    pub disks: Vec<DiskCounters>,
    /// CPUs of the pool's affinity mask that were idle since the last snapshot, on average; at least 0.
    pub idle_cpus: f64,
}
