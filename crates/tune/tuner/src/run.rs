//! The command from its options to its report.
//!
//! Order matters: everything that can be refused is refused before anything is filled or booted (`prepare`), and the
//! estimate is printed before anything takes time.

mod prepare;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use plan::args::TuneArgs;
use plan::matrix::Matrix;
use plan::repeats::Repeats;
use plan::runs::{CURVE_MAXIMUM, PlannedRun, Purpose, RunKey};
use plan::settings::Settings;
use plan::units::counted;
use records::results::{
    Claim, FILE_NAME, Failure, Header, Line, RecordedRuns, Results, StoredResults,
};
use report::{Findings, Report, Style};
use storage::clock;
use storage::interrupt::Interrupt;
use storage::storages::Renewal;

use self::prepare::PreparedCommand;
pub(crate) use self::prepare::new_seed;
use crate::Interrupted;
use crate::course::Course;
use crate::kept;
use crate::measure::{Bench, Guests};
use crate::output;
use crate::precondition;
use crate::progress::{Progress, RemainingRuns, say};

const OUT_NAME: &str = "ringloom-report";
/// More default directories than anybody keeps.
const OUT_NUMBER_MAX: u32 = 10_000;
/// So many failed runs, one after the other, end the command.
pub(crate) const FAILURES_MAX: usize = 3;
const EXIT_INTERRUPTED: u8 = 130;
const EXIT_FAILED: u8 = 1;

/// Runs `ringloom tune`.
///
/// # Errors
/// If an option cannot be met or a run fails; `exit_code` tells the code of the process. What was
/// measured until then stays in the results.
#[expect(
    clippy::needless_pass_by_value,
    reason = "options are for one run; so `ringloom` moves them in"
)]
pub fn run(args: TuneArgs) -> Result<()> {
    let interrupt = Interrupt::listen().context("listen to signals")?;
    if let Some(cluster) = args.cluster() {
        return crate::cluster::run(cluster, &interrupt);
    }
    let measure = args.measure();
    let (out, place) = place(measure.out.as_deref(), measure.resume, Path::new(""))?;
    tune(&args, (&out, place), &interrupt)
}

/// The exit code for an error of `run`: 130 after a signal, else 1.
#[must_use]
pub fn exit_code(error: &anyhow::Error) -> u8 {
    if Interrupted::caused(error) { EXIT_INTERRUPTED } else { EXIT_FAILED }
}

/// Where the results go.
#[derive(Debug)]
pub(crate) enum Destination {
    New(Claim),
    StoredResults(Box<StoredResults>),
}

impl Destination {
    pub(crate) fn stored(&self) -> Option<&StoredResults> {
        match self {
            Self::New(_) => None,
            Self::StoredResults(stored) => Some(stored),
        }
    }

    pub(crate) fn open(self, out: &Path, header: &Header) -> Result<Results> {
        match self {
            Self::New(claim) => Results::create(claim, header),
            Self::StoredResults(stored) => Results::resume(out, *stored, header),
        }
    }
}

fn tune(args: &TuneArgs, (out, place): (&Path, Destination), interrupt: &Interrupt) -> Result<()> {
    let started = clock::now();
    let mut prepared = PreparedCommand::new(args, place.stored(), out, interrupt)?;
    let time = prepared.announce(place.stored(), interrupt)?;
    if args.measure().dry_run {
        prepared.tell_notes();
        return Ok(());
    }
    let Some(time) = time else { return report_again(args, &prepared, place, out) };
    let announced = clock::now();
    let storages = prepared.storages(interrupt)?;
    let fill = announced.elapsed();
    let renewed = prepared.renewed(fill);
    prepared.tell_notes();
    let header = prepared.header(&storages, interrupt)?;
    let mut results = place.open(out, &header)?;
    let pace = prepared.pace();
    let pace = if renewed.is_some() { pace.with_fill(fill) } else { pace };
    let PreparedCommand { daemon, tools, matrix, fio, fleet, given, notes, mapper, .. } = prepared;
    let PreparedCommand { directory, size, .. } = prepared;
    let seed = header.settings.seed;
    let renewal = |plan| Renewal { plan, directory: &directory, size, seed, mapper: &mapper };
    let renewal = renewed.as_ref().map(renewal);
    let mut course = Course::new(&matrix, &header.settings, results.recorded());
    let runs = results.recorded().runs();
    if !runs.is_empty() {
        say(&format!("{} done already.", counted(runs.len(), "run")));
    }
    // The user's time begins with the command.
    let begun = if header.settings.budget.is_some() { started } else { announced };
    let deadline = begun + time;
    let left = if header.settings.adapts() {
        RemainingRuns::Until(deadline)
    } else {
        RemainingRuns::Runs(course.outlook(None).len())
    };
    let progress = Progress::new(left, args.measure().interval);
    let mut bench = Bench {
        daemon,
        settings: &header.settings,
        storages,
        renewal,
        round: None,
        tools: &tools,
        fio,
        guests: fleet.map(Guests::new),
        held: None,
        given,
        out: out.to_path_buf(),
        interrupt,
        progress: &progress,
        pace,
    };
    let before = if header.settings.precondition {
        precondition::carry_out(&mut bench, &matrix, &mut results)
    } else {
        Ok(())
    };
    let measured =
        before.and_then(|()| measure_each(&mut bench, &mut course, deadline, &mut results));
    progress.finish();
    // Guests have the disks open.
    drop(bench);
    let findings = Material { header: &header, matrix: &matrix, notes: &notes, results: &results };
    if let Err(error) = measured {
        say_how_to_go_on(out, &results);
        // What was measured can be read all the same; the error says more than that this failed, too.
        drop(findings.keep(out));
        return Err(error);
    }
    findings.conclude(out, args.measure().json)
}

/// Writes the report of a command that has nothing left to measure: its runs are those of the header that they were measured
/// under.
fn report_again(
    args: &TuneArgs,
    prepared: &PreparedCommand,
    place: Destination,
    out: &Path,
) -> Result<()> {
    let Destination::StoredResults(stored) = place else { bail!("there is nothing to measure") };
    let header = Header { settings: prepared.settings.clone(), ..stored.header.clone() };
    let results = Results::resume(out, *stored, &header)?;
    let PreparedCommand { matrix, notes, .. } = prepared;
    Material { header: &header, matrix, notes, results: &results }
        .conclude(out, args.measure().json)
}

/// A run that fails is recorded and told, and the next one is tried: one cell may ask too much of a disk, a guest may hang
/// once. When nothing works any more, the last reason is the error.
fn measure_each(
    bench: &mut Bench<'_>,
    course: &mut Course<'_>,
    deadline: Instant,
    results: &mut Results,
) -> Result<()> {
    let few = FAILURES_MAX.min(course.outlook(None).len()).max(1);
    let mut in_a_row = 0;
    let mut late = late(bench.settings);
    loop {
        let fits = |block: &[PlannedRun]| clock::now() + bench.pace.total(block) <= deadline;
        let Some(block) = course.next(&fits) else { break };
        // A sentinel may be the last of all.
        let is_sentinel = block.iter().all(|run| run.key.purpose == Purpose::Sentinel);
        if let Some(sentence) = late.take_if(|_| !is_sentinel && !fits(&block)) {
            say(&sentence);
        }
        for (index, planned) in block.iter().enumerate() {
            let left = bench.pace.total(&block[index..]);
            let rate = rate(&planned.key, &bench.settings.jobs, results.recorded());
            // What cannot be begun because another run failed is no failure of its own.
            let of_its_own = rate.is_ok();
            match rate.and_then(|rate| bench.measure(planned, rate, left)) {
                Ok(run) => {
                    in_a_row = 0;
                    course.measured(&run);
                    results.append(Line::Run(Box::new(run)))?;
                }
                Err(error) => {
                    if Interrupted::caused(&error) {
                        return Err(error);
                    }
                    in_a_row += usize::from(of_its_own);
                    course.failed(&planned.key);
                    results.append(Line::Failure(Failure::new(planned.key.clone(), &error)))?;
                    if in_a_row >= few {
                        return Err(error);
                    }
                    say(&format!("Failed: {error:#}"));
                }
            }
        }
    }
    Ok(())
}

/// What is said when a search goes on though its time is up.
fn late(settings: &Settings) -> Option<String> {
    let missing = match (settings.repeats, settings.budget) {
        (Repeats::Fixed(_), _) => return None,
        (Repeats::Until { .. }, Some(_)) => "explored".to_owned(),
        (Repeats::Until { least, .. }, None) => {
            format!("explored and given {}", counted(usize::from(least), "repeat"))
        }
    };
    Some(format!("Note: the time is up, but not all was {missing}: that is done first."))
}

/// What a run needs of those before it: a point of a curve its share of the maximum, a phase of a probe that the one before
/// was measured. Returns the rate, if there is one. `jobs` are those of the settings.
fn rate(key: &RunKey, jobs: &[u16], recorded: &RecordedRuns) -> Result<Option<f64>> {
    let failed = |needed: &str| format!("{key}: {needed} failed");
    match (key.purpose, key.step) {
        (Purpose::Precondition | Purpose::Sweep | Purpose::Confirm, _) => Ok(None),
        (Purpose::Deeper | Purpose::Sentinel, _) => Ok(None),
        (Purpose::Curve, CURVE_MAXIMUM) | (Purpose::Probe, 0) => Ok(None),
        (Purpose::Curve, percent) => {
            let maximum = recorded.run(&RunKey { step: CURVE_MAXIMUM, ..key.clone() });
            let maximum =
                maximum.with_context(|| failed("the maximum, which it is a share of,"))?;
            Ok(Some(maximum.iops() * f64::from(percent) / f64::from(CURVE_MAXIMUM)))
        }
        (Purpose::Probe, _) => {
            let before = recorded.last(|other| key.follows(other, jobs));
            before.map(|_| None).with_context(|| failed("the phase before it"))
        }
    }
}

pub(crate) fn say_how_to_go_on(out: &Path, results: &Results) {
    let done = counted(results.recorded().runs().len(), "finished run");
    let name = out.display();
    say(&format!("{done} in {name}: the same command with --resume --out {name} goes on."));
}

/// What the report is made of.
pub(crate) struct Material<'a> {
    pub(crate) header: &'a Header,
    pub(crate) matrix: &'a Matrix,
    pub(crate) notes: &'a [String],
    pub(crate) results: &'a Results,
}

impl Material<'_> {
    /// Writes the files of the report.
    pub(crate) fn keep(&self, out: &Path) -> Result<()> {
        self.with(|report| keep(report, out))
    }

    /// Writes the report to its files and to standard output, there as text or as JSON.
    fn print(&self, out: &Path, json: bool) -> Result<()> {
        let written = format!(
            "Report: {}\nRaw results: {}\n",
            out.join("report.html").display(),
            out.join(FILE_NAME).display()
        );
        self.with(|report| {
            keep(report, out)?;
            if json {
                return output::print(&report.json());
            }
            output::print(&format!("\n{}\n", report.text(Style::Plain, &written)))
        })
    }

    /// Prints the report and says what failed.
    pub(crate) fn conclude(&self, out: &Path, json: bool) -> Result<()> {
        self.print(out, json)?;
        let (failed, all) = (self.results.failed_now(), self.results.recorded().failures().len());
        if all > failed {
            let before = counted(all - failed, "run");
            say(&format!(
                "Note: {before} that failed in an earlier command: not tried again, for lack of time or because no answer \
                 rests on it; the report names what failed."
            ));
        }
        match failed {
            0 => Ok(()),
            failed => bail!("{}; the report names them", counted(failed, "failed run")),
        }
    }

    fn with<T>(&self, render: impl Fn(&Report<'_>) -> T) -> T {
        let Self { header, matrix, notes, results } = *self;
        let (runs, failures) = (results.recorded().runs(), results.recorded().failures());
        let Matrix { skipped, pruned, .. } = matrix;
        let (runs, failures) = (&runs[..], &failures[..]);
        render(&Report::new(&Findings { header, runs, failures, skipped, pruned, notes }))
    }
}

fn keep(report: &Report<'_>, out: &Path) -> Result<()> {
    kept::write(out, &[], &report.files())
}

/// Takes the directory named, or the first free of the default names; to resume, the one written last.
pub(crate) fn place(
    out: Option<&Path>,
    resume: bool,
    parent: &Path,
) -> Result<(PathBuf, Destination)> {
    let out = match out {
        Some(out) if out.exists() && !out.is_dir() => {
            bail!("--out {}: it is no directory", out.display())
        }
        Some(out) => out.to_path_buf(),
        None if resume => newest_directory(parent)?,
        None => return first_free(parent).map(|(out, claim)| (out, Destination::New(claim))),
    };
    let place = if resume {
        Destination::StoredResults(Box::new(StoredResults::read(&out)?))
    } else {
        Destination::New(Claim::take(&out)?)
    };
    Ok((out, place))
}

fn default_name(number: u32) -> String {
    let suffix = if number == 1 { String::new() } else { format!("-{number}") };
    format!("{OUT_NAME}{suffix}")
}

/// Which of the default names it is.
fn default_number(name: &OsStr) -> Option<u32> {
    let name = name.to_str()?;
    let number = match name.strip_prefix(OUT_NAME)? {
        "" => 1,
        suffix => suffix.strip_prefix('-')?.parse().ok()?,
    };
    (default_name(number) == name).then_some(number)
}

fn first_free(parent: &Path) -> Result<(PathBuf, Claim)> {
    for directory in (1..=OUT_NUMBER_MAX).map(|number| parent.join(default_name(number))) {
        if let Some(claim) = Claim::make(&directory)? {
            return Ok((directory, claim));
        }
    }
    bail!("there are {OUT_NUMBER_MAX} directories {OUT_NAME}-… already: remove some or use --out")
}

/// The one whose results were written last; of several at the same time the one with the highest number.
fn newest_directory(parent: &Path) -> Result<PathBuf> {
    let here = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let listing = || format!("list {}", here.display());
    let mut newest = None;
    for entry in std::fs::read_dir(here).with_context(listing)? {
        let name = entry.with_context(listing)?.file_name();
        let Some(number) = default_number(&name) else { continue };
        let directory = parent.join(name);
        // Without results there is nothing to resume.
        let Ok(results) = directory.join(FILE_NAME).metadata() else { continue };
        let written = results.modified().with_context(listing)?;
        newest = newest.max(Some((written, number, directory)));
    }
    let (.., newest) = newest.with_context(|| format!("there is no {OUT_NAME} to resume here"))?;
    Ok(newest)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use plan::args::MeasureArgs;
    use plan::testing::parse;
    use plan::testing::settings;
    use plan::testing::{cell, client};
    use records::results::Run;
    use records::testing::{header, run};

    use super::*;

    #[test]
    fn the_default_directory_is_the_first_free_one() {
        let parent = tempfile::tempdir().unwrap();
        let error = newest_directory(parent.path()).unwrap_err().to_string();
        assert!(error.contains("no ringloom-report to resume"), "{error}");
        // Those of commands that are still being prepared are taken, too.
        let mut claims = Vec::new();
        for free in ["ringloom-report", "ringloom-report-2", "ringloom-report-3"] {
            let (out, claim) = first_free(parent.path()).unwrap();
            assert_eq!(out, parent.path().join(free));
            assert_eq!(newest_directory(parent.path()).unwrap(), out);
            claims.push(claim);
        }
        drop(claims);
        assert_eq!(first_free(parent.path()).unwrap().0, parent.path().join("ringloom-report"));
    }

    #[test]
    fn the_newest_directory_is_the_one_written_last() {
        let parent = tempfile::tempdir().unwrap();
        let write = |name: &str, seconds: u64| {
            let directory = parent.path().join(name);
            std::fs::create_dir_all(&directory).unwrap();
            let file = std::fs::File::create(directory.join(FILE_NAME)).unwrap();
            file.set_modified(UNIX_EPOCH + Duration::from_secs(seconds)).unwrap();
        };
        let newest = || newest_directory(parent.path()).unwrap();
        for other in ["ringloom-report-x", "ringloom-report-02", "ringloom-reports", "other"] {
            write(other, 9);
        }
        std::fs::create_dir(parent.path().join("ringloom-report-7")).unwrap();
        assert!(newest_directory(parent.path()).is_err());
        write("ringloom-report-3", 5);
        assert_eq!(newest(), parent.path().join("ringloom-report-3"), "after a gap");
        write("ringloom-report", 6);
        assert_eq!(newest(), parent.path().join("ringloom-report"), "the free name was taken");
        write("ringloom-report-2", 4);
        assert_eq!(newest(), parent.path().join("ringloom-report"));
        write("ringloom-report-3", 7);
        assert_eq!(newest(), parent.path().join("ringloom-report-3"));
    }

    #[test]
    fn a_named_directory_with_results_is_not_overwritten() {
        let parent = tempfile::tempdir().unwrap();
        let file = parent.path().join(FILE_NAME);
        let refused = |options: &str, out: &Path| {
            let args = parse(&format!("--out {} {options}", out.display())).unwrap();
            let MeasureArgs { out, resume, .. } = args.measure();
            place(out.as_deref(), *resume, parent.path()).unwrap_err().to_string()
        };
        let results = serde_json::to_string(&header("")).unwrap() + "\n";
        std::fs::write(&file, &results).unwrap();
        let error = refused("", parent.path());
        assert!(error.contains("--resume") && error.contains("--out"), "{error}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), results);
        for options in ["", "--resume"] {
            let error = refused(options, &file);
            assert!(error.ends_with("results.jsonl: it is no directory"), "{error}");
        }
    }

    /// The key of a step, with so many jobs.
    fn key(purpose: Purpose, step: u32, jobs: u16) -> RunKey {
        let cell = cell("randread", 4096, jobs, 1);
        RunKey { purpose, step, ..run(cell, client(1), 0, 0).key }
    }

    fn measured(key: &RunKey, iops: u64) -> Line {
        let key = key.clone();
        Line::Run(Box::new(Run { key: key.clone(), ..run(key.cell, key.contender, 0, iops) }))
    }

    fn failed(key: &RunKey) -> Line {
        Line::Failure(Failure::new(key.clone(), &anyhow::anyhow!("it hangs")))
    }

    #[test]
    fn a_phase_needs_the_one_before_it_in_its_own_probe() {
        let jobs = [2, 8, 4, 16];
        let phase = |step, jobs| key(Purpose::Probe, step, jobs);
        let (low, high, again) = (phase(0, 4), phase(1, 16), phase(2, 4));
        let mut recorded = RecordedRuns::default();
        assert_eq!(rate(&low, &jobs, &recorded).unwrap(), None);
        for step in 0..3 {
            recorded.push(measured(&phase(step, if step == 1 { 8 } else { 2 }), 100));
        }
        for key in [&high, &again] {
            let error = rate(key, &jobs, &recorded).unwrap_err().to_string();
            assert!(error.ends_with(": the phase before it failed"), "{error}");
        }
        recorded.push(measured(&low, 100));
        assert_eq!(rate(&high, &jobs, &recorded).unwrap(), None);
        recorded.push(measured(&high, 100));
        assert_eq!(rate(&again, &jobs, &recorded).unwrap(), None);
        // It was cut off, is done again, and the low one fails this time.
        recorded.push(failed(&low));
        assert!(rate(&high, &jobs, &recorded).is_err());
    }

    #[test]
    fn a_rate_is_a_share_of_the_maximum_of_the_same_cell() {
        let point = |step, jobs| key(Purpose::Curve, step, jobs);
        let recorded = RecordedRuns::from_iter(vec![
            measured(&point(CURVE_MAXIMUM, 2), 1000),
            failed(&point(CURVE_MAXIMUM, 4)),
        ]);
        let rate = |percent, jobs| rate(&point(percent, jobs), &[2, 4], &recorded);
        assert_eq!(rate(50, 2).unwrap(), Some(500.0));
        assert!(rate(50, 4).unwrap_err().to_string().contains("the maximum"));
    }

    #[test]
    fn a_search_that_goes_on_after_its_time_says_why() {
        let late = |line: &str| late(&settings(line, 2));
        let told = "Note: the time is up, but not all was explored and given 8 repeats: that is done first.";
        assert_eq!(late("--repeats 8-12").as_deref(), Some(told));
        let told = "Note: the time is up, but not all was explored: that is done first.";
        assert_eq!(late("--repeats 8-12 --budget 1m").as_deref(), Some(told));
        assert_eq!(late("--repeats 8"), None);
    }

    #[test]
    fn only_a_signal_exits_with_130() {
        let interrupted = anyhow::Error::from(Interrupted).context("randread 4k, host");
        assert_eq!(exit_code(&interrupted), 130);
        assert_eq!(exit_code(&anyhow::anyhow!("interrupted")), 1);
    }
}
