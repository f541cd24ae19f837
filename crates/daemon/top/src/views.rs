//! Tables of text, made of what is known of all daemons: which columns there are, which of them fit, in which order the rows come.
//!
//! Invariants: a cell is plain text that no terminal obeys. Columns go by their rank where there is no room for all; names are cut
//! last. A row keeps its key while its place changes.
//! Not here: colours and keys (`screen`, `app`).

mod exports;
mod iothreads;
mod jobs;
mod placement;
mod queues;

pub(crate) use self::jobs::part as part_of;

use std::cmp::Ordering;

use ctl::printable;

use crate::arguments::SortKey;
use crate::fleet::{Daemon, Fleet};
use crate::troubles::{Severity, Trouble};

/// What a table shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum View {
    Exports,
    Queues,
    Iothreads,
    Jobs,
    Placement,
}

impl View {
    /// All of them, in the order of their keys.
    pub(crate) const ALL: [Self; 5] =
        [Self::Exports, Self::Queues, Self::Iothreads, Self::Jobs, Self::Placement];

    /// What it is called.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Exports => "exports",
            Self::Queues => "queues",
            Self::Iothreads => "iothreads",
            Self::Jobs => "jobs",
            Self::Placement => "placement",
        }
    }

    /// The next one, or the one before.
    pub(crate) fn next(self, step: isize) -> Self {
        let place = Self::ALL.iter().position(|it| *it == self).unwrap_or(0).cast_signed();
        let next = (place + step).rem_euclid(Self::ALL.len().cast_signed());
        Self::ALL[next.cast_unsigned()]
    }
}

/// Which rows are wanted, and in which order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) sort: SortKey,
    pub(crate) is_reversed: bool,
    /// What is in the names of all rows, in any case.
    pub(crate) filter: String,
    /// Queues of this export alone.
    pub(crate) export: Option<RowKey>,
}

/// What a row is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RowKey {
    /// The daemon's number.
    pub(crate) daemon: usize,
    /// Of an export, an iothread or a job.
    pub(crate) name: String,
    pub(crate) queue: Option<u64>,
}

/// A column.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Column {
    pub(crate) title: &'static str,
    pub(crate) side: Side,
    /// Which columns stay where there is no room: 0 always.
    pub(crate) rank: u8,
    /// The most that it takes.
    pub(crate) width_max: usize,
}

/// What is in a column, and so on which side of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// Names, on the left; a filter looks for its text there.
    Name,
    /// Other texts, on the left.
    Left,
    /// Numbers.
    Right,
}

/// What the room is for that columns leave.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Picture {
    /// A history, oldest first.
    History(Vec<f64>),
    /// Parts of the time: work, looking.
    Shares(f64, f64),
    /// A part of the whole.
    Progress(f64),
}

/// What rows are sorted by.
#[derive(Debug, Clone, Copy, Default)]
struct Measures {
    iops: f64,
    bytes: f64,
    p99: f64,
    open: f64,
    errors: f64,
    cpu: f64,
}

/// A row.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) key: RowKey,
    pub(crate) severity: Option<Severity>,
    pub(crate) cells: Vec<String>,
    pub(crate) picture: Option<Picture>,
    /// Nothing happens there.
    pub(crate) is_idle: bool,
    measures: Measures,
}

/// A table of one view.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    pub(crate) columns: Vec<Column>,
    /// What the picture of each row is.
    pub(crate) picture: Option<&'static str>,
    pub(crate) rows: Vec<Row>,
    /// What is said if there are no rows.
    pub(crate) nothing: &'static str,
}

const fn column(title: &'static str, side: Side, rank: u8, width_max: usize) -> Column {
    Column { title, side, rank, width_max }
}

/// A column of numbers.
const fn number(title: &'static str, rank: u8) -> Column {
    column(title, Side::Right, rank, 10)
}

/// The daemon, where there are several.
const DAEMON: Column = column("DAEMON", Side::Name, 0, 24);

/// What is said if a filter leaves no row.
const NONE_SO_CALLED: &str =
    "no name here has the text of the filter: / changes it, Esc forgets it";

/// Makes the table of a view.
pub(crate) fn table(view: View, fleet: &Fleet, troubles: &[Trouble], wanted: &Wanted) -> Table {
    let mut table = match view {
        View::Exports => exports::table(fleet, troubles),
        View::Queues => queues::table(fleet, troubles, wanted.export.as_ref()),
        View::Iothreads => iothreads::table(fleet, troubles),
        View::Jobs => jobs::table(fleet, troubles),
        View::Placement => placement::table(fleet, troubles),
    };
    if fleet.all().len() > 1 {
        let label = |row: &Row| fleet.get(row.key.daemon).map_or("", |it| it.label.as_str());
        for row in &mut table.rows {
            row.cells.insert(0, label(row).to_owned());
        }
        table.columns.insert(0, DAEMON);
    }
    for cell in table.rows.iter_mut().flat_map(|row| &mut row.cells) {
        *cell = printable(cell);
    }
    let filter = wanted.filter.to_lowercase();
    let named: Vec<usize> =
        (0..table.columns.len()).filter(|place| table.columns[*place].side == Side::Name).collect();
    let is_there = !table.rows.is_empty();
    table
        .rows
        .retain(|row| named.iter().any(|place| row.cells[*place].to_lowercase().contains(&filter)));
    if is_there && table.rows.is_empty() {
        table.nothing = NONE_SO_CALLED;
    }
    table.rows.sort_by(|one, other| compare(one, other, wanted));
    table
}

/// The rows of each daemon, in its order.
fn rows<'a, R: IntoIterator<Item = Row>>(
    fleet: &'a Fleet,
    of: impl Fn(&'a Daemon) -> R,
) -> Vec<Row> {
    fleet.all().iter().flat_map(of).collect()
}

fn compare(one: &Row, other: &Row, wanted: &Wanted) -> Ordering {
    let by = |of: fn(&Measures) -> f64| of(&other.measures).total_cmp(&of(&one.measures));
    let by_key = match wanted.sort {
        SortKey::Trouble => other.severity.cmp(&one.severity).then(by(|it| it.iops)),
        SortKey::Name => Ordering::Equal,
        SortKey::Iops => by(|it| it.iops),
        SortKey::Bytes => by(|it| it.bytes),
        SortKey::P99 => by(|it| it.p99),
        SortKey::Open => by(|it| it.open),
        SortKey::Errors => by(|it| it.errors),
        SortKey::Cpu => by(|it| it.cpu),
    };
    let ordered = by_key.then_with(|| one.key.cmp(&other.key));
    if wanted.is_reversed { ordered.reverse() } else { ordered }
}

/// What a picture has at least.
const PICTURE_MIN: usize = 8;
/// Columns from this rank on are not worth that the others are close together.
const RANK_SPARE: u8 = 5;
/// More says no more.
const PICTURE_MAX: usize = 60;

/// Which columns fit, each with its width, how far they are apart, and how much is left for the picture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fit {
    pub(crate) gap: usize,
    pub(crate) columns: Vec<(usize, usize)>,
    pub(crate) picture: Option<usize>,
}

impl Table {
    /// Fits it into a width: with all columns that matter well apart, or close together with as many as there is room for.
    pub(crate) fn fit(&self, width: usize) -> Fit {
        let wide = self.fit_apart(width, 2);
        let is_there = |place| wide.columns.iter().any(|(it, _)| *it == place);
        let is_whole = (0..self.columns.len())
            .all(|place| self.columns[place].rank >= RANK_SPARE || is_there(place))
            && wide.picture.is_some() == self.picture.is_some();
        if is_whole { wide } else { self.fit_apart(width, 1) }
    }

    /// A picture counts as a column of rank 2.
    fn fit_apart(&self, width: usize, gap: usize) -> Fit {
        let natural = |place: usize| {
            let cells = self.rows.iter().map(|row| row.cells[place].chars().count());
            let title = self.columns[place].title.chars().count();
            cells.fold(title, usize::max).min(self.columns[place].width_max)
        };
        let mut order: Vec<usize> = (0..self.columns.len()).collect();
        order.sort_by_key(|place| self.columns[*place].rank);
        let mut left = width;
        let mut taken = Vec::new();
        for place in order {
            let rank = self.columns[place].rank;
            let reserved = if self.picture.is_some() && rank > 2 { PICTURE_MIN + gap } else { 0 };
            let needed = natural(place) + gap;
            if needed + reserved <= left {
                left -= needed;
                taken.push((place, needed - gap));
            } else if rank == 0 && left > 4 {
                taken.push((place, left - gap));
                left = 0;
            }
        }
        taken.sort_unstable();
        let picture = self.picture.filter(|_| left >= PICTURE_MIN).map(|_| left.min(PICTURE_MAX));
        Fit { gap, columns: taken, picture }
    }
}

/// A text in a column.
pub(crate) fn padded(text: &str, side: Side, width: usize) -> String {
    let length = text.chars().count();
    let cut: String = match length > width {
        true => text.chars().take(width.saturating_sub(1)).chain(['…']).collect(),
        false => text.to_owned(),
    };
    match side {
        Side::Name | Side::Left => format!("{cut:<width$}"),
        Side::Right => format!("{cut:>width$}"),
    }
}

#[cfg(test)]
pub(crate) mod tests;
