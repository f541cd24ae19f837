//! The command from its options to its report.
//!
//! Order matters: everything that can be refused is refused before anything is filled or booted (`prepare`), and the
//! estimate is printed before anything takes time.

mod prepare;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use self::prepare::Prepared;
use crate::Interrupted;
use crate::args::TuneArgs;
use crate::interrupt::Interrupt;
use crate::matrix::Matrix;
use crate::measure::{Bench, Guests, run_name};
use crate::plan::{CURVE_MAXIMUM, PlannedRun, Purpose, plan};
use crate::progress::{Progress, say};
use crate::report::{Findings, Style, render};
use crate::results::{FILE_NAME, Failure, Header, Line, Results, Stored};
use crate::settings::Settings;
use crate::units::counted;

const OUT_NAME: &str = "ringloom-report";
/// More default directories than anybody keeps.
const OUT_NUMBER_MAX: u32 = 10_000;
/// Start and stop of a daemon, on top of ramp and runtime.
const RUN_OVERHEAD: Duration = Duration::from_millis(150);
/// The same with a guest: disks come and go, fio starts and reports.
const GUEST_RUN_OVERHEAD: Duration = Duration::from_millis(2500);
/// So many failed runs, one after the other, end the command.
const FAILURES_MAX: usize = 3;
const EXIT_INTERRUPTED: u8 = 130;
const EXIT_FAILED: u8 = 1;

/// Runs `ringloom tune`.
///
/// # Errors
/// If an option cannot be met or a run fails; `exit_code` tells the code of the process. What was
/// measured until then stays in the results.
#[expect(
    clippy::needless_pass_by_value,
    reason = "options are for one run; so `cli` moves them in"
)]
pub fn run(args: TuneArgs) -> Result<()> {
    let interrupt = Interrupt::listen().context("listen to signals")?;
    let out = out_directory(&args)?;
    tune(&args, &out, &interrupt)
}

/// The exit code for an error of `run`: 130 after a signal, else 1.
#[must_use]
pub fn exit_code(error: &anyhow::Error) -> u8 {
    let interrupted = error.chain().any(|cause| cause.is::<Interrupted>());
    if interrupted { EXIT_INTERRUPTED } else { EXIT_FAILED }
}

fn tune(args: &TuneArgs, out: &Path, interrupt: &Interrupt) -> Result<()> {
    let stored = args.resume.then(|| Stored::read(out)).transpose()?;
    let prepared = Prepared::new(args, stored.as_ref(), out, interrupt)?;
    prepared.announce();
    let storages = prepared.storages(interrupt)?;
    for note in &prepared.notes {
        say(&format!("Note: {note}."));
    }
    let header = prepared.header(&storages, interrupt)?;
    let mut results = open_results(out, stored, &header)?;
    let Prepared { daemon, tools, matrix, fio, fleet, given, notes, .. } = prepared;
    let left = left(&header.settings, &matrix, &results);
    let progress = Progress::new(left.len(), expected(&header.settings), args.interval);
    let mut bench = Bench {
        daemon,
        settings: &header.settings,
        storages: &storages,
        tools: &tools,
        fio,
        guests: fleet.map(Guests::new),
        held: None,
        given,
        out: out.to_path_buf(),
        interrupt,
        progress: &progress,
    };
    let measured = measure_each(&mut bench, &left, &mut results);
    progress.finish();
    // Guests have the disks open.
    drop(bench);
    drop(storages);
    let findings = Material { header: &header, matrix: &matrix, notes: &notes, results: &results };
    if let Err(error) = measured {
        say_how_to_go_on(out, &results);
        // What was measured can be read all the same; the error says more than that this failed, too.
        drop(findings.keep(out));
        return Err(error);
    }
    findings.print(out)?;
    match results.failures().len() {
        0 => Ok(()),
        failed => bail!("{}; the report names them", counted(failed, "failed run")),
    }
}

/// What has not been measured yet.
fn left(settings: &Settings, matrix: &Matrix, results: &Results) -> Vec<PlannedRun> {
    let all = planned(settings, matrix);
    // A probe that was cut off has forgotten what went before: it is done again from its beginning.
    let cut = |run: &PlannedRun| {
        run.key.purpose == Purpose::Probe
            && all.iter().any(|it| it.key.is_same_probe(&run.key) && !results.has(it))
    };
    let left: Vec<PlannedRun> =
        all.iter().filter(|run| !results.has(run) || cut(run)).cloned().collect();
    if left.len() < all.len() {
        say(&format!("{} of {} runs are done already.", all.len() - left.len(), all.len()));
    }
    left
}

fn planned(settings: &Settings, matrix: &Matrix) -> Vec<PlannedRun> {
    plan(matrix, settings.mode, settings.repeats, settings.seed, settings.sentinel)
}

/// What one run takes.
fn expected(settings: &Settings) -> Duration {
    let guests = settings.subject.iter().any(|subject| subject.is_vm());
    let overhead = if guests { GUEST_RUN_OVERHEAD } else { RUN_OVERHEAD };
    settings.ramp.duration() + settings.runtime.duration() + overhead
}

fn open_results(out: &Path, stored: Option<Stored>, header: &Header) -> Result<Results> {
    match stored {
        Some(stored) => Results::resume(out, stored, header),
        None => {
            std::fs::create_dir_all(out).with_context(|| format!("create {}", out.display()))?;
            Results::create(out, header)
        }
    }
}

/// A run that fails is recorded and told, and the next one is tried: one cell may ask too much of a disk, a guest may hang
/// once. When nothing works any more, the last reason is the error.
fn measure_each(bench: &mut Bench<'_>, runs: &[PlannedRun], results: &mut Results) -> Result<()> {
    let mut in_a_row = 0;
    for planned in runs {
        let rate = rate(planned, results);
        // What cannot be begun because another run failed is no failure of its own.
        let of_its_own = rate.is_ok();
        match rate.and_then(|rate| bench.measure(planned, rate)) {
            Ok(run) => {
                in_a_row = 0;
                results.append(Line::Run(Box::new(run)))?;
            }
            Err(error) => {
                if error.chain().any(|cause| cause.is::<Interrupted>()) {
                    return Err(error);
                }
                in_a_row += usize::from(of_its_own);
                results.append(Line::Failure(Failure::new(planned.key.clone(), &error)))?;
                if in_a_row >= FAILURES_MAX.min(runs.len()) {
                    return Err(error);
                }
                say(&format!("Failed: {error:#}"));
            }
        }
    }
    Ok(())
}

/// What a run needs of those before it: a point of a curve its share of the maximum, a phase of a probe that the one before
/// was measured. Returns the rate, if there is one.
fn rate(planned: &PlannedRun, results: &Results) -> Result<Option<f64>> {
    let key = &planned.key;
    let (step, needed) = match (key.purpose, key.step) {
        (Purpose::Curve, CURVE_MAXIMUM) | (Purpose::Probe, 0) => return Ok(None),
        (Purpose::Sweep | Purpose::Sentinel, _) => return Ok(None),
        (Purpose::Curve, _) => (CURVE_MAXIMUM, "the maximum, which it is a share of,"),
        (Purpose::Probe, step) => (step - 1, "the phase before it"),
    };
    let before = results.before(key, step);
    let before = before.with_context(|| format!("{}: {needed} failed", run_name(key)))?;
    let share = f64::from(key.step) / f64::from(CURVE_MAXIMUM);
    Ok((key.purpose == Purpose::Curve).then(|| before.iops() * share))
}

fn say_how_to_go_on(out: &Path, results: &Results) {
    let done = counted(results.runs().len(), "finished run");
    let name = out.display();
    say(&format!("{done} in {name}: the same command with --resume --out {name} goes on."));
}

/// What the report is made of.
struct Material<'a> {
    header: &'a Header,
    matrix: &'a Matrix,
    notes: &'a [String],
    results: &'a Results,
}

impl Material<'_> {
    /// Writes `report.md`; returns its path.
    fn keep(&self, out: &Path) -> Result<PathBuf> {
        let path = out.join("report.md");
        std::fs::write(&path, self.rendered(Style::Markdown))
            .with_context(|| format!("write {}", path.display()))?;
        Ok(path)
    }

    /// Writes the report to its file and to standard output.
    fn print(&self, out: &Path) -> Result<()> {
        let path = self.keep(out)?;
        let mut stdout = io::stdout().lock();
        writeln!(stdout, "\n{}", self.rendered(Style::Plain))
            .and_then(|()| writeln!(stdout, "Report: {}", path.display()))
            .and_then(|()| writeln!(stdout, "Raw results: {}", out.join(FILE_NAME).display()))
            .and_then(|()| stdout.flush())
            .context("write the report to standard output")
    }

    fn rendered(&self, style: Style) -> String {
        let Self { header, matrix, notes, results } = *self;
        let (runs, failures) = (results.runs(), results.failures());
        let Matrix { skipped, pruned, .. } = matrix;
        let (runs, failures) = (&runs[..], &failures[..]);
        render(style, &Findings { header, runs, failures, skipped, pruned, notes })
    }
}

/// Where the results go: the directory named, or the first free of the default names; to resume,
/// the newest that exists.
fn out_directory(args: &TuneArgs) -> Result<PathBuf> {
    if let Some(out) = &args.out {
        if !args.resume && out.join(FILE_NAME).exists() {
            bail!(
                "{} has results already: --resume goes on with them, another --out keeps them",
                out.display()
            );
        }
        return Ok(out.clone());
    }
    default_directory(Path::new(""), args.resume)
}

fn default_directory(parent: &Path, resume: bool) -> Result<PathBuf> {
    let mut previous = None;
    for number in 1..=OUT_NUMBER_MAX {
        let suffix = if number == 1 { String::new() } else { format!("-{number}") };
        let directory = parent.join(format!("{OUT_NAME}{suffix}"));
        if directory.exists() {
            previous = Some(directory);
        } else if resume {
            return previous.with_context(|| format!("there is no {OUT_NAME} to resume here"));
        } else {
            return Ok(directory);
        }
    }
    bail!("there are {OUT_NUMBER_MAX} directories {OUT_NAME}-… already: remove some or use --out")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::tests::parse;

    #[test]
    fn the_default_directory_is_the_first_free_one() {
        let parent = tempfile::tempdir().unwrap();
        let name = |resume| {
            let path = default_directory(parent.path(), resume)?;
            Ok::<_, anyhow::Error>(path.file_name().unwrap().to_str().unwrap().to_owned())
        };
        assert!(name(true).unwrap_err().to_string().contains("no ringloom-report to resume"));
        for (free, newest) in [
            ("ringloom-report", "ringloom-report"),
            ("ringloom-report-2", "ringloom-report-2"),
            ("ringloom-report-3", "ringloom-report-3"),
        ] {
            assert_eq!(name(false).unwrap(), free);
            std::fs::create_dir(parent.path().join(free)).unwrap();
            assert_eq!(name(true).unwrap(), newest);
        }
    }

    #[test]
    fn a_named_directory_with_results_is_not_overwritten() {
        let parent = tempfile::tempdir().unwrap();
        let out = parent.path().display().to_string();
        let directory = |line: &str| out_directory(&parse(line).unwrap());
        assert_eq!(directory(&format!("--out {out}")).unwrap(), parent.path());
        std::fs::write(parent.path().join(FILE_NAME), "").unwrap();
        let error = directory(&format!("--out {out}")).unwrap_err().to_string();
        assert!(error.contains("--resume") && error.contains("--out"), "{error}");
        assert_eq!(directory(&format!("--out {out} --resume")).unwrap(), parent.path());
    }

    #[test]
    fn only_a_signal_exits_with_130() {
        let interrupted = anyhow::Error::from(Interrupted).context("randread 4k, host");
        assert_eq!(exit_code(&interrupted), 130);
        assert_eq!(exit_code(&anyhow::anyhow!("interrupted")), 1);
    }
}
