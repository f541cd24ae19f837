//! Each export: what its queues do together, and what it did lately.

use std::collections::BTreeSet;

use super::{Column, Measures, Picture, Row, RowKey, Side, Table, column, number, rows};
use crate::fleet::{Daemon, Fleet};
use crate::numbers::{self, NOTHING};
use crate::rates::QueueRates;
use crate::snapshot::{Export, Placement, Pool, Snapshot};
use crate::troubles::{Trouble, of_export};

const COLUMNS: [Column; 14] = [
    column("EXPORT", Side::Name, 0, 32),
    number("IOPS", 0),
    number("READ/s", 1),
    number("WRITE/s", 1),
    number("P50", 1),
    number("P99", 0),
    number("OPEN", 1),
    number("DEPTH", 4),
    number("ERR/s", 2),
    number("Q", 2),
    column("IOTHREADS", Side::Name, 3, 40),
    column("PLACED", Side::Left, 5, 12),
    column("TYPE", Side::Name, 6, 16),
    column("NODE", Side::Name, 6, 32),
];

pub(super) fn table(fleet: &Fleet, troubles: &[Trouble]) -> Table {
    let of = |daemon| of_daemon(daemon, troubles);
    Table {
        columns: COLUMNS.to_vec(),
        picture: Some("HISTORY"),
        rows: rows(fleet, of),
        nothing: "no exports",
    }
}

fn of_daemon(daemon: &Daemon, troubles: &[Trouble]) -> Vec<Row> {
    let Some(last) = &daemon.last else { return Vec::new() };
    let row = |export: &Export| {
        let rates = daemon.rates.as_ref().and_then(|it| it.of_export(&export.id));
        let cells = cells(last, export, rates.as_ref());
        Row {
            key: RowKey { daemon: daemon.number, name: export.id.clone(), queue: None },
            severity: of_export(troubles, daemon.number, &export.id, None),
            is_idle: rates.as_ref().is_none_or(|it| it.answered == 0 && it.in_flight == 0),
            cells,
            picture: Some(Picture::History(daemon.history.iops(&export.id).collect())),
            measures: rates.as_ref().map(measures).unwrap_or_default(),
        }
    };
    last.exports.iter().map(row).collect()
}

/// What rows of queues and exports are sorted by.
pub(super) fn measures(rates: &QueueRates) -> Measures {
    Measures {
        iops: rates.iops,
        bytes: rates.bytes(),
        p99: rates.latency.percentile(99).unwrap_or(0) as f64,
        open: rates.in_flight as f64,
        errors: rates.errors_per_s,
        cpu: 0.0,
    }
}

/// The cells that exports and queues share, from IOPS on.
pub(super) fn figures(rates: Option<&QueueRates>) -> [String; 8] {
    let Some(rates) = rates else { return std::array::from_fn(|_| NOTHING.to_owned()) };
    [
        numbers::count(rates.iops),
        numbers::bytes(rates.read_bytes),
        numbers::bytes(rates.written_bytes),
        numbers::time(rates.latency.percentile(50)),
        numbers::time(rates.latency.percentile(99)),
        rates.in_flight.to_string(),
        numbers::count(rates.depth),
        numbers::count(rates.errors_per_s),
    ]
}

fn cells(last: &Snapshot, export: &Export, rates: Option<&QueueRates>) -> Vec<String> {
    let mut cells = vec![export.id.clone()];
    cells.extend(figures(rates));
    let served = last.queues.as_ref().map(|queues| {
        let all: Vec<_> = queues.iter().filter(|it| it.export == export.id).collect();
        let iothreads: BTreeSet<&str> = all.iter().map(|it| it.iothread.as_str()).collect();
        (all.len(), iothreads)
    });
    let (queues, iothreads) = match served {
        None => (NOTHING.to_owned(), NOTHING.to_owned()),
        Some((0, _)) => ("0".to_owned(), "no client".to_owned()),
        Some((count, iothreads)) => {
            let names: Vec<&str> = iothreads.into_iter().collect();
            (count.to_string(), names.join(","))
        }
    };
    let placed = find_placement(last, &export.id)
        .map_or_else(|| NOTHING.to_owned(), |(pool, placement)| placed(pool, placement));
    cells.extend([queues, iothreads, placed, export.kind.clone(), export.node_name.clone()]);
    cells
}

/// The pool that places an export, and how.
pub(crate) fn find_placement<'a>(
    last: &'a Snapshot,
    export: &str,
) -> Option<(&'a Pool, &'a Placement)> {
    last.pools.iter().find_map(|pool| {
        let placement = pool.exports.iter().find(|it| it.export == export)?;
        Some((pool, placement))
    })
}

/// `2 of 4`, and whether it tries.
fn placed(pool: &Pool, placement: &Placement) -> String {
    let on = placement.iothreads.map_or_else(|| NOTHING.to_owned(), |it| it.to_string());
    let trying = if placement.trying { " tries" } else { "" };
    format!("{on} of {}{trying}", pool.max)
}
