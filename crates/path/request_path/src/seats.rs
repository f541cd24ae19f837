//! Which sources have, or had, requests in flight on this iothread, and how their outcomes reach
//! them.
//!
//! Invariants: a seat is kept until its last request is finished, also after its source has moved
//! away. While the source is here outcomes are handed over directly, afterwards by its mailbox.

use std::sync::Arc;

use block::{Outcome, Slot};

use crate::{Mailbox, SourceKey};

/// A source's place at one iothread's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seat(u32);

/// Whose request it is. Consumed by its completion: exactly one answer for each.
#[derive(Debug)]
#[must_use = "a request that is never completed hangs its client"]
pub(crate) struct Ticket {
    seat: Seat,
    slot: Slot,
}

impl Ticket {
    /// The request's slot, if it is of the source of this seat.
    pub(crate) fn slot_at(&self, seat: Seat) -> Option<Slot> {
        (self.seat == seat).then_some(self.slot)
    }
}

#[derive(Debug)]
struct Entry {
    mailbox: Arc<Mailbox>,
    residence: Residence,
    requests: u32,
}

#[derive(Debug)]
enum Residence {
    /// The source is served here; finished requests wait for its next turn.
    Here { key: SourceKey, finished: Vec<(Slot, Outcome)> },
    /// The source has moved away.
    Away,
}

#[derive(Debug, Default)]
pub(crate) struct Seats {
    entries: Vec<Option<Entry>>,
    /// Seats where something was finished since the last look.
    called: Vec<Seat>,
}

impl Seats {
    /// Seats a source of so many slots that has arrived.
    pub(crate) fn sit(&mut self, mailbox: Arc<Mailbox>, slots: u16, key: SourceKey) -> Seat {
        let finished = Vec::with_capacity(usize::from(slots));
        let entry = Entry { mailbox, residence: Residence::Here { key, finished }, requests: 0 };
        let place = self.entries.iter().position(Option::is_none).unwrap_or(self.entries.len());
        if place == self.entries.len() {
            self.entries.push(None);
        }
        self.entries[place] = Some(entry);
        Seat(u32::try_from(place).expect("fewer sources than descriptors"))
    }

    /// The source moves away; what is still in flight will be posted. It must have taken what is
    /// finished before.
    pub(crate) fn leave(&mut self, seat: Seat) {
        let entry = self.entry(seat);
        if let Residence::Here { finished, .. } = &entry.residence {
            assert!(finished.is_empty(), "a source leaves outcomes behind");
        }
        entry.residence = Residence::Away;
        self.forget_if_over(seat);
    }

    /// The source that is served there.
    pub(crate) fn key(&self, seat: Seat) -> Option<SourceKey> {
        match &self.entries[seat.0 as usize].as_ref()?.residence {
            Residence::Here { key, .. } => Some(*key),
            Residence::Away => None,
        }
    }

    /// A request is taken on.
    pub(crate) fn open(&mut self, seat: Seat, slot: Slot) -> Ticket {
        self.entry(seat).requests += 1;
        Ticket { seat, slot }
    }

    /// A request is over: its outcome goes to whoever owns the source now.
    #[expect(clippy::needless_pass_by_value, reason = "a ticket is used up: one answer for each")]
    pub(crate) fn complete(&mut self, ticket: Ticket, outcome: Outcome) {
        let Ticket { seat, slot } = ticket;
        let entry = self.entries[seat.0 as usize].as_mut().expect("a ticket keeps its seat");
        entry.requests -= 1;
        match &mut entry.residence {
            Residence::Here { finished, .. } => {
                if finished.is_empty() {
                    self.called.push(seat);
                }
                finished.push((slot, outcome));
            }
            Residence::Away => {
                entry.mailbox.post(slot, outcome);
                self.forget_if_over(seat);
            }
        }
    }

    /// Takes what is finished for a source, into an empty list that is swapped in.
    pub(crate) fn take(&mut self, seat: Seat, into: &mut Vec<(Slot, Outcome)>) {
        if let Residence::Here { finished, .. } = &mut self.entry(seat).residence {
            std::mem::swap(finished, into);
        }
    }

    /// The sources that have something finished waiting which they were not told of yet.
    pub(crate) fn drain_called(&mut self) -> impl Iterator<Item = SourceKey> + '_ {
        let entries = &self.entries;
        self.called.drain(..).filter_map(|seat| match &entries[seat.0 as usize] {
            Some(Entry { residence: Residence::Here { key, finished }, .. })
                if !finished.is_empty() =>
            {
                Some(*key)
            }
            // Taken already, in the source's own turn.
            Some(_) | None => None,
        })
    }

    fn entry(&mut self, seat: Seat) -> &mut Entry {
        self.entries[seat.0 as usize].as_mut().expect("a source keeps its seat until it leaves")
    }

    fn forget_if_over(&mut self, seat: Seat) {
        let place = &mut self.entries[seat.0 as usize];
        if let Some(Entry { residence: Residence::Away, requests: 0, .. }) = place {
            *place = None;
        }
    }
}
