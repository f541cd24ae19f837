//! What control threads ask of an iothread.
//!
//! Threads: commands are queued under a lock that is held to push or take them; the iothread is
//! woken by its bell. Answers come back over a channel of one message.
//! Limits: a control thread has at most one command outstanding for each ring it controls: it waits for the answer, and
//! a new call descriptor, for which it does not wait, takes the place of the one that still lies here.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, mpsc};

use block::{LaneError, Node};
use kernel_io::Notifier;
use request_path::{LaneIndex, RingLog, Source};

use crate::Watcher;

/// Names a source on all iothreads and for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct SourceId(pub(crate) u64);

/// A source and what the event loop needs to serve it.
#[derive(Debug)]
pub(crate) struct Cargo {
    pub(crate) id: SourceId,
    pub(crate) source: Box<dyn Source>,
    pub(crate) watcher: Arc<dyn Watcher>,
}

#[derive(Debug)]
pub(crate) enum Command {
    /// Open a lane on the node and keep it for a source that will arrive.
    Prepare { node: Arc<dyn Node>, reply: mpsc::Sender<Result<LaneIndex, LaneError>> },
    /// Serve this source, on a lane prepared for it.
    Arrive { cargo: Cargo, lane: LaneIndex, reply: mpsc::Sender<()> },
    /// Send the source to another iothread, where a lane is prepared.
    Depart { id: SourceId, to: Arc<Inbox>, lane: LaneIndex, reply: mpsc::Sender<()> },
    /// Take nothing new from the source, finish what is in flight and give it back.
    Stop { id: SourceId, reply: mpsc::Sender<Box<dyn Source>> },
    /// Interrupt the guest through this descriptor from now on.
    SetCall { id: SourceId, call: Option<OwnedFd> },
    /// Mark what is written in this log from now on.
    SetLog { id: SourceId, log: Option<RingLog>, reply: mpsc::Sender<()> },
    /// Go on at once with what is held on the node: somebody waits for it, who is served elsewhere now.
    Release { node: Arc<dyn Node> },
    /// Take nothing new for this node, finish what is in flight here, held or not, and close the lane.
    Drain { node: Arc<dyn Node>, reply: mpsc::Sender<()> },
    /// Open a lane on a drained node for those who use it.
    Reopen { node: Arc<dyn Node>, reply: mpsc::Sender<Result<(), LaneError>> },
    /// Close it again.
    Withdraw { node: Arc<dyn Node>, reply: mpsc::Sender<()> },
    /// Let them go on.
    Admit { node: Arc<dyn Node> },
    /// End a drain that is given up: who uses the node goes on with the lane that is still open, or with a new one.
    GoOn { node: Arc<dyn Node>, reply: mpsc::Sender<Result<(), LaneError>> },
    /// End the thread once nothing is in flight or held here, also of sources that have left, and all outcomes were
    /// mailed; no source may be left.
    Retire,
}

/// Where an iothread gets its commands.
#[derive(Debug)]
pub(crate) struct Inbox {
    commands: Mutex<Vec<Command>>,
    bell: Arc<Notifier>,
}

impl Inbox {
    pub(crate) fn new(bell: Arc<Notifier>) -> Self {
        Self { commands: Mutex::new(Vec::new()), bell }
    }

    pub(crate) fn bell(&self) -> &Arc<Notifier> {
        &self.bell
    }

    /// Queues a command and wakes the iothread.
    pub(crate) fn send(&self, command: Command) {
        self.lock().push(command);
        self.bell.wake();
    }

    /// Has it interrupt a guest through this descriptor from now on. What lay here of that ring before is closed: an
    /// iothread that stands still collects no descriptors.
    pub(crate) fn set_call(&self, id: SourceId, call: Option<OwnedFd>) {
        let mut commands = self.lock();
        let outstanding = commands.iter_mut().find_map(|command| {
            let Command::SetCall { id: known, call } = command else { return None };
            (*known == id).then_some(call)
        });
        match outstanding {
            // Nothing of this ring came after it: for all else the control thread waits.
            Some(outstanding) => *outstanding = call,
            None => commands.push(Command::SetCall { id, call }),
        }
        drop(commands);
        self.bell.wake();
    }

    /// Takes all commands, in order.
    pub(crate) fn take(&self) -> Vec<Command> {
        std::mem::take(&mut self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Command>> {
        self.commands.lock().expect("no holder of this lock panics")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::pipe::pipe;

    /// Whether the other end of a pipe is closed.
    fn is_closed(reader: &OwnedFd) -> bool {
        rustix::io::read(reader, &mut [0; 1]) == Ok(0)
    }

    #[test]
    fn of_a_ring_at_most_one_call_descriptor_lies_in_the_inbox() {
        let inbox = Inbox::new(Arc::new(Notifier::new().expect("an eventfd")));
        let mut readers = Vec::new();
        for round in 0..100 {
            for ring in [SourceId(3), SourceId(8)] {
                let (reader, writer) = pipe().expect("a pipe");
                inbox.set_call(ring, Some(writer));
                readers.push(reader);
            }
            let (last, before) = readers.split_at(2 * round);
            assert!(last.iter().all(is_closed), "round {round}");
            assert_eq!(before.len(), 2);
        }
        inbox.set_call(SourceId(3), None);
        assert!(is_closed(&readers[198]));
        let commands = inbox.take();
        let of = |command: &Command| {
            let Command::SetCall { id, call } = command else { panic!("{command:?}") };
            (id.0, call.is_some())
        };
        assert_eq!(commands.iter().map(of).collect::<Vec<_>>(), [(3, false), (8, true)]);
    }
}
