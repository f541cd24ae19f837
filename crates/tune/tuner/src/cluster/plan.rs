//! From the job file to what is measured: settings, cells and the order of the runs. Pure.

use std::time::Duration;

use ::cluster::{ClusterJob, Placement as JobPlacement, Survey, TreatmentKind, VmIothreads};
use ::plan::args::TuneArgs;
use ::plan::contender::Subject;
use ::plan::matrix::{Matrix, Writes};
use ::plan::repeats::Repeats;
use ::plan::runs::{PlannedRun, by_contender};
use ::plan::settings::Settings;
use ::plan::variant::{ClaimName, Layers, Placement, Variant, WORKERS_MAX};
use anyhow::{Context, Result, bail, ensure};
use records::environment::Environment;
use records::results::{
    Cluster, ClusterStorage, Disk, DiskAccess, Header, Host, Programs, RecordedRuns, StartNotes,
};
use storage::machine::Machine;
use storage::target::Origin;

use crate::run::new_seed;

/// Options of `tune` that have a meaning in a cluster; all others are about this host.
const OPTIONS: [&str; 16] = [
    "op",
    "bs",
    "jobs",
    "iodepth",
    "profile",
    "runtime",
    "ramp",
    "engine",
    "verify",
    "seed",
    "want",
    "p99-max",
    "iops-min",
    "weights",
    "tolerance",
    "predict",
];

/// A job file has no more than the results can tell of.
const _: () = assert!(::cluster::WORKERS_MAX <= WORKERS_MAX);

/// What a start of a pod takes, about.
const POD_START: Duration = Duration::from_secs(10);
/// The same of a virtual machine.
const VM_START: Duration = Duration::from_secs(60);
/// What a run takes on top of what it measures.
const AROUND_RUN: Duration = Duration::from_secs(4);

/// How often workers are started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Starts {
    pub(super) pods: u32,
    pub(super) vms: u32,
}

impl Starts {
    /// For the runs from this place on; those before it have left their workers.
    pub(super) fn of(runs: &[PlannedRun], place: usize) -> Self {
        let mut starts = Self { pods: 0, vms: 0 };
        let group = |run: &PlannedRun| (run.round, run.key.variant, run.key.contender);
        for at in place..runs.len() {
            if at > 0 && group(&runs[at - 1]) == group(&runs[at]) {
                continue;
            }
            if runs[at].key.contender.subject().is_vm() {
                starts.vms += 1;
            } else {
                starts.pods += 1;
            }
        }
        starts
    }
}

/// What is measured.
#[derive(Debug)]
pub(super) struct ClusterPlan {
    pub(super) settings: Settings,
    pub(super) matrix: Matrix,
    pub(super) runs: Vec<PlannedRun>,
    /// In the order of the job.
    storage: Vec<ClusterStorage>,
}

impl ClusterPlan {
    /// Of a job; a command that goes on has the seed of its header.
    ///
    /// # Errors
    /// What of the job cannot be measured, in its own words.
    pub(super) fn new(job: &ClusterJob, old: Option<&Header>) -> Result<Self> {
        let seed = old.map_or_else(new_seed, |header| header.settings.seed);
        let storage = storage(job)?;
        let settings = settings(job, &storage, seed)?;
        let bytes = storage.iter().map(|it| it.bytes).min().context("storage: there is none")?;
        let matrix = Matrix::new(&settings, &|_| Layers::Kernel, bytes, Writes::Allowed)?;
        let runs = by_contender(&matrix, job.rounds, settings.seed);
        Ok(Self { settings, matrix, runs, storage })
    }

    /// What is not recorded yet.
    pub(super) fn left(&self, recorded: &RecordedRuns) -> Vec<PlannedRun> {
        self.runs.iter().filter(|run| !recorded.has(run)).cloned().collect()
    }

    /// What the runs from this place on take, about.
    pub(super) fn time(&self, runs: &[PlannedRun], place: usize) -> Duration {
        let Settings { ramp, runtime, .. } = &self.settings;
        let run = ramp.duration().saturating_add(runtime.duration()).saturating_add(AROUND_RUN);
        let count = u32::try_from(runs.len().saturating_sub(place)).unwrap_or(u32::MAX);
        let starts = Starts::of(runs, place);
        run.saturating_mul(count)
            .saturating_add(POD_START.saturating_mul(starts.pods))
            .saturating_add(VM_START.saturating_mul(starts.vms))
    }

    /// What is measured, with what the cluster says of its classes.
    pub(super) fn storage(&self, survey: &Survey) -> Vec<ClusterStorage> {
        let known = |storage: &ClusterStorage| {
            let class = survey.storage_classes.iter().find(|class| class.name == storage.class);
            let provisioner = class.map(|class| class.provisioner.clone());
            ClusterStorage { provisioner, ..storage.clone() }
        };
        self.storage.iter().map(known).collect()
    }

    /// The first line of the results.
    ///
    /// # Errors
    /// If the cluster has no node.
    pub(super) fn header(&self, cluster: Cluster, notes: Vec<String>) -> Result<Header> {
        let smallest = cluster.nodes.iter().min_by_key(|node| node.cpus);
        let smallest = smallest.context("the cluster has no node")?;
        let machine = Machine {
            cpu: smallest.instance_type.clone().unwrap_or_else(|| "unknown".to_owned()),
            cores: usize::try_from(smallest.cpus).unwrap_or(usize::MAX),
            memory_kib: smallest.memory_kib,
            kernel: smallest.kernel.clone(),
        };
        let description: Vec<String> =
            cluster.storage.iter().map(ClusterStorage::description).collect();
        let disk = Disk {
            origin: Origin::Guest,
            path: "claims".into(),
            bytes: self.storage.iter().map(|it| it.bytes).min().unwrap_or_default(),
            description: description.join("; "),
            opened: Some(DiskAccess { block_device: true, direct: true }),
            looks_like: None,
            holes: false,
        };
        let host = Host { machine, environment: Environment::default(), load_before: None };
        let known = StartNotes { notes, left_out: self.matrix.pruned.clone(), skipped: Vec::new() };
        let header = Header::new(Programs::default(), host, disk, self.settings.clone());
        Ok(Header { cluster: Some(cluster), ..header.with_known(known) })
    }
}

fn storage(job: &ClusterJob) -> Result<Vec<ClusterStorage>> {
    let one = |it: &::cluster::ClaimStorage| {
        let name = it.name.parse().with_context(|| format!("storage {}", it.name))?;
        Ok(ClusterStorage {
            name,
            class: it.storage_class_name.clone().unwrap_or_else(|| "(default)".to_owned()),
            provisioner: None,
            mode: it.volume_mode.name().to_owned(),
            bytes: it.bytes,
        })
    };
    job.storage.iter().map(one).collect()
}

fn settings(job: &ClusterJob, storage: &[ClusterStorage], seed: u64) -> Result<Settings> {
    let mut words = Vec::new();
    for (option, value) in &job.workload {
        ensure!(
            OPTIONS.contains(&option.as_str()),
            "workload: {option}: a cluster has no such choice; there are {}",
            OPTIONS.join(", ")
        );
        match (option.as_str(), value.as_str()) {
            ("verify", "true") => words.push("--verify".to_owned()),
            ("verify", "false") => {}
            ("verify", other) => bail!("workload: verify: true or false, not {other}"),
            (option, value) => words.push(format!("--{option}={value}")),
        }
    }
    if !job.workload.contains_key("engine") {
        // Container runtimes forbid io_uring.
        words.push("--engine=libaio".to_owned());
    }
    let iothreads: Vec<String> = job.iothreads.iter().map(number).collect();
    if !iothreads.is_empty() {
        words.push(format!("--iothreads={}", iothreads.join(",")));
    }
    let tune = TuneArgs::of_words(words.iter().map(String::as_str))
        .map_err(|message| anyhow::anyhow!("workload: {}", first_line(&message)))?;
    let subjects: Vec<Subject> = job.treatments.iter().map(subject).collect();
    let mut settings = Settings::new(&tune, &subjects, usize::from(job.vm.cpus), seed);
    settings.repeats = Repeats::Fixed(job.rounds);
    settings.sentinel = 0;
    settings.guest.vcpus = job.vm.cpus;
    settings.guest.queues = settings.guest.vcpus;
    settings.guest.memory_mib = u32::try_from(job.vm.memory_bytes() >> 20).context("vm: memory")?;
    settings.variants = variants(job, storage)?;
    settings.check_question()?;
    Ok(settings)
}

/// What is wrong, without how `tune` is called.
fn first_line(message: &str) -> &str {
    let line = message.lines().next().unwrap_or(message);
    line.strip_prefix("error: ").unwrap_or(line)
}

fn number(iothreads: &VmIothreads) -> String {
    match iothreads {
        VmIothreads::None => "none".to_owned(),
        VmIothreads::Pool(count) => count.to_string(),
    }
}

fn subject(kind: &TreatmentKind) -> Subject {
    match kind {
        TreatmentKind::Pod => Subject::Pod,
        TreatmentKind::Vm => Subject::VmKubevirt,
    }
}

/// Each storage with each number of workers, and each placement where there are several of these.
fn variants(job: &ClusterJob, storage: &[ClusterStorage]) -> Result<Vec<Variant>> {
    let mut variants = Vec::new();
    for name in storage.iter().map(|it| it.name) {
        for &workers in &job.workers {
            for placement in job.placement.iter().map(placement) {
                let placement = if workers > 1 { placement } else { Placement::default() };
                let claim: Option<ClaimName> = Some(name);
                let variant = Variant { claim, placement, vms: workers, ..Variant::default() };
                if !variants.contains(&variant) {
                    variants.push(variant);
                }
            }
        }
    }
    Ok(variants)
}

fn placement(placement: &JobPlacement) -> Placement {
    match placement {
        JobPlacement::Spread => Placement::Spread,
        JobPlacement::Packed => Placement::Packed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: &str = "\
namespace: perf
images: {agent: a:1, guest: g:1}
treatments: [pod, vm]
iothreads: [none, 2]
workers: [1]
storage: [{name: local, size: 1Gi}]
workload: {op: [randread, randwrite], bs: 4k, jobs: 1, iodepth: 16, runtime: 5, ramp: 1}
rounds: 2
";

    #[test]
    fn a_start_is_part_of_the_first_run_of_its_workers() {
        let job = ClusterJob::parse(JOB).expect("a job");
        let plan = ClusterPlan::new(&job, None).expect("a plan");
        let runs = &plan.runs;
        assert_eq!(runs.len(), 12);
        assert_eq!(Starts::of(runs, 0), Starts { pods: 2, vms: 4 });
        for place in 0..runs.len() {
            let took = (plan.time(runs, place) - plan.time(runs, place + 1)).as_secs();
            let start = match (place % 2, runs[place].key.contender.subject().is_vm()) {
                (0, true) => 60,
                (0, false) => 10,
                _ => 0,
            };
            assert_eq!(took, 10 + start, "the run {place}");
        }
        assert_eq!(plan.time(runs, runs.len()), Duration::ZERO);
    }
}
