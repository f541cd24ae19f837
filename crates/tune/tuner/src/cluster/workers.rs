//! The workers of a contender in a round: started when its first run is due, gone when the next one has another contender.

use std::collections::BTreeSet;
use std::time::Duration;

use ::cluster::{Placement as JobPlacement, Session, Setup, Treatment, VmIothreads, Worker};
use ::plan::contender::{Contender, Subject};
use ::plan::runs::PlannedRun;
use ::plan::variant::{Placement, Variant};
use agent::{AgentError, Check, Disk, DiskRequest, Meters};
use anyhow::{Context, Result, bail, ensure};
use load::fio::FioVersion;
use load::probe::CacheMode;
use records::meter::{Cost, HostCpu};
use records::results::{Part, Run};
use storage::interrupt::Interrupt;

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
        progress.before("pods and virtual machines start");
        let setup = setup(contender, &variant)?;
        self.workers = session.start(&setup, check)?;
        self.judge(plan, &setup)?;
        self.disks = Vec::new();
        for place in 0..self.workers.len() {
            let disk = self.disk(place, &setup, progress, check)?;
            self.disks.push(disk);
        }
        self.purpose = Some(purpose);
        Ok(())
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

    /// Refuses workers that cannot be measured, or not together.
    fn judge(&mut self, plan: &ClusterPlan, setup: &Setup) -> Result<()> {
        for Worker { name, node, agent, .. } in &self.workers {
            let (facts, clock) = (agent.facts(), agent.offset());
            let fio = facts.fio.as_deref();
            ensure!(fio.is_some(), "{name} on {node}: its image has no fio");
            ensure!(
                facts.io_uring || engine(&plan.settings) != load::fio::Engine::IoUring,
                "{name} on {node}: io_uring is forbidden there: engine: libaio"
            );
            let error = Duration::from_nanos(clock.error_ns);
            ensure!(
                error <= CLOCK_ERROR_MAX || self.workers.len() == 1,
                "{name} on {node}: its clock is known to {error:?} only, too little to start several at once"
            );
            let off = Duration::from_nanos(clock.offset_ns.unsigned_abs());
            // A guest has a clock of its own, which is gone with it.
            let whose = if setup.treatment == Treatment::Pod { node } else { name };
            if off > CLOCK_OFF_MAX && self.off.insert(whose.clone()) {
                let side = if clock.offset_ns > 0 { "ahead of" } else { "behind" };
                say(&format!("Note: the clock of {whose} is {off:.1?} {side} this machine's."));
            }
        }
        Ok(())
    }

    /// The disk of a worker, filled before its first run.
    fn disk(
        &mut self,
        place: usize,
        setup: &Setup,
        progress: &Progress,
        check: Check<'_>,
    ) -> Result<Disk> {
        let Worker { name, node, disk: request, agent } = &mut self.workers[place];
        let told = || format!("{name} on {node}");
        let filling = &mut |bytes: u64| {
            progress.before(format!("the claim of {name} is filled: {} MiB", bytes >> 20));
        };
        let disk = agent.disk(request, filling, check).with_context(told)?;
        ensure!(disk.writable, "{name} on {node}: {} cannot be written", disk.path);
        let claim = (setup.storage.clone(), setup.placement.name().to_owned(), place.to_string());
        if matches!(request, DiskRequest::Device { .. }) && !self.filled.contains(&claim) {
            agent.fill(&disk.path, filling, check).with_context(told)?;
            self.filled.insert(claim);
        }
        Ok(disk)
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
        let before = self.meters(planned, check)?;
        let work = Work::new(settings, planned, self.means(settings)?, self.workers.len())?;
        let barrier = Barrier::default();
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

/// An error with what the cluster knows of it, if an agent is gone.
pub(super) fn explained(
    session: &mut Session,
    error: anyhow::Error,
    interrupt: &Interrupt,
) -> anyhow::Error {
    let is_lost = error.chain().any(|cause| cause.is::<AgentError>());
    let why = is_lost.then(|| session.trouble(&mut || Ok(interrupt.check()?))).flatten();
    match why {
        Some(why) => error.context(why),
        None => error,
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

fn setup(contender: Contender, variant: &Variant) -> Result<Setup> {
    let treatment = match (contender.subject(), contender.number()) {
        (Subject::Pod, _) => Treatment::Pod,
        (Subject::VmKubevirt, Some(number)) => Treatment::Vm(match number.count() {
            0 => VmIothreads::None,
            count => VmIothreads::Pool(count),
        }),
        _ => bail!("{contender} is not measured on a cluster"),
    };
    let storage = variant.claim.context("a cluster has claims")?.to_string();
    let placement = match variant.placement {
        Placement::Spread => JobPlacement::Spread,
        Placement::Packed => JobPlacement::Packed,
    };
    Ok(Setup { treatment, storage, workers: variant.vms, placement })
}
