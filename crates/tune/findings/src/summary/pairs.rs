//! Two ways to serve a disk, compared in the same cells: ringloom with QEMU's own device, and variants that differ in one
//! choice, such as raw and qcow2. Pure functions.
//!
//! Ratios are formed inside a repeat, which has every way once: what a boot did to both cancels.

use plan::cell::Cell;
use plan::contender::{Contender, Subject};
use plan::lists::unique;
use plan::question::Figures;
use plan::variant::Variant;

use super::{CellSummary, Row};
use crate::stats::{Estimate, ratio_by_repeat};

/// One way against another that was named before it.
#[derive(Clone, Debug, PartialEq)]
pub struct Pair {
    /// The way that was named first.
    pub base: String,
    /// The other.
    pub other: String,
    /// Where both were measured.
    pub rows: Vec<PairRow>,
}

/// What a contender does the other way, relative to the base: 1 is equal.
#[derive(Clone, Debug, PartialEq)]
pub struct PairRow {
    /// The load.
    pub cell: Cell,
    /// Of the base.
    pub variant: Variant,
    /// Of the other.
    pub contender: Contender,
    /// Requests per second.
    pub iops: Estimate,
    /// What 99 of 100 requests took at most.
    pub p99: Option<Estimate>,
    /// CPU time per request of everything that takes part.
    pub cpu: Option<Estimate>,
}

/// All pairs of which some contender was measured both ways.
pub fn pairs(cells: &[CellSummary]) -> Vec<Pair> {
    let mut pairs: Vec<Pair> = Vec::new();
    let mut add = |(base, other): (String, String), rows: Vec<PairRow>| match pairs
        .iter_mut()
        .find(|pair| (&pair.base, &pair.other) == (&base, &other))
    {
        Some(pair) => pair.rows.extend(rows),
        None if rows.is_empty() => {}
        None => pairs.push(Pair { base, other, rows }),
    };
    let servers = [Subject::VmQemu, Subject::VmRingloom].map(|it| it.to_string()).into();
    add(servers, cells.iter().flat_map(between_servers).collect());
    let variants = unique(cells.iter().map(|cell| cell.variant));
    for (index, other) in variants.iter().enumerate() {
        // The first of a choice is the base of all others.
        let mut compared = Vec::new();
        for base in &variants[..index] {
            match only_difference(base, other) {
                Some((choice, names)) if !compared.contains(&choice) => {
                    add(names, between_variants(cells, base, other));
                    compared.push(choice);
                }
                Some(_) | None => {}
            }
        }
    }
    pairs
}

/// Where two variants put the same load on their disks and differ in one choice: which, and how each is called.
fn only_difference(base: &Variant, other: &Variant) -> Option<(usize, (String, String))> {
    if (base.vms, base.disks) != (other.vms, other.disks) {
        return None;
    }
    let choices = base.choices().into_iter().zip(other.choices()).enumerate();
    let mut differences = choices.filter(|(_, (base, other))| base != other);
    let difference = differences.next()?;
    differences.next().is_none().then_some(difference)
}

fn between_servers(cell: &CellSummary) -> Vec<PairRow> {
    let qemu =
        |row: &Row| cell.rows_of(Subject::VmQemu).find(|it| it.iothreads() == row.iothreads());
    let row = |row: &Row| of_rows(cell, qemu(row)?, row);
    cell.rows_of(Subject::VmRingloom).filter_map(row).collect()
}

fn between_variants(cells: &[CellSummary], base: &Variant, other: &Variant) -> Vec<PairRow> {
    let of = |variant: &Variant, cell: Cell| {
        cells.iter().find(|it| it.variant == *variant && it.cell == cell)
    };
    let rows = |base: &CellSummary| {
        let Some(other) = of(other, base.cell) else { return Vec::new() };
        let beside = |row: &Row| other.rows.iter().find(|it| it.contender == row.contender);
        base.rows.iter().filter_map(|row| of_rows(base, row, beside(row)?)).collect()
    };
    cells.iter().filter(|it| it.variant == *base).flat_map(rows).collect()
}

fn of_rows(cell: &CellSummary, base: &Row, other: &Row) -> Option<PairRow> {
    if base.purpose != other.purpose {
        return None;
    }
    let ratio = |figure: fn(&Figures) -> Option<f64>| {
        let of = |row: &Row| -> Vec<(u16, f64)> {
            let figures = row.by_repeat.iter();
            figures.filter_map(|(repeat, it)| Some((*repeat, figure(it)?))).collect()
        };
        // Where nothing was done there is no ratio.
        ratio_by_repeat(of(other), of(base).into_iter().filter(|(_, it)| *it > 0.0))
    };
    Some(PairRow {
        cell: cell.cell,
        variant: cell.variant,
        contender: other.contender,
        iops: ratio(|it| Some(it.iops))?,
        p99: ratio(|it| it.p99_us),
        cpu: ratio(|it| it.cpu_us),
    })
}
