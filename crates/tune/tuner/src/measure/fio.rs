//! Runs of fio: on this host, in the guests, or on the user's own machine.
//!
//! One loop looks after all of them: it starts a fio per place, samples the counters and prints intervals while they run,
//! and reads their reports. The measured window is where fio says it was: it ends when fio ends.
//!
//! Limits: a fio that has not ended `GRACE` after its time fails the run.

mod places;
mod window;

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use load::fio::{Engine, FioVersion, Intervals, Job, Rate, Report, parse_report, series};
use load::probe::CacheMode;
use load::{Interval, Sample, Timing, Workload};
use plan::settings::Settings;
use records::meter::{Group, GroupName, Meter};
use records::results::{DiskPart, Part, Run, nanoseconds};
use records::steady;
use storage::clock;
use storage::interrupt::Interrupt;

pub(super) use self::places::{GivenPlace, GuestPlace, HostPlace};
use self::window::Window;
use super::{Bench, Planned, verify};
use crate::progress::Progress;

/// Start, end and report of a fio on a slow machine.
const GRACE: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(20);

/// The fio that is used.
#[derive(Clone, Debug)]
pub(crate) struct Fio {
    pub(crate) program: PathBuf,
    pub(crate) version: FioVersion,
}

/// When fio reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reports {
    EachSecond,
    /// For jobs that nobody watches. Older fios (3.33 is one) may hang for ever when they report in the moment in which a
    /// job goes from writing to reading, or ends: <https://github.com/axboe/fio/pull/2076>
    AtTheEnd,
}

/// A fio that was started somewhere.
pub(crate) trait Place {
    /// What the user calls it, for messages.
    fn name(&self) -> String;

    /// Puts the job file there.
    fn put(&mut self, job: &str) -> Result<()>;

    /// Starts fio on the job that was put there, and returns at once.
    ///
    /// If it is a process of this host, its id.
    fn start(&mut self, reports: Reports) -> Result<Option<u32>>;

    /// What fio has printed since the last call.
    fn printed(&mut self) -> Result<Vec<u8>>;

    /// All that it printed, once it has ended.
    fn poll(&mut self) -> Result<Option<Ended>>;
}

/// A fio that has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) output: String,
    /// How it ended, if not well.
    pub(crate) failed: Option<String>,
    pub(crate) ended: Instant,
}

/// How requests get to the kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Means {
    pub(crate) version: FioVersion,
    pub(crate) engine: Engine,
    pub(crate) cache: CacheMode,
}

impl Means {
    /// The fio of this host and its guests, on the disks of a run.
    pub(super) fn new(bench: &Bench<'_>, planned: &Planned<'_>, engine: Engine) -> Result<Self> {
        let cache = planned.disks.first().context("a run has a disk")?.cache;
        Ok(Self { version: bench.fio()?.version, engine, cache })
    }
}

/// The load of one place.
#[derive(Clone, Debug)]
pub(crate) struct Work<'a> {
    pub(super) workload: &'a Workload,
    pub(super) means: Means,
    pub(super) timing: Timing,
    /// Requests per second of this place.
    pub(super) rate: Option<Rate>,
}

impl<'a> Work<'a> {
    /// What each of so many places has to do in a run.
    pub(crate) fn new(
        settings: &Settings,
        planned: &Planned<'a>,
        means: Means,
        places: usize,
    ) -> Result<Self> {
        let rate = planned.rate.map(|rate| rate_of_each(rate, places)).transpose()?;
        let timing = planned.run.timing(settings);
        Ok(Self { workload: planned.workload, means, timing, rate })
    }

    /// The job on these files or devices of the place.
    pub(super) fn job(&self, files: Vec<String>) -> Result<Job> {
        let Self { workload, means: Means { engine, cache, .. }, timing, rate } = self.clone();
        let job = Job::new(*workload, files, engine, cache, timing)?;
        Ok(match rate {
            Some(rate) => job.with_rate(rate)?,
            None => job,
        })
    }
}

/// The share of one of so many places in a rate of requests per second.
fn rate_of_each(rate: f64, places: usize) -> Result<Rate> {
    // Rates are whole numbers; a place that would get less than one has nothing to measure. What has no number as text
    // (too large, none at all) is no rate.
    let whole: u32 = format!("{:.0}", rate / places as f64).parse().unwrap_or(0);
    NonZeroU32::new(whole).map(Rate).with_context(|| {
        format!("a rate of {rate:.1} requests per second is too low for {places} guests")
    })
}

/// What is told while it runs, and what ends it.
pub(super) struct Around<'a> {
    pub(super) interrupt: &'a Interrupt,
    pub(super) progress: &'a Progress,
    pub(super) name: &'a str,
    /// Looks whether what serves the disks is alive.
    pub(super) check: &'a mut dyn FnMut() -> Result<()>,
}

/// A place and the job file it is to run.
pub(super) struct Task<'a> {
    pub(super) place: &'a mut dyn Place,
    pub(super) job: String,
    pub(super) reports: Reports,
}

/// A place and what fio works on there.
pub(crate) struct Station<'a> {
    pub(crate) place: &'a mut dyn Place,
    /// Paths of files or devices, as the place has them.
    pub(crate) files: Vec<String>,
    /// Of the job file that is kept, without its end.
    pub(crate) job_name: String,
}

/// What serves the disks.
pub(crate) struct Serving<'a> {
    /// Its processes.
    pub(crate) groups: &'a [Group],
    /// Looks whether it is alive.
    pub(crate) check: &'a mut dyn FnMut() -> Result<()>,
}

/// What surrounds all runs of a command.
#[derive(Clone, Copy)]
pub(crate) struct Surroundings<'a> {
    pub(crate) settings: &'a Settings,
    /// The directory of the results.
    pub(crate) out: &'a Path,
    pub(crate) interrupt: &'a Interrupt,
    pub(crate) progress: &'a Progress,
}

impl Surroundings<'_> {
    /// Whether some of the disk is verified before this run.
    fn verifies(&self, planned: &Planned<'_>) -> bool {
        self.settings.verify && planned.run.key.cell.writes()
    }
}

/// One run with the same work in each place, from the job files that are kept to what was measured.
pub(crate) fn run(
    surroundings: Surroundings<'_>,
    planned: &Planned<'_>,
    work: &Work<'_>,
    stations: &mut [Station<'_>],
    serving: Serving<'_>,
) -> Result<Run> {
    let (mut jobs, mut job_files) = (Vec::new(), Vec::new());
    for Station { files, job_name, .. } in &*stations {
        let job = work.job(files.clone())?.file(work.means.version);
        job_files.push(keep_job(surroundings.out, job_name, &job)?);
        jobs.push(job);
    }
    let Serving { groups, check } = serving;
    let Surroundings { interrupt, progress, .. } = surroundings;
    let mut around = Around { interrupt, progress, name: planned.name, check };
    let mut verified_bytes = None;
    if surroundings.verifies(planned) {
        verified_bytes = Some(verify::run(stations, work, &mut around)?);
    }
    let reports = Reports::EachSecond;
    let each = stations.iter_mut().zip(jobs);
    let mut tasks: Vec<Task<'_>> =
        each.map(|(it, job)| Task { place: &mut *it.place, job, reports }).collect();
    let (meter, ended) = measure(&mut tasks, groups, work.timing, &mut around)?;
    let run = outcome(planned, work, &meter, &ended)?;
    Ok(Run { job_files, verified_bytes, ..run })
}

/// Runs the jobs, each in its place, all at the same time, and measures. `groups` are the processes that serve the disks.
fn measure(
    tasks: &mut [Task<'_>],
    groups: &[Group],
    timing: Timing,
    around: &mut Around<'_>,
) -> Result<(Meter, Vec<Ended>)> {
    let mut meter: Option<Meter> = None;
    let time = timing.ramp + timing.runtime;
    let ended = carry_out(tasks, time, around, &mut |now, loads| {
        let all = || {
            let loads = loads.iter().map(|&pid| Group::new(GroupName::Load, pid));
            Meter::new(groups.iter().cloned().chain(loads).collect())
        };
        meter.get_or_insert_with(all).sample(now);
    })?;
    let mut meter = meter.context("no fio ran")?;
    meter.close(clock::now());
    Ok((meter, ended))
}

/// Runs the jobs to their ends. `time` is how long they should take; `sample` is called all the time, with the process ids
/// of the fios that run on this host.
pub(super) fn carry_out(
    tasks: &mut [Task<'_>],
    time: Duration,
    around: &mut Around<'_>,
    sample: &mut dyn FnMut(Instant, &[u32]),
) -> Result<Vec<Ended>> {
    let deadline = clock::now() + time + GRACE;
    let (mut running, mut loads) = (Vec::new(), Vec::new());
    for Task { place, job, .. } in tasks.iter_mut() {
        place.put(job).with_context(|| format!("fio {}", place.name()))?;
    }
    // Nothing between these starts takes time: the places shall run together.
    for Task { place, reports, .. } in tasks.iter_mut() {
        let pid = place.start(*reports).with_context(|| format!("start fio {}", place.name()))?;
        loads.extend(pid);
        running.push(Running {
            place: &mut **place,
            intervals: Intervals::default(),
            told: Vec::new(),
            ended: None,
        });
    }
    let mut shown = 0;
    while running.iter().any(|it| it.ended.is_none()) {
        around.look()?;
        sample(clock::now(), &loads);
        for one in running.iter_mut().filter(|it| it.ended.is_none()) {
            one.look()?;
        }
        shown = around.show(&running, shown);
        if clock::now() > deadline {
            let slow = running.iter().filter(|it| it.ended.is_none());
            let names: Vec<_> = slow.map(|it| it.place.name()).collect();
            let late = GRACE.as_secs();
            bail!("fio {} has not ended {late} s after its time", names.join(" and "));
        }
        clock::pause(LOOK);
    }
    Ok(running.into_iter().filter_map(|it| it.ended).collect())
}

/// One place while its fio runs.
struct Running<'p> {
    place: &'p mut dyn Place,
    intervals: Intervals,
    /// Its complete seconds.
    told: Vec<Interval>,
    ended: Option<Ended>,
}

impl Running<'_> {
    fn look(&mut self) -> Result<()> {
        let printed = self.place.printed()?;
        self.told.extend(self.intervals.feed(&printed));
        self.ended = self.place.poll().with_context(|| format!("fio {}", self.place.name()))?;
        Ok(())
    }
}

impl Around<'_> {
    fn look(&mut self) -> Result<()> {
        self.interrupt.check()?;
        (self.check)()?;
        self.progress.tick(self.name);
        Ok(())
    }

    /// Shows the seconds that all places have told of; returns how many that are.
    fn show(&self, running: &[Running<'_>], mut shown: usize) -> usize {
        while running.iter().all(|it| it.told.len() > shown) {
            let second: Vec<_> = running.iter().map(|it| it.told[shown].clone()).collect();
            if let Some(all) = Interval::merge(&second) {
                self.progress.interval(&all);
            }
            shown += 1;
        }
        shown
    }
}

/// What all places together did.
fn outcome(planned: &Planned<'_>, work: &Work<'_>, meter: &Meter, ended: &[Ended]) -> Result<Run> {
    let (mut samples, mut disks, mut own) = (Vec::new(), Vec::new(), Vec::new());
    for Ended { output, failed, ended } in ended {
        let Report { sample, files, .. } = parse_report(output)?;
        if let Some(failed) = failed {
            bail!("fio ended with {failed}");
        }
        own.push(Window::ending(*ended, sample.elapsed));
        samples.push(sample);
        disks.extend(files);
    }
    let window = own.iter().copied().reduce(Window::with).context("no fio ran")?;
    let series: Vec<_> = ended.iter().map(|it| series(&it.output)).collect();
    if let [_, _, ..] = own[..] {
        let each = series.iter().zip(&own);
        let common = each.map(|(seconds, own)| window.sample(seconds, *own));
        // All of them, or the parts would not be of the same time.
        samples = common.collect::<Option<_>>().unwrap_or(samples);
    }
    let Window { open, close } = window;
    let parts = match &samples[..] {
        [_] => Vec::new(),
        several => (1..).zip(several).map(|(vm, sample)| Part::new(vm, sample)).collect(),
    };
    let seconds: Vec<_> = series.iter().map(|series| seconds(series)).collect();
    let windows: Vec<_> = seconds.iter().map(|series| steady::windows(series)).collect();
    let own = planned.run.key.variant.disks;
    let disks = disks.iter().enumerate().map(|(place, disk)| DiskPart::new(place, own, disk));
    let Means { version, engine, .. } = work.means;
    let each_rate = work.rate.map(|rate| f64::from(rate.0.get()));
    let (load, cost) = (format!("fio-{version} {engine}"), meter.between(open, close));
    let sample = merged(samples).context("no fio ran")?;
    Ok(Run {
        rate_iops: each_rate.map(|rate| rate * ended.len() as f64),
        per_second: together(&seconds),
        windows: together(&windows),
        parts,
        disk_parts: disks.collect(),
        ..Run::new(planned.run, load, sample, cost)
    })
}

/// Length in ns and requests of each part, of all places together: as many parts as all of them have.
fn together(all: &[Vec<(u64, u64)>]) -> Vec<(u64, u64)> {
    let length = all.iter().map(Vec::len).min().unwrap_or(0);
    let sum = |part: usize| {
        let each = || all.iter().map(|series| series[part]);
        (each().map(|(length, _)| length).max().unwrap_or(0), each().map(|(_, count)| count).sum())
    };
    (0..length).map(sum).collect()
}

/// fio counts seconds from its start, so the first of the measured time may be shorter. What comes some milliseconds after the
/// last second is told as an interval; it belongs to that second.
fn seconds(intervals: &[Interval]) -> Vec<(u64, u64)> {
    let same = |one: &Interval, next: &Interval| one.second == next.second;
    let sum = |second: &[Interval]| {
        let elapsed: Duration = second.iter().map(|it| it.elapsed).sum();
        let operations = second.iter().map(|it| it.operations).sum();
        (nanoseconds(elapsed), operations)
    };
    intervals.chunk_by(same).map(sum).collect()
}

/// All samples as one: the requests of all, the longest time.
fn merged(samples: Vec<Sample>) -> Option<Sample> {
    samples.into_iter().reduce(|mut all, one| {
        all.operations += one.operations;
        all.bytes += one.bytes;
        all.elapsed = all.elapsed.max(one.elapsed);
        all.latency.merge(&one.latency);
        all
    })
}

/// Writes a job file where the results are, and returns its name there.
fn keep_job(out: &Path, name: &str, job: &str) -> Result<String> {
    let relative = format!("jobs/{name}.fio");
    let path = out.join(&relative);
    let parent = path.parent().context("a job file has a directory")?;
    std::fs::create_dir_all(parent).with_context(|| format!("create {}", parent.display()))?;
    std::fs::write(&path, job).with_context(|| format!("write {}", path.display()))?;
    Ok(relative)
}

#[cfg(test)]
mod tests {
    use load::Latency;

    use super::*;

    #[test]
    fn guests_are_summed_as_far_as_all_of_them_are_known() {
        let (one, other) = (vec![(10, 1), (11, 2)], vec![(12, 5), (9, 6), (10, 7)]);
        assert_eq!(together(std::slice::from_ref(&one)), one);
        assert_eq!(together(&[one.clone(), other]), [(12, 6), (11, 8)]);
        assert_eq!(together(&[one, Vec::new()]), []);
        assert_eq!(together(&[]), []);
    }

    #[test]
    fn the_rest_of_the_last_second_is_no_second() {
        let interval = |second, operations, milliseconds| Interval {
            second,
            operations,
            bytes: 0,
            reads: 0,
            elapsed: Duration::from_millis(milliseconds),
            latency: Latency::from_buckets(&[]),
        };
        let told = [interval(1, 350, 700), interval(2, 500, 960), interval(2, 20, 40)];
        assert_eq!(seconds(&told), [(700_000_000, 350), (1_000_000_000, 520)]);
        assert!(seconds(&[]).is_empty());
    }
}
