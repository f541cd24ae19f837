//! Each queue that is served: what it does, and where.

use super::exports::{figures, measures};
use super::{Column, Row, RowKey, Side, Table, column, number, rows};
use crate::fleet::{Daemon, Fleet};
use crate::numbers::{self, NOTHING};
use crate::rates::QueueRates;
use crate::snapshot::Queue;
use crate::troubles::{Trouble, of_export};

const COLUMNS: [Column; 13] = [
    column("EXPORT", Side::Name, 0, 32),
    number("Q", 0),
    column("IOTHREAD", Side::Name, 0, 24),
    number("IOPS", 0),
    number("READ/s", 1),
    number("WRITE/s", 1),
    number("P50", 2),
    number("P99", 0),
    number("OPEN", 1),
    number("DEPTH", 2),
    number("ERR/s", 3),
    number("WAIT", 3),
    number("MOVES", 4),
];

/// Of one export, if one is named.
pub(super) fn table(fleet: &Fleet, troubles: &[Trouble], export: Option<&RowKey>) -> Table {
    let is_meant =
        |row: &Row| export.is_none_or(|it| it.daemon == row.key.daemon && it.name == row.key.name);
    let mut rows = rows(fleet, |daemon| of_daemon(daemon, troubles));
    rows.retain(is_meant);
    let nothing = if fleet.all().iter().all(Daemon::tells_queues) {
        "no queues that are served: no client is there"
    } else {
        "the daemon does not say what its queues do (query-ringloom-queues): it is not ringloom"
    };
    Table { columns: COLUMNS.to_vec(), picture: None, rows, nothing }
}

fn of_daemon(daemon: &Daemon, troubles: &[Trouble]) -> Vec<Row> {
    let queues = daemon.last.iter().flat_map(|it| it.queues.iter().flatten());
    let row = |queue: &Queue| {
        let is_its = |it: &&QueueRates| it.export == queue.export && it.queue == queue.queue;
        let rates = daemon.rates.iter().flat_map(|it| &it.queues).find(is_its);
        let [iops, read, write, p50, p99, open, depth, errors] = figures(rates);
        let wait = rates.map_or_else(|| NOTHING.to_owned(), |it| numbers::percent(it.wait));
        Row {
            key: RowKey {
                daemon: daemon.number,
                name: queue.export.clone(),
                queue: Some(queue.queue),
            },
            severity: of_export(troubles, daemon.number, &queue.export, Some(queue.queue)),
            is_idle: rates.is_none_or(|it| it.answered == 0 && it.in_flight == 0),
            cells: vec![
                queue.export.clone(),
                queue.queue.to_string(),
                queue.iothread.clone(),
                iops,
                read,
                write,
                p50,
                p99,
                open,
                depth,
                errors,
                wait,
                queue.moves.to_string(),
            ],
            picture: None,
            measures: rates.map(measures).unwrap_or_default(),
        }
    };
    queues.map(row).collect()
}
