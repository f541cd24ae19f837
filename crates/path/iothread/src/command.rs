//! What control threads ask of an iothread.
//!
//! Threads: commands are queued under a lock that is held to push or take them; the iothread is
//! woken by its notifier. Answers come back over a channel of one message.
//! Limits: a control thread has at most one command outstanding for each source it controls: it waits for the answer, and
//! what it posts, for which it does not wait, takes the place of what was posted before by the same closure of the code
//! and still lies here.

use std::any::TypeId;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::time::Instant;

use block::{LaneError, Node};
use kernel_io::Notifier;
use request_path::{Engine, LaneIndex, Source};

use crate::poll_trial::PollFinding;
use crate::turn_probe::TurnProbe;
use crate::{PollSettings, SourceObserver};

/// The identifier of a source in the process, on whichever iothread it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct SourceId(pub(crate) u64);

/// A source with its identifier and its observer, as it moves between iothreads.
#[derive(Debug)]
pub(crate) struct SourceBundle {
    pub(crate) id: SourceId,
    pub(crate) source: Box<dyn Source>,
    pub(crate) observer: Arc<dyn SourceObserver>,
    /// Since when nothing is taken from it, if it leaves an iothread for another.
    pub(crate) leaving_since: Option<Instant>,
    /// Whether polling for it was found to pay.
    pub(crate) polling: PollFinding,
}

/// A closure that a control thread has an iothread run.
pub(crate) struct Closure<F: ?Sized>(pub(crate) Box<F>);

impl<F: ?Sized> fmt::Debug for Closure<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Closure")
    }
}

/// What is done with an iothread's engine.
pub(crate) type EngineClosure = Closure<dyn FnOnce(&mut Engine) + Send>;

/// What is done with a source, on the iothread that serves it.
pub(crate) type SourceClosure =
    Closure<dyn FnOnce(&mut (dyn Source + 'static), &mut Engine) + Send>;

/// Which closure of the code somebody has posted: each has a type of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PostKind(TypeId);

impl PostKind {
    /// The kind of this closure.
    pub(crate) fn of<C: 'static>(_: &C) -> Self {
        Self(TypeId::of::<C>())
    }
}

/// What a control thread asks of an iothread.
#[derive(Debug)]
pub(crate) enum Command {
    /// Do something with the engine that concerns no source, such as opening a lane.
    Call(EngineClosure),
    /// Serve this source, on lanes opened for it.
    Arrive { bundle: SourceBundle, lanes: Vec<LaneIndex>, reply: mpsc::Sender<()> },
    /// Send the source to another iothread, where lanes are open for it.
    Depart { id: SourceId, to: Arc<Inbox>, lanes: Vec<LaneIndex>, reply: mpsc::Sender<()> },
    /// Take nothing new from the source, finish what is in flight and give it back.
    Stop { id: SourceId, reply: mpsc::Sender<Box<dyn Source>> },
    /// Do something with this source. If it was posted, nobody waits for that.
    Visit { id: SourceId, posted: Option<PostKind>, visit: SourceClosure },
    /// Take nothing new for this node, finish what is in flight here, held or not, and close the lane.
    Drain { node: Arc<dyn Node>, reply: mpsc::Sender<()> },
    /// End a drain that is given up: who uses the node goes on with the lane that is still open, or with a new one.
    CancelDrain { node: Arc<dyn Node>, reply: mpsc::Sender<Result<(), LaneError>> },
    /// Look for work by these settings from now on.
    SetPolling { settings: PollSettings },
    /// End the thread once nothing is in flight or held here, also of sources that have left, and all outcomes were
    /// mailed.
    Retire(Retirement),
}

/// What an iothread that shall end waits for, besides what is in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Retirement {
    /// For the last source to leave, and for operations that were abandoned: the process goes on without the thread.
    WhenUnused,
    /// For nothing: no source is left, and nobody has a handle any more.
    WhenOver,
}

/// The commands for one iothread, and the notifier that wakes it.
#[derive(Debug)]
pub(crate) struct Inbox {
    /// The name of the iothread.
    name: String,
    commands: Mutex<Commands>,
    notifier: Arc<Notifier>,
    probe: Arc<TurnProbe>,
}

/// What lies in an inbox.
#[derive(Debug, Default)]
struct Commands {
    queue: Vec<Command>,
    /// Whether its iothread has ended.
    is_closed: bool,
}

impl Inbox {
    pub(crate) fn new(name: &str, notifier: Arc<Notifier>) -> Self {
        let (commands, probe) = (Mutex::default(), Arc::default());
        Self { name: name.to_owned(), commands, notifier, probe }
    }

    /// What says whether its iothread turns.
    pub(crate) fn probe(&self) -> &Arc<TurnProbe> {
        &self.probe
    }

    /// Asks it to turn, unless it has not done so since it was asked last. Does not wait.
    pub(crate) fn ask_to_turn(&self, now: Instant) {
        if let Some(question) = self.probe.ask(now) {
            self.send(Command::Call(Closure(Box::new(move |_| drop(question)))));
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn notifier(&self) -> &Arc<Notifier> {
        &self.notifier
    }

    /// Queues a command and wakes the iothread. If that has ended, the command is dropped, and with it who would answer.
    pub(crate) fn send(&self, command: Command) {
        let mut commands = self.lock();
        if !commands.is_closed {
            commands.queue.push(command);
            self.notifier.wake();
        }
    }

    /// Takes nothing any more, unless something lies here; whether that is so.
    pub(crate) fn close(&self) -> bool {
        let mut commands = self.lock();
        commands.is_closed = commands.queue.is_empty();
        commands.is_closed
    }

    /// Queues a command whose answer the caller waits for; there is none from an iothread that has ended.
    pub(crate) fn ask<T>(
        &self,
        command: impl FnOnce(mpsc::Sender<T>) -> Command,
    ) -> mpsc::Receiver<T> {
        let (reply, answer) = mpsc::channel();
        self.send(command(reply));
        answer
    }

    /// Has it do something with its engine. The caller may wait for the answer.
    pub(crate) fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce(&mut Engine) -> T + Send + 'static,
    ) -> mpsc::Receiver<T> {
        self.ask(|reply| {
            Command::Call(Closure(Box::new(move |engine| answer(&reply, call(engine)))))
        })
    }

    /// Has it do something with a source. What lies here that was posted of the same kind is dropped, and this comes last:
    /// an iothread that stands still collects nothing.
    pub(crate) fn post(&self, id: SourceId, kind: PostKind, visit: SourceClosure) {
        let is_it = |command: &Command| {
            let Command::Visit { id: of, posted, .. } = command else { return false };
            (*of, *posted) == (id, Some(kind))
        };
        let mut commands = self.lock();
        let place = commands.queue.iter().position(is_it);
        let before = place.map(|place| commands.queue.remove(place));
        if !commands.is_closed {
            commands.queue.push(Command::Visit { id, posted: Some(kind), visit });
        }
        drop(commands);
        self.notifier.wake();
        // What it has brought may take long to be closed.
        drop(before);
    }

    /// Takes all commands, in order.
    pub(crate) fn take(&self) -> Vec<Command> {
        std::mem::take(&mut self.lock().queue)
    }

    fn lock(&self) -> MutexGuard<'_, Commands> {
        self.commands.lock().expect("no holder of this lock panics")
    }
}

/// Answers a control thread. One that has gone away, or never waited, does not need the answer.
pub(crate) fn answer<T>(reply: &mpsc::Sender<T>, value: T) {
    if reply.send(value).is_err() {
        tracing::debug!("nobody waits for an iothread's answer any more");
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;
    use rustix::pipe::pipe;

    /// Whether the other end of a pipe is closed.
    fn is_closed(reader: &OwnedFd) -> bool {
        rustix::io::read(reader, &mut [0; 1]) == Ok(0)
    }

    /// Posts a visit that brings a descriptor.
    fn bring(inbox: &Inbox, id: SourceId, descriptor: OwnedFd) {
        let visit = move || drop(descriptor);
        inbox.post(id, PostKind::of(&visit), Closure(Box::new(move |_, _| visit())));
    }

    /// Posts a visit of another kind.
    fn do_nothing(inbox: &Inbox, id: SourceId) {
        let visit = || ();
        inbox.post(id, PostKind::of(&visit), Closure(Box::new(move |_, _| visit())));
    }

    fn posts(inbox: &Inbox) -> Vec<u64> {
        let id = |command: Command| {
            let Command::Visit { id, posted: Some(_), .. } = command else { panic!("{command:?}") };
            id.0
        };
        inbox.take().into_iter().map(id).collect()
    }

    #[test]
    fn of_a_source_at_most_one_visit_of_a_kind_lies_in_the_inbox_that_nobody_waits_for() {
        let inbox = Inbox::new("t0", Arc::new(Notifier::new().expect("an eventfd")));
        let mut readers = Vec::new();
        for round in 0..100 {
            for ring in [SourceId(3), SourceId(8)] {
                let (reader, writer) = pipe().expect("a pipe");
                bring(&inbox, ring, writer);
                readers.push(reader);
            }
            let (last, before) = readers.split_at(2 * round);
            assert!(last.iter().all(is_closed), "round {round}");
            assert_eq!(before.len(), 2);
        }
        assert_eq!(posts(&inbox), [3, 8]);
    }

    #[test]
    fn a_visit_takes_the_place_of_none_of_another_kind() {
        let inbox = Inbox::new("t0", Arc::new(Notifier::new().expect("an eventfd")));
        let (reader, writer) = pipe().expect("a pipe");
        bring(&inbox, SourceId(3), writer);
        do_nothing(&inbox, SourceId(3));
        do_nothing(&inbox, SourceId(8));
        do_nothing(&inbox, SourceId(3));
        rustix::io::ioctl_fionbio(&reader, true).expect("a pipe can be asked");
        assert!(!is_closed(&reader), "what was posted first was dropped");
        // The last one of a kind is done last.
        assert_eq!(posts(&inbox), [3, 8, 3]);
    }
}
