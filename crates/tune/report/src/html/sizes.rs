//! Throughput by block size: a chart with a line for each contender, and the tables. Pure functions.

use findings::stats::Interval;
use findings::summary::{CellSummary, Row};
use maud::{Markup, html};
use plan::contender::{Contender, Subject};
use plan::lists::{sorted, unique};
use plan::units::grouped;

use super::charts::plain;
use super::plot::{self, Across, Mark, Plot, Range, Scale, Series};
use super::single::section;
use super::{class, figure, folded_table, table};
use crate::sizes::{BySize, block, meanings, size, tables, title, uneven};
use crate::text::{megabytes, short};

/// Nothing where no block sizes were asked for.
pub(super) fn render(all: &[BySize]) -> Markup {
    let lead = "All guests and disks together. Bars with caps are 95 % confidence intervals, thin bars only the lowest and \
                highest of the repeats.";
    section(("sizes", "Throughput by block size", lead), all, card, meanings)
}

fn card(sizes: &BySize) -> Markup {
    let mut tables = tables(sizes).into_iter().map(|(title, header, lines)| {
        (title, header, lines.into_iter().map(|line| (None, line)).collect::<Vec<_>>())
    });
    let first = tables.next();
    html! {
        section class="sizes" {
            h3 { (title(sizes)) }
            @for it in uneven(sizes) { p class="best" { (it) } }
            (legend(sizes))
            div class="charts two" {
                (figure("MB/s (10⁶)", chart(sizes)))
                @if let Some((title, header, lines)) = &first {
                    figure {
                        figcaption { (title) }
                        (table(&names(header), lines))
                    }
                }
            }
            @for (title, header, lines) in tables {
                (folded_table(&title, &names(&header), &lines))
            }
        }
    }
}

fn names(header: &[String]) -> Vec<&str> {
    header.iter().map(String::as_str).collect()
}

/// A mark and a line for each, as the chart has them.
fn legend(sizes: &BySize) -> Markup {
    html! {
        ul class="legend" {
            @for (contender, nth) in numbered(sizes) {
                li { (plot::line_swatch(class(contender.subject()), nth)) (contender) }
            }
        }
    }
}

/// The how manieth of its subject each is, whose colour they share.
fn numbered(sizes: &BySize) -> Vec<(Contender, usize)> {
    let before = |index: usize, subject: Subject| {
        sizes.contenders[..index].iter().filter(|it| it.subject() == subject).count()
    };
    let each = sizes.contenders.iter().enumerate();
    each.map(|(index, it)| (*it, before(index, it.subject()))).collect()
}

/// Block sizes are a logarithmic axis: where one is left out, its place is not.
fn chart(sizes: &BySize) -> Option<Markup> {
    let blocks = unique(sizes.cells.iter().map(block));
    let (low, high) = (blocks.first()?, blocks.last()?);
    let powers = (0..u32::BITS).map(|power| 1 << power).filter(|it| (low..=high).contains(&it));
    let slots = sorted(blocks.iter().copied().chain(powers));
    let categories: Vec<String> = slots.iter().map(|bytes| size(*bytes)).collect();
    let series = numbered(sizes).into_iter().map(|(contender, nth)| {
        let mark = |cell: &CellSummary| {
            let row = cell.rows.iter().find(|row| row.contender == contender)?;
            mark(slots.iter().position(|it| *it == block(cell))?, &size(block(cell)), row)
        };
        Series {
            subject: contender.subject().to_string(),
            class: class(contender.subject()),
            nth,
            marks: sizes.cells.iter().filter_map(mark).collect(),
        }
    });
    let plot = Plot {
        title: "MB/s by block size",
        description: &title(sizes),
        categories: &categories,
        scale: Scale::Linear,
        label: |value| if value < 10.0 { plain(value) } else { grouped(value) },
        limit: None,
        across: Across::Steps,
        series: series.collect(),
    };
    plot.svg()
}

/// IOPS of one block size have the interval that its MB/s have.
fn mark(slot: usize, size: &str, row: &Row) -> Option<Mark> {
    let value = Some(row.bytes_per_second / 1e6).filter(|it| *it > 0.0)?;
    let scaled = |iops: f64| iops / row.iops.median * value;
    let (low, high) = (scaled(row.iops.lowest), scaled(row.iops.highest));
    let range = match row.iops.interval {
        Some(Interval { low, high, .. }) => {
            Range::Interval { low: scaled(low), high: scaled(high) }
        }
        None => Range::Spread { low, high },
    };
    let (rate, iops) = (megabytes(row.bytes_per_second), short(row.iops.median));
    let title = format!("{}, {size}: {rate} MB/s, {iops} IOPS", row.contender);
    Some(Mark { range: Some(range), ..Mark::new(slot, value, title) })
}
