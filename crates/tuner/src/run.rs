//! The command from its options to its report.
//!
//! Order matters: everything that can be refused is refused before the scratch file is filled, and
//! the estimate is printed before anything takes time.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use load::{Timing, host};

use crate::Interrupted;
use crate::args::{Settings, TuneArgs};
use crate::cell::Contender;
use crate::clock;
use crate::daemon::Daemon;
use crate::interrupt::Interrupt;
use crate::machine::Machine;
use crate::matrix::{Matrix, Writes};
use crate::measure::Bench;
use crate::plan::{PlannedRun, plan};
use crate::progress::{FillProgress, Progress, say};
use crate::report::{Style, render};
use crate::results::{Disk, FILE_NAME, Header, Results, Stored};
use crate::scratch::Scratch;
use crate::target::{Origin, Target};
use crate::units::{Bytes, counted, human_time};

const OUT_NAME: &str = "ringloom-report";
/// More default directories than anybody keeps.
const OUT_NUMBER_MAX: u32 = 10_000;
/// Start and stop of a daemon, on top of ramp and runtime.
const RUN_OVERHEAD: Duration = Duration::from_millis(150);
/// A slow disk; only for the estimate.
const FILL_BYTES_PER_SECOND: u64 = 200 << 20;
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
    let machine = Machine::read();
    // A resumed run keeps its seed unless the user insists on another, which is then refused.
    let seed = stored.as_ref().map_or_else(new_seed, |stored| stored.header.settings.seed);
    let settings = Settings::new(args, machine.cores, seed);
    let daemon = match &args.daemon {
        Some(program) => Daemon::at(program.clone()),
        None => Daemon::this_program().context("find this program")?,
    };
    let version = daemon.version()?;
    let user_target = args.path.as_deref().map(|path| user_target(path, args)).transpose()?;
    let (bytes, writes) = match &user_target {
        Some(target) => (target.bytes, target.writes),
        None => (args.size.0, Writes::Allowed),
    };
    let mut matrix = Matrix::new(&settings, bytes, writes)?;
    drop_impossible_host(&mut matrix)?;
    announce(&settings, &matrix, user_target.is_none().then_some(args.size));
    let scratch = match user_target {
        Some(_) => None,
        None => Some(make_scratch(args.size, settings.seed, interrupt)?),
    };
    let target = match (user_target, &scratch) {
        (Some(target), _) => target,
        (None, Some(scratch)) => Target::open(scratch.path(), Origin::Scratch, Writes::Allowed)?,
        (None, None) => unreachable!("without a path there is a scratch file"),
    };
    for note in &target.notes {
        say(&format!("Note: {note}."));
    }
    let header = Header::new(version, machine, disk(&target), settings);
    let mut results = open_results(out, stored, &header)?;
    measure_all(daemon, &header, &matrix, &target, out, interrupt, &mut results)
        .inspect_err(|_| say_how_to_go_on(out, &results))?;
    drop(scratch);
    report(out, &header, &matrix, &target, &results)
}

fn new_seed() -> u64 {
    let now = clock::since_epoch();
    // Short enough to type; the order of runs and the offsets need no more.
    u64::from(now.subsec_nanos()) ^ (now.as_secs() & 0xffff)
}

fn user_target(path: &Path, args: &TuneArgs) -> Result<Target> {
    let writes = if args.destructive { Writes::Allowed } else { Writes::Skipped };
    let path = std::path::absolute(path).with_context(|| format!("disk {}", path.display()))?;
    Target::open(&path, Origin::User, writes)
}

/// Without io_uring there is no host to compare with; the rest can still be measured.
fn drop_impossible_host(matrix: &mut Matrix) -> Result<()> {
    let wanted = matrix.entries.iter().any(|entry| entry.contenders.contains(&Contender::Host));
    let Err(error) = host::available() else {
        return Ok(());
    };
    if !wanted {
        return Ok(());
    }
    if !matrix.without_host() {
        return Err(error).context("the subject host needs io_uring, which this host forbids");
    }
    say(&format!("Note: the subject host is left out, this host forbids io_uring ({error})."));
    Ok(())
}

/// What will be done, what will not, and how long it takes.
fn announce(settings: &Settings, matrix: &Matrix, scratch: Option<Bytes>) {
    let runs = matrix.runs_per_repeat() * usize::from(settings.repeats);
    let runs_time = expected(settings).saturating_mul(u32::try_from(runs).unwrap_or(u32::MAX));
    let fill = scratch
        .map_or(Duration::ZERO, |size| Duration::from_secs(size.0.div_ceil(FILL_BYTES_PER_SECOND)));
    let cells = counted(matrix.entries.len(), "cell");
    let filling = scratch.map(|size| format!(", after filling {size} of scratch file"));
    say(&format!(
        "About {}: {} ({cells}, {}){}. Seed {}.",
        human_time(runs_time + fill),
        counted(runs, "run"),
        counted(usize::from(settings.repeats), "repeat"),
        filling.unwrap_or_default(),
        settings.seed
    ));
    for pruned in &matrix.pruned {
        let names: Vec<_> = pruned.iothreads.iter().map(ToString::to_string).collect();
        let jobs = counted(usize::from(pruned.jobs), "job");
        say(&format!(
            "Pruned: {} iothreads with {jobs}, a job needs no more than one.",
            names.join(", ")
        ));
    }
    for cell in &matrix.skipped {
        say(&format!("Skipped: {cell}, it writes (--destructive allows it)."));
    }
}

fn expected(settings: &Settings) -> Duration {
    settings.ramp.duration() + settings.runtime.duration() + RUN_OVERHEAD
}

fn make_scratch(size: Bytes, seed: u64, interrupt: &Interrupt) -> Result<Scratch> {
    let directory = std::env::current_dir().context("find the current directory")?;
    let progress = FillProgress::new(size);
    Scratch::create(&directory, size, seed, interrupt, &|bytes| progress.written(bytes))
}

fn disk(target: &Target) -> Disk {
    let description = target.description();
    Disk { origin: target.origin, path: target.path.clone(), bytes: target.bytes, description }
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

fn measure_all(
    daemon: Daemon,
    header: &Header,
    matrix: &Matrix,
    target: &Target,
    out: &Path,
    interrupt: &Interrupt,
    results: &mut Results,
) -> Result<()> {
    let Settings { ramp, runtime, repeats, seed, .. } = header.settings;
    let timing = Timing { ramp: ramp.duration(), runtime: runtime.duration() };
    let all = plan(matrix, repeats, seed);
    let left: Vec<PlannedRun> = all.iter().filter(|run| !results.has(run)).copied().collect();
    if left.len() < all.len() {
        say(&format!("{} of {} runs are done already.", all.len() - left.len(), all.len()));
    }
    let progress = Progress::new(left.len(), expected(&header.settings));
    let daemon_log = out.join("daemon.log");
    let bench = Bench { daemon, target, timing, daemon_log, interrupt, progress: &progress };
    let measured = left.iter().try_for_each(|planned| results.append(bench.measure(planned)?));
    progress.finish();
    measured
}

fn say_how_to_go_on(out: &Path, results: &Results) {
    let done = counted(results.runs().len(), "finished run");
    let name = out.display();
    say(&format!("{done} in {name}: the same command with --resume --out {name} goes on."));
}

fn report(
    out: &Path,
    header: &Header,
    matrix: &Matrix,
    target: &Target,
    results: &Results,
) -> Result<()> {
    let rendered = |style| render(style, header, results.runs(), &matrix.skipped, &target.notes);
    let path = out.join("report.md");
    std::fs::write(&path, rendered(Style::Markdown))
        .with_context(|| format!("write {}", path.display()))?;
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "\n{}", rendered(Style::Plain))
        .and_then(|()| writeln!(stdout, "Report: {}", path.display()))
        .and_then(|()| writeln!(stdout, "Raw results: {}", out.join(FILE_NAME).display()))
        .and_then(|()| stdout.flush())
        .context("write the report to standard output")
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
