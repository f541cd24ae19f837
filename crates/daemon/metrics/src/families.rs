//! Every metric there is: its name, unit, kind, labels, and what it means.
//!
//! Invariants: the exposition writes no other metric, none twice, and of each the labels of its row in their order;
//! docs/metrics.md has a row for each. Tests hold both.

/// What kind of a metric a family is, as in `OpenMetrics`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FamilyKind {
    /// A sum that only grows; its name ends in `_total`.
    Counter,
    /// A number now.
    Gauge,
    /// Numbers of observations by size.
    Histogram,
    /// Names, in labels; its name ends in `_info`, and its value is 1.
    Info,
}

/// A metric with all of its label values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Family {
    /// Its name without unit and ending.
    pub name: &'static str,
    /// Its unit, which is a part of its name.
    pub unit: Option<&'static str>,
    /// What kind it is.
    pub kind: FamilyKind,
    /// Its labels, in order.
    pub labels: &'static [&'static str],
    /// What it means.
    pub help: &'static str,
}

impl Family {
    /// Its name as queries have it. Of a histogram that before `_bucket`, `_sum` and `_count`.
    pub fn full_name(&self) -> String {
        let unit = self.unit.map(|unit| format!("_{unit}")).unwrap_or_default();
        let ending = match self.kind {
            FamilyKind::Counter => "_total",
            FamilyKind::Info => "_info",
            FamilyKind::Gauge | FamilyKind::Histogram => "",
        };
        format!("{}{unit}{ending}", self.name)
    }
}

macro_rules! families {
    ($($id:ident = $kind:ident $name:literal $($unit:literal)? [$($label:literal),*] $help:literal;)*) => {
        $(pub(crate) const $id: Family = Family {
            name: $name,
            unit: unit!($($unit)?),
            kind: FamilyKind::$kind,
            labels: &[$($label),*],
            help: $help,
        };)*

        /// All of them, in the order in which they are written.
        pub const FAMILIES: &[Family] = &[$($id),*];
    };
}

macro_rules! unit {
    () => {
        None
    };
    ($unit:literal) => {
        Some($unit)
    };
}

families! {
    BUILD = Info "ringloom_build" ["version"] "The version of ringloom that runs.";
    START_TIME = Gauge "process_start_time" "seconds" []
        "When the process was started, in seconds since 1970. All counters begin there.";
    CONTROL_AGE = Gauge "ringloom_control_age" "seconds" []
        "How old what the first thread tells is: exports, pools, jobs and bitmaps. It grows while that thread waits for storage.";

    EXPORT = Info "ringloom_export" ["export", "type", "node"] "An export, its type, and the node that it offers.";
    EXPORT_CLIENTS = Gauge "ringloom_export_clients" ["export"]
        "Clients that are connected to the export.";
    EXPORT_SIZE = Gauge "ringloom_export_size" "bytes" ["export"] "The size of the disk as its clients find it.";
    EXPORT_QUEUES = Gauge "ringloom_export_queues" ["export"] "Queues, or NBD connections, that are served now.";
    EXPORT_IMAGE_REMOVED = Gauge "ringloom_export_image_removed" ["export"]
        "1 if a file below the export was removed, renamed or replaced: the next start does not find it.";
    EXPORT_SIZE_DIFFERENCE = Gauge "ringloom_export_size_difference" "bytes" ["export"]
        "By how much the storage has grown, or shrunk if it is negative, since the size of the disk was looked at.";

    QUEUE = Info "ringloom_queue" ["export", "queue", "iothread"] "A queue that is served now, and the iothread that serves it.";
    QUEUE_REQUESTS = Counter "ringloom_queue_requests" ["export", "queue", "op"] "Requests that were answered.";
    QUEUE_BYTES = Counter "ringloom_queue" "bytes" ["export", "queue", "op"]
        "Bytes that were read or written by requests that were answered without an error.";
    QUEUE_ERRORS = Counter "ringloom_queue_errors" ["export", "queue"] "Requests that were answered with an error.";
    QUEUE_IN_FLIGHT = Gauge "ringloom_queue_in_flight" ["export", "queue"] "Requests that were taken and not answered, now.";
    QUEUE_STALLED = Gauge "ringloom_queue_stalled" "seconds" ["export", "queue"]
        "For how long requests have been in flight and none was answered; looked at every 2 seconds.";
    QUEUE_OPEN = Counter "ringloom_queue_open" "seconds" ["export", "queue"]
        "For how long requests were open, summed over all of them: its rate is how many are open on average.";
    QUEUE_WAIT = Counter "ringloom_queue_wait" "seconds" ["export", "queue"]
        "For how long requests waited for a turn of their queue while its iothread served others, summed over all of them (sampled).";
    QUEUE_MOVES = Counter "ringloom_queue_moves" ["export", "queue"] "How often the queue went to another iothread.";
    QUEUE_MOVE = Counter "ringloom_queue_move" "seconds" ["export", "queue"]
        "For how long nothing was taken because the queue was on its way to another iothread.";
    REQUEST_DURATION = Histogram "ringloom_request_duration" "seconds" ["export", "op"]
        "How long requests took, of all queues of the export. Those that are carried out at once are sampled and weighted.";

    IOTHREAD = Counter "ringloom_iothread" "seconds" ["iothread", "state"]
        "What the iothread did with its time: work, poll (it looked for work and found none), sleep (counted when it is over).";
    IOTHREAD_CPU = Counter "ringloom_iothread_cpu" "seconds" ["iothread"] "For how long the iothread was on a CPU.";
    IOTHREAD_RUN_DELAY = Counter "ringloom_iothread_run_delay" "seconds" ["iothread"]
        "For how long the iothread was ready to run while others had the CPU.";
    IOTHREAD_STALLED = Gauge "ringloom_iothread_stalled" "seconds" ["iothread"]
        "For how long the iothread has not turned though it was asked to: nothing that it serves goes on; asked every 4 seconds.";
    IOTHREAD_QUEUES = Gauge "ringloom_iothread_queues" ["iothread"] "Queues of exports that the iothread serves now.";

    POOL_IOTHREADS = Gauge "ringloom_pool_iothreads" ["pool"] "Iothreads of the pool that run.";
    POOL_IOTHREADS_MAX = Gauge "ringloom_pool_iothreads_max" ["pool"] "How many iothreads the pool may have.";
    PLACEMENT_IOTHREADS = Gauge "ringloom_export_placement_iothreads" ["export", "pool"]
        "On how many iothreads of its pool the export is placed, without what is being tried.";
    PLACEMENT_GAIN = Gauge "ringloom_export_placement_gain_max" "ratio" ["export", "pool"]
        "What one more iothread would bring the export at most, as a share of what it does now.";
    PLACEMENT_TRYING = Gauge "ringloom_export_placement_trying" ["export", "pool"]
        "1 while the queues of the export go to and fro between two placements.";

    JOB = Info "ringloom_job" ["job_id", "type", "status"] "A job that is there, and its status.";
    JOB_OFFSET = Gauge "ringloom_job_offset" "bytes" ["job_id", "type"] "What a block job has done.";
    JOB_LENGTH = Gauge "ringloom_job_length" "bytes" ["job_id", "type"] "The same with what is left, as far as that is known.";
    JOB_SPEED_LIMIT = Gauge "ringloom_job_speed_limit" "bytes" ["job_id", "type"]
        "How many bytes a block job may copy in a second; 0 is no limit.";

    NBD_CONNECTIONS = Gauge "ringloom_nbd_connections" ["state"]
        "Clients of the NBD server: connected to an export, or negotiating.";
    NBD_CONNECTIONS_MAX = Gauge "ringloom_nbd_connections_max" []
        "How many clients of the NBD server may be connected to exports.";

    NBD_NODE_DISCONNECTED = Gauge "ringloom_nbd_node_disconnected" "seconds" ["node"]
        "For how long a node on an NBD server has lacked a connection that it needs; 0 if it has all.";

    BITMAPS = Gauge "ringloom_bitmaps" ["node"] "Dirty bitmaps of the node.";
    BITMAP_MEMORY = Gauge "ringloom_bitmap_memory" "bytes" ["node"] "Memory that the dirty bitmaps of the node take at most.";
    THRESHOLD_EXCEEDED = Counter "ringloom_write_threshold_exceeded" ["node"]
        "How often a write went beyond the write threshold of the node, which then has none until it is set again.";
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_in_the_form_that_prometheus_wants() {
        let mut seen = BTreeSet::new();
        for family in FAMILIES {
            let name = family.full_name();
            assert!(seen.insert(name.clone()), "{name} twice");
            let is_plain = |text: &str| {
                text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
                    && !text.ends_with('_')
            };
            assert!(is_plain(&name) && family.labels.iter().all(|it| is_plain(it)), "{name}");
            assert!(name.starts_with("ringloom_") || name == "process_start_time_seconds");
            assert!(family.help.ends_with('.') && !family.help.contains(['\n', '\\']), "{name}");
        }
    }

    const DOCUMENT: &str = include_str!("../../../../docs/metrics.md");

    /// The row of a family in the document.
    fn row(family: &Family) -> String {
        let kind = match family.kind {
            FamilyKind::Counter => "counter",
            FamilyKind::Gauge => "gauge",
            FamilyKind::Histogram => "histogram",
            FamilyKind::Info => "info",
        };
        let labels: Vec<String> = family.labels.iter().map(|label| format!("`{label}`")).collect();
        let labels = if labels.is_empty() { "–".to_owned() } else { labels.join(", ") };
        format!("| `{}` | {kind} | {labels} | {} |", family.full_name(), family.help)
    }

    #[test]
    fn the_document_has_a_row_for_each_family_and_names_no_other() {
        for family in FAMILIES {
            let row = row(family);
            assert!(DOCUMENT.lines().any(|line| line == row), "docs/metrics.md lacks: {row}");
        }
        let rows = DOCUMENT.lines().filter(|line| line.starts_with("| `"));
        assert_eq!(rows.count(), FAMILIES.len());
        let is_part = |char: char| char.is_ascii_alphanumeric() || char == '_';
        let words = DOCUMENT.split(|char| !is_part(char)).filter(|it| it.starts_with("ringloom_"));
        for word in words {
            assert!(FAMILIES.iter().any(|family| family.full_name() == word), "no metric {word}");
        }
    }
}
