//! What would more iothreads, cores, jobs or requests in flight bring? From the figures of a cell to the questions of the crate
//! `model`, and back to a sentence. Pure functions.
//!
//! `settings` and `report` have the steps that `--predict` asks for; the report prints what is told.
//!
//! Invariants: what is predicted is a `Predicted`, never a `Row`: it is in no table, in no total, and nothing is configured by it. Each
//! sentence has a range and what it rests on, or says why there is none.

use std::fmt;

use findings::summary::{CellSummary, Row};
use load::JOBS_MAX;
use model::{Claim, Measured, N90, NoAnswer, Observation, Prediction, Shape, Wanted, predict};
use plan::cell::Cell;
use plan::contender::{Contender, Iothreads, Subject};
use plan::settings::Step;
use plan::units::{counted, percent_gain, short};
use records::meter::{GroupName, Role};
use records::results::Run;

/// The error of one run, as a share, where there is no second one.
const ERROR_OF_ONE: f64 = 0.05;

/// What is told of a step in a cell, for a subject that compares numbers of iothreads.
#[derive(Clone, Debug, PartialEq)]
pub struct Predicted {
    /// Whose iothreads.
    pub subject: Subject,
    /// The cell, with its variant where that is not the usual one.
    pub place: String,
    /// What there would be more of.
    pub step: Step,
    /// What was measured that it is compared with: a number of iothreads and its IOPS.
    pub base: Option<(u16, f64)>,
    /// What it would bring, or why that cannot be told.
    pub told: Result<Prediction, Untold>,
}

/// Why nothing is told.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Untold {
    /// The model cannot tell it.
    NoAnswer(NoAnswer),
    /// The guest's CPUs were emulated.
    Emulated,
    /// Several guests share the host.
    Guests,
    /// So many jobs on each disk are more than there may be in all.
    Jobs,
}

/// All that is asked, cell by cell; `place` names a cell.
pub fn predicted(
    steps: &[Step],
    (runs, cores): (&[Run], usize),
    cells: &[CellSummary],
    place: &dyn Fn(&CellSummary) -> String,
) -> Vec<Predicted> {
    let mut all = Vec::new();
    for step in steps {
        for summary in cells {
            for &(subject, _) in &summary.verdicts {
                let cell = SubjectCell { summary, subject, runs, cores, cells };
                let measured = cell.measured();
                let best = measured.numbers.iter().copied();
                let best = best.reduce(|a, b| if b.iops > a.iops { b } else { a });
                all.push(Predicted {
                    subject,
                    place: place(summary),
                    step: *step,
                    base: best.map(|it| (it.iothreads, it.iops)),
                    told: cell.told(*step, &measured),
                });
            }
        }
    }
    all
}

/// A cell as a subject sees it, with all others.
struct SubjectCell<'a> {
    summary: &'a CellSummary,
    subject: Subject,
    runs: &'a [Run],
    cores: usize,
    cells: &'a [CellSummary],
}

impl SubjectCell<'_> {
    fn told(&self, step: Step, measured: &Measured) -> Result<Prediction, Untold> {
        if self.summary.variant.vms > 1 {
            return Err(Untold::Guests);
        }
        if self.rows().any(|row| row.emulated) {
            return Err(Untold::Emulated);
        }
        let shape = measured.shape;
        let wanted = Wanted { iothreads: None, cores: None, shape };
        let wanted = match step {
            Step::Iothreads(count) => Wanted { iothreads: Some(count), ..wanted },
            Step::Cores(count) => Wanted { cores: Some(count), ..wanted },
            Step::Iodepth(iodepth) => Wanted { shape: Shape { iodepth, ..shape }, ..wanted },
            Step::Jobs(jobs) => {
                let jobs = jobs.saturating_mul(self.summary.variant.disks);
                if jobs > JOBS_MAX {
                    return Err(Untold::Jobs);
                }
                // Each job of a client has a queue of its own.
                let queues = if self.subject.is_vm() { shape.queues } else { jobs };
                Wanted { shape: Shape { jobs, queues, ..shape }, ..wanted }
            }
        };
        predict(measured, &wanted).map_err(Untold::NoAnswer)
    }

    fn rows(&self) -> impl Iterator<Item = &Row> {
        self.summary.rows_of(self.subject)
    }

    /// What the model has to know of it.
    fn measured(&self) -> Measured {
        let CellSummary { variant, cell, .. } = self.summary;
        let shape = cell.shape();
        // Where it is not known, each job has one.
        let queues = self.rows().map(|row| row.queues).max().filter(|queues| *queues > 0);
        let queues = queues.unwrap_or(shape.jobs());
        let of_disks = |count: u16| count.saturating_mul(variant.disks);
        let number = |row: &Row| row.contender.number().filter(|it| *it != Iothreads::NONE);
        let observation = |row: &Row| {
            let iothreads = number(row)?.count();
            let iops = row.iops.median;
            (iops > 0.0).then(|| Observation { iothreads, iops, error: error(row) })
        };
        let mut numbers: Vec<Observation> = self.rows().filter_map(observation).collect();
        numbers.sort_by_key(|it| it.iothreads);
        let host = self.summary.host().map(|row| row.iops.median).filter(|iops| *iops > 0.0);
        let deeper = cell.deeper().zip(self.summary.deeper).map(|(deeper, gain)| {
            (f64::from(deeper.shape().iodepth()) / f64::from(shape.iodepth()), gain.max(1.0))
        });
        let none = self.rows().find(|row| row.contender.number() == Some(Iothreads::NONE));
        let makes = |run: &Run| match self.subject.is_vm() {
            true => run.cpu_us_of(None, Some(Role::Vcpu)),
            false => run.cpu_us_of(Some(GroupName::Load), None),
        };
        Measured {
            shape: Shape {
                jobs: of_disks(shape.jobs()),
                iodepth: shape.iodepth(),
                queues: of_disks(queues),
            },
            cores: u16::try_from(self.cores).unwrap_or(u16::MAX),
            host,
            deeper,
            latency_s: self.latency_s(),
            service_s: self.least_s(&|run| run.cpu_us_of(None, Some(Role::Iothread))),
            submit_s: self.least_s(&makes),
            cpu_s: self.least_s(&Run::cpu_of_all_us),
            none: none.map(|row| row.iops.median).filter(|iops| *iops > 0.0),
            numbers,
        }
    }

    /// The least CPU time per request of the runs of a number: where a thread looks for requests in vain it is more.
    fn least_s(&self, figure: &dyn Fn(&Run) -> Option<f64>) -> Option<f64> {
        let CellSummary { variant, cell, .. } = self.summary;
        let is_number = |contender: Contender| {
            contender.subject() == self.subject && contender.number() > Some(Iothreads::NONE)
        };
        let own = self.runs.iter().filter(|run| {
            let key = &run.key;
            key.purpose.is_compared()
                && (key.variant, key.cell) == (*variant, *cell)
                && is_number(key.contender)
        });
        let least = own.filter_map(figure).filter(|us| *us > 0.0).reduce(f64::min)?;
        Some(least / 1e6)
    }

    /// How long a request is with the bare disk, by Little's law in the cell where that is least.
    fn latency_s(&self) -> Option<f64> {
        let what = |cell: Cell| (cell.shape().operation(), cell.shape().block());
        let alike = self.cells.iter().filter(|it| {
            (it.variant, what(it.cell)) == (self.summary.variant, what(self.summary.cell))
        });
        let each = alike.filter_map(|it| {
            let shape = it.cell.shape();
            let in_flight = f64::from(shape.jobs()) * f64::from(shape.iodepth());
            let disks = f64::from(it.variant.disks);
            it.host().map(|host| in_flight * disks / host.iops.median)
        });
        each.filter(|latency| latency.is_finite()).reduce(f64::min)
    }
}

/// The standard error of a median, as a share.
fn error(row: &Row) -> f64 {
    let logarithms: Vec<f64> = row.by_repeat.iter().map(|(_, it)| it.iops.max(1e-9).ln()).collect();
    let count = logarithms.len() as f64;
    if count < 2.0 {
        return ERROR_OF_ONE;
    }
    let mean = logarithms.iter().sum::<f64>() / count;
    let variance = logarithms.iter().map(|it| (it - mean).powi(2)).sum::<f64>() / (count - 1.0);
    1.25 * (variance / count).sqrt()
}

impl Predicted {
    /// What it rests on, or what more there would have to be; without a full stop.
    pub fn assumption(&self) -> String {
        match self.told {
            Err(why) => why.to_string(),
            Ok(told) => match told.claim {
                Claim::Holds => "for the same load on the same disk, with a core for each thread; such ranges are right \
                                 in 9 of 10 cases"
                    .to_owned(),
                Claim::Wide => "for the same load on the same disk, with a core for each thread; what was measured does \
                                not tell more"
                    .to_owned(),
                Claim::Assumed { cores } => {
                    let cores = cores.map(|it| format!("the machine has {it} cores, ")).unwrap_or_default();
                    format!("if {cores}the storage keeps pace and no other bottleneck appears")
                }
            },
        }
    }

    /// `4 to 6`, `at least 8`.
    pub fn n90(&self) -> Option<String> {
        let n90 = self.told.ok()?.n90?;
        let name = |count: u16| Iothreads::new(count).to_string();
        Some(match n90 {
            N90::Between(low, high) if low == high => name(low),
            N90::Between(low, high) => format!("{} to {}", name(low), name(high)),
            N90::AtLeast(low) => format!("at least {}", name(low)),
        })
    }

    /// The same, said of so many cells.
    pub fn of_cells(&self, count: usize) -> Self {
        let place = if count > 1 { format!("{count} cells") } else { self.place.clone() };
        Self { place, ..self.clone() }
    }

    /// What would come of it.
    pub fn sentence(&self) -> String {
        let Self { subject, place, step, .. } = self;
        let asked = match self.told {
            Ok(told) if !matches!(step, Step::Iothreads(_)) => {
                format!(
                    "{} with {}",
                    step.words(),
                    counted(usize::from(told.iothreads), "iothread")
                )
            }
            Ok(_) | Err(_) => step.words(),
        };
        let Ok(told) = self.told else {
            let why = self.assumption();
            return format!("{subject}, {place}: {asked}: nothing is predicted, {why}.");
        };
        let (low, high) = (told.iops.low, told.iops.high);
        let over = self.base.map(|(count, iops)| {
            let [low, high] = [low, high].map(|it| percent_gain(it / iops));
            format!(
                ", {low} to {high} over {} as measured",
                counted(usize::from(count), "iothread")
            )
        });
        let n90 = self.n90().map(|it| format!("; n90 {it}"));
        format!(
            "{subject}, {place}: {asked}: {} to {} IOPS{}{}; {}.",
            short(low),
            short(high),
            over.unwrap_or_default(),
            n90.unwrap_or_default(),
            self.assumption()
        )
    }
}

impl fmt::Display for Untold {
    /// The end of a sentence.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAnswer(NoAnswer::NoHost) => f.write_str(
                "because the bare host was not measured, so what the disk can do is not known (--subject host beside it)",
            ),
            Self::NoAnswer(NoAnswer::FewNumbers(count)) => write!(
                f,
                "because only {} {} measured: it takes {} or more, none not counted",
                counted(*count, "number"),
                if *count == 1 { "was" } else { "were" },
                model::NUMBERS_MIN
            ),
            Self::NoAnswer(NoAnswer::NoCpuTime) => f.write_str(
                "because the cores were too few for what was measured, and its CPU time is not known",
            ),
            Self::NoAnswer(NoAnswer::Misfit(share)) => write!(
                f,
                "because the figures are {:.0} % off from what threads with queues would reach",
                100.0 * share
            ),
            Self::Emulated => f.write_str("because the guest's CPUs were emulated"),
            Self::Guests => f.write_str("because several guests share the host"),
            Self::Jobs => write!(f, "because that is more than {JOBS_MAX} jobs on all disks"),
        }
    }
}

#[cfg(test)]
mod tests;
