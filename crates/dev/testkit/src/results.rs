//! Made-up results of `ringloom tune`: the file `results.jsonl` as docs/results.md describes it, with any figures.
//!
//! Where it stands: tests of reports write one, and let ringloom read it. Made from the document, without the tuner's
//! types, so that a mistake in these shows.
//!
//! Invariants: the figures are those of the caller; everything else is plausible and depends on nothing but the plan.
//! Not here: sentinels. Their figures say nothing about a contender.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

mod header;
mod line;

/// What is measured: all combinations of the lists.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Which version of the document is written.
    pub format: Format,
    /// What the runs are for.
    pub mode: Mode,
    /// `host`, `client`, `vm:qemu`, `vm:ringloom` or `vm:given`.
    pub subjects: Vec<&'static str>,
    /// Numbers of iothreads; 0 is `none`.
    pub iothreads: Vec<u16>,
    /// Operations, as `--op` has them.
    pub operations: Vec<&'static str>,
    /// Block sizes in bytes.
    pub block_sizes: Vec<u32>,
    /// Numbers of jobs. Of a probe pairs, the low one first.
    pub jobs: Vec<u16>,
    /// Requests in flight of each job.
    pub depths: Vec<u16>,
    /// Runs of each point.
    pub repeats: u16,
    /// The measured seconds of a run.
    pub seconds: f64,
}

/// A version of the document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Format {
    /// Repeats are a number, nothing is known of windows and searches.
    Two,
    /// Runs know their windows.
    Three,
    /// What `ringloom tune` writes: runs know their round.
    Four,
}

impl Format {
    fn number(self) -> u32 {
        match self {
            Self::Two => 2,
            Self::Three => 3,
            Self::Four => 4,
        }
    }
}

/// What a command measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// All contenders in all cells.
    Sweep,
    /// Few jobs, many, few again.
    Hysteresis,
    /// The maximum, and shares of it.
    Curve,
}

/// What a run is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// As the mode says.
    Plain,
    /// Measured again because it counts.
    Confirm,
}

/// One run of a plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// What it is for.
    pub purpose: Purpose,
    /// What is measured.
    pub subject: &'static str,
    /// None for `host` and `vm:given`; 0 is `none`.
    pub iothreads: Option<u16>,
    /// The operation.
    pub operation: &'static str,
    /// In bytes.
    pub block_size: u32,
    /// Jobs.
    pub jobs: u16,
    /// Requests in flight of each.
    pub depth: u16,
    /// From 0.
    pub repeat: u16,
    /// Of a probe 0, 1 or 2; of a curve the percentage of the maximum; else 0.
    pub step: u32,
}

/// What came of a run.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// It was measured.
    Measured(Figures),
    /// It failed with this sentence, behind the name of the run.
    Failed(String),
    /// It was not tried.
    Missing,
}

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figures {
    /// Requests per second.
    pub iops: f64,
    /// The latency that half of the requests did not exceed, in µs.
    pub median_us: f64,
    /// CPU time per request of what serves them, in µs.
    pub cpu_us: f64,
}

/// A results file in the making.
#[derive(Clone, Debug)]
pub struct Results {
    plan: Plan,
    /// The first line, for changes.
    pub header: Value,
    /// The other lines, for changes.
    pub lines: Vec<Value>,
}

impl Plan {
    /// What `ringloom tune --subject host,client` measures on a machine with so many cores.
    pub fn usual() -> Self {
        Self {
            format: Format::Four,
            mode: Mode::Sweep,
            subjects: vec!["host", "client"],
            iothreads: vec![0, 1, 2, 4],
            operations: vec!["randread", "randwrite"],
            block_sizes: vec![4 << 10, 64 << 10],
            jobs: vec![4],
            depths: vec![16],
            repeats: 3,
            seconds: 1.5,
        }
    }

    /// The 144 cells of `--full`, with guests.
    pub fn full() -> Self {
        Self {
            format: Format::Four,
            mode: Mode::Sweep,
            subjects: vec!["host", "vm:qemu", "vm:ringloom"],
            iothreads: vec![0, 1, 2, 3, 4, 6, 8, 12, 16],
            operations: vec!["randread", "randwrite", "read", "write"],
            block_sizes: vec![2 << 10, 4 << 10, 32 << 10, 1 << 20],
            jobs: vec![1, 4, 16],
            depths: vec![1, 4, 16],
            repeats: 3,
            seconds: 5.0,
        }
    }

    /// All runs, those of one repeat together.
    fn points(&self, purpose: Purpose) -> Vec<Point> {
        let mut points = Vec::new();
        for repeat in 0..self.repeats {
            for &operation in &self.operations {
                for &block_size in &self.block_sizes {
                    for &depth in &self.depths {
                        for (subject, iothreads) in self.contenders() {
                            for (jobs, step) in self.steps() {
                                points.push(Point {
                                    purpose,
                                    subject,
                                    iothreads,
                                    operation,
                                    block_size,
                                    jobs,
                                    depth,
                                    repeat,
                                    step,
                                });
                            }
                        }
                    }
                }
            }
        }
        points
    }

    fn contenders(&self) -> Vec<(&'static str, Option<u16>)> {
        let of = |&subject: &&'static str| match subject {
            "host" | "vm:given" => vec![(subject, None)],
            _ => self.iothreads.iter().map(|&count| (subject, Some(count))).collect(),
        };
        self.subjects.iter().flat_map(of).collect()
    }

    /// Jobs and steps.
    fn steps(&self) -> Vec<(u16, u32)> {
        match self.mode {
            Mode::Sweep => self.jobs.iter().map(|&jobs| (jobs, 0)).collect(),
            Mode::Hysteresis => {
                let phases = |pair: &[u16]| [(pair[0], 0), (pair[1], 1), (pair[0], 2)];
                self.jobs.chunks_exact(2).flat_map(phases).collect()
            }
            Mode::Curve => {
                let shares = |&jobs: &u16| [100, 50, 70, 90].map(|share| (jobs, share));
                self.jobs.iter().flat_map(shares).collect()
            }
        }
    }
}

impl Results {
    /// A header and no lines.
    pub fn new(plan: Plan) -> Self {
        Self { header: header::header(&plan), lines: Vec::new(), plan }
    }

    /// With a line for each run that `outcome` does not leave out.
    pub fn of(plan: Plan, outcome: impl FnMut(&Point) -> Outcome) -> Self {
        let mut results = Self::new(plan);
        results.add(Purpose::Plain, outcome);
        results
    }

    /// Adds a line for each run of the plan that `outcome` does not leave out. A curve's maximum comes before its points.
    pub fn add(&mut self, purpose: Purpose, mut outcome: impl FnMut(&Point) -> Outcome) {
        let mut maximum = None;
        for point in self.plan.points(purpose) {
            let run = line::Planned { plan: &self.plan, number: self.lines.len(), maximum };
            match outcome(&point) {
                Outcome::Measured(figures) => {
                    if self.plan.mode == Mode::Curve && point.step == 100 {
                        maximum = Some(figures.iops);
                    }
                    self.lines.push(run.measured(&point, &figures));
                }
                Outcome::Failed(error) => self.lines.push(run.failed(&point, &error)),
                Outcome::Missing => {}
            }
        }
    }

    /// The file's text.
    pub fn text(&self) -> String {
        let lines = std::iter::once(&self.header).chain(&self.lines);
        lines.map(|line| format!("{line}\n")).collect()
    }

    /// Writes the file into a directory, which is made.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&self, directory: &Path) -> Result<PathBuf> {
        std::fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
        let path = directory.join("results.jsonl");
        std::fs::write(&path, self.text()).with_context(|| path.display().to_string())?;
        Ok(path)
    }
}

/// `none` or a number.
fn iothreads(count: u16) -> Value {
    if count == 0 { json!("none") } else { json!(count.to_string()) }
}
