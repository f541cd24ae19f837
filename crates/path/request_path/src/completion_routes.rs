//! Which sources have, or had, requests in flight on this iothread, and how their outcomes reach
//! them.
//!
//! Invariants: a route is kept until its last request and transfer is over, also after its source has moved
//! away. While the source is here outcomes are handed over directly, afterwards by its mailbox.

use std::sync::Arc;

use block::{Outcome, SourceRequestSlot};

use crate::{OutcomeMailbox, SourceKey, StreamTransfer};

/// The index of a source's entry in [`SourceRoutes`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RouteIndex(pub(crate) u32);

/// Names the source and slot of a request. Consumed by its completion: exactly one answer for each.
#[derive(Debug)]
#[must_use = "a request that is never completed hangs its client"]
pub(crate) struct Ticket {
    route: RouteIndex,
    slot: SourceRequestSlot,
}

impl Ticket {
    /// The request's slot, if it is of the source of this route.
    pub(crate) fn slot_at(&self, route: RouteIndex) -> Option<SourceRequestSlot> {
        (self.route == route).then_some(self.slot)
    }
}

/// How outcomes reach one source, and how many requests it has in flight here.
#[derive(Debug)]
struct Route {
    mailbox: Arc<OutcomeMailbox>,
    residence: SourceLocation,
    /// Its requests, and its transfers.
    requests: u32,
}

/// Whether a source is served on this iothread, or has moved to another one.
#[derive(Debug)]
enum SourceLocation {
    /// The source is served here; finished requests wait for its next turn.
    Here { key: SourceKey, finished: Vec<(SourceRequestSlot, Outcome)> },
    /// The source has moved away.
    Away,
}

/// The sources that have requests in flight on this iothread, and how outcomes reach them: directly, or by their
/// mailbox.
#[derive(Debug, Default)]
pub(crate) struct SourceRoutes {
    entries: Vec<Option<Route>>,
    /// By route: transfers that are over and were not taken, by direction.
    transfers: Vec<[Option<StreamTransfer>; 2]>,
    /// Routes where something was finished since the last look.
    called: Vec<RouteIndex>,
}

impl SourceRoutes {
    /// Gives a route to a source of so many slots that has arrived.
    pub(crate) fn attach(
        &mut self,
        mailbox: Arc<OutcomeMailbox>,
        slots: u16,
        key: SourceKey,
    ) -> RouteIndex {
        let finished = Vec::with_capacity(usize::from(slots));
        let entry =
            Route { mailbox, residence: SourceLocation::Here { key, finished }, requests: 0 };
        let place = self.entries.iter().position(Option::is_none).unwrap_or(self.entries.len());
        if place == self.entries.len() {
            self.entries.push(None);
            self.transfers.push([None, None]);
        }
        self.entries[place] = Some(entry);
        RouteIndex(u32::try_from(place).expect("fewer sources than descriptors"))
    }

    /// The source moves away; what is still in flight will be posted. It must have taken what is
    /// finished before.
    pub(crate) fn leave(&mut self, route: RouteIndex) {
        assert!(!self.has_transfers(route), "a source leaves transfers behind that are over");
        let entry = self.entry(route);
        if let SourceLocation::Here { finished, .. } = &entry.residence {
            assert!(finished.is_empty(), "a source leaves outcomes behind");
        }
        entry.residence = SourceLocation::Away;
        self.forget_if_over(route);
    }

    /// The source that is served there.
    pub(crate) fn key(&self, route: RouteIndex) -> Option<SourceKey> {
        match &self.entries[route.0 as usize].as_ref()?.residence {
            SourceLocation::Here { key, .. } => Some(*key),
            SourceLocation::Away => None,
        }
    }

    /// A request is taken on.
    pub(crate) fn open(&mut self, route: RouteIndex, slot: SourceRequestSlot) -> Ticket {
        self.entry(route).requests += 1;
        Ticket { route, slot }
    }

    /// A request is over: its outcome goes to whoever owns the source now.
    #[expect(clippy::needless_pass_by_value, reason = "a ticket is used up: one answer for each")]
    pub(crate) fn complete(&mut self, ticket: Ticket, outcome: Outcome) {
        let Ticket { route, slot } = ticket;
        let entry = self.entries[route.0 as usize].as_mut().expect("a ticket keeps its route");
        entry.requests -= 1;
        match &mut entry.residence {
            SourceLocation::Here { finished, .. } => {
                if finished.is_empty() {
                    self.called.push(route);
                }
                finished.push((slot, outcome));
            }
            SourceLocation::Away => {
                entry.mailbox.post(slot, outcome);
                self.forget_if_over(route);
            }
        }
    }

    /// A transfer begins.
    pub(crate) fn begin_transfer(&mut self, route: RouteIndex) {
        self.entry(route).requests += 1;
    }

    /// A transfer is over: it goes to whoever owns the source now.
    pub(crate) fn transfer_over(&mut self, route: RouteIndex, transfer: StreamTransfer) {
        let entry = self.entry(route);
        entry.requests -= 1;
        match entry.residence {
            SourceLocation::Here { .. } => {
                let place = &mut self.transfers[route.0 as usize][transfer.direction() as usize];
                assert!(place.is_none(), "a {:?} was over twice", transfer.direction());
                *place = Some(transfer);
                self.called.push(route);
            }
            SourceLocation::Away => {
                entry.mailbox.post_transfer(transfer);
                self.forget_if_over(route);
            }
        }
    }

    /// Takes the transfers of a source that are over.
    pub(crate) fn take_transfers(&mut self, route: RouteIndex, take: impl FnMut(StreamTransfer)) {
        self.transfers[route.0 as usize].iter_mut().filter_map(Option::take).for_each(take);
    }

    /// Takes what is finished for a source, into an empty list that is swapped in.
    pub(crate) fn take(&mut self, route: RouteIndex, into: &mut Vec<(SourceRequestSlot, Outcome)>) {
        if let SourceLocation::Here { finished, .. } = &mut self.entry(route).residence {
            std::mem::swap(finished, into);
        }
    }

    /// The sources that have something finished waiting which they were not told of yet.
    pub(crate) fn drain_called(&mut self) -> impl Iterator<Item = SourceKey> + '_ {
        let Self { entries, transfers, called } = self;
        called.drain(..).filter_map(|route| match &entries[route.0 as usize] {
            Some(Route { residence: SourceLocation::Here { key, finished }, .. })
                if !finished.is_empty()
                    || transfers[route.0 as usize].iter().any(Option::is_some) =>
            {
                Some(*key)
            }
            // Taken already, in the source's own turn.
            Some(_) | None => None,
        })
    }

    fn has_transfers(&self, route: RouteIndex) -> bool {
        self.transfers[route.0 as usize].iter().any(Option::is_some)
    }

    fn entry(&mut self, route: RouteIndex) -> &mut Route {
        self.entries[route.0 as usize].as_mut().expect("a source keeps its route until it leaves")
    }

    fn forget_if_over(&mut self, route: RouteIndex) {
        let place = &mut self.entries[route.0 as usize];
        if let Some(Route { residence: SourceLocation::Away, requests: 0, .. }) = place {
            *place = None;
        }
    }
}
