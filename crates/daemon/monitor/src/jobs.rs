//! The jobs of a daemon: what goes on after its command was answered, and what clients are told of it.
//!
//! Where it stands: commands begin jobs and have them do something; iothreads and threads of jobs tell by messages what has
//! happened; here is decided what follows.
//!
//! Invariants: what a job that is over has told too late means nothing to another one of its id.
//! Specification: QEMU, docs/interop/live-block-operations.rst, qapi/job.json. A job stays as *concluded* until it is
//! dismissed.
//! Threads: the first one.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use block::FailKind;
use control::{
    BlockJobError, BlockJobProgress, DaemonState, GraphChangeError, JobNews, JobObserver,
    MirrorEnd, StatePolicy,
};
use copy::{CopyEnd, CopyError, CopySide, ErrorAction};
use host::chain_of;
use jobs::{
    BlockJobNews, Job, JobEnd, JobEvent, JobKind, JobSettings, JobStatus, JobVerb, VerbRefusal,
};
use layers::MirrorMode;
use serde_json::{Value, json};

use crate::events::{
    BLOCK_JOB_CANCELLED, BLOCK_JOB_COMPLETED, BLOCK_JOB_ERROR, BLOCK_JOB_PENDING, BLOCK_JOB_READY,
    JOB_STATUS_CHANGE,
};
use crate::inbox::{InboxSender, Message};
use crate::qmp_error::QmpError;

/// How long is waited for what a job has begun that is given up.
const GIVE_UP_MAX: Duration = Duration::from_secs(1);

/// What clients are told of a job.
pub(crate) type Events = Vec<(&'static str, Value)>;

/// The jobs by id.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    all: BTreeMap<String, JobEntry>,
    begun: u64,
}

/// Tells jobs of one id apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct JobSerial(u64);

/// A job, with what is known of its work.
#[derive(Debug)]
pub(crate) struct JobEntry {
    serial: JobSerial,
    pub(crate) job: Job,
    /// The nodes that it writes, which nobody else uses and nobody may begin to use.
    nodes: Vec<String>,
    /// The node that was made for it, and is gone with it unless somebody uses it.
    pub(crate) owned: Option<String>,
    /// The first of the jobs whose results count together, or none of them.
    pub(crate) group: Option<JobSerial>,
    /// What was asked of it.
    wish: JobWish,
    /// Whether a restart has to find what it changes.
    policy: StatePolicy,
    /// How far it has come, as it was seen last.
    progress: BlockJobProgress,
    /// Whether it waits for what others do.
    pub(crate) is_idle: bool,
    /// Whether a disk has failed since a client had it go on.
    pub(crate) io_status: &'static str,
}

/// What a client wants of a job that could go on for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum JobWish {
    /// Nothing: it goes on.
    GoOn,
    /// Its end, once it can be; if it is to be finalized by hand, up to there.
    End(MirrorEnd),
    /// Its end, finalized.
    Finalize(MirrorEnd),
    /// That its result counts with those of its group.
    Count,
}

/// Tells the first thread what happens to a job.
#[derive(Debug)]
struct NewsSender {
    id: String,
    serial: JobSerial,
    inbox: InboxSender,
}

impl JobObserver for NewsSender {
    fn hear(&self, news: JobNews) {
        self.inbox.send(Message::JobNews { id: self.id.clone(), serial: self.serial, news });
    }
}

impl Jobs {
    /// A job is about to begin: refuses an id that another one has. What is heard of it goes to the first thread.
    pub(crate) fn prepare(
        &mut self,
        id: &str,
        inbox: &InboxSender,
    ) -> Result<(JobSerial, Arc<dyn JobObserver>), QmpError> {
        if !syntax::is_identifier(id) {
            return Err(QmpError::generic(format!("Invalid job ID '{id}'")));
        }
        if self.all.contains_key(id) {
            return Err(QmpError::generic(format!("Job ID '{id}' already in use")));
        }
        self.begun += 1;
        let serial = JobSerial(self.begun);
        let observer = NewsSender { id: id.to_owned(), serial, inbox: inbox.clone() };
        Ok((serial, Arc::new(observer)))
    }

    /// A job has begun, which writes these nodes and nobody else may use.
    pub(crate) fn begin(
        &mut self,
        serial: JobSerial,
        (id, kind, settings): (&str, JobKind, JobSettings),
        nodes: Vec<String>,
        policy: StatePolicy,
    ) -> Events {
        let job = Job::begin(id, kind, settings);
        let mut entry = JobEntry {
            serial,
            job,
            nodes,
            owned: None,
            group: None,
            wish: JobWish::GoOn,
            policy,
            progress: BlockJobProgress { current: 0, total: 1 },
            is_idle: false,
            io_status: "ok",
        };
        let events = entry.take_events();
        self.all.insert(id.to_owned(), entry);
        events
    }

    /// A node that arguments name anywhere and that a job writes, and the job.
    pub(crate) fn node_in_use(&self, arguments: &Value) -> Option<(&str, &str)> {
        let named = |name: &str| match arguments {
            Value::String(text) => text == name,
            Value::Array(_)
            | Value::Object(_)
            | Value::Null
            | Value::Bool(_)
            | Value::Number(_) => false,
        };
        let mut nodes =
            self.all.iter().flat_map(|(id, job)| job.nodes.iter().map(move |node| (node, id)));
        let found =
            nodes.find(|(node, _)| named(node)).map(|(node, id)| (node.as_str(), id.as_str()));
        match arguments {
            Value::Array(all) => found.or_else(|| all.iter().find_map(|it| self.node_in_use(it))),
            Value::Object(all) => {
                found.or_else(|| all.values().find_map(|it| self.node_in_use(it)))
            }
            Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => found,
        }
    }

    /// All jobs, by id, with how far each has come.
    pub(crate) fn all(
        &mut self,
        state: &DaemonState,
    ) -> impl Iterator<Item = (&JobEntry, BlockJobProgress)> {
        for entry in self.all.values_mut() {
            entry.look(state);
        }
        self.all.values().map(|entry| (entry, entry.progress))
    }

    /// The job of that id.
    pub(crate) fn get(&mut self, id: &str) -> Option<&mut JobEntry> {
        self.all.get_mut(id)
    }

    /// The work of a job without disks is over.
    pub(crate) fn ended(&mut self, id: &str, error: Option<String>) -> Events {
        let Some(entry) = self.all.get_mut(id) else { return Vec::new() };
        entry.nodes.clear();
        entry.progress.current = entry.progress.total;
        match error {
            None => {
                entry.job.work_ended(JobEnd::Done);
                entry.job.finalized();
            }
            Some(sentence) => {
                entry.job.work_ended(JobEnd::Failed(sentence));
                entry.job.aborted();
            }
        }
        self.settle(id)
    }

    /// Something has happened to a job.
    pub(crate) fn news(
        &mut self,
        state: &mut DaemonState,
        (id, serial): (&str, JobSerial),
        news: JobNews,
    ) -> Events {
        let entry = self.all.get_mut(id).filter(|entry| entry.serial == serial);
        let Some(entry) = entry.filter(|_| state.has_block_job(id)) else { return Vec::new() };
        let mut events = Vec::new();
        match news {
            // A backup that copies what guests change has nothing to do for now.
            JobNews::Equal if entry.job.kind() == JobKind::Backup => {}
            JobNews::Equal => {
                entry.look(state);
                entry.job.become_ready();
                entry.end_if_wished(state);
            }
            JobNews::DiskFailed(error, action) => events.extend(entry.failed(state, error, action)),
            JobNews::WorkerEnded(_) | JobNews::Quiet if entry.is_given_up() => {
                entry.end_given_up(state, Duration::ZERO);
            }
            JobNews::Quiet => {}
            JobNews::Failed(_) if entry.is_given_up() => {}
            JobNews::Failed(error) | JobNews::WorkerEnded(CopyEnd::Failed(error)) => {
                entry.abort(state, JobEnd::Failed(error.to_string()));
            }
            JobNews::NotServed(sentence) => entry.abort(state, JobEnd::Failed(sentence)),
            JobNews::WorkerEnded(CopyEnd::Done) if state.block_job_worker_ended(id) => {
                entry.work_done(state);
            }
            JobNews::WorkerEnded(CopyEnd::Done | CopyEnd::Cancelled) => {}
        }
        events.extend(self.follow(state, id));
        events
    }

    /// What a client has a job do that is there.
    pub(crate) fn command<E>(
        &mut self,
        state: &mut DaemonState,
        id: &str,
        run: impl FnOnce(&mut JobEntry, &mut DaemonState) -> Result<(), E>,
    ) -> Result<Events, E> {
        let entry = self.all.get_mut(id).expect("the caller has found it");
        run(entry, state)?;
        Ok(self.follow(state, id))
    }

    /// What becomes of those whose results count together with that of a job, and what clients are to be told of them all.
    fn follow(&mut self, state: &mut DaemonState, id: &str) -> Events {
        let Some(entry) = self.all.get(id) else { return Vec::new() };
        let Some(group) = entry.group else { return self.settle(id) };
        let end = entry.job.has_succeeded();
        let mut all: Vec<_> = self.all.values_mut().filter(|it| it.group == Some(group)).collect();
        // As in QEMU the last one is told of first, but for one that has the others cancelled.
        let is_first = |entry: &JobEntry| end == Some(false) && entry.job.id() == id;
        all.sort_by_key(|entry| (!is_first(entry), Reverse(entry.serial.0)));
        let mut ids: Vec<String> = all.iter().map(|entry| entry.job.id().to_owned()).collect();
        let all_are =
            |all: &[&mut JobEntry], status| all.iter().all(|it| it.job.status() == status);
        if end == Some(false) {
            let left = all.into_iter().filter(|entry| entry.job.has_succeeded().is_none());
            left.for_each(|entry| entry.abort(state, JobEnd::Cancelled));
        } else {
            if all_are(&all, JobStatus::Waiting) {
                all.iter_mut().for_each(|entry| entry.job.work_ended(JobEnd::Done));
            }
            let is_wanted = all.iter().any(|entry| entry.wish == JobWish::Count)
                || all.iter().all(|entry| entry.job.is_to_finalize());
            if is_wanted && all_are(&all, JobStatus::Pending) {
                let failed = finish_together(all, state);
                ids.sort_by_key(|id| failed.as_ref() != Some(id));
            }
        }
        ids.iter().flat_map(|id| self.settle(id)).collect()
    }

    /// What clients are to be told of a job, which is forgotten if it is gone.
    fn settle(&mut self, id: &str) -> Events {
        let Some(entry) = self.all.get_mut(id) else { return Vec::new() };
        let events = entry.take_events();
        if entry.job.status() == JobStatus::Null {
            self.all.remove(id);
        }
        events
    }
}

impl JobEntry {
    /// Sees how far it has come.
    fn look(&mut self, state: &DaemonState) {
        if let Some(progress) = state.block_job_progress(self.job.id()) {
            self.progress = progress;
        }
    }

    /// A client has it rest.
    pub(crate) fn pause(&mut self, state: &mut DaemonState) -> Result<(), VerbRefusal> {
        self.job.pause()?;
        state.pause_block_job(self.job.id(), true);
        Ok(())
    }

    /// A client has it go on.
    pub(crate) fn resume(&mut self, state: &mut DaemonState) -> Result<(), VerbRefusal> {
        self.job.resume()?;
        self.io_status = "ok";
        state.pause_block_job(self.job.id(), false);
        Ok(())
    }

    /// A client has it be that fast.
    pub(crate) fn set_speed(&mut self, state: &DaemonState, speed: u64) -> Result<(), VerbRefusal> {
        self.job.set_speed(speed)?;
        state.set_block_job_speed(self.job.id(), speed);
        Ok(())
    }

    /// A client has a mirror write to its target at once.
    pub(crate) fn change_mirror(
        &mut self,
        state: &DaemonState,
        mode: MirrorMode,
    ) -> Result<(), QmpError> {
        self.job.check(JobVerb::Change)?;
        if self.job.kind() != JobKind::Mirror {
            return Err(QmpError::generic("Job type does not support change"));
        }
        let id = self.job.id();
        let is_synchronous = state.is_mirror_synchronous(id);
        match mode {
            MirrorMode::WriteBlocking => state.synchronize_mirror(id),
            MirrorMode::Background if is_synchronous => {
                let desc = "Change to copy mode 'background' is not implemented";
                return Err(QmpError::generic(desc));
            }
            MirrorMode::Background => {}
        }
        Ok(())
    }

    /// A client has it end with its result.
    pub(crate) fn complete(&mut self, state: &mut DaemonState) -> Result<(), QmpError> {
        self.job.check(JobVerb::Complete)?;
        state.check_mirror_switch(self.job.id(), self.policy)?;
        self.wish = JobWish::End(MirrorEnd::Switch);
        state.converge_mirror(self.job.id());
        Ok(())
    }

    /// A client has it end; without force, one that is ready ends with what it has.
    pub(crate) fn cancel(
        &mut self,
        state: &mut DaemonState,
        is_forced: bool,
    ) -> Result<(), QmpError> {
        self.job.check(JobVerb::Cancel)?;
        if self.job.is_ready() && !is_forced {
            self.wish = JobWish::End(MirrorEnd::Stay);
            state.converge_mirror(self.job.id());
        } else {
            self.abort(state, JobEnd::Cancelled);
        }
        Ok(())
    }

    /// A client has its result count.
    pub(crate) fn finalize(&mut self, state: &mut DaemonState) -> Result<(), QmpError> {
        self.job.check(JobVerb::Finalize)?;
        match self.wish {
            JobWish::End(end) => {
                self.wish = JobWish::Finalize(end);
                self.end_if_wished(state);
            }
            JobWish::Finalize(_) => {}
            JobWish::GoOn if self.group.is_some() => self.wish = JobWish::Count,
            JobWish::Count => {}
            JobWish::GoOn => self.finish(state),
        }
        Ok(())
    }

    /// All of it is copied, of a job that ends by itself.
    fn work_done(&mut self, state: &mut DaemonState) {
        self.look(state);
        if self.group.is_some() {
            self.job.wait_for_others();
        } else if self.job.settings().auto_finalize {
            self.finish(state);
        } else {
            self.job.work_ended(JobEnd::Done);
        }
    }

    /// Has its result count.
    fn finish(&mut self, state: &mut DaemonState) {
        let id = self.job.id().to_owned();
        match state.finish_block_job(&id) {
            Ok(()) => self.succeeded(state),
            Err(error) => self.abort(state, JobEnd::Failed(chain_of(&error).to_string())),
        }
    }

    /// Its result counts.
    fn succeeded(&mut self, state: &mut DaemonState) {
        self.let_go(state);
        if self.job.status() != JobStatus::Pending {
            self.job.work_ended(JobEnd::Done);
        }
        self.job.finalized();
    }

    /// A client has it be forgotten.
    pub(crate) fn dismiss(&mut self) -> Result<(), VerbRefusal> {
        self.job.dismiss()
    }

    /// Source and target may be equal: ends the job, if that is wished.
    fn end_if_wished(&mut self, state: &mut DaemonState) {
        let end = match self.wish {
            JobWish::End(end) if self.job.settings().auto_finalize => end,
            JobWish::Finalize(end) => end,
            JobWish::End(_) => {
                if self.job.is_ready() {
                    self.job.work_ended(JobEnd::Done);
                }
                return;
            }
            JobWish::GoOn | JobWish::Count => return,
        };
        let id = self.job.id().to_owned();
        match state.finish_mirror(&id, end) {
            Ok(()) => self.succeeded(state),
            Err(BlockJobError::Change(GraphChangeError::NotEqual)) => {}
            Err(error) => {
                tracing::error!("block job '{id}': {}", chain_of(&error));
                self.abort(state, JobEnd::Failed(chain_of(&error).to_string()));
            }
        }
    }

    /// Ends without its result, at once or when what it has begun is over.
    fn abort(&mut self, state: &mut DaemonState, end: JobEnd) {
        if self.is_given_up() {
            return;
        }
        self.look(state);
        self.job.work_ended(end);
        if !self.end_given_up(state, GIVE_UP_MAX) {
            let id = self.job.id();
            tracing::warn!(
                "block job '{id}': its target has requests in flight; it ends after them"
            );
        }
    }

    /// Whether it is over as soon as what it has begun is.
    fn is_given_up(&self) -> bool {
        self.job.status() == JobStatus::Aborting
    }

    /// Ends a job that was given up, if what it has begun is over within that time; whether it is.
    fn end_given_up(&mut self, state: &mut DaemonState, limit: Duration) -> bool {
        let id = self.job.id();
        if !state.give_up_block_job(id, limit) {
            return false;
        }
        if let Err(error) = state.abort_block_job(id) {
            tracing::error!(
                "block job '{id}': {}; what it has put on its source stays until a restart",
                chain_of(&error)
            );
        }
        self.let_go(state);
        self.job.aborted();
        true
    }

    /// Its work is over: the node that was made for it is gone, unless somebody uses it.
    fn let_go(&mut self, state: &mut DaemonState) {
        let Some(node) = self.owned.take() else { return };
        let is_used = !state.graph().model().users_of(&node).is_empty();
        if !is_used && let Err(error) = state.remove_node_at_run_time(&node) {
            let id = self.job.id();
            tracing::warn!("block job '{id}': node '{node}' stays: {}", chain_of(&error));
        }
    }

    /// A disk has failed.
    fn failed(&mut self, state: &mut DaemonState, error: CopyError, action: ErrorAction) -> Events {
        let id = self.job.id().to_owned();
        let CopyError::Disk { side, kind, .. } = error else { return Vec::new() };
        self.io_status = if kind == FailKind::NoSpace { "nospace" } else { "failed" };
        let (action, goes_on) = match action {
            ErrorAction::Report => ("report", "it ends"),
            ErrorAction::Ignore => ("ignore", "it goes on"),
            ErrorAction::Stop => ("stop", "it rests until it is resumed"),
        };
        tracing::warn!("block job '{id}': {error}; {goes_on}");
        let operation = match side {
            CopySide::Source => "read",
            CopySide::Target => "write",
        };
        let data = json!({"device": id, "operation": operation, "action": action});
        if action == "stop" {
            state.pause_block_job(&id, true);
            self.job.rest();
        }
        vec![(BLOCK_JOB_ERROR, data)]
    }

    /// What clients were not told yet.
    fn take_events(&mut self) -> Events {
        let Self { job, progress, .. } = self;
        let told = job.take_events();
        told.into_iter().map(|event| told_as(job, *progress, event)).collect()
    }
}

/// Has the results of all of a group count, or of none; gives the one that could not.
fn finish_together(all: Vec<&mut JobEntry>, state: &mut DaemonState) -> Option<String> {
    let ids: Vec<String> = all.iter().map(|entry| entry.job.id().to_owned()).collect();
    let named: Vec<&str> = ids.iter().map(String::as_str).collect();
    let Err((place, error)) = state.finish_backups(&named) else {
        all.into_iter().for_each(|entry| entry.succeeded(state));
        return None;
    };
    for (at, entry) in all.into_iter().enumerate() {
        let end = if at == place {
            JobEnd::Failed(chain_of(&error).to_string())
        } else {
            JobEnd::Cancelled
        };
        entry.abort(state, end);
    }
    ids.into_iter().nth(place)
}

fn told_as(job: &Job, progress: BlockJobProgress, event: JobEvent) -> (&'static str, Value) {
    let news = match event {
        JobEvent::Status(status) => {
            return (JOB_STATUS_CHANGE, json!({"id": job.id(), "status": status.name()}));
        }
        JobEvent::Block(news) => news,
    };
    let mut data = json!({
        "type": job.kind().name(), "device": job.id(), "len": progress.total,
        "offset": progress.current, "speed": job.settings().speed,
    });
    match news {
        BlockJobNews::Pending => {
            (BLOCK_JOB_PENDING, json!({"type": job.kind().name(), "id": job.id()}))
        }
        BlockJobNews::Ready => (BLOCK_JOB_READY, data),
        BlockJobNews::Cancelled => (BLOCK_JOB_CANCELLED, data),
        BlockJobNews::Completed(error) => {
            if let Some(error) = error {
                data["error"] = error.into();
            }
            (BLOCK_JOB_COMPLETED, data)
        }
    }
}
