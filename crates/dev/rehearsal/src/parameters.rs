//! What a machine is made of: the numbers behind its throughput.

use serde::{Deserialize, Serialize};

/// What the requests do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    /// Random reads.
    RandRead,
    /// Random writes.
    RandWrite,
    /// Sequential reads.
    Read,
    /// Sequential writes.
    Write,
}

impl Op {
    /// Whether data changes.
    pub fn writes(self) -> bool {
        matches!(self, Self::RandWrite | Self::Write)
    }

    fn of<T: Copy>(self, each: &PerOp<T>) -> T {
        match self {
            Self::RandRead => each.randread,
            Self::RandWrite => each.randwrite,
            Self::Read => each.read,
            Self::Write => each.write,
        }
    }
}

/// A number for each operation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PerOp<T> {
    /// Random reads.
    pub randread: T,
    /// Random writes.
    pub randwrite: T,
    /// Sequential reads.
    pub read: T,
    /// Sequential writes.
    pub write: T,
}

/// A number for reads and one for writes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PerDirection {
    /// Reads.
    pub read: f64,
    /// Writes.
    pub write: f64,
}

/// A machine: guests, iothreads and storage. Fields that are left out are those of the machine that was fitted to the
/// published sweep.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Parameters {
    /// Microseconds that a small request is at the device and in the kernel.
    pub device_us: PerOp<f64>,
    /// And for each KiB.
    pub device_us_per_kib: f64,
    /// CPU microseconds of an iothread for each request at depth 1.
    pub service_us: f64,
    /// And for each KiB.
    pub service_us_per_kib: f64,
    /// A request costs `depth` to the power of minus that: batches, and neighbours that are merged.
    pub batch_exponent: PerOp<f64>,
    /// CPU microseconds of the guest for each request of a job.
    pub guest_us: f64,
    /// How much dearer requests become with each further busy iothread of the disk, as a share.
    pub contention: f64,
    /// And with each pair of them.
    pub coherence: f64,
    /// Millions of requests per second that device and host give at most.
    pub requests_per_us_max: PerDirection,
    /// Bytes per microsecond that they give at most.
    pub bytes_per_us_max: PerDirection,
    /// CPUs for guests, iothreads and strangers together: each busy queue and each busy iothread wants one.
    pub cpus: f64,
    /// Deviation of a window of 50 ms from the truth; standard deviation as a share.
    pub noise: f64,
    /// A slow wandering besides: the standard deviation of its step every 50 ms.
    pub drift: f64,
    /// How often a second everything stands still for 50 ms.
    pub stalls_per_s: f64,
    /// By how much waits are measured wrongly, for a whole run: standard deviation of the logarithm.
    pub wait_error: f64,
    /// Waits are measured so many times as long as they are.
    pub wait_factor: f64,
    /// Microseconds for which a ring that is moved serves nobody.
    pub move_us: f64,
}

impl Default for Parameters {
    fn default() -> Self {
        Self::fitted()
    }
}

impl Parameters {
    /// The machine that fits the published sweep best.
    pub fn fitted() -> Self {
        Self {
            device_us: PerOp { randread: 71.4, randwrite: 7.3, read: 65.5, write: 9.36 },
            device_us_per_kib: 0.544,
            service_us: 12.7,
            service_us_per_kib: 0.0009,
            batch_exponent: PerOp { randread: 0.129, randwrite: 0.112, read: 0.65, write: 0.395 },
            guest_us: 5.04,
            contention: 0.126,
            coherence: 4e-6,
            requests_per_us_max: PerDirection { read: 1.5, write: 0.473 },
            bytes_per_us_max: PerDirection { read: 7300.0, write: 6700.0 },
            cpus: 1e6,
            noise: 0.03,
            drift: 0.01,
            stalls_per_s: 0.0,
            wait_error: 0.0,
            wait_factor: 1.0,
            move_us: 100.0,
        }
    }

    /// One that fits nearly as well.
    pub fn fitted_otherwise() -> Self {
        Self {
            device_us: PerOp { randread: 57.5, randwrite: 4.9, read: 49.5, write: 6.58 },
            device_us_per_kib: 0.665,
            service_us: 9.26,
            service_us_per_kib: 0.105,
            batch_exponent: PerOp { randread: 0.137, randwrite: 0.119, read: 0.675, write: 0.408 },
            guest_us: 3.82,
            contention: 0.133,
            coherence: 4e-6,
            requests_per_us_max: PerDirection { read: 2.34, write: 0.621 },
            ..Self::fitted()
        }
    }

    /// A machine between the two, at 0 the first and at 1 the second.
    pub fn between(share: f64) -> Self {
        let (a, b) = (Self::fitted(), Self::fitted_otherwise());
        let mix = |a: f64, b: f64| a * (b / a).powf(share);
        let each = |a: PerOp<f64>, b: PerOp<f64>| PerOp {
            randread: mix(a.randread, b.randread),
            randwrite: mix(a.randwrite, b.randwrite),
            read: mix(a.read, b.read),
            write: mix(a.write, b.write),
        };
        Self {
            device_us: each(a.device_us, b.device_us),
            device_us_per_kib: mix(a.device_us_per_kib, b.device_us_per_kib),
            service_us: mix(a.service_us, b.service_us),
            service_us_per_kib: mix(a.service_us_per_kib, b.service_us_per_kib),
            batch_exponent: each(a.batch_exponent, b.batch_exponent),
            guest_us: mix(a.guest_us, b.guest_us),
            contention: mix(a.contention, b.contention),
            requests_per_us_max: PerDirection {
                read: mix(a.requests_per_us_max.read, b.requests_per_us_max.read),
                write: mix(a.requests_per_us_max.write, b.requests_per_us_max.write),
            },
            ..a
        }
    }

    /// Microseconds that an iothread needs for a request, alone.
    pub fn service(&self, op: Op, bytes: f64, depth: f64) -> f64 {
        let at_depth_1 = self.service_us + self.service_us_per_kib * bytes / 1024.0;
        at_depth_1 * depth.powf(-op.of(&self.batch_exponent))
    }

    /// How many times as dear requests are with so many busy iothreads.
    pub fn crowding(&self, iothreads: usize) -> f64 {
        let (n, others) = (iothreads as f64, iothreads.max(1) as f64 - 1.0);
        1.0 + self.contention * others + self.coherence * n * others
    }

    /// Microseconds that a request is with device and guest.
    pub fn away(&self, op: Op, bytes: f64) -> f64 {
        op.of(&self.device_us) + self.device_us_per_kib * bytes / 1024.0 + self.guest_us
    }

    /// Requests per microsecond that a disk has at most.
    pub fn ceiling(&self, op: Op, bytes: f64) -> f64 {
        let of = |each: &PerDirection| if op.writes() { each.write } else { each.read };
        lower(of(&self.bytes_per_us_max) / bytes, of(&self.requests_per_us_max))
    }
}

/// The lower of both, rounded where they meet.
pub fn lower(a: f64, b: f64) -> f64 {
    let (low, high) = if a < b { (a, b) } else { (b, a) };
    low / (1.0 + (low / high).powi(8)).powf(0.125)
}

/// Throughput of so many requests at one server with a delay elsewhere: Bard and Schweitzer.
pub fn closed(requests: f64, service: f64, away: f64) -> f64 {
    let others = (requests - 1.0) / requests;
    let (a, b) = (others * service * away, away + service * (1.0 + others * requests));
    if a <= 0.0 {
        return requests / b;
    }
    2.0 * requests / (b + (b * b - 4.0 * a * requests).max(0.0).sqrt())
}
