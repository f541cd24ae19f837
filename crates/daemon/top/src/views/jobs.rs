//! Each job: how far it is, how fast, and until when.

use super::{Column, Measures, Picture, Row, RowKey, Side, Table, column, number, rows};
use crate::fleet::{Daemon, Fleet};
use crate::numbers::{self, NOTHING, duration};
use crate::rates::JobRates;
use crate::snapshot::Job;
use crate::troubles::{Trouble, of_job};

const COLUMNS: [Column; 10] = [
    column("JOB", Side::Name, 0, 32),
    column("TYPE", Side::Name, 1, 16),
    column("STATUS", Side::Name, 0, 12),
    number("DONE", 3),
    number("OF", 3),
    number("", 0),
    number("RATE", 0),
    column("LEFT", Side::Right, 0, 16),
    number("LIMIT", 4),
    column("ERROR", Side::Left, 2, 40),
];

pub(super) fn table(fleet: &Fleet, troubles: &[Trouble]) -> Table {
    Table {
        columns: COLUMNS.to_vec(),
        picture: Some(""),
        rows: rows(fleet, |daemon| of_daemon(daemon, troubles)),
        nothing: "no jobs",
    }
}

fn of_daemon(daemon: &Daemon, troubles: &[Trouble]) -> Vec<Row> {
    let row = |job: &Job| {
        let all = daemon.rates.iter().flat_map(|it| &it.jobs);
        let rates = all.into_iter().find(|it| it.id == job.id);
        let rate = rates.and_then(|it| it.rate);
        Row {
            key: RowKey { daemon: daemon.number, name: job.id.clone(), queue: None },
            severity: of_job(troubles, daemon.number, &job.id),
            is_idle: false,
            cells: cells(job, rates),
            picture: Some(Picture::Progress(part(job))),
            measures: Measures { bytes: rate.unwrap_or(0.0), ..Measures::default() },
        }
    };
    daemon.last.iter().flat_map(|it| &it.jobs).map(row).collect()
}

/// How much of it is done.
pub(crate) fn part(job: &Job) -> f64 {
    match job.total_progress {
        0 => 0.0,
        total => (job.current_progress as f64 / total as f64).min(1.0),
    }
}

fn cells(job: &Job, rates: Option<&JobRates>) -> Vec<String> {
    let nothing = || NOTHING.to_owned();
    let rate = rates.and_then(|it| it.rate);
    let error = match (&job.error, job.io_status.as_str()) {
        (Some(error), _) => error.clone(),
        (None, "" | "ok") => nothing(),
        (None, why) => why.to_owned(),
    };
    vec![
        job.id.clone(),
        job.kind.clone(),
        job.status.clone(),
        numbers::bytes(job.current_progress as f64),
        numbers::bytes(job.total_progress as f64),
        numbers::percent((job.total_progress > 0).then(|| part(job))),
        rate.map_or_else(nothing, |it| format!("{}/s", numbers::bytes(it))),
        rates.and_then(|it| it.left).map_or_else(nothing, duration),
        match job.speed {
            0 => nothing(),
            speed => format!("{}/s", numbers::bytes(speed as f64)),
        },
        error,
    ]
}
