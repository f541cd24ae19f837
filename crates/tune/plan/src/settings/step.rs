//! What `--predict` asks for, and what it may not.

use std::fmt;
use std::str::FromStr;

use anyhow::{Result, bail};
use load::{IODEPTH_MAX, JOBS_MAX};
use serde::{Deserialize, Serialize};

use super::Settings;
use crate::contender::IOTHREADS_MAX;
use crate::units::{BadValue, counted, stored_as_text};

/// More cores than a machine has.
const CORES_MAX: u16 = 4096;

/// More of one thing than was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Step {
    /// So many iothreads.
    Iothreads(u16),
    /// So many cores of the host.
    Cores(u16),
    /// So many jobs.
    Jobs(u16),
    /// So many requests in flight of each job.
    Iodepth(u16),
}

impl Step {
    fn parts(self) -> (&'static str, u16, u16) {
        match self {
            Self::Iothreads(count) => ("iothreads", count, IOTHREADS_MAX),
            Self::Cores(count) => ("cores", count, CORES_MAX),
            Self::Jobs(count) => ("jobs", count, JOBS_MAX),
            Self::Iodepth(count) => ("iodepth", count, IODEPTH_MAX),
        }
    }

    /// Refuses steps to what was measured, or less.
    ///
    /// # Errors
    /// The option and what may stand there.
    pub fn check_all(settings: &Settings, cores: usize) -> Result<()> {
        settings.predict.iter().try_for_each(|step| step.check(settings, cores))
    }

    /// `16 iothreads`, as sentences have it.
    pub fn words(self) -> String {
        match self {
            Self::Iothreads(count) => counted(usize::from(count), "iothread"),
            Self::Cores(count) => format!("{count} cores"),
            Self::Jobs(count) => format!("{count} jobs"),
            Self::Iodepth(count) => format!("iodepth {count}"),
        }
    }

    fn check(self, settings: &Settings, cores: usize) -> Result<()> {
        let (name, count, limit) = self.parts();
        let numbers = settings.iothreads.iter().filter(|it| !it.is_auto()).map(|it| it.count());
        let measured = match self {
            Self::Iothreads(_) => numbers.max(),
            Self::Cores(_) => u16::try_from(cores).ok(),
            Self::Jobs(_) => settings.jobs.iter().copied().max(),
            Self::Iodepth(_) => settings.iodepth.iter().copied().max(),
        };
        let measured = measured.unwrap_or(0);
        if count > measured {
            return Ok(());
        }
        let more = measured.saturating_add(1);
        let what = match self {
            Self::Iodepth(_) => format!("an iodepth of up to {measured} is"),
            Self::Iothreads(_) | Self::Cores(_) | Self::Jobs(_) => {
                format!("up to {measured} {name} are")
            }
        };
        if more > limit {
            bail!("--predict {self}: {what} measured, and no more can be predicted");
        }
        bail!("--predict {self}: {what} measured anyway: write {more} to {limit}");
    }
}

impl FromStr for Step {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, number) = text.split_once('=').unwrap_or(("iothreads", text));
        let of: fn(u16) -> Self = match name {
            "iothreads" => Self::Iothreads,
            "cores" => Self::Cores,
            "jobs" => Self::Jobs,
            "iodepth" => Self::Iodepth,
            _ => {
                let valid = "write a number of iothreads, or iothreads=, cores=, jobs= or iodepth= with a number";
                return Err(BadValue::new(text, "step to predict", valid));
            }
        };
        let (_, _, limit) = of(0).parts();
        let valid = || format!("{name} may be 1 to {limit}, and more than is measured");
        let count = number.parse().ok().filter(|count| (1..=limit).contains(count));
        count.map(of).ok_or_else(|| BadValue::new(text, "step to predict", valid()))
    }
}

stored_as_text!(Step);

/// As the option has it.
impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, count, _) = self.parts();
        write!(f, "{name}={count}")
    }
}
