//! The tables of the published form: what each shows and how its figures are written, in Markdown and on the page alike.
//! Pure functions.
//!
//! Not here: the figures (`summary::form`).

use findings::published;
use findings::summary::CellSummary;
use findings::summary::form::{Mean, PublishedForm, gains, n90s, ratios};
use plan::contender::Subject;
use plan::lists::unique;
use plan::units::counted;

use crate::text::on;

/// One of the tables.
#[derive(Debug)]
pub(crate) struct Kind {
    pub(crate) title: &'static str,
    pub(crate) meaning: &'static str,
    /// What stands there instead if no cell has it.
    pub(crate) missing: &'static str,
    pub(crate) mean: Mean,
    /// Of a sweep of our own.
    pub(crate) form: fn(Subject, &[CellSummary]) -> PublishedForm,
    /// Of the published sweep, which has some of them.
    pub(crate) published: Option<fn() -> PublishedForm>,
    /// From which values on a darker shade is used.
    pub(crate) shades: [f64; 7],
    /// What a figure is multiplied by to be written.
    scale: f64,
    /// What is then taken from it.
    less: f64,
    /// Of a total; a cell has none.
    decimals: u8,
}

/// What the best number of iothreads gains.
const GAINS: Kind = Kind {
    title: "Gain over none, %",
    meaning: "IOPS of the best number (partly luck) over none; totals: geometric means of the ratios",
    missing: "None was not measured beside a number of iothreads, so there is no gain.",
    mean: Mean::Geometric,
    form: gains,
    published: Some(published::gains),
    shades: [1.05, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0],
    scale: 100.0,
    less: 100.0,
    decimals: 0,
};

/// How many iothreads are enough.
const N90S: Kind = Kind {
    title: "n90",
    meaning: "fewest iothreads that reach 90 % of the best; 0 is none; totals: means",
    missing: "No numbers of iothreads were compared.",
    mean: Mean::Arithmetic,
    form: n90s,
    published: Some(published::n90s),
    shades: [1.0, 2.0, 3.0, 4.0, 6.0, 9.0, 13.0],
    scale: 1.0,
    less: 0.0,
    decimals: 1,
};

const RATIOS: Kind = Kind {
    title: "Ratio to the host, %",
    meaning: "IOPS of the best number of iothreads to those of the bare file; totals: geometric means",
    missing: "The host was not measured with the same load, so there is no ratio to it.",
    mean: Mean::Geometric,
    form: ratios,
    published: None,
    shades: [0.2, 0.4, 0.6, 0.75, 0.9, 1.0, 1.1],
    scale: 100.0,
    less: 0.0,
    decimals: 0,
};

/// Those of a sweep of our own.
pub(crate) const KINDS: [Kind; 3] = [GAINS, N90S, RATIOS];

/// A table of the published sweep.
#[derive(Debug)]
pub(crate) struct PublishedTable {
    pub(crate) title: String,
    pub(crate) form: PublishedForm,
    /// Sentences.
    pub(crate) below: Vec<String>,
}

impl Kind {
    /// The figure of a cell.
    pub(crate) fn figure(&self, value: f64) -> String {
        half_up(value * self.scale - self.less, 0)
    }

    /// A mean of them.
    pub(crate) fn total(&self, value: f64) -> String {
        half_up(value * self.scale - self.less, self.decimals)
    }

    /// The published sweep's table, with its heading and what stands below it: whose it is, and what its mean is over the cells
    /// that these variants have, too. KubeVirt's machines alone can be held against it.
    pub(crate) fn published(
        &self,
        subject: Subject,
        cells: &[CellSummary],
    ) -> Option<PublishedTable> {
        let form = self.published.filter(|_| subject == Subject::VmKubevirt)?();
        let mut below = vec![format!("{}.", published::SOURCE)];
        for variant in unique(cells.iter().map(|cell| cell.variant)) {
            let here = cells.iter().filter(|cell| cell.variant == variant).cloned();
            let own = (self.form)(subject, &here.collect::<Vec<_>>());
            let Some(shared) = published::shared(self.mean, &own, &form) else { continue };
            let place = on(counted(shared.count, "cell"), &variant);
            let (own, other) = (self.total(shared.own), self.total(shared.other));
            below.push(format!(
                "{place}: measured here as well, in the mean {own}, published {other}."
            ));
        }
        Some(PublishedTable { title: format!("Published sweep: {}", self.title), form, below })
    }

    /// How many of the limits a figure reaches.
    pub(crate) fn shade(&self, value: f64) -> usize {
        self.shades.iter().filter(|limit| value >= **limit).count()
    }
}

/// Half is rounded up, as in the published tables.
fn half_up(value: f64, decimals: u8) -> String {
    let unit = 10_f64.powi(decimals.into());
    let rounded = (value * unit + 0.5).floor() / unit;
    format!("{rounded:.*}", usize::from(decimals))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_is_rounded_up() {
        for (value, decimals, text) in [
            (50.5, 0, "51"),
            (51.5, 0, "52"),
            (0.25, 1, "0.3"),
            (0.75, 1, "0.8"),
            (2.0, 1, "2.0"),
            (-0.5, 0, "0"),
            (-12.6, 0, "-13"),
        ] {
            assert_eq!(half_up(value, decimals), text, "{value}");
        }
    }
}
