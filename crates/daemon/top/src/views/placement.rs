//! Each export that a pool places: on how many iothreads, what more would bring, what is tried, and why.

use super::{Column, Measures, Row, RowKey, Side, Table, column, number, rows};
use crate::fleet::{Daemon, Fleet};
use crate::numbers::{self, NOTHING};
use crate::snapshot::{Placement, Pool};
use crate::troubles::{Trouble, of_export};

const COLUMNS: [Column; 8] = [
    column("EXPORT", Side::Name, 0, 32),
    column("POOL", Side::Name, 1, 16),
    column("MODE", Side::Left, 3, 8),
    number("ON", 0),
    number("MAX", 1),
    number("MORE BRING", 0),
    column("NOW", Side::Left, 0, 16),
    column("WHAT WAS FOUND LAST", Side::Left, 0, 80),
];

pub(super) fn table(fleet: &Fleet, troubles: &[Trouble]) -> Table {
    Table {
        columns: COLUMNS.to_vec(),
        picture: None,
        rows: rows(fleet, |daemon| of_daemon(daemon, troubles)),
        nothing: "no pool places an export (iothread=auto)",
    }
}

fn of_daemon(daemon: &Daemon, troubles: &[Trouble]) -> Vec<Row> {
    let pools = daemon.last.iter().flat_map(|it| &it.pools);
    let row = |pool: &Pool, placement: &Placement| Row {
        key: RowKey { daemon: daemon.number, name: placement.export.clone(), queue: None },
        severity: of_export(troubles, daemon.number, &placement.export, None),
        is_idle: placement.iothreads.is_none(),
        cells: cells(pool, placement),
        picture: None,
        measures: Measures {
            iops: daemon
                .rates
                .as_ref()
                .and_then(|it| it.of_export(&placement.export))
                .map_or(0.0, |it| it.iops),
            ..Measures::default()
        },
    };
    pools.flat_map(|pool| pool.exports.iter().map(move |it| row(pool, it))).collect()
}

fn cells(pool: &Pool, placement: &Placement) -> Vec<String> {
    let nothing = || NOTHING.to_owned();
    let more = |gain: f64| format!("≤ +{}", numbers::percent(Some(gain)));
    vec![
        placement.export.clone(),
        pool.name.clone(),
        pool.mode.clone().unwrap_or_else(nothing),
        placement.iothreads.map_or_else(nothing, |it| it.to_string()),
        pool.max.to_string(),
        placement.gain_max.map_or_else(nothing, more),
        doing(placement),
        placement.note.clone().unwrap_or_else(nothing),
    ]
}

/// What is tried now, and what is hoped for.
fn doing(placement: &Placement) -> String {
    match (placement.trying, placement.tries, placement.gain_predicted) {
        (false, ..) => "rests".to_owned(),
        (true, Some(count), Some(gain)) => format!("tries {count}: {:+.0}%?", gain * 100.0),
        (true, Some(count), None) => format!("tries {count}"),
        (true, None, _) => "tries".to_owned(),
    }
}
