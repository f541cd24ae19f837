//! Each iothread: how it spends its time.

use super::{Column, Measures, Picture, Row, RowKey, Side, Table, column, number, rows};
use crate::fleet::{Daemon, Fleet};
use crate::numbers::{self, NOTHING};
use crate::rates::IothreadRates;
use crate::snapshot::Iothread;
use crate::troubles::{Trouble, of_iothread};

const COLUMNS: [Column; 8] = [
    column("IOTHREAD", Side::Name, 0, 32),
    number("Q", 0),
    number("IOPS", 1),
    number("CPU", 0),
    number("WORK", 0),
    number("LOOK", 1),
    number("SLEEP", 1),
    number("NO CPU", 2),
];

pub(super) fn table(fleet: &Fleet, troubles: &[Trouble]) -> Table {
    Table {
        columns: COLUMNS.to_vec(),
        picture: Some("█ work ░ look"),
        rows: rows(fleet, |daemon| of_daemon(daemon, troubles)),
        nothing: "no iothreads, or a daemon that does not say what they do",
    }
}

fn of_daemon(daemon: &Daemon, troubles: &[Trouble]) -> Vec<Row> {
    let iothreads = daemon.last.iter().flat_map(|it| it.iothreads.iter().flatten());
    let row = |iothread: &Iothread| {
        let all = daemon.rates.iter().flat_map(|it| &it.iothreads);
        let rates = all.into_iter().find(|it| it.name == iothread.name);
        let mut cells = vec![iothread.name.clone(), iothread.queues.to_string()];
        cells.extend(figures(rates));
        Row {
            key: RowKey { daemon: daemon.number, name: iothread.name.clone(), queue: None },
            severity: of_iothread(troubles, daemon.number, &iothread.name),
            is_idle: rates.is_none_or(|it| it.work < 0.001 && it.look < 0.001),
            cells,
            picture: rates.map(|it| Picture::Shares(it.work, it.look)),
            measures: rates.map(measures).unwrap_or_default(),
        }
    };
    iothreads.map(row).collect()
}

fn measures(rates: &IothreadRates) -> Measures {
    let cpu = rates.cpu.unwrap_or(rates.work + rates.look);
    Measures { iops: rates.iops, cpu, ..Measures::default() }
}

fn figures(rates: Option<&IothreadRates>) -> [String; 6] {
    let Some(rates) = rates else { return std::array::from_fn(|_| NOTHING.to_owned()) };
    let share = |share| numbers::percent(Some(share));
    [
        numbers::count(rates.iops),
        numbers::percent(rates.cpu),
        share(rates.work),
        share(rates.look),
        share(rates.sleep),
        numbers::percent(rates.run_delay),
    ]
}
