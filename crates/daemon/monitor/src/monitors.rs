//! All monitors of a daemon, as its first thread has them: character devices, clients, and the commands that they ask for.
//!
//! Invariants: commands are carried out one after the other, in the order in which they came, between other things that
//! the first thread does; a client's answers are in the order of its requests.
//! Threads: the first one.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use control::{BlockJobProgress, DaemonState};
use exports::{GuestMemoryOptions, InterruptibleWait};
use qcow2::Corruption;
use sandbox::Sandbox;
use serde_json::{Value, json};

use crate::chardev::{Chardev, ChardevError};
use crate::client::Client;
use crate::commands::{self, CommandContext};
use crate::events::{BLOCK_IMAGE_CORRUPTED, BLOCK_WRITE_THRESHOLD, event};
use crate::inbox::{Inbox, Message};
use crate::jobs::{JobEntry, Jobs};
use crate::options::{ChardevOptions, MonitorOptions};
use crate::session::answer;

/// How many messages are taken before the first thread looks at other things.
const MESSAGES_AT_ONCE: usize = 16;

/// Monitors cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum MonitorSetupError {
    /// A character device could not be made.
    #[error(transparent)]
    Chardev(#[from] ChardevError),
    /// What the first thread hears of them with could not be had.
    #[error("cannot make a notifier for monitors")]
    Notifier(#[source] std::io::Error),
    /// The thread of a monitor could not be started.
    #[error("monitor {id}: cannot start its thread")]
    Thread {
        /// The character device.
        id: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

/// Whether the daemon goes on after commands were carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DaemonFate {
    /// It does.
    GoesOn,
    /// `quit` was asked for.
    Ends,
}

/// A job as it is now, for whoever shows it elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobReading {
    /// Its name.
    pub id: String,
    /// What it does, as QEMU calls it.
    pub kind: &'static str,
    /// Where it is, as QEMU calls it.
    pub status: &'static str,
    /// How far it has come, and how many bytes it may copy in a second (0 is no limit), if it is about a disk that is used.
    pub progress: Option<(BlockJobProgress, u64)>,
}

/// The monitors of a daemon.
#[derive(Debug)]
pub struct Monitors {
    chardevs: BTreeMap<String, Chardev>,
    monitors: Vec<MonitorOptions>,
    inbox: Inbox,
    clients: Vec<Arc<Client>>,
    jobs: Jobs,
    /// How often writes went beyond the thresholds of nodes.
    thresholds_exceeded: BTreeMap<String, u64>,
    memory: GuestMemoryOptions,
    sandbox: Option<Arc<Sandbox>>,
}

impl Monitors {
    /// Makes the character devices: clients can connect from now on, and wait. Called before the fences. Each monitor has one
    /// of them for itself (the options have seen to that).
    pub fn open(
        chardevs: &[ChardevOptions],
        monitors: &[MonitorOptions],
        memory: &GuestMemoryOptions,
        sandbox: Option<&Arc<Sandbox>>,
        wait: &mut dyn InterruptibleWait,
    ) -> Result<Self, MonitorSetupError> {
        let opened = chardevs.iter().map(|it| Ok((it.id.clone(), Chardev::open(it, wait)?)));
        Ok(Self {
            chardevs: opened.collect::<Result<_, ChardevError>>()?,
            monitors: monitors.to_vec(),
            inbox: Inbox::new().map_err(MonitorSetupError::Notifier)?,
            clients: Vec::new(),
            jobs: Jobs::default(),
            thresholds_exceeded: BTreeMap::new(),
            memory: memory.clone(),
            sandbox: sandbox.cloned(),
        })
    }

    /// Begins to talk to clients, on threads behind the fences, and to hear of damage in images.
    pub fn start(&mut self, state: &DaemonState) -> Result<(), MonitorSetupError> {
        let heard = self.inbox.sender();
        state.graph().corruptions().listen(move |found| heard.send(Message::Corrupted(found)));
        let Self { chardevs, monitors, inbox, sandbox, .. } = self;
        for monitor in monitors {
            let chardev = chardevs.get_mut(&monitor.chardev).expect("the options found it");
            let id = monitor.chardev.clone();
            let sender = inbox.sender();
            let start = || chardev.serve(monitor, sender);
            Sandbox::start_inside(sandbox.as_deref(), start)
                .flatten()
                .map_err(|source| MonitorSetupError::Thread { id, source })?;
        }
        Ok(())
    }

    /// Carries out what clients have asked for, a few commands at most. Called when [`Monitors::as_fd`] is readable.
    pub fn serve(&mut self, state: &mut DaemonState) -> DaemonFate {
        self.inbox.bell().clear();
        for _ in 0..MESSAGES_AT_ONCE {
            match self.inbox.take() {
                None => return DaemonFate::GoesOn,
                Some(Message::Connected(client)) => {
                    self.clients.retain(|client| !client.is_gone());
                    self.clients.push(client);
                }
                Some(Message::ThresholdExceeded { node, amount, threshold }) => {
                    let data = json!({
                        "node-name": node, "amount-exceeded": amount, "write-threshold": threshold,
                    });
                    *self.thresholds_exceeded.entry(node).or_default() += 1;
                    self.tell(vec![(BLOCK_WRITE_THRESHOLD, data)]);
                }
                Some(Message::Corrupted(Corruption { node, message, offset, is_fatal })) => {
                    // A storage daemon has no devices.
                    let mut data = json!({
                        "device": "", "node-name": node, "msg": message, "fatal": is_fatal,
                    });
                    if let Some(offset) = offset {
                        data["offset"] = offset.into();
                    }
                    self.tell(vec![(BLOCK_IMAGE_CORRUPTED, data)]);
                }
                Some(Message::JobEnded { id, error }) => {
                    let events = self.jobs.ended(&id, error);
                    self.tell(events);
                }
                Some(Message::JobNews { id, serial, news }) => {
                    let events = self.jobs.news(state, (&id, serial), news);
                    self.tell(events);
                }
                Some(Message::Request { client, id, request }) => {
                    let mut context = CommandContext {
                        state,
                        chardevs: &mut self.chardevs,
                        jobs: &mut self.jobs,
                        inbox: self.inbox.sender(),
                        memory: &self.memory,
                        is_fenced: self.sandbox.is_some(),
                        events: Vec::new(),
                        fate: DaemonFate::GoesOn,
                    };
                    let result = commands::run(&mut context, &client, request);
                    let CommandContext { events, fate, .. } = context;
                    // As in QEMU, what a command causes is told before it is answered.
                    self.tell(events);
                    client.answer(&answer(id, result));
                    if fate == DaemonFate::Ends {
                        return fate;
                    }
                }
            }
        }
        self.inbox.bell().wake();
        DaemonFate::GoesOn
    }

    /// All jobs as they are now.
    pub fn jobs(&mut self, state: &DaemonState) -> Vec<JobReading> {
        let reading = |(entry, progress): (&JobEntry, BlockJobProgress)| {
            let job = &entry.job;
            let (id, kind, status) = (job.id().to_owned(), job.kind(), job.status().name());
            let progress = kind.is_block_job().then(|| (progress, job.settings().speed));
            JobReading { id, kind: kind.name(), status, progress }
        };
        self.jobs.all(state).map(reading).collect()
    }

    /// How often writes went beyond the write thresholds of nodes that are there.
    pub fn thresholds_exceeded(&mut self, state: &DaemonState) -> &BTreeMap<String, u64> {
        self.thresholds_exceeded.retain(|node, _| state.graph().node_info(node).is_ok());
        &self.thresholds_exceeded
    }

    /// Tells all clients of events.
    fn tell(&mut self, events: Vec<(&'static str, Value)>) {
        for (name, data) in events {
            let event = event(name, &data);
            self.clients.iter().for_each(|client| client.tell(&event));
        }
    }
}

/// Readable when there is something to carry out.
impl AsFd for Monitors {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inbox.bell().as_fd()
    }
}
