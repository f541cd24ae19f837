//! `tune cluster`: pods and KubeVirt's virtual machines on the claims of a Kubernetes cluster.
//!
//! The job file becomes settings, a matrix and runs as the options of `tune` do (`plan`), and each run is one of fio in all workers
//! at once (`measure::fio`, `place`). What is made in the cluster, waited for and removed is the crate `cluster`'s.
//!
//! Invariants: what was made in the cluster is removed however the command ends, or named if it could not be; a worker serves one
//! contender in one round, so the unit of replication is a restart; a claim is filled before its first run.
//! Limits: the time of what serves a virtual machine's disk on the node is not known, so there is no CPU time per request.

mod place;
mod plan;
mod survey;
mod trouble;
mod workers;

use std::path::{Path, PathBuf};
use std::time::Duration;

use ::cluster::{ClusterAccess, ClusterJob, RunId, Session};
use ::plan::args::ClusterArgs;
use ::plan::runs::PlannedRun;
use ::plan::units::{counted, human_time};
use anyhow::{Context, Result, bail, ensure};
use load::Workload;
use records::results::{Cluster, Failure, Header, Line, Results};
use storage::clock;
use storage::interrupt::Interrupt;

use self::plan::{ClusterPlan, Starts};
use self::workers::Workers;
use crate::Interrupted;
use crate::measure::Planned;
use crate::measure::fio::Surroundings;
use crate::output;
use crate::progress::{Progress, RemainingRuns, say};
use crate::run::{Destination, FAILURES_MAX, Material, place, say_how_to_go_on};

/// How long the removal may take after a signal, and so much longer for each worker that there was at once.
const REMOVAL: Duration = Duration::from_secs(120);
const REMOVAL_EACH: Duration = Duration::from_secs(2);

/// Runs `ringloom tune cluster`.
///
/// # Errors
/// As `run`: what the job asks for and cannot be had, what was not made, what failed, what could not be removed.
pub(crate) fn run(args: &ClusterArgs, interrupt: &Interrupt) -> Result<()> {
    if args.example {
        return output::print(::cluster::example());
    }
    let path = args.job.as_deref().context("a job file is needed")?;
    let job = ClusterJob::read(path)?;
    if args.print_rbac {
        return output::print(&::cluster::rbac(&job));
    }
    let access = ClusterAccess {
        kubeconfig: args.kubeconfig.clone(),
        context: args.context.clone(),
        ..ClusterAccess::default()
    };
    if let Some(run) = &args.remove {
        return remove(&access, &job, run, interrupt);
    }
    let (out, destination) = place(args.out.as_deref(), args.resume, Path::new(""))?;
    let plan = ClusterPlan::new(&job, destination.stored().map(|stored| &stored.header))
        .with_context(|| format!("{}", path.display()))?;
    let runs = match destination.stored() {
        Some(stored) => plan.left(&stored.recorded),
        None => plan.runs.clone(),
    };
    announce(&plan, &runs);
    if args.dry_run {
        return Ok(());
    }
    Command { args, job: &job, access, plan, out, interrupt }.carry_out(destination)
}

fn remove(
    access: &ClusterAccess,
    job: &ClusterJob,
    run: &str,
    interrupt: &Interrupt,
) -> Result<()> {
    let run = RunId::new(run).context("--remove")?;
    let removal = ::cluster::sweep(access, &job.namespace, &run, &mut || Ok(interrupt.check()?))?;
    check_removed(&removal.left)?;
    say(&format!("Run {run} is removed from the namespace {}.", job.namespace));
    Ok(())
}

fn check_removed(left: &[String]) -> Result<()> {
    ensure!(left.is_empty(), "not removed from the cluster: {}", left.join("; "));
    Ok(())
}

/// Of the runs that are left.
fn announce(plan: &ClusterPlan, runs: &[PlannedRun]) {
    let ClusterPlan { matrix, settings, .. } = plan;
    say(&format!(
        "About {}: {} ({}, {}), {}. Seed {}.",
        human_time(plan.time(runs, 0)),
        counted(runs.len(), "run"),
        counted(matrix.entries.len(), "cell"),
        report::repeats(settings.repeats),
        started(Starts::of(runs, 0)),
        settings.seed
    ));
    matrix.pruned.iter().for_each(|pruned| say(&format!("Left out: {pruned}.")));
}

/// `8 starts of pods and 4 of virtual machines`, or of one kind alone.
fn started(starts: Starts) -> String {
    let counted = |number| counted(usize::try_from(number).unwrap_or(usize::MAX), "start");
    match (starts.pods, starts.vms) {
        (pods, 0) => format!("{} of pods", counted(pods)),
        (0, vms) => format!("{} of virtual machines", counted(vms)),
        (pods, vms) => format!("{} of pods and {vms} of virtual machines", counted(pods)),
    }
}

struct Command<'a> {
    args: &'a ClusterArgs,
    job: &'a ClusterJob,
    access: ClusterAccess,
    plan: ClusterPlan,
    out: PathBuf,
    interrupt: &'a Interrupt,
}

impl Command<'_> {
    fn carry_out(&self, destination: Destination) -> Result<()> {
        let old = destination.stored().and_then(|stored| stored.header.cluster.as_ref());
        let run = match old {
            Some(cluster) => RunId::new(&cluster.run)?,
            None => RunId::random()?,
        };
        let check = &mut || Ok(self.interrupt.check()?);
        let mut session = Session::begin(self.job, &self.access, run, check)?;
        let measured = self.measure(&mut session, destination);
        // Another signal does not end the removal, its time does.
        let most = self.job.workers.iter().max().copied().unwrap_or(1);
        let deadline = clock::now() + REMOVAL + REMOVAL_EACH * most.into();
        let removal = session.finish(&mut || {
            if clock::now() > deadline { Err("the removal takes too long".into()) } else { Ok(()) }
        });
        let removed = check_removed(&removal.left);
        if let (Err(_), Err(left)) = (&measured, &removed) {
            say(&left.to_string());
        }
        measured.and(removed)
    }

    fn measure(&self, session: &mut Session, destination: Destination) -> Result<()> {
        let mut notes = session.survey().notes.clone();
        for run in &session.survey().old_runs {
            notes.push(format!(
                "run {run} of ours has left something in the namespace: if nobody uses it, --remove {run} removes it"
            ));
        }
        notes.iter().for_each(|note| say(&format!("Note: {note}.")));
        let cluster = Cluster {
            namespace: self.job.namespace.clone(),
            run: session.run().to_string(),
            storage: self.plan.storage(session.survey()),
            ..survey::of(session.survey())
        };
        let header = self.plan.header(cluster, notes.clone())?;
        let results = destination.open(&self.out, &header)?;
        let runs = self.plan.left(results.recorded());
        let progress = Progress::new(RemainingRuns::Runs(runs.len()), self.args.interval);
        let workers = Workers::default();
        let mut measuring =
            Measuring { command: self, header: &header, results, workers, progress };
        let measured = measuring.all(session, &runs);
        measuring.progress.finish();
        let (matrix, results) = (&self.plan.matrix, &measuring.results);
        let material = Material { header: &header, matrix, notes: &notes, results };
        if let Err(error) = measured {
            say_how_to_go_on(&self.out, results);
            drop(material.keep(&self.out));
            return Err(error);
        }
        material.conclude(&self.out, self.args.json)
    }
}

/// The runs of a command, one after the other.
struct Measuring<'a> {
    command: &'a Command<'a>,
    header: &'a Header,
    results: Results,
    workers: Workers,
    progress: Progress,
}

impl Measuring<'_> {
    /// A run that fails is recorded, its workers go, and the next run has new ones. When nothing works any more, or no API server answers,
    /// the last reason is the error.
    fn all(&mut self, session: &mut Session, runs: &[PlannedRun]) -> Result<()> {
        let few = FAILURES_MAX.min(runs.len()).max(1);
        let mut in_a_row = 0;
        let begun = clock::now();
        for (place, planned) in runs.iter().enumerate() {
            self.tell_time(planned, runs, place, begun.elapsed());
            match self.one(session, planned) {
                Ok(run) => {
                    in_a_row = 0;
                    self.results.append(Line::Run(Box::new(run)))?;
                }
                Err(error) if Interrupted::caused(&error) || trouble::is_gone(&error) => {
                    return Err(error);
                }
                Err(error) => {
                    in_a_row += 1;
                    self.workers.forget(session, &mut || Ok(self.command.interrupt.check()?));
                    let failure = Failure::new(planned.key.clone(), &error);
                    self.results.append(Line::Failure(failure))?;
                    if in_a_row >= few {
                        return Err(error);
                    }
                    say(&format!("Failed: {error:#}"));
                }
            }
        }
        Ok(())
    }

    /// Says how long this run will take and all that are left, by what those before it have taken.
    fn tell_time(&self, planned: &PlannedRun, runs: &[PlannedRun], place: usize, passed: Duration) {
        let plan = &self.command.plan;
        let (all, rest) = (plan.time(runs, 0), plan.time(runs, place));
        let done = all.saturating_sub(rest);
        let pace = if done.is_zero() { 1.0 } else { passed.div_duration_f64(done) };
        let [rest, later] = [rest, plan.time(runs, place + 1)].map(|it| it.mul_f64(pace));
        self.progress.begin(&planned.key.to_string(), rest.saturating_sub(later), rest);
    }

    fn one(
        &mut self,
        session: &mut Session,
        planned: &PlannedRun,
    ) -> Result<records::results::Run> {
        let Command { plan, out, interrupt, .. } = self.command;
        let name = planned.key.to_string();
        let measured = (|| {
            let check = &mut || Ok(interrupt.check()?);
            self.workers.prepare(session, plan, planned, &self.progress, check)?;
            let bytes = self.workers.bytes().context("there is a worker")?;
            let workload = Workload::new(planned.key.cell.shape(), bytes, planned.seed)?;
            let planned =
                Planned { run: planned, disks: &[], workload: &workload, rate: None, name: &name };
            let settings = &self.header.settings;
            let progress = &self.progress;
            let surroundings = Surroundings { settings, out, interrupt, progress };
            self.workers.measure(session, surroundings, &planned)
        })();
        let run = measured
            .map_err(|error| trouble::explained(session, error, interrupt))
            .with_context(|| name.clone())?;
        if run.operations == 0 {
            bail!("{name}: no request completed while all ran");
        }
        self.progress.end(&name, run.iops());
        Ok(records::results::Run { round: planned.round, ..run })
    }
}
