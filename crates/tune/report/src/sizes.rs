//! Block sizes: tables with a line for each and a column for each contender, and what to take from them. Pure functions.
//!
//! Invariants: ratios are formed within a repeat, and summarised then (`summary`).

use findings::stats::Estimate;
use findings::summary::{CellSummary, Fairness, Row};
use plan::contender::Contender;
use plan::lists::{sorted, unique};
use plan::units::{Bytes, counted};
use plan::variant::Variant;

use super::text::{cpu_us, cpus, listed, megabytes, on, or_missing, section, sections, short};
use super::{EMULATED, Style};
use crate::table::Table;

/// Who has this share of what another has is served evenly.
const EVEN: f64 = 0.8;

type FairnessOf = fn(&Row) -> Option<Fairness>;

/// The cells that differ only in their block size, by that.
#[derive(Clone, Debug)]
pub(super) struct BySize {
    pub(super) cells: Vec<CellSummary>,
    pub(super) contenders: Vec<Contender>,
    /// Of several, which this is.
    name: Option<String>,
}

/// All that was measured, one for each operation, variant, number of jobs and iodepth.
pub(super) fn by_size(cells: Vec<CellSummary>) -> Vec<BySize> {
    let mut all: Vec<Vec<CellSummary>> = Vec::new();
    for cell in cells {
        match all.iter_mut().find(|own| key(&own[0]) == key(&cell)) {
            Some(own) => own.push(cell),
            None => all.push(vec![cell]),
        }
    }
    let several = all.len() > 1;
    let one = |mut cells: Vec<CellSummary>| {
        cells.sort_by_key(block);
        // No number is better than another here.
        cells.iter_mut().for_each(|cell| cell.verdicts.clear());
        let rows = cells.iter().flat_map(|cell| &cell.rows);
        let contenders = sorted(rows.map(|row| row.contender));
        let name = several.then(|| place(&cells[0]));
        BySize { cells, contenders, name }
    };
    all.into_iter().map(one).collect()
}

fn key(cell: &CellSummary) -> (Variant, String, u16, u16) {
    let shape = cell.cell.shape();
    (cell.variant, shape.operation().to_string(), shape.jobs(), shape.iodepth())
}

/// In bytes.
pub(super) fn block(cell: &CellSummary) -> u32 {
    cell.cell.shape().block().get()
}

/// `64k`.
pub(super) fn size(bytes: u32) -> String {
    Bytes(bytes.into()).to_string()
}

/// `randread, 1 job × iodepth 16; 10 VMs, 9 disks`.
fn place(cell: &CellSummary) -> String {
    let (variant, operation, jobs, iodepth) = key(cell);
    on(format!("{operation}, {} × iodepth {iodepth}", counted(jobs.into(), "job")), &variant)
}

/// One of the tables: what is said of a row.
struct Kind {
    title: fn(&BySize) -> String,
    figure: fn(&Row) -> Option<String>,
}

const KINDS: [Kind; 6] = [
    Kind {
        title: |_| "MB/s · IOPS".to_owned(),
        figure: |row| {
            Some(format!("{} · {}", megabytes(row.bytes_per_second), short(row.iops.median)))
        },
    },
    Kind { title: |_| "relative to the host".to_owned(), figure: |row| of_host(row).map(percent) },
    Kind {
        title: |sizes| format!("relative to {}", first(sizes)),
        figure: |row| row.to_first.map(percent),
    },
    Kind {
        title: |_| "CPU µs per request · CPUs in use".to_owned(),
        figure: |row| {
            row.cpu_us.or(row.cpus.map(|(in_use, _)| in_use))?;
            Some(format!("{} · {}", cpu_us(row.cpu_us), cpus(row.cpus)))
        },
    },
    Kind {
        title: |_| "MB/s of each VM · Jain's index".to_owned(),
        figure: |row| row.vms.map(fairness),
    },
    Kind {
        title: |_| "MB/s of each disk · Jain's index".to_owned(),
        figure: |row| row.disks.map(fairness),
    },
];

/// Of the host itself there is none.
fn of_host(row: &Row) -> Option<Estimate> {
    row.to_host.filter(|_| !row.contender.is_baseline())
}

/// What others with the same load are compared with.
fn first(sizes: &BySize) -> String {
    let rows = || sizes.cells.iter().flat_map(|cell| &cell.rows);
    let firsts = rows().filter(|row| {
        let kind = |it: Contender| it.subject().is_vm();
        let compares =
            |other: &Row| other.to_first.is_some() && kind(other.contender) == kind(row.contender);
        !row.contender.is_baseline() && row.to_first.is_none() && rows().any(compares)
    });
    unique(firsts.map(|row| row.contender.to_string())).join(", ")
}

/// `97 % (95–99)`.
fn percent(ratio: Estimate) -> String {
    let (low, high) = ratio.ends();
    let [median, low, high] = [ratio.median, low, high].map(|it| format!("{:.0}", it * 100.0));
    format!("{median} % ({low}–{high})")
}

/// `31.0–33.5 · 0.998`.
fn fairness(fairness: Fairness) -> String {
    let Fairness { least, most, jain, .. } = fairness;
    format!("{}–{} · {jain:.3}", megabytes(least), megabytes(most))
}

/// The tables, each with its title.
pub(super) fn tables(sizes: &BySize) -> Vec<(String, Vec<String>, Vec<Vec<String>>)> {
    let table = |kind: &Kind| {
        let figure = |cell: &CellSummary, contender: Contender| {
            (kind.figure)(cell.rows.iter().find(|row| row.contender == contender)?)
        };
        let has = |it: &Contender| sizes.cells.iter().any(|cell| figure(cell, *it).is_some());
        let own: Vec<Contender> = sizes.contenders.iter().copied().filter(has).collect();
        let names = own.iter().map(|it| it.to_string() + mark(sizes, *it));
        let header = [String::from("size")].into_iter().chain(names).collect();
        let line = |cell: &CellSummary| {
            let figures = own.iter().map(|it| or_missing(figure(cell, *it)));
            [size(block(cell))].into_iter().chain(figures).collect()
        };
        let lines = sizes.cells.iter().map(line).collect();
        (!own.is_empty()).then(|| ((kind.title)(sizes), header, lines))
    };
    KINDS.iter().filter_map(table).collect()
}

fn mark(sizes: &BySize, contender: Contender) -> &'static str {
    let mut rows = sizes.cells.iter().flat_map(|cell| &cell.rows);
    if rows.any(|row| row.contender == contender && row.emulated) { " †" } else { "" }
}

/// Nothing where no block sizes were asked for.
pub(super) fn render(style: Style, all: &[BySize]) -> String {
    let shown = |sizes: &BySize| {
        let place = title(sizes);
        let tables = tables(sizes).into_iter().enumerate();
        let section = tables.map(|(number, (title, header, lines))| {
            let header: Vec<&str> = header.iter().map(String::as_str).collect();
            let below = if number == 0 { uneven(sizes) } else { Vec::new() };
            section(style, &format!("{place}: {title}"), &Table::of(&header, lines), &below)
        });
        section.collect()
    };
    sections(style, all, shown, meanings)
}

pub(super) fn title(sizes: &BySize) -> String {
    place(&sizes.cells[0])
}

/// Where each contender served guests, or disks, least evenly, and which had least; where they all were served evenly, that.
pub(super) fn uneven(sizes: &BySize) -> Vec<String> {
    let kinds: [(&str, FairnessOf); 2] = [("VMs", |row| row.vms), ("disks", |row| row.disks)];
    let least = |contender: &Contender, of: FairnessOf| {
        let own = sizes.cells.iter().filter_map(|cell| {
            let row = cell.rows.iter().find(|row| row.contender == *contender)?;
            Some((size(block(cell)), of(row)?))
        });
        let share = |it: &Fairness| it.least / it.most;
        let least = own.min_by(|(_, one), (_, other)| share(one).total_cmp(&share(other)));
        least.map(|(size, it)| (size, it, share(&it) >= EVEN))
    };
    let (mut sentences, mut even) = (Vec::new(), false);
    for contender in &sizes.contenders {
        for (what, of) in kinds {
            match least(contender, of) {
                None => {}
                Some((_, _, true)) => even = true,
                Some((size, Fairness { least, most, jain, worst }, false)) => sentences.push(format!(
                    "{contender}: {what} were served unevenly, most so with blocks of {size}: {} to {} MB/s, \
                     Jain's index {jain:.3}; {worst} had least.",
                    megabytes(least),
                    megabytes(most)
                )),
            }
        }
    }
    if even {
        let who = if sentences.is_empty() { "VMs and disks" } else { "The others" };
        let percent = EVEN * 100.0;
        sentences.push(format!(
            "{who} were served evenly: none had less than {percent:.0} % of what another had."
        ));
    }
    sentences
}

/// What the words of the tables mean.
pub(super) fn meanings(all: &[BySize]) -> Vec<String> {
    let rows = || all.iter().flat_map(|it| &it.cells).flat_map(|cell| &cell.rows);
    let mut lines = vec![
        "MB/s: 10^6 bytes per second of all guests and disks together; IOPS likewise; medians of the \
         repeats."
            .to_owned(),
        "Ratios: of IOPS within a repeat, median; in brackets where the true median is in 95 % of cases, \
         or the lowest and highest of fewer than six repeats."
            .to_owned(),
        "CPU: µs of CPU time per request of what serves the disks (host: of the load). CPUs: in use on the \
         host, and how many there are."
            .to_owned(),
    ];
    if rows().any(|row| row.vms.or(row.disks).is_some()) {
        lines.push(
            "Jain's index: how evenly guests, or disks, that ran at once were served, (Σx)² / (n Σx²) of their \
             throughputs x: 1 if all had the same, 1/n if one of n had all. It is formed in each repeat, as are \
             the least and the most; medians."
                .to_owned(),
        );
    }
    if rows().any(|row| row.emulated) {
        lines.push(format!("† {EMULATED}."));
    }
    lines
}

/// What each contender reaches, a sentence each.
pub(super) fn sentences(all: &[BySize]) -> Vec<String> {
    let each = |sizes: &BySize| -> Vec<String> {
        sizes.contenders.iter().filter_map(|it| reached(sizes, *it)).collect()
    };
    all.iter().flat_map(each).collect()
}

fn reached(sizes: &BySize, contender: Contender) -> Option<String> {
    let rows = || {
        let row =
            |cell: &'_ CellSummary| cell.rows.iter().position(|row| row.contender == contender);
        sizes.cells.iter().filter_map(move |cell| Some((size(block(cell)), &cell.rows[row(cell)?])))
    };
    let most = |figure: fn(&Row) -> f64| {
        rows().max_by(|(_, one), (_, other)| figure(one).total_cmp(&figure(other)))
    };
    let (bytes, requests) = (most(|row| row.bytes_per_second)?, most(|row| row.iops.median)?);
    let name = sizes.name.as_ref().map(|name| format!("{name}: ")).unwrap_or_default();
    let mut sentence = format!(
        "{name}{contender} reaches {} MB/s with blocks of {}, {} IOPS with blocks of {}",
        megabytes(bytes.1.bytes_per_second),
        bytes.0,
        short(requests.1.iops.median),
        requests.0
    );
    for (ratio, other) in [
        (of_host as fn(&Row) -> Option<Estimate>, "the host".to_owned()),
        (|row| row.to_first, first(sizes)),
    ] {
        let ratios = || rows().filter_map(|(_, row)| ratio(row)).map(|it| it.median * 100.0);
        let (low, high) = (ratios().fold(f64::INFINITY, f64::min), ratios().fold(0.0, f64::max));
        let [low, high] = [low, high].map(|it| format!("{it:.0}"));
        if ratios().next().is_some() {
            let range = if low == high { low } else { format!("{low} to {high}") };
            sentence += &format!("; {range} % of {other}");
        }
    }
    Some(sentence + ".")
}

/// The sentences at the end of a text.
pub(super) fn conclusion(style: Style, all: &[BySize]) -> String {
    let sentences = sentences(all);
    if sentences.is_empty() {
        return String::new();
    }
    let heading = match style {
        Style::Plain => "",
        Style::Markdown => "\n## In short\n",
    };
    format!("{heading}\n{}", listed(style, &sentences))
}

#[cfg(test)]
pub(super) mod tests;
