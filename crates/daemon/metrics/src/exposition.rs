//! A reading as text, in the form of `OpenMetrics` 1.0.
//!
//! Invariants: only what the table of families has is written, with its labels. The encoder escapes their values.

mod samples;

use std::fmt;

use block::nanoseconds;
use iothread::{ExportSums, QueueSums};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, text::encode};
use prometheus_client::registry::Registry;
use request_path::RequestKind;

use crate::duration_buckets::Durations;
use crate::families::{self, Family};
use crate::inventory::{ExportPlacement, JobEntry, PoolEntry};
use crate::reading::Reading;
use samples::{Samples, write_family};

/// The kinds of requests that have an `op`.
const OPS: [(RequestKind, &str); 5] = [
    (RequestKind::Read, "read"),
    (RequestKind::Write, "write"),
    (RequestKind::Flush, "flush"),
    (RequestKind::Discard, "discard"),
    (RequestKind::WriteZeroes, "write_zeroes"),
];

/// All of a reading, up to the mark of its end.
///
/// # Panics
/// Never: memory takes all text.
pub(crate) fn text(reading: Reading) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(reading));
    let mut text = String::new();
    encode(&mut text, &registry).expect("a String takes all text");
    text
}

impl Collector for Reading {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let encoder = &mut encoder;
        self.write_process(encoder)?;
        self.write_exports(encoder)?;
        self.write_queues(encoder)?;
        self.write_times_of_queues(encoder)?;
        self.write_durations(encoder)?;
        self.write_iothreads(encoder)?;
        self.write_pools(encoder)?;
        self.write_jobs(encoder)?;
        self.write_others(encoder)
    }
}

impl Reading {
    fn write_process(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        write_family(encoder, &families::BUILD, |all| all.info(&[self.version]))?;
        write_family(encoder, &families::START_TIME, |all| {
            all.number(&[], self.started.as_secs_f64())
        })?;
        write_family(encoder, &families::CONTROL_AGE, |all| {
            all.number(&[], self.control_age.as_secs_f64())
        })
    }

    fn write_exports(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let exports = &self.inventory.exports;
        write_family(encoder, &families::EXPORT, |all| {
            exports.iter().try_for_each(|it| all.info(&[&it.id, it.kind, &it.node]))
        })?;
        write_family(encoder, &families::EXPORT_CLIENTS, |all| {
            exports.iter().try_for_each(|it| all.count(&[&it.id], it.clients))
        })?;
        write_family(encoder, &families::EXPORT_SIZE, |all| {
            exports.iter().try_for_each(|it| all.count(&[&it.id], it.bytes))
        })?;
        write_family(encoder, &families::EXPORT_QUEUES, |all| {
            self.sums.iter().try_for_each(|(export, sums)| {
                let served = sums.queues.values().filter(|queue| queue.iothread.is_some()).count();
                all.count(&[export], served as u64)
            })
        })?;
        write_family(encoder, &families::EXPORT_IMAGE_REMOVED, |all| {
            let mut found = self.storage.iter();
            found.try_for_each(|it| all.count(&[&it.export], it.is_removed.into()))
        })?;
        write_family(encoder, &families::EXPORT_SIZE_DIFFERENCE, |all| {
            let mut found = self.storage.iter();
            found.try_for_each(|it| all.integer(&[&it.export], it.size_difference))
        })
    }

    /// A family that has a line for each queue, or some.
    fn of_queues(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        family: &'static Family,
        mut write: impl FnMut(&mut Samples<'_>, (&str, &str), &QueueSums) -> fmt::Result,
    ) -> fmt::Result {
        write_family(encoder, family, |all| {
            self.sums.iter().try_for_each(|(export, ExportSums { queues, .. })| {
                queues.iter().try_for_each(|(number, queue)| {
                    write(all, (export, &number.to_string()), queue)
                })
            })
        })
    }

    fn write_queues(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        self.of_queues(encoder, &families::QUEUE, |all, (export, number), queue| {
            let mut iothread = queue.iothread.iter();
            iothread.try_for_each(|iothread| all.info(&[export, number, iothread]))
        })?;
        self.of_queues(encoder, &families::QUEUE_REQUESTS, |all, (export, number), queue| {
            let counters = queue.totals.counters;
            OPS.into_iter().try_for_each(|(kind, op)| {
                let requests = match kind {
                    RequestKind::Read => counters.reads,
                    RequestKind::Write => counters.writes,
                    RequestKind::Flush => counters.flushes,
                    RequestKind::Discard => counters.discards,
                    RequestKind::WriteZeroes => counters.write_zeroes,
                    RequestKind::Other => 0,
                };
                all.count(&[export, number, op], requests)
            })
        })?;
        self.of_queues(encoder, &families::QUEUE_BYTES, |all, (export, number), queue| {
            all.count(&[export, number, "read"], queue.totals.counters.read_bytes)?;
            all.count(&[export, number, "write"], queue.totals.counters.written_bytes)
        })?;
        self.of_queues(encoder, &families::QUEUE_ERRORS, |all, (export, number), queue| {
            all.count(&[export, number], queue.totals.counters.errors)
        })?;
        self.of_queues(encoder, &families::QUEUE_IN_FLIGHT, |all, (export, number), queue| {
            all.count(&[export, number], queue.in_flight)
        })
    }

    fn write_times_of_queues(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        write_family(encoder, &families::QUEUE_STALLED, |all| {
            self.sums.iter().try_for_each(|(export, sums)| {
                sums.queues.keys().try_for_each(|number| {
                    let stalled = self.stalled.get(&(export.clone(), *number));
                    let seconds = stalled.map_or(0.0, |stalled| stalled.as_secs_f64());
                    all.number(&[export, &number.to_string()], seconds)
                })
            })
        })?;
        self.of_queues(encoder, &families::QUEUE_OPEN, |all, (export, number), queue| {
            all.nanoseconds(&[export, number], queue.totals.open_ns)
        })?;
        self.of_queues(encoder, &families::QUEUE_WAIT, |all, (export, number), queue| {
            all.nanoseconds(&[export, number], queue.totals.wait_ns)
        })?;
        self.of_queues(encoder, &families::QUEUE_MOVES, |all, (export, number), queue| {
            all.count(&[export, number], queue.totals.moves)
        })?;
        self.of_queues(encoder, &families::QUEUE_MOVE, |all, (export, number), queue| {
            all.nanoseconds(&[export, number], queue.totals.move_ns)
        })
    }

    fn write_durations(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        write_family(encoder, &families::REQUEST_DURATION, |all| {
            self.sums.iter().try_for_each(|(export, sums)| {
                OPS.into_iter().try_for_each(|(kind, op)| {
                    all.durations(&[export, op], &Durations::of(&sums.latency, kind))
                })
            })
        })
    }

    fn write_iothreads(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let iothreads = &self.inventory.iothreads;
        write_family(encoder, &families::IOTHREAD, |all| {
            iothreads.iter().try_for_each(|it| {
                let gauges = it.usage.gauges();
                all.nanoseconds(&[&it.name, "work"], gauges.work_ns.get())?;
                all.nanoseconds(&[&it.name, "poll"], gauges.poll_ns.get())?;
                all.nanoseconds(&[&it.name, "sleep"], gauges.sleep_ns.get())
            })
        })?;
        let times = iothreads.iter().filter_map(|it| Some((&it.name, it.usage.thread_times()?)));
        let times: Vec<_> = times.collect();
        write_family(encoder, &families::IOTHREAD_CPU, |all| {
            times.iter().try_for_each(|(name, it)| all.nanoseconds(&[name], nanoseconds(it.cpu)))
        })?;
        write_family(encoder, &families::IOTHREAD_RUN_DELAY, |all| {
            let mut times = times.iter();
            times.try_for_each(|(name, it)| all.nanoseconds(&[name], nanoseconds(it.run_delay)))
        })?;
        write_family(encoder, &families::IOTHREAD_STALLED, |all| {
            iothreads.iter().try_for_each(|it| {
                all.number(&[&it.name], it.usage.unanswered(self.at).as_secs_f64())
            })
        })?;
        write_family(encoder, &families::IOTHREAD_QUEUES, |all| {
            let queues = self.sums.values().flat_map(|sums| sums.queues.values());
            let served: Vec<&str> = queues.filter_map(|queue| queue.iothread.as_deref()).collect();
            iothreads.iter().try_for_each(|it| {
                let queues = served.iter().filter(|name| **name == it.name).count();
                all.count(&[&it.name], queues as u64)
            })
        })
    }

    fn write_pools(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let pools = &self.inventory.pools;
        let placements = || pools.iter().flat_map(placements_of);
        write_family(encoder, &families::POOL_IOTHREADS, |all| {
            pools.iter().try_for_each(|it| all.count(&[&it.name], it.iothreads))
        })?;
        write_family(encoder, &families::POOL_IOTHREADS_MAX, |all| {
            pools.iter().try_for_each(|it| all.count(&[&it.name], it.iothreads_max))
        })?;
        write_family(encoder, &families::PLACEMENT_IOTHREADS, |all| {
            let mut known = placements().filter_map(|(at, it)| Some((at, it.iothreads?)));
            known.try_for_each(|(at, count)| all.count(&at, count))
        })?;
        write_family(encoder, &families::PLACEMENT_GAIN, |all| {
            let mut known = placements().filter_map(|(at, it)| Some((at, it.gain_max?)));
            known.try_for_each(|(at, gain)| all.number(&at, gain))
        })?;
        write_family(encoder, &families::PLACEMENT_TRYING, |all| {
            placements().try_for_each(|(at, it)| all.count(&at, it.is_trying.into()))
        })
    }

    fn write_jobs(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let jobs = &self.inventory.jobs;
        write_family(encoder, &families::JOB, |all| {
            jobs.iter().try_for_each(|it| all.info(&[&it.id, it.kind, it.status]))
        })?;
        let block_jobs = || jobs.iter().filter_map(|it: &JobEntry| Some((it, it.progress?)));
        write_family(encoder, &families::JOB_OFFSET, |all| {
            block_jobs().try_for_each(|(it, (done, ..))| all.count(&[&it.id, it.kind], done))
        })?;
        write_family(encoder, &families::JOB_LENGTH, |all| {
            block_jobs().try_for_each(|(it, (_, length, _))| all.count(&[&it.id, it.kind], length))
        })?;
        write_family(encoder, &families::JOB_SPEED_LIMIT, |all| {
            block_jobs().try_for_each(|(it, (_, _, limit))| all.count(&[&it.id, it.kind], limit))
        })
    }

    fn write_others(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let (server, bitmaps) = (&self.inventory.nbd_server, &self.inventory.bitmaps);
        write_family(encoder, &families::NBD_CONNECTIONS, |all| {
            server.iter().try_for_each(|it| {
                all.count(&["connected"], it.connected)?;
                all.count(&["negotiating"], it.negotiating)
            })
        })?;
        write_family(encoder, &families::NBD_CONNECTIONS_MAX, |all| {
            server.iter().try_for_each(|it| all.count(&[], it.connected_max))
        })?;
        write_family(encoder, &families::NBD_NODE_DISCONNECTED, |all| {
            let mut nodes = self.inventory.nbd_nodes.iter();
            nodes.try_for_each(|(node, time)| all.number(&[node], time.as_secs_f64()))
        })?;
        write_family(encoder, &families::BITMAPS, |all| {
            bitmaps.iter().try_for_each(|it| all.count(&[&it.node], it.count))
        })?;
        write_family(encoder, &families::BITMAP_MEMORY, |all| {
            bitmaps.iter().try_for_each(|it| all.count(&[&it.node], it.bytes))
        })?;
        write_family(encoder, &families::THRESHOLD_EXCEEDED, |all| {
            let mut thresholds = self.inventory.thresholds.iter();
            thresholds.try_for_each(|(node, times)| all.count(&[node], *times))
        })
    }
}

/// The exports of a pool, with what labels them.
fn placements_of(pool: &PoolEntry) -> impl Iterator<Item = ([&str; 2], &ExportPlacement)> {
    let name = pool.name.as_str();
    pool.exports.iter().map(move |it| ([it.export.as_str(), name], it))
}

#[cfg(test)]
mod tests;
