//! The lines of runs and failures.
//!
//! Limits: a histogram has as many buckets as `QUANTILES`, which is enough for percentiles that differ.

use serde_json::{Value, json};

use super::header::{STARTED_UNIX_S, VARIANT};
use super::{Figures, Format, Mode, Plan, Point, Purpose, iothreads};

/// Latencies relative to the median, and the share of the requests that took no longer.
const QUANTILES: [(f64, f64); 12] = [
    (0.6, 0.02),
    (0.75, 0.1),
    (0.85, 0.25),
    (1.0, 0.5),
    (1.15, 0.7),
    (1.3, 0.85),
    (1.6, 0.95),
    (2.0, 0.98),
    (2.5, 0.99),
    (3.5, 0.997),
    (5.0, 0.999),
    (9.0, 1.0),
];

/// A run of a plan, and where it stands in the file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Planned<'a> {
    pub(super) plan: &'a Plan,
    /// How many lines there are before it.
    pub(super) number: usize,
    /// Of a curve the highest rate.
    pub(super) maximum: Option<f64>,
}

impl Planned<'_> {
    pub(super) fn measured(&self, point: &Point, figures: &Figures) -> Value {
        let seconds = self.plan.seconds;
        let operations = whole(figures.iops * seconds);
        let elapsed_ns = whole(seconds * 1e9);
        let rate = self.maximum.filter(|_| point.step != 100);
        let rate = rate.map(|maximum| maximum * f64::from(point.step) / 100.0);
        let guests = point.subject.starts_with("vm:");
        let mut line = self.key("run", point);
        let figures = json!({
            "queues": if point.subject == "host" { 0 } else { point.jobs },
            "load": if self.uses_fio() { "fio-3.33 io_uring" } else { "ringloom" },
            "emulated": false,
            "started_unix_s": self.time(),
            "operations": operations,
            "bytes": operations * u64::from(point.block_size),
            "elapsed_ns": elapsed_ns,
            "rate_iops": rate,
            "latency_ns": histogram(operations, figures.median_us),
            "per_second": [[elapsed_ns, operations]],
            "parts": [],
            "cost": cost(point, elapsed_ns, figures.cpu_us * 1e3 * figures.iops * seconds),
            "job_files": if guests { vec!["jobs/1.fio"] } else { Vec::new() },
            "verified_bytes": null,
        });
        merge(&mut line, figures);
        if self.plan.format >= Format::Four {
            line["round"] = json!(point.repeat);
        }
        if self.plan.format >= Format::Three {
            let window = json!([elapsed_ns / 5, operations / 5]);
            line["windows"] = json!([window, window, window, window, window]);
            line["stretched"] = json!(false);
        }
        line
    }

    pub(super) fn failed(&self, point: &Point, error: &str) -> Value {
        let mut line = self.key("failure", point);
        let error = format!("{}: {error}", name(point));
        merge(&mut line, json!({ "failed_unix_s": self.time(), "error": error }));
        line
    }

    fn key(&self, kind: &str, point: &Point) -> Value {
        let purpose = match (point.purpose, self.plan.mode) {
            (Purpose::Confirm, _) => "confirm",
            (Purpose::Plain, Mode::Sweep) => "sweep",
            (Purpose::Plain, Mode::Hysteresis) => "probe",
            (Purpose::Plain, Mode::Curve) => "curve",
        };
        let mut key = json!({
            "kind": kind, "format": self.plan.format.number(), "purpose": purpose, "repeat": point.repeat,
            "step": point.step, "subject": point.subject,
        });
        if let Some(count) = point.iothreads {
            key["iothreads"] = iothreads(count);
        }
        for (name, value) in VARIANT {
            key[name] = json!(value);
        }
        merge(
            &mut key,
            json!({
                "vms": 1, "disks": 1, "op": point.operation, "bs": point.block_size,
                "jobs": point.jobs, "iodepth": point.depth,
            }),
        );
        key
    }

    fn uses_fio(&self) -> bool {
        self.plan.subjects.iter().any(|it| it.starts_with("vm:"))
    }

    /// One run after the other.
    fn time(&self) -> u64 {
        let number = u64::try_from(self.number).expect("a count fits 64 bits");
        STARTED_UNIX_S + number * whole(self.plan.seconds + 1.0)
    }
}

/// The name of a run, with which the sentences about it begin.
fn name(point: &Point) -> String {
    let Point { operation, block_size, jobs, depth, subject, .. } = point;
    let count = match point.iothreads {
        None => String::new(),
        Some(0) => " none".to_owned(),
        Some(count) => format!(" {count}"),
    };
    format!("{operation} {}k jobs={jobs} iodepth={depth}, {subject}{count}", block_size >> 10)
}

/// What served the requests, and the load.
fn cost(point: &Point, covered_ns: u64, serving_ns: f64) -> Value {
    let (name, role) = match point.subject {
        "host" => ("load", "worker"),
        "vm:qemu" | "vm:given" => ("qemu", "iothread"),
        _ => ("daemon", "iothread"),
    };
    let cpus = (serving_ns / covered_ns.max(1) as f64 + f64::from(point.jobs)).min(32.0);
    let thread = json!({
        "name": "IO 1", "role": role, "cpu_ns": whole(serving_ns), "voluntary": 1000,
        "involuntary": 10,
    });
    json!({
        "covered_ns": covered_ns,
        "host": {
            "cpus_in_use": cpus, "cpus_in_kernel": cpus / 2.0, "of": 32, "cpus_stolen": 0.0,
            "per_cpu_busy": [], "context_switches_per_s": 10_000.0,
        },
        "groups": [{
            "name": name, "cpu_ns": whole(serving_ns), "voluntary": 1000, "involuntary": 10,
            "threads": [thread],
        }],
    })
}

/// Pairs of latency and requests, all requests together.
fn histogram(operations: u64, median_us: f64) -> Value {
    let mut before = 0;
    let mut pairs = Vec::new();
    for (times, share) in QUANTILES {
        let until = whole(operations as f64 * share);
        if until > before {
            pairs.push(json!([whole(median_us * times * 1e3).max(1), until - before]));
        }
        before = until;
    }
    json!(pairs)
}

fn merge(line: &mut Value, more: Value) {
    let (Value::Object(line), Value::Object(more)) = (line, more) else {
        unreachable!("both are objects")
    };
    line.extend(more);
}

/// Not a number and negative ones are 0.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "`as` saturates, and makes 0 of what is no number"
)]
fn whole(number: f64) -> u64 {
    number.round() as u64
}
