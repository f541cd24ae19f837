//! One job: where it is, what clients want of it, and how it has ended.
//!
//! Invariants: it goes from state to state only as QEMU's jobs do, and clients are told of each state once, in order.

use crate::status::{JobKind, JobStatus, JobVerb, VerbRefusal};

/// What a job was asked to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobSettings {
    /// Its result counts as soon as it is there; otherwise when it is finalized.
    pub auto_finalize: bool,
    /// It is forgotten when it is over; otherwise when it is dismissed.
    pub auto_dismiss: bool,
    /// The most bytes in a second; 0 is no limit.
    pub speed: u64,
}

/// How a job has ended its work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobEnd {
    /// Well.
    Done,
    /// It was cancelled.
    Cancelled,
    /// It has failed: a sentence.
    Failed(String),
}

/// What clients are told of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobEvent {
    /// It is somewhere else than before (JOB_STATUS_CHANGE).
    Status(JobStatus),
    /// Something that only block jobs tell.
    Block(BlockJobNews),
}

/// What only block jobs tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BlockJobNews {
    /// It can be completed (BLOCK_JOB_READY).
    Ready,
    /// It waits to be finalized (BLOCK_JOB_PENDING).
    Pending,
    /// It is over (BLOCK_JOB_COMPLETED), with that error.
    Completed(Option<String>),
    /// It is over, and was cancelled (BLOCK_JOB_CANCELLED).
    Cancelled,
}

/// A job.
#[derive(Debug)]
pub struct Job {
    id: String,
    kind: JobKind,
    settings: JobSettings,
    status: JobStatus,
    is_paused: bool,
    /// How it ends, as far as that is known.
    end: Option<JobEnd>,
    events: Vec<JobEvent>,
}

impl Job {
    /// One that has begun.
    pub fn begin(id: &str, kind: JobKind, settings: JobSettings) -> Self {
        let status = JobStatus::Created;
        let events = vec![JobEvent::Status(status)];
        let mut job =
            Self { id: id.to_owned(), kind, settings, status, is_paused: false, end: None, events };
        job.go_to(JobStatus::Running);
        job
    }

    /// Its id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// What it does.
    pub fn kind(&self) -> JobKind {
        self.kind
    }

    /// Where it is.
    pub fn status(&self) -> JobStatus {
        self.status
    }

    /// What it was asked to be.
    pub fn settings(&self) -> JobSettings {
        self.settings
    }

    /// Whether a client has it rest.
    pub fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// Whether it can be completed.
    pub fn is_ready(&self) -> bool {
        matches!(self.status, JobStatus::Ready | JobStatus::Standby)
    }

    /// The error that it has ended with.
    pub fn error(&self) -> Option<String> {
        match self.end.as_ref()? {
            JobEnd::Done => None,
            // As in QEMU, which says what ECANCELED is.
            JobEnd::Cancelled => Some("Operation canceled".to_owned()),
            JobEnd::Failed(sentence) => Some(sentence.clone()),
        }
    }

    /// What clients were not told yet, in order.
    pub fn take_events(&mut self) -> Vec<JobEvent> {
        std::mem::take(&mut self.events)
    }

    /// Whether it does that where it is.
    pub fn check(&self, verb: JobVerb) -> Result<(), VerbRefusal> {
        if verb.is_allowed_in(self.status) {
            return Ok(());
        }
        Err(VerbRefusal::State { id: self.id.clone(), status: self.status, verb })
    }

    /// A client has it rest.
    pub fn pause(&mut self) -> Result<(), VerbRefusal> {
        self.check(JobVerb::Pause)?;
        if self.is_paused {
            return Err(VerbRefusal::Paused);
        }
        self.rest();
        Ok(())
    }

    /// It rests, for whatever reason, until a client resumes it.
    pub fn rest(&mut self) {
        self.is_paused = true;
        match self.status {
            JobStatus::Running => self.go_to(JobStatus::Paused),
            JobStatus::Ready => self.go_to(JobStatus::Standby),
            JobStatus::Created
            | JobStatus::Paused
            | JobStatus::Standby
            | JobStatus::Waiting
            | JobStatus::Pending
            | JobStatus::Aborting
            | JobStatus::Concluded
            | JobStatus::Null => {}
        }
    }

    /// A client has it go on.
    pub fn resume(&mut self) -> Result<(), VerbRefusal> {
        self.check(JobVerb::Resume)?;
        if !self.is_paused {
            return Err(VerbRefusal::NotPaused);
        }
        self.wake();
        Ok(())
    }

    fn wake(&mut self) {
        self.is_paused = false;
        match self.status {
            JobStatus::Paused => self.go_to(JobStatus::Running),
            JobStatus::Standby => self.go_to(JobStatus::Ready),
            JobStatus::Created
            | JobStatus::Running
            | JobStatus::Ready
            | JobStatus::Waiting
            | JobStatus::Pending
            | JobStatus::Aborting
            | JobStatus::Concluded
            | JobStatus::Null => {}
        }
    }

    /// A client has it be that fast.
    pub fn set_speed(&mut self, bytes_per_second: u64) -> Result<(), VerbRefusal> {
        self.check(JobVerb::SetSpeed)?;
        self.settings.speed = bytes_per_second;
        Ok(())
    }

    /// It could be completed from now on. Told once, and while it does not rest.
    pub fn become_ready(&mut self) {
        if self.status == JobStatus::Running {
            self.go_to(JobStatus::Ready);
            self.tell(BlockJobNews::Ready);
        }
    }

    /// It has done its work, or given it up. What it has done counts from now on only if it says so
    /// ([`Job::is_to_finalize`]).
    pub fn work_ended(&mut self, end: JobEnd) {
        self.wake();
        match end {
            JobEnd::Done => {
                if self.status != JobStatus::Waiting {
                    self.go_to(JobStatus::Waiting);
                }
                self.go_to(JobStatus::Pending);
                if !self.settings.auto_finalize {
                    self.tell(BlockJobNews::Pending);
                }
            }
            JobEnd::Cancelled | JobEnd::Failed(_) => {
                self.end = Some(end);
                self.go_to(JobStatus::Aborting);
            }
        }
    }

    /// It has done its work, and waits for others whose results count together with its own.
    pub fn wait_for_others(&mut self) {
        self.wake();
        self.go_to(JobStatus::Waiting);
    }

    /// Whether its result counts, if it is known.
    pub fn has_succeeded(&self) -> Option<bool> {
        self.end.as_ref().map(|end| *end == JobEnd::Done)
    }

    /// Whether its result is to count now, without a client's word.
    pub fn is_to_finalize(&self) -> bool {
        self.status == JobStatus::Pending && self.settings.auto_finalize
    }

    /// Its result counts: it is over.
    pub fn finalized(&mut self) {
        self.end = Some(JobEnd::Done);
        self.conclude();
    }

    /// What it has done was taken back: it is over.
    pub fn aborted(&mut self) {
        self.conclude();
    }

    fn conclude(&mut self) {
        match self.end.clone() {
            Some(JobEnd::Cancelled) => self.tell(BlockJobNews::Cancelled),
            Some(JobEnd::Failed(error)) => self.tell(BlockJobNews::Completed(Some(error))),
            Some(JobEnd::Done) | None => self.tell(BlockJobNews::Completed(None)),
        }
        self.go_to(JobStatus::Concluded);
        if self.settings.auto_dismiss {
            self.go_to(JobStatus::Null);
        }
    }

    /// A client has it be forgotten.
    pub fn dismiss(&mut self) -> Result<(), VerbRefusal> {
        self.check(JobVerb::Dismiss)?;
        self.go_to(JobStatus::Null);
        Ok(())
    }

    fn tell(&mut self, news: BlockJobNews) {
        if self.kind.is_block_job() {
            self.events.push(JobEvent::Block(news));
        }
    }

    fn go_to(&mut self, status: JobStatus) {
        let from = self.status;
        assert!(from.leads_to(status), "job {}: from {from:?} to {status:?}", self.id);
        self.status = status;
        self.events.push(JobEvent::Status(status));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AUTO: JobSettings = JobSettings { auto_finalize: true, auto_dismiss: true, speed: 0 };
    const BY_HAND: JobSettings =
        JobSettings { auto_finalize: false, auto_dismiss: false, speed: 0 };

    /// What was told, in one line.
    #[track_caller]
    fn check(job: &mut Job, expected: &str) {
        let name = |event: JobEvent| match event {
            JobEvent::Status(status) => status.name().to_owned(),
            JobEvent::Block(news) => format!("{news:?}"),
        };
        let told: Vec<String> = job.take_events().into_iter().map(name).collect();
        assert_eq!(told.join(" "), expected);
    }

    #[test]
    fn a_mirror_tells_what_qemu_storage_daemon_tells() {
        let mut job = Job::begin("j", JobKind::Mirror, AUTO);
        job.become_ready();
        job.work_ended(JobEnd::Done);
        assert!(job.is_to_finalize());
        job.finalized();
        check(
            &mut job,
            "created running ready Ready waiting pending Completed(None) concluded null",
        );
        let mut job = Job::begin("j", JobKind::Mirror, BY_HAND);
        job.become_ready();
        job.pause().unwrap();
        assert_eq!(job.pause().unwrap_err().to_string(), "Job is already paused");
        job.check(JobVerb::Complete).unwrap();
        job.resume().unwrap();
        job.work_ended(JobEnd::Done);
        assert!(!job.is_to_finalize());
        let refused = job.check(JobVerb::Complete).unwrap_err().to_string();
        assert_eq!(refused, "Job 'j' in state 'pending' cannot accept command verb 'complete'");
        job.check(JobVerb::Finalize).unwrap();
        job.finalized();
        job.dismiss().unwrap();
        let told = "created running ready Ready standby ready waiting pending Pending \
                    Completed(None) concluded null";
        check(&mut job, told);
    }

    #[test]
    fn a_job_that_is_cancelled_goes_on_first_if_it_rests() {
        let mut job = Job::begin("j", JobKind::Mirror, AUTO);
        job.pause().unwrap();
        job.work_ended(JobEnd::Cancelled);
        job.aborted();
        check(&mut job, "created running paused running aborting Cancelled concluded null");
        assert_eq!(job.error().as_deref(), Some("Operation canceled"));
    }

    #[test]
    fn a_job_that_is_no_block_job_tells_its_states_only() {
        let mut job = Job::begin("j", JobKind::Create, JobSettings { auto_dismiss: false, ..AUTO });
        job.work_ended(JobEnd::Failed("no".to_owned()));
        job.aborted();
        check(&mut job, "created running aborting concluded");
        assert_eq!(job.error().as_deref(), Some("no"));
        let refused = job.resume().unwrap_err().to_string();
        assert_eq!(refused, "Job 'j' in state 'concluded' cannot accept command verb 'resume'");
    }
}
