//! The one connection that all iothreads share whose server allows no more.
//!
//! Where it stands in the life of a request: one of the iothreads has the line and uses it as its own. The others leave
//! requests here and wake it; it leaves here what is over, and wakes them.
//!
//! Invariants: whoever has the line gives it to another one when it goes. Memory of guests never comes here: what is
//! written is copied before, what was read after. Threads: any, behind a lock that nobody holds while bytes are sent or
//! received. Limits: what is here belongs to requests, of which each channel has a bound.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::task::Waker;

use block::{Operation, Tag};

use crate::line::{EndedRequest, Line, Origin, RequestMemory};

/// What is left for the one that has the line.
#[derive(Debug)]
enum Message {
    Begin { operation: Operation, bytes: Vec<u8>, origin: Origin },
    Abandon { user: u64 },
}

#[derive(Debug, Default)]
struct State {
    users: BTreeMap<u64, User>,
    next: u64,
    owner: Option<u64>,
    /// The line, while its next owner has not come for it.
    line: Option<Line>,
    messages: Vec<Message>,
}

#[derive(Debug)]
struct User {
    waker: Waker,
    ended: Vec<EndedRequest>,
}

/// The place where those meet that share a line.
#[derive(Debug, Default)]
pub(crate) struct SharedLine(Mutex<State>);

impl SharedLine {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no holder of this lock panics")
    }

    /// One more user; the first one gets the line, which `make` makes if there is none.
    pub(crate) fn join(&self, waker: &Waker, make: impl FnOnce() -> Line) -> (u64, Option<Line>) {
        let mut state = self.state();
        let user = state.next;
        state.next += 1;
        state.users.insert(user, User { waker: waker.clone(), ended: Vec::new() });
        if state.owner.is_some() {
            return (user, None);
        }
        state.owner = Some(user);
        let parked = state.line.take();
        drop(state);
        let mut line = parked.unwrap_or_else(make);
        line.set_waker(waker);
        (user, Some(line))
    }

    /// Hands a request to whoever has the line.
    pub(crate) fn begin(&self, operation: Operation, bytes: Vec<u8>, origin: Origin) {
        self.state().leave(Message::Begin { operation, bytes, origin });
    }

    /// Has the requests of a user given up.
    pub(crate) fn abandon(&self, user: u64) {
        self.state().leave(Message::Abandon { user });
    }

    /// What is over of a user's requests, and the line if it is the user's turn to have it.
    pub(crate) fn fetch(&self, user: u64) -> (Vec<EndedRequest>, Option<Line>) {
        let mut state = self.state();
        let is_owner = state.owner == Some(user);
        let line = if is_owner { state.line.take() } else { None };
        let found = state.users.get_mut(&user).expect("it has joined");
        let waker = line.is_some().then(|| found.waker.clone());
        let ended = std::mem::take(&mut found.ended);
        drop(state);
        let line = line.map(|mut line| {
            line.set_waker(&waker.expect("taken with the line"));
            line
        });
        (ended, line)
    }

    /// For the one that has the line: gives it what was left for it.
    pub(crate) fn deliver_to(&self, line: &mut Line) {
        let messages = std::mem::take(&mut self.state().messages);
        for message in messages {
            match message {
                Message::Begin { operation, bytes, origin } => {
                    line.begin(operation, RequestMemory::Own(bytes), origin);
                }
                Message::Abandon { user } => line.abandon(user),
            }
        }
    }

    /// For the one that has the line: leaves for the others what is over. Those that have gone, or have given it up, do not
    /// want it.
    pub(crate) fn leave_ended(&self, ended: Vec<EndedRequest>) {
        if ended.is_empty() {
            return;
        }
        let mut state = self.state();
        for ended in ended {
            if let Some(user) = state.users.get_mut(&ended.origin.user) {
                user.ended.push(ended);
                user.waker.wake_by_ref();
            }
        }
    }

    /// A user goes, with the line if it has that. The next one is woken, and fetches it.
    pub(crate) fn part(&self, user: u64, line: Option<Line>) {
        let mut state = self.state();
        state.users.remove(&user);
        state.messages.push(Message::Abandon { user });
        if state.owner == Some(user) {
            // The line that was meant for it may still be here.
            let line = line.or_else(|| state.line.take());
            state.line = line;
            state.owner = state.users.keys().next().copied();
        }
        if let Some(owner) = state.owner {
            state.users[&owner].waker.wake_by_ref();
            return;
        }
        // Nobody is left, and nothing is under way: what the line has goes back.
        state.messages.clear();
        let last = state.line.take();
        drop(state);
        drop(last);
    }
}

impl State {
    fn leave(&mut self, message: Message) {
        self.messages.push(message);
        if let Some(owner) = self.owner {
            self.users[&owner].waker.wake_by_ref();
        }
    }
}

/// What an iothread knows of a request that another one carries out.
#[derive(Debug)]
pub(crate) struct LentMemory {
    pub(crate) tag: Tag,
    pub(crate) operation: Operation,
    pub(crate) memory: block::Buffers,
}
