//! From the header of a request to its work.
//!
//! Where it stands in the life of a request: at its beginning.
//!
//! Limits: a header is not taken before there is a slot and memory for its request.

use block::{FailKind, Operation, RequestMemory, SourceRequestSlot};
use request_path::RequestAction;

use super::input::Expected;
use super::memory::HEAD_BYTES;
use super::slots::{Slot, SlotWork};
use super::{ConnectionPhase, DISK, NbdConnection, RefusedRequest};
use crate::ConnectionEnd;
use crate::MetaContexts;
use crate::transmission::reply::ReplyTo;
use crate::transmission::request::{Decision, Refusal, RequestHeader};
use crate::transmission::status;
use crate::wire::error;

/// A request was taken.
pub(super) enum Taken {
    /// Its work can begin.
    Whole(SourceRequestSlot),
    /// More of it has to come.
    Header,
}

impl NbdConnection {
    /// Takes the next header, if there is one, and a slot and memory for its request.
    pub(super) fn next_header(&mut self) -> Result<Option<Taken>, ConnectionEnd> {
        if !self.has_header() {
            return Ok(None);
        }
        let style = self.rules.style;
        let header = RequestHeader::parse(self.input.bytes(), style);
        let Some(header) = header.map_err(ConnectionEnd::ProtocolBroken)? else { return Ok(None) };
        let decision = header.decide(&self.rules).map_err(ConnectionEnd::ProtocolBroken)?;
        if decision == Decision::Disconnect {
            self.input.consume(RequestHeader::bytes(style));
            self.phase = ConnectionPhase::Leaving;
            return Ok(None);
        }
        let decision = if self.is_ending { ending(decision) } else { decision };
        if self.output.is_full() {
            self.is_full = true;
            return Ok(None);
        }
        let memory = match memory_bytes(&decision, self.rules.contexts) {
            Some(bytes) if self.slots.has_free() => self.pool.take(bytes),
            Some(_) | None => None,
        };
        if !self.slots.has_free()
            || memory.is_none() && memory_bytes(&decision, self.rules.contexts).is_some()
        {
            self.is_full = true;
            return Ok(None);
        }
        self.input.consume(RequestHeader::bytes(style));
        Ok(Some(self.enter(header, decision, memory)))
    }

    fn enter(
        &mut self,
        header: RequestHeader,
        decision: Decision,
        memory: Option<RequestMemory>,
    ) -> Taken {
        let RequestHeader { cookie, offset, command, .. } = header;
        let to = ReplyTo { style: self.rules.style, cookie, offset };
        let work = work(header, decision);
        let slot = self.slots.enter(Slot { to, command, work, memory, length: header.length });
        let expected = match decision {
            Decision::Write(extent, _) => {
                let total = usize::try_from(extent.count().0).expect("it has memory");
                Expected::Payload { slot, arrived: 0, total }
            }
            Decision::StatusFilter(total) => Expected::Payload { slot, arrived: 0, total },
            Decision::Refuse(Refusal { payload: left @ 1.., .. }) => {
                Expected::Refused { slot, left }
            }
            Decision::Read(_)
            | Decision::Steps(_)
            | Decision::Flush
            | Decision::Status(_)
            | Decision::Nothing
            | Decision::Refuse(_)
            | Decision::Disconnect => return Taken::Whole(slot),
        };
        self.input.expected = expected;
        Taken::Header
    }

    /// All that follows the header of a request is there: what is asked for by it.
    pub(super) fn filter(&mut self, slot: SourceRequestSlot) -> Taken {
        let request = self.slots.get(slot);
        if let (SlotWork::Filter(header), Some(memory)) = (request.work, &mut request.memory) {
            let count = usize::try_from(header.length).expect("it has memory");
            let payload = &memory.bytes()[HEAD_BYTES..HEAD_BYTES + count];
            request.work = work(header, header.decide_filtered(&self.rules, payload));
        }
        Taken::Whole(slot)
    }

    /// What is to be done for a request that is there as a whole.
    pub(super) fn bring(&mut self, slot: SourceRequestSlot) -> RequestAction<'_> {
        let Self { slots, memory: named, rules, refused, .. } = self;
        let request = slots.get(slot);
        named.clear();
        let operation = match &mut request.work {
            SlotWork::Read(window) => Operation::Read(window.extent),
            SlotWork::Write(extent, durability) => Operation::Write(*extent, *durability),
            SlotWork::Status(question) => Operation::Status(question.window.extent),
            SlotWork::Flush => Operation::Flush,
            SlotWork::Steps(steps) => match steps.next(rules.size) {
                Some(step) => step,
                None => return RequestAction::Done,
            },
            SlotWork::Nothing | SlotWork::Filter(_) | SlotWork::ZeroRead(_) => {
                return RequestAction::Done;
            }
            SlotWork::Refused(Refusal { kind, .. }) => {
                let (offset, length) = (request.to.offset, request.length);
                *refused = RefusedRequest { command: request.command, offset, length };
                return RequestAction::Refuse { unit: DISK, kind: *kind, what: refused };
            }
        };
        let bytes = match (operation, request.work) {
            (_, SlotWork::Status(question)) => status::room(question.records(), 0).0,
            (Operation::Read(extent) | Operation::Write(extent, _), _) => {
                usize::try_from(extent.count().0).expect("it has memory")
            }
            _ => 0,
        };
        if bytes > 0 {
            let memory = request.memory.as_mut().expect("it was taken with the header");
            memory.lend(HEAD_BYTES..HEAD_BYTES + bytes, named);
        }
        RequestAction::Disk { unit: DISK, operation, memory: named }
    }
}

/// A server that ends does nothing new.
fn ending(decision: Decision) -> Decision {
    let payload = match decision {
        Decision::Write(extent, _) => extent.count().0,
        Decision::StatusFilter(bytes) => bytes as u64,
        Decision::Refuse(refusal) => refusal.payload,
        Decision::Read(_)
        | Decision::Steps(_)
        | Decision::Flush
        | Decision::Status(_)
        | Decision::Nothing
        | Decision::Disconnect => 0,
    };
    Decision::Refuse(Refusal { kind: FailKind::Cancelled, error: error::ESHUTDOWN, payload })
}

fn work(header: RequestHeader, decision: Decision) -> SlotWork {
    match decision {
        Decision::Read(window) => SlotWork::Read(window),
        Decision::Write(extent, durability) => SlotWork::Write(extent, durability),
        Decision::Steps(steps) => SlotWork::Steps(steps),
        Decision::Flush => SlotWork::Flush,
        Decision::Status(question) => SlotWork::Status(question),
        Decision::StatusFilter(_) => SlotWork::Filter(header),
        Decision::Nothing | Decision::Disconnect => SlotWork::Nothing,
        Decision::Refuse(refusal) => SlotWork::Refused(refusal),
    }
}

/// How much memory for data it needs, if it needs some.
fn memory_bytes(decision: &Decision, contexts: MetaContexts) -> Option<usize> {
    let bytes = match decision {
        Decision::Read(window) => window.extent.count().0,
        Decision::Write(extent, _) => extent.count().0,
        Decision::Steps(steps) => steps.memory_bytes()?,
        Decision::Status(question) => {
            let (records, reply) = status::room(question.records(), question.contexts.count());
            (records + reply) as u64
        }
        // What it asks for is not known yet.
        Decision::StatusFilter(_) => {
            let (records, reply) = status::room(status::RECORDS_MAX, contexts.count());
            (records + reply) as u64
        }
        Decision::Flush | Decision::Nothing | Decision::Refuse(_) | Decision::Disconnect => {
            return None;
        }
    };
    Some(usize::try_from(bytes).expect("below the bound on payloads"))
}

impl NbdConnection {
    /// Whether the header of a request is what is expected next, and can be taken.
    pub(super) fn has_header_expected(&self) -> bool {
        self.input.expected == Expected::Header && self.has_header()
    }
}
