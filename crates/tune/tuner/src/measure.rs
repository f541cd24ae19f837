//! One run: attach the disk, put the load on it, read the counters, detach.
//!
//! `run` calls `Bench::measure` for each planned run and stores what it returns. The children are the kinds of runs:
//! `own` the loads of the crate `load`, `host` fio on this host, `vm` fio in guests that ringloom boots, `given` fio in the
//! user's own guest; `fio` carries out what the last three share.
//!
//! Invariants: whatever a run started is stopped when it ends, however it ends; guests stay for the next one.

pub(crate) mod fio;
mod given;
mod host;
mod own;
mod verify;
pub(crate) mod vm;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use load::Workload;
use plan::contender::{Iothreads, Subject};
use plan::runs::{PlannedRun, Purpose, RunKey};
use plan::settings::LoadKind;
use plan::settings::Settings;
use records::results::Run;
use storage::clock;
use storage::interrupt::Interrupt;
use storage::storages::{DiskFiles, Renewal, Storages, Tools};

use self::fio::{Fio, Surroundings};
pub(crate) use self::vm::Guests;
use crate::daemon::{Daemon, Running};
use crate::given::Given;
use crate::pace::Pace;
use crate::progress::Progress;

/// Everything that stays the same from run to run.
#[derive(Debug)]
pub(crate) struct Bench<'a> {
    pub(crate) daemon: Daemon,
    pub(crate) settings: &'a Settings,
    pub(crate) storages: Storages,
    /// How the storage is made anew before each round; none where it stays.
    pub(crate) renewal: Option<Renewal<'a>>,
    /// The round of the last run; none before the first.
    pub(crate) round: Option<u16>,
    pub(crate) tools: &'a Tools,
    /// If any run needs it.
    pub(crate) fio: Option<Fio>,
    /// If any run needs guests.
    pub(crate) guests: Option<Guests>,
    /// The client's daemon, between the phases of a probe.
    pub(crate) held: Option<KeptDisk<Running>>,
    /// If the user named one.
    pub(crate) given: Option<Given>,
    /// The directory of the results.
    pub(crate) out: PathBuf,
    pub(crate) interrupt: &'a Interrupt,
    pub(crate) progress: &'a Progress,
    /// Learns from every run.
    pub(crate) pace: Pace,
}

/// What stays attached between the phases of a probe.
#[derive(Debug)]
pub(crate) struct KeptDisk<T> {
    /// The phase that left it.
    key: RunKey,
    what: T,
}

impl<T> KeptDisk<T> {
    /// What the phase before `key` left; `jobs` are those of the settings. Anything else that is held is dropped, which stops it.
    fn take(held: &mut Option<Self>, key: &RunKey, jobs: &[u16]) -> Option<T> {
        held.take().filter(|held| key.follows(&held.key, jobs)).map(|held| held.what)
    }

    /// Keeps it for the phase after `key`; gives it back if there is none.
    fn keep(held: &mut Option<Self>, key: &RunKey, what: T) -> Option<T> {
        if !key.keeps_disk() {
            return Some(what);
        }
        *held = Some(Self { key: key.clone(), what });
        None
    }
}

/// A run with what it needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Planned<'a> {
    pub(crate) run: &'a PlannedRun,
    /// The disks of all guests, those of the first guest first.
    pub(crate) disks: &'a [DiskFiles],
    pub(crate) workload: &'a Workload,
    /// Requests per second of all guests, if they are limited.
    pub(crate) rate: Option<f64>,
    pub(crate) name: &'a str,
}

impl Bench<'_> {
    /// Measures one run, at a rate if one is given. `left` is what it and those after it should take,
    /// as far as they are known.
    ///
    /// # Errors
    /// If anything fails, or a signal comes (`Interrupted`). What the run started is stopped in any case.
    pub(crate) fn measure(
        &mut self,
        planned: &PlannedRun,
        rate: Option<f64>,
        left: Duration,
    ) -> Result<Run> {
        if let Some(round) = planned.round.filter(|round| self.round != Some(*round)) {
            self.begin(round)?;
        }
        let name = planned.key.to_string();
        let begun = clock::now();
        self.progress.begin(&name, self.pace.expected(planned), left);
        let iothreads = planned.key.contender.iothreads().unwrap_or(Iothreads::NONE);
        let measured = match planned.key.contender.subject() {
            Subject::Host => self.with_disks(planned, rate, &name, Self::on_host),
            Subject::Client => {
                self.with_disks(planned, rate, &name, |bench, it| bench.by_client(it, iothreads))
            }
            Subject::VmQemu | Subject::VmRingloom => {
                self.with_disks(planned, rate, &name, Self::in_guests)
            }
            Subject::VmGiven => self.in_given(planned, rate, &name),
            subject @ (Subject::Pod | Subject::VmKubevirt) => {
                bail!("{subject} is measured by tune cluster")
            }
        };
        match &measured {
            Ok(_) => self.pace.observe(planned, begun.elapsed()),
            Err(_) => self.pace.failed(planned),
        }
        let run = measured.with_context(|| name.clone())?;
        self.progress.end(&name, run.iops());
        Ok(Run { round: self.round, ..run })
    }

    /// Before a round guests end, and what was written is made anew: what one boot, or one place on the disk, does to the
    /// figures is then drawn anew, too.
    fn begin(&mut self, round: u16) -> Result<()> {
        let is_first = self.round.is_none() && self.storages.are_made();
        self.held = None;
        if let Some(guests) = &mut self.guests {
            guests.end();
        }
        let mut filled = None;
        if let Some(renewal) = self.renewal.as_ref().filter(|_| !is_first) {
            // Until that is done, the next run begins the round once more.
            self.round = None;
            self.progress.before("the disk is filled anew");
            let begun = clock::now();
            renewal.renew(&mut self.storages, round, self.tools, self.interrupt)?;
            filled = Some(begun.elapsed());
        }
        self.round = Some(round);
        self.pace.begin(round, filled);
        Ok(())
    }

    /// On the disks of the run's variant.
    fn with_disks(
        &mut self,
        run: &PlannedRun,
        rate: Option<f64>,
        name: &str,
        measure: impl FnOnce(&mut Self, &Planned<'_>) -> Result<Run>,
    ) -> Result<Run> {
        if !self.storages.are_made() {
            bail!("the disk could not be filled anew");
        }
        let variant = &run.key.variant;
        if run.key.purpose != Purpose::Probe || run.key.step == 0 {
            self.storages.reset(variant, self.tools, self.interrupt)?;
        }
        let disks = self.storages.disks(variant);
        let first = disks.first().context("a variant has a disk")?;
        if let Err(reason) = first.allows(variant.aio) {
            bail!("{reason}");
        }
        let bytes = first.bytes;
        let workload = Workload::new(run.key.cell.shape(), bytes, run.seed)?;
        let planned = Planned { run, disks: &disks, workload: &workload, rate, name };
        let measured = measure(self, &planned);
        match (measured, self.storages.shortage(variant)) {
            (Err(error), Some(shortage)) => Err(error.context(shortage)),
            (measured, _) => measured,
        }
    }

    /// In the user's own guest, which has its own disk.
    fn in_given(&mut self, run: &PlannedRun, rate: Option<f64>, name: &str) -> Result<Run> {
        self.rest()?;
        let mut given = self.given.take().context("there is no guest of yours to measure")?;
        let workload = Workload::new(run.key.cell.shape(), given.guest.disk.bytes, run.seed)?;
        let planned = Planned { run, disks: &[], workload: &workload, rate, name };
        let measured = given::run(self, &mut given, &planned);
        self.given = Some(given);
        measured
    }

    /// Guests that have nothing to do must not disturb.
    fn rest(&mut self) -> Result<()> {
        let interrupt = self.interrupt;
        self.guests.as_mut().map_or(Ok(()), |guests| guests.fleet.rest(interrupt))
    }

    fn on_host(&mut self, planned: &Planned<'_>) -> Result<Run> {
        self.rest()?;
        match self.settings.load {
            LoadKind::Own => own::host(self, planned),
            LoadKind::Fio => host::run(self, planned),
        }
    }

    fn by_client(&mut self, planned: &Planned<'_>, iothreads: Iothreads) -> Result<Run> {
        self.rest()?;
        let mut held = self.held.take();
        let measured = own::client(self, &mut held, planned, iothreads);
        self.held = held;
        measured
    }

    fn in_guests(&mut self, planned: &Planned<'_>) -> Result<Run> {
        let mut guests = self.guests.take().context("no guests were prepared")?;
        let measured = guests.run(self, planned);
        self.guests = Some(guests);
        measured
    }

    fn fio(&self) -> Result<&Fio> {
        self.fio.as_ref().context("fio was not looked for")
    }

    fn daemon_log(&self) -> PathBuf {
        self.out.join("daemon.log")
    }

    fn surroundings(&self) -> Surroundings<'_> {
        let Self { settings, out, interrupt, progress, .. } = self;
        Surroundings { settings, out, interrupt, progress }
    }
}

impl Planned<'_> {
    /// The name of the run's files: letters, digits and `-`.
    pub(crate) fn slug(&self) -> String {
        let RunKey { repeat, .. } = self.run.key;
        let text = format!("{} r{repeat}", self.name);
        let words = text.split(|c: char| !c.is_ascii_alphanumeric());
        words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join("-")
    }
}
