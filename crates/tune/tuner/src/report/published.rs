//! A sweep that others published: its tables, and what follows from them. Pure functions.
//!
//! Not here: the form of the tables (`form`), the page (`html::published`).

use super::Style;
use super::form::{GAINS, HALF, PUBLISHED_N90S, table};
use super::text::{headed, one_line, section, wrapped};
use crate::cell::Cell;
use crate::published::{PublishedSweep, PublishedTable};
use crate::stats::Estimate;
use crate::units::counted;

/// Up to this gain in percent, none reaches 90 % of the best.
const NONE_IS_ENOUGH: f64 = 100.0 / 9.0;
/// Numbers of iothreads of which is told in how many cells they are enough.
const ENOUGH_FOR: [f64; 4] = [1.0, 4.0, 8.0, 12.0];
/// Cells that are named.
const NAMED_MAX: usize = 8;

/// Renders what others published.
pub(crate) fn render(style: Style, name: &str, sweep: &PublishedSweep) -> String {
    let title = wrapped(style, &format!("{}: a published sweep", one_line(name)));
    let mut text = match style {
        Style::Plain => title,
        Style::Markdown => format!("# ringloom report\n\n{title}"),
    };
    if let Some(gains) = &sweep.gains {
        let below = [totals(gains)];
        text +=
            &section(style, "Gain of the best over none, %", &table(&GAINS, &gains.form), &below);
    }
    if let Some(n90s) = &sweep.n90s {
        let below =
            ["0: none. Totals are arithmetic means, half rounded up, as published.".to_owned()];
        let title = "n90: fewest iothreads that reach 90 % of the best";
        text += &section(style, title, &table(&PUBLISHED_N90S, &n90s.form), &below);
    }
    let sentences = [what_follows(sweep), notes(sweep)].concat();
    text + &headed(style, "What follows", &sentences)
}

/// What the tables say, a sentence each.
pub(super) fn what_follows(sweep: &PublishedSweep) -> Vec<String> {
    let PublishedSweep { gains, n90s, .. } = sweep;
    let rule = gains.as_ref().zip(n90s.as_ref()).map(|(gains, n90s)| rule(gains, n90s));
    let gains = gains.iter().filter_map(gain_sentence);
    gains.chain(n90s.iter().flat_map(n90_sentences)).chain(rule).collect()
}

/// What is wrong with the tables, a sentence each.
pub(super) fn notes(sweep: &PublishedSweep) -> Vec<String> {
    let both = sweep.gains.as_ref().zip(sweep.n90s.as_ref());
    let unmatched = both.and_then(|(gains, n90s)| unmatched(gains, n90s));
    let problems = sweep.problems.iter().map(|problem| format!("Note: {problem}."));
    unmatched.into_iter().chain(problems).collect()
}

/// How far the totals are to be trusted.
pub(super) fn totals(gains: &PublishedTable) -> String {
    let means = "Totals are arithmetic means";
    if gains.is_rounded() {
        format!(
            "{means} of these figures, which were rounded: those of what was not rounded differ by up \
             to a half, and so may be one less or more."
        )
    } else {
        format!("{means} of what is not rounded.")
    }
}

fn gain_sentence(gains: &PublishedTable) -> Option<String> {
    let mean = gains.form.total?;
    let Estimate { median, lowest, highest, .. } = Estimate::of(gains.form.figures())?;
    let (all, nothing) = gains.at_most(0.0);
    let doubled = gains.form.figures().filter(|it| *it >= 100.0).count();
    Some(format!(
        "The best number of iothreads gains {lowest:.0} to {highest:.0} % over none: {mean:.0} % on \
         average, {median:.1} % in half of the {}; {doubled} at least double, {nothing} gain nothing.",
        counted(all, "cell")
    ))
}

fn n90_sentences(n90s: &PublishedTable) -> Vec<String> {
    let (all, none) = n90s.at_most(0.0);
    let share = |count: usize| count as f64 * 100.0 / all as f64;
    let enough = |most: f64| {
        let (_, count) = n90s.at_most(most);
        format!("{most:.0} in {:.0} %", share(count))
    };
    let enough: Vec<String> = ENOUGH_FOR.into_iter().map(enough).collect();
    let mut sentences = vec![
        format!(
            "No iothread is needed in {none} of {} ({:.0} %).",
            counted(all, "cell"),
            share(none)
        ),
        format!("So many iothreads are enough: {}.", enough.join(", ")),
    ];
    let one_job = || n90s.cells.iter().filter(|(cell, _)| cell.shape().jobs() == 1);
    let most = one_job().map(|(_, figure)| *figure).fold(0.0, f64::max);
    if one_job().count() > 0 {
        let cells = counted(one_job().count(), "cell");
        sentences.push(format!("The {cells} with one job need at most {most:.0}."));
    }
    sentences
}

/// Whether 0 stands exactly where none reaches 90 % of the best, as far as rounding lets it be told.
fn rule(gains: &PublishedTable, n90s: &PublishedTable) -> String {
    let doubt = if gains.is_rounded() { HALF } else { 0.0 };
    let both = || both(gains, n90s);
    let wrong = both().filter(|(_, gain, n90)| {
        if *n90 == 0.0 { gain - doubt > NONE_IS_ENOUGH } else { gain + doubt < NONE_IS_ENOUGH }
    });
    let wrong: Vec<String> =
        wrong.map(|(cell, gain, n90)| format!("{cell} (+{gain} %, {n90})")).collect();
    let highest =
        |with: fn(f64) -> bool| both().filter(move |(_, _, n90)| with(*n90)).map(|(_, it, _)| it);
    let with = highest(|n90| n90 == 0.0).fold(0.0, f64::max);
    let without = highest(|n90| n90 > 0.0).fold(f64::INFINITY, f64::min);
    let cells = counted(both().count(), "cell");
    if wrong.is_empty() {
        let others = if without.is_finite() {
            format!(", {without:.0} % and more elsewhere")
        } else {
            String::new()
        };
        return format!(
            "The 90 % rule holds in all {cells}: n90 is 0 exactly where the best gains at most 11.1 % \
             (here: up to {with:.0} % there{others})."
        );
    }
    let named = wrong[..wrong.len().min(NAMED_MAX)].join("; ");
    let more = if wrong.len() > NAMED_MAX { "; …" } else { "" };
    format!(
        "Warning: the 90 % rule, by which n90 is 0 exactly where the best gains at most 11.1 %, does not \
         hold in {} of {cells}: {named}{more}.",
        wrong.len()
    )
}

/// The cells of both tables: gain and n90.
fn both<'a>(
    gains: &'a PublishedTable,
    n90s: &'a PublishedTable,
) -> impl Iterator<Item = (Cell, f64, f64)> + 'a {
    gains.cells.iter().filter_map(|(cell, gain)| {
        let (_, n90) = n90s.cells.iter().find(|(other, _)| other == cell)?;
        Some((*cell, *gain, *n90))
    })
}

/// Cells that only one table has.
fn unmatched(gains: &PublishedTable, n90s: &PublishedTable) -> Option<String> {
    let both = both(gains, n90s).count();
    let alone = gains.cells.len() + n90s.cells.len() - 2 * both;
    (alone > 0).then(|| format!("Note: {} in one of the two tables only.", counted(alone, "cell")))
}

#[cfg(test)]
mod tests;
