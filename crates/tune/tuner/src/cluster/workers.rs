//! The workers of a contender in a round: started when its first run is due, gone when the next one has another contender.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ::cluster::{Placement as JobPlacement, Session, Setup, Treatment, VmIothreads, Worker};
use ::plan::contender::{Contender, Subject};
use ::plan::runs::PlannedRun;
use ::plan::units::counted;
use ::plan::variant::{Placement, Variant};
use agent::{AgentError, Check, Disk, DiskRequest, Meters, Stopped, at_once};
use anyhow::{Context, Result, bail, ensure};
use load::fio::FioVersion;
use load::probe::CacheMode;
use records::meter::{Cost, HostCpu};
use records::results::{Part, Run};

use super::place::{Barrier, WorkerPlace};
use super::plan::ClusterPlan;
use crate::measure::Planned;
use crate::measure::fio::{self, Means, Serving, Station, Surroundings, Work};
use crate::measure::vm::engine;
use crate::progress::{Progress, say};

/// The signature of QEMU without KVM.
const EMULATED: &str = "TCGTCGTCGTCG";
/// A clock that is known worse than this tells no common window.
const CLOCK_ERROR_MAX: Duration = Duration::from_millis(250);
/// A node's clock that is further from this machine's is told of: other programs suffer from it.
const CLOCK_OFF_MAX: Duration = Duration::from_secs(1);

/// What workers are started for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Purpose {
    contender: Contender,
    variant: Variant,
    round: Option<u16>,
}

/// Workers that run, with their disks.
#[derive(Debug, Default)]
pub(super) struct Workers {
    purpose: Option<Purpose>,
    workers: Vec<Worker>,
    disks: Vec<Disk>,
    /// Claims that have been filled, by storage, placement and worker.
    filled: BTreeSet<(String, String, String)>,
    /// Nodes and guests whose clocks were told of.
    off: BTreeSet<String>,
}

impl Workers {
    /// The size of the smallest disk.
    pub(super) fn bytes(&self) -> Option<u64> {
        self.disks.iter().map(|disk| disk.bytes).min()
    }

    /// Starts those of a run, unless they run already.
    pub(super) fn prepare(
        &mut self,
        session: &mut Session,
        plan: &ClusterPlan,
        planned: &PlannedRun,
        progress: &Progress,
        check: Check<'_>,
    ) -> Result<()> {
        let PlannedRun { key, round, .. } = planned;
        let (contender, variant) = (key.contender, key.variant);
        let purpose = Purpose { contender, variant, round: *round };
        if self.purpose == Some(purpose) {
            return Ok(());
        }
        self.stop(session, check)?;
        let setup = setup(contender, &variant)?;
        if setup.treatment != Treatment::Pod && session.has_files(&setup.storage) {
            self.lay_files(session, plan, &setup, progress, check)?;
        }
        self.begin(session, plan, &setup, progress, check)?;
        self.purpose = Some(purpose);
        Ok(())
    }

    /// Starts workers and makes their disks ready.
    fn begin(
        &mut self,
        session: &mut Session,
        plan: &ClusterPlan,
        setup: &Setup,
        progress: &Progress,
        check: Check<'_>,
    ) -> Result<()> {
        progress.before("pods and virtual machines start");
        self.workers = session.start(setup, check)?;
        self.judge(plan)?;
        self.judge_clocks(setup.treatment)?;
        self.disks = self.ready_disks(setup, progress, check)?;
        Ok(())
    }

    /// The files that machines get as their disks, from pods: what KubeVirt would make itself has holes, another size than the file of
    /// pods, and no room beside it.
    fn lay_files(
        &mut self,
        session: &mut Session,
        plan: &ClusterPlan,
        setup: &Setup,
        progress: &Progress,
        check: Check<'_>,
    ) -> Result<()> {
        let places = 0..usize::from(setup.workers);
        if places.clone().all(|place| self.filled.contains(&claim(setup, place))) {
            return Ok(());
        }
        let pods = Setup { treatment: Treatment::Pod, ..setup.clone() };
        self.begin(session, plan, &pods, progress, check)?;
        self.stop(session, check)
    }

    /// Ends them.
    fn stop(&mut self, session: &mut Session, check: Check<'_>) -> Result<()> {
        self.purpose = None;
        self.disks = Vec::new();
        let workers = std::mem::take(&mut self.workers);
        if workers.is_empty() {
            return Ok(());
        }
        session.stop(workers, check).context("end the workers")
    }

    /// Ends them after a failure; what cannot be ended is named when all is removed.
    pub(super) fn forget(&mut self, session: &mut Session, check: Check<'_>) {
        if let Err(error) = self.stop(session, check) {
            say(&format!("Note: {error:#}."));
        }
    }

    /// Refuses workers that cannot be measured.
    fn judge(&self, plan: &ClusterPlan) -> Result<()> {
        for Worker { name, node, agent, .. } in &self.workers {
            let facts = agent.facts();
            ensure!(facts.fio.is_some(), "{name} on {node}: its image has no fio");
            ensure!(
                facts.io_uring || engine(&plan.settings) != load::fio::Engine::IoUring,
                "{name} on {node}: io_uring is forbidden there: engine: libaio"
            );
        }
        Ok(())
    }

    /// Refuses several that could not start together, and tells of clocks that are off.
    fn judge_clocks(&mut self, treatment: Treatment) -> Result<()> {
        for Worker { name, node, agent, .. } in &self.workers {
            let clock = agent.offset();
            let error = Duration::from_nanos(clock.error_ns);
            ensure!(
                error <= CLOCK_ERROR_MAX || self.workers.len() == 1,
                "{name} on {node}: its clock is known to {error:?} only, too little to start several at once"
            );
            let off = Duration::from_nanos(clock.offset_ns.unsigned_abs());
            // A guest has a clock of its own, which is gone with it.
            let whose = if treatment == Treatment::Pod { node } else { name };
            if off > CLOCK_OFF_MAX && self.off.insert(whose.clone()) {
                let side = if clock.offset_ns > 0 { "ahead of" } else { "behind" };
                say(&format!(
                    "Note: the clock of {whose} is {off:.1?} {side} this machine's; runs start together all the same."
                ));
            }
        }
        Ok(())
    }

    /// Several start at a time of their clocks, which may have been set, or have drifted, since they were measured last.
    fn measure_clocks(&mut self, contender: Contender, check: Check<'_>) -> Result<()> {
        if self.workers.len() < 2 {
            return Ok(());
        }
        let measure = |worker: &mut Worker, check: Check<'_>| {
            let Worker { name, node, agent, .. } = worker;
            let told = || format!("the clock of {name} on {node}");
            agent.measure_clock(check).map(drop).with_context(told)
        };
        at_once(&mut self.workers, measure, check).map_err(failure)?;
        self.judge_clocks(treatment(contender)?)
    }

    /// Their disks, filled before their first run, all at the same time.
    fn ready_disks(
        &mut self,
        setup: &Setup,
        progress: &Progress,
        check: Check<'_>,
    ) -> Result<Vec<Disk>> {
        let written: Vec<AtomicU64> = self.workers.iter().map(|_| AtomicU64::new(0)).collect();
        let is_filled = |place| self.filled.contains(&claim(setup, place));
        let filled: Vec<bool> = (0..self.workers.len()).map(is_filled).collect();
        let each = self.workers.iter_mut().zip(&written).zip(filled);
        let mut told = 0;
        let mut check = || {
            let bytes: u64 = written.iter().map(|it| it.load(Ordering::Relaxed)).sum();
            if bytes > told {
                told = bytes;
                let claims = counted(written.len(), "claim");
                progress.before(format!("{claims} are filled: {} MiB", bytes >> 20));
            }
            check()
        };
        let disks = at_once(
            each,
            |((worker, written), is_filled), check| ready_disk(worker, is_filled, written, check),
            &mut check,
        );
        let disks = disks.map_err(failure)?;
        self.filled.extend((0..disks.len()).map(|place| claim(setup, place)));
        Ok(disks)
    }

    /// Has fio run in all of them at once.
    pub(super) fn measure(
        &mut self,
        session: &mut Session,
        surroundings: Surroundings<'_>,
        planned: &Planned<'_>,
    ) -> Result<Run> {
        let Surroundings { settings, interrupt, .. } = surroundings;
        let check = &mut || Ok(interrupt.check()?);
        self.measure_clocks(planned.run.key.contender, check)?;
        let before = self.meters(planned, check)?;
        let work = Work::new(settings, planned, self.means(settings)?, self.workers.len())?;
        let barrier = Barrier::of(self.workers.len());
        let several = self.workers.len() > 1;
        let place = |worker| WorkerPlace { worker, barrier: several.then_some(&barrier) };
        let mut places: Vec<WorkerPlace<'_>> = self.workers.iter_mut().map(place).collect();
        let each = (1..).zip(places.iter_mut().zip(&self.disks));
        let mut stations: Vec<Station<'_>> = each
            .map(|(number, (place, disk))| Station {
                place,
                files: vec![disk.path.clone()],
                job_name: format!("{}-w{number}", planned.slug()),
            })
            .collect();
        let mut look = || Ok(session.look(&mut || Ok(interrupt.check()?))?);
        let serving = Serving { groups: &[], check: &mut look };
        let run = fio::run(surroundings, planned, &work, &mut stations, serving)?;
        drop(stations);
        let after = self.meters(planned, &mut || Ok(interrupt.check()?))?;
        let host = usage(&before, &after);
        Ok(self.complete(planned, run, host))
    }

    /// Of the nodes, as pods see them; a virtual machine sees its own CPUs.
    fn meters(&mut self, planned: &Planned<'_>, check: Check<'_>) -> Result<Vec<Meters>> {
        if planned.run.key.contender.subject() != Subject::Pod {
            return Ok(Vec::new());
        }
        let mut seen = BTreeSet::new();
        let mut all = Vec::new();
        for Worker { node, agent, .. } in &mut self.workers {
            if seen.insert(node.clone()) {
                all.push(agent.meters(check)?);
            }
        }
        Ok(all)
    }

    fn means(&self, settings: &::plan::settings::Settings) -> Result<Means> {
        let mut versions = self.workers.iter().filter_map(|it| it.agent.facts().fio.as_deref());
        let first = versions.next().context("there is a worker")?;
        if let Some(other) = versions.find(|it| *it != first) {
            bail!("the workers have different versions of fio: {first}, {other}");
        }
        let version = FioVersion::parse(first);
        let version = version.with_context(|| format!("'{first}' is no version of fio"))?;
        let direct = self.disks.iter().all(|disk| disk.direct);
        let cache = if direct { CacheMode::Direct } else { CacheMode::Buffered };
        Ok(Means { version, engine: engine(settings), cache })
    }

    /// With what only the cluster knows: nodes, queues, whether the CPUs were emulated.
    fn complete(&self, planned: &Planned<'_>, run: Run, host: Option<HostCpu>) -> Run {
        let is_vm = planned.run.key.contender.subject().is_vm();
        let mut parts = run.parts;
        if parts.is_empty() {
            let (operations, bytes, elapsed_ns) = (run.operations, run.bytes, run.elapsed_ns);
            let latency_ns = run.latency_ns.clone();
            parts.push(Part { vm: 1, operations, bytes, elapsed_ns, latency_ns, node: None });
        }
        for (part, worker) in parts.iter_mut().zip(&self.workers) {
            part.node = Some(worker.node.clone());
        }
        let emulated = |it: &Worker| it.agent.facts().hypervisor.as_deref() == Some(EMULATED);
        let queues = self.disks.iter().filter_map(|disk| disk.queues).min().unwrap_or(0);
        Run {
            parts,
            kernel: self.workers.first().map(|it| it.agent.facts().kernel.clone()),
            queues: if is_vm { u16::try_from(queues).unwrap_or(u16::MAX) } else { 0 },
            emulated: is_vm && self.workers.iter().any(emulated),
            // Of this machine there is nothing to tell.
            cost: Cost { covered_ns: run.cost.covered_ns, host, groups: Vec::new() },
            ..run
        }
    }
}

/// CPUs in use on all nodes together.
fn usage(before: &[Meters], after: &[Meters]) -> Option<HostCpu> {
    let mut all = HostCpu::default();
    for (before, after) in before.iter().zip(after) {
        let usage = after.since(before);
        all.cpus_in_use += usage.busy_cores;
        all.cpus_stolen += usage.steal_cores;
        all.of += usize::try_from(after.cpus).unwrap_or(0);
    }
    (all.of > 0).then_some(all)
}

/// The name of a worker's claim in `Workers::filled`.
fn claim(setup: &Setup, place: usize) -> (String, String, String) {
    (setup.storage.clone(), setup.placement.name().to_owned(), place.to_string())
}

/// The disk of a worker, all of it written once.
fn ready_disk(
    worker: &mut Worker,
    is_filled: bool,
    written: &AtomicU64,
    check: Check<'_>,
) -> Result<Disk> {
    let Worker { name, node, disk: request, agent } = worker;
    let told = || format!("{name} on {node}");
    let filling = &mut |bytes: u64| written.store(bytes, Ordering::Relaxed);
    let disk = agent.disk(request, filling, check).with_context(told)?;
    ensure!(disk.writable, "{name} on {node}: {} cannot be written", disk.path);
    // A file in a directory is whole when it is there.
    if matches!(request, DiskRequest::Device { .. }) && !is_filled {
        agent.fill(&disk.path, filling, check).with_context(told)?;
    }
    Ok(disk)
}

fn failure(stopped: Stopped<anyhow::Error>) -> anyhow::Error {
    match stopped {
        Stopped::Ended(why) => AgentError::Ended(why).into(),
        Stopped::Failed(error) => error,
    }
}

fn treatment(contender: Contender) -> Result<Treatment> {
    Ok(match (contender.subject(), contender.number()) {
        (Subject::Pod, _) => Treatment::Pod,
        (Subject::VmKubevirt, Some(number)) => Treatment::Vm(match number.count() {
            0 => VmIothreads::None,
            count => VmIothreads::Pool(count),
        }),
        _ => bail!("{contender} is not measured on a cluster"),
    })
}

fn setup(contender: Contender, variant: &Variant) -> Result<Setup> {
    let treatment = treatment(contender)?;
    let storage = variant.claim.context("a cluster has claims")?.to_string();
    let placement = match variant.placement {
        Placement::Spread => JobPlacement::Spread,
        Placement::Packed => JobPlacement::Packed,
    };
    Ok(Setup { treatment, storage, workers: variant.vms, placement })
}
