//! What control threads ask of a loop: its sources come and go, and lanes are opened, drained and exchanged.
//!
//! The hand-over of a source from A to B:
//!
//! 1. The control thread asks the front end whether it stays, and has B open lanes on the source's nodes, all or none. If
//!    one of them refuses, nothing has happened.
//! 2. A stops popping and cancels the kick poll, and waits until the kernel says that it is cancelled.
//! 3. A takes back what is finished and publishes it, leaves its route, makes B the mailbox's owner, and sends the source
//!    to B's inbox. What A has in flight stays there, and its outcomes are posted to the mailbox.
//! 4. B arms the poll and gives the source one turn unconditionally: A may have consumed a kick.
//!
//! Invariants: a source is in exactly one loop or in one inbox. A source that stops is given back
//! only when its poll is cancelled and nothing of it is in flight on any thread. One that has left is in no list of
//! sources that are looked at; the other lists skip it.

use std::sync::Arc;

use request_path::{LaneIndex, SourceKey};

use super::EventLoop;
use super::source_entry::{KickWatchState, SourceEntry, SourceState};
use crate::command::{Command, SourceBundle, SourceId, answer};
use crate::poll_trial::PollFinding;
use crate::polling::AdaptivePolling;

impl EventLoop {
    pub(super) fn process_inbox(&mut self) {
        for command in self.inbox.take() {
            self.execute(command);
        }
        for place in 0..self.sources.len() {
            let mail = self.sources[place]
                .as_ref()
                .is_some_and(|served| !served.bundle.source.mailbox().is_empty());
            if mail {
                self.schedule(SourceKey(
                    u32::try_from(place).expect("fewer sources than descriptors"),
                ));
            }
        }
    }

    fn execute(&mut self, command: Command) {
        match command {
            Command::Call(call) => (call.0)(&mut self.engine),
            Command::Arrive { bundle, lanes, reply } => {
                self.arrive(bundle, lanes);
                answer(&reply, ());
            }
            Command::Depart { id, to, lanes, reply } => {
                self.leave_when_unwatched(id, SourceState::Departing { to, lanes, reply });
            }
            Command::Stop { id, reply } => {
                self.leave_when_unwatched(id, SourceState::Stopping { reply })
            }
            Command::Visit { id, visit, .. } => {
                // Whoever waits hears that one has stopped.
                let Some(key) = self.find(id) else { return };
                let served = self.sources[key.0 as usize].as_mut().expect("it was found");
                (visit.0)(&mut *served.bundle.source, &mut self.engine);
                // It may have something new now, for which no kick comes.
                self.schedule(key);
            }
            Command::Drain { node, reply } => {
                let lane = self.engine.drain(&node);
                self.draining.push((lane, reply));
            }
            Command::CancelDrain { node, reply } => {
                let (lane, result) = self.engine.cancel_drain(&node);
                self.draining.retain(|(drained, _)| *drained != lane);
                answer(&reply, result);
            }
            Command::SetPolling { settings } => {
                self.poll = settings;
                self.completions = AdaptivePolling::default();
                self.trial.forget(self.now);
                for served in self.sources.iter_mut().flatten() {
                    served.adaptive = AdaptivePolling::default();
                }
            }
            Command::Retire(retirement) => self.retirement = Some(retirement),
        }
    }

    fn arrive(&mut self, bundle: SourceBundle, lanes: Vec<LaneIndex>) {
        let place = self.sources.iter().position(Option::is_none).unwrap_or(self.sources.len());
        if place == self.sources.len() {
            self.sources.push(None);
        }
        let key = SourceKey(u32::try_from(place).expect("fewer sources than descriptors"));
        let (state, watch) = (SourceState::Serving, KickWatchState::On);
        let adaptive = match bundle.polling {
            PollFinding::Pays => AdaptivePolling::longest(&self.poll.where_it_pays()),
            PollFinding::Unknown | PollFinding::DoesNot => AdaptivePolling::default(),
        };
        let disk = Arc::as_ptr(&bundle.source.nodes()[0]).cast::<()>().addr();
        let served = self.sources[place].insert(SourceEntry {
            disk,
            busy_in: None,
            bundle,
            state,
            watch,
            called: false,
            full: false,
            awake: false,
            adaptive,
            last_new: self.now,
            turn_ended: self.now,
            kicks: 0,
        });
        self.trial.arrive(place, served.bundle.polling, self.now);
        let since = served.bundle.leaving_since.take();
        served.bundle.source.arrive(&mut self.engine, lanes, key);
        if let Some(since) = since {
            served.bundle.source.moved(self.clock.now().saturating_duration_since(since));
        }
        let source = &served.bundle.source;
        self.engine.watch(source.kick(), source.interest(), key);
        self.schedule(key);
    }

    /// Stops popping, cancels the poll and leaves the rest to [`EventLoop::unwatched`].
    fn leave_when_unwatched(&mut self, id: SourceId, state: SourceState) {
        let key = self.find(id).expect("a source is asked for where its controller placed it");
        let now = self.clock.now();
        let served = self.served(key);
        assert!(served.watch == KickWatchState::On, "a source leaves once");
        served.bundle.leaving_since = Some(now);
        served.state = state;
        served.watch = KickWatchState::Ending;
        let Self { sources, engine, .. } = self;
        if let Some(served) = &mut sources[key.0 as usize] {
            served.bundle.source.begin_leaving(engine);
        }
        self.engine.unwatch(key);
        self.release_if_stopping(key);
    }

    /// Who stops is waited for: nothing of it is held any longer, however it got there.
    pub(super) fn release_if_stopping(&mut self, key: SourceKey) {
        if let Some(served) = &self.sources[key.0 as usize]
            && let SourceState::Stopping { .. } = served.state
        {
            served.bundle.source.lanes().iter().for_each(|lane| self.engine.release(*lane));
        }
    }

    pub(super) fn unwatched(&mut self, key: SourceKey) {
        let served = self.served(key);
        served.watch = KickWatchState::Off;
        match served.state {
            SourceState::Departing { .. } => self.hand_over(key),
            SourceState::Stopping { .. } => self.schedule(key),
            SourceState::Serving | SourceState::Broken => panic!("nobody asked to end this poll"),
        }
    }

    fn hand_over(&mut self, key: SourceKey) {
        let served = self.sources[key.0 as usize].take().expect("an unwatched source is here");
        let SourceEntry { mut bundle, state: SourceState::Departing { to, lanes, reply }, .. } =
            served
        else {
            panic!("only a departing source is handed over")
        };
        bundle.source.depart(&mut self.engine);
        bundle.polling = self.forget(key);
        bundle.source.mailbox().set_owner(Arc::clone(to.notifier()) as Arc<dyn request_path::Wake>);
        to.send(Command::Arrive { bundle, lanes, reply });
    }

    pub(super) fn finish_stop(&mut self, key: SourceKey) {
        let place = &mut self.sources[key.0 as usize];
        let over = place.as_ref().is_some_and(|served| {
            matches!(served.state, SourceState::Stopping { .. })
                && served.watch == KickWatchState::Off
                && served.bundle.source.in_flight() == 0
        });
        if !over {
            return;
        }
        if let Some(SourceEntry { mut bundle, state: SourceState::Stopping { reply }, .. }) =
            place.take()
        {
            // Whoever serves the ring next may rely on kicks; what came meanwhile is theirs.
            let _more = bundle.source.rest();
            bundle.source.depart(&mut self.engine);
            self.forget(key);
            answer(&reply, bundle.source);
        }
    }

    /// A source is not served here any more. Returns whether polling for it was found to pay.
    fn forget(&mut self, key: SourceKey) -> PollFinding {
        self.awake.retain(|awake| *awake != key);
        self.trial.leave(key.0 as usize, self.now)
    }

    fn served(&mut self, key: SourceKey) -> &mut SourceEntry {
        let place = self.sources.get_mut(key.0 as usize).and_then(Option::as_mut);
        place.expect("the source of this key is served here")
    }

    fn find(&self, id: SourceId) -> Option<SourceKey> {
        let known =
            |served: &Option<SourceEntry>| served.as_ref().is_some_and(|s| s.bundle.id == id);
        let place = self.sources.iter().position(known)?;
        Some(SourceKey(u32::try_from(place).expect("fewer sources than descriptors")))
    }
}
