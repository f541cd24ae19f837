//! Requests: from their header to what is to be done.
//!
//! Where it stands in the life of a request: at its beginning, when its header was received.
//!
//! Invariants: an operation is inside the disk and of whole sectors; a change does not cut a sector that it was not told
//! to change. Reads and block status may begin and end anywhere: they ask for whole sectors, and a part of the answer is
//! sent. Changes may not, though the specification lets a server carry them out: what is not changed of the sector would
//! have to be read and written again, beside others who may change it meanwhile.
//! Limits: [`RequestRules::payload_max`] bytes of data; [`STEP_BYTES`] at once of what has none.

use block::{
    Access, ByteCount, ByteOffset, DiskSize, Durability, Extent, FailKind, Operation, SECTOR_BYTES,
    ZeroTerms,
};

use super::status::RECORDS_MAX;
use crate::wire::{Fields, command, command_flag, error, request};
use crate::{HeaderStyle, MetaContext, MetaContexts, ProtocolFault};

/// How much is discarded, zeroed or cached in one operation: as much as a virtio-blk request may. What is larger is carried
/// out step by step, so that neither a stop nor anybody else waits for a terabyte of zeroes that have to be written.
pub(crate) const STEP_BYTES: u64 = 16 << 20;

/// How much is read at once for `NBD_CMD_CACHE`, into memory that nobody looks at.
pub(crate) const CACHE_STEP_BYTES: u64 = 1 << 20;

/// The most bytes that may follow a request for block status: far more contexts than there are.
const FILTER_BYTES_MAX: u64 = 4096;

/// The header of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RequestHeader {
    pub(crate) flags: u16,
    pub(crate) command: u16,
    pub(crate) cookie: u64,
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

/// What requests are checked against.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestRules {
    pub(crate) style: HeaderStyle,
    pub(crate) size: DiskSize,
    pub(crate) access: Access,
    pub(crate) contexts: MetaContexts,
    /// What changes are made of.
    pub(crate) block: u64,
    pub(crate) payload_max: u64,
    /// Of changes that do not ask for more.
    pub(crate) durability: Durability,
}

/// The part of some sectors that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Window {
    /// Whole sectors.
    pub(crate) extent: Extent,
    /// What lies before the part.
    pub(crate) skip: u64,
    pub(crate) count: u64,
}

/// What is changed or read without data for the client, step by step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StepKind {
    Discard,
    Zero(ZeroTerms),
    Cache,
}

/// A long operation without data, and how far it has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Steps {
    kind: StepKind,
    durability: Durability,
    next: u64,
    end: u64,
    is_flush_due: bool,
}

/// What a block status request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StatusQuestion {
    pub(crate) window: Window,
    pub(crate) contexts: MetaContexts,
    /// Whether one run is enough.
    pub(crate) one: bool,
}

/// A request that is not carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) kind: FailKind,
    /// `NBD_E*`.
    pub(crate) error: u32,
    /// How many bytes follow the header all the same.
    pub(crate) payload: u64,
}

/// What a request leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decision {
    Read(Window),
    /// So many bytes follow the header.
    Write(Extent, Durability),
    Steps(Steps),
    Flush,
    Status(StatusQuestion),
    /// So many bytes follow the header, and then [`RequestHeader::decide_filtered`] knows more.
    StatusFilter(usize),
    /// Of no bytes: done.
    Nothing,
    Refuse(Refusal),
    /// The client will say nothing any more.
    Disconnect,
}

impl StatusQuestion {
    /// For how many runs there has to be room.
    pub(crate) fn records(&self) -> usize {
        if self.one { 1 } else { RECORDS_MAX }
    }
}

impl RequestHeader {
    /// How long headers are.
    pub(crate) fn bytes(style: HeaderStyle) -> usize {
        match style {
            HeaderStyle::Simple | HeaderStyle::Structured => request::COMPACT_BYTES,
            HeaderStyle::Extended => request::EXTENDED_BYTES,
        }
    }

    /// Takes a header off the front, if it is there as a whole.
    pub(crate) fn parse(bytes: &[u8], style: HeaderStyle) -> Result<Option<Self>, ProtocolFault> {
        let mut fields = Fields(bytes);
        let (wanted, is_long) = match style {
            HeaderStyle::Simple | HeaderStyle::Structured => (request::MAGIC, false),
            HeaderStyle::Extended => (request::EXTENDED_MAGIC, true),
        };
        let Some(magic) = fields.u32() else { return Ok(None) };
        if magic != wanted {
            return Err(ProtocolFault::RequestMagic(magic));
        }
        let mut parse = || {
            Some(Self {
                flags: fields.u16()?,
                command: fields.u16()?,
                cookie: fields.u64()?,
                offset: fields.u64()?,
                length: if is_long { fields.u64()? } else { fields.u32()?.into() },
            })
        };
        Ok(parse())
    }

    /// What is to be done for it.
    pub(crate) fn decide(&self, rules: &RequestRules) -> Result<Decision, ProtocolFault> {
        let payload = self.payload(rules)?;
        let decided = match self.command {
            command::DISC => return Ok(Decision::Disconnect),
            command::READ => self.read(rules),
            command::WRITE => self.write(rules),
            command::FLUSH => self.flags(0).map(|()| Decision::Flush),
            command::TRIM => self.change(rules, StepKind::Discard, 0),
            command::WRITE_ZEROES => {
                let has = |flag: u16| self.flags & flag != 0;
                let keeps = has(command_flag::NO_HOLE);
                let terms = if keeps { ZeroTerms::KEEP } else { ZeroTerms::UNMAP };
                let is_fast = has(command_flag::FAST_ZERO);
                let terms = if is_fast { terms.only_if_fast() } else { terms };
                let valid = command_flag::NO_HOLE | command_flag::FAST_ZERO;
                self.change(rules, StepKind::Zero(terms), valid)
            }
            command::CACHE => self.cache(rules),
            command::BLOCK_STATUS => self.status(rules, payload),
            _ => Err((FailKind::Unsupported, error::EINVAL)),
        };
        Ok(decided
            .unwrap_or_else(|(kind, error)| Decision::Refuse(Refusal { kind, error, payload })))
    }

    /// How many bytes follow it.
    fn payload(&self, rules: &RequestRules) -> Result<u64, ProtocolFault> {
        // With extended headers a flag should say it, but QEMU's client (10.0) sends writes without that, and its server
        // takes them. What follows a write are always its data, so that nothing of them is taken for a request.
        let is_flagged =
            rules.style == HeaderStyle::Extended && self.flags & command_flag::PAYLOAD_LEN != 0;
        let has_payload = is_flagged || self.command == command::WRITE;
        let count = if has_payload { self.length } else { 0 };
        if count > rules.payload_max {
            return Err(ProtocolFault::Payload { command: self.command, bytes: count });
        }
        Ok(count)
    }

    /// Fails for flags that go with no command, or not with this one.
    fn flags(&self, valid: u16) -> Result<(), (FailKind, u32)> {
        if self.flags & !(valid | command_flag::FUA) == 0 {
            return Ok(());
        }
        Err((FailKind::Malformed, error::EINVAL))
    }

    fn durability(&self, rules: &RequestRules) -> Durability {
        if self.flags & command_flag::FUA == 0 { rules.durability } else { Durability::Stable }
    }

    /// Its bytes, if the disk has them all.
    fn range(&self, rules: &RequestRules) -> Result<Extent, (FailKind, u32)> {
        let range = rules.size.check(ByteOffset(self.offset), ByteCount(self.length));
        range.ok().ok_or((FailKind::OutOfRange, out_of_range(self.command)))
    }

    /// Its bytes, and the sectors that they are in.
    fn window(&self, rules: &RequestRules, length: u64) -> Result<Window, (FailKind, u32)> {
        Self { length, ..*self }.range(rules)?;
        let start = self.offset - self.offset % SECTOR_BYTES;
        let end = (self.offset + length).next_multiple_of(SECTOR_BYTES);
        let extent = rules.size.check(ByteOffset(start), ByteCount(end - start));
        let extent = extent.expect("a disk ends with a sector");
        Ok(Window { extent, skip: self.offset - start, count: length })
    }

    /// Its bytes, if it may change them.
    fn changed(&self, rules: &RequestRules) -> Result<Extent, (FailKind, u32)> {
        if rules.access == Access::ReadOnly {
            return Err((FailKind::ReadOnly, error::EPERM));
        }
        let extent = self.range(rules)?;
        if !(self.offset | self.length).is_multiple_of(rules.block) {
            return Err((FailKind::Malformed, error::EINVAL));
        }
        Ok(extent)
    }

    fn read(&self, rules: &RequestRules) -> Result<Decision, (FailKind, u32)> {
        let is_simple = rules.style == HeaderStyle::Simple;
        self.flags(if is_simple { 0 } else { command_flag::DF })?;
        if self.length > rules.payload_max {
            let error = if is_simple { error::EINVAL } else { error::EOVERFLOW };
            return Err((FailKind::Malformed, error));
        }
        let window = self.window(rules, self.length)?;
        Ok(if self.length == 0 { Decision::Nothing } else { Decision::Read(window) })
    }

    fn write(&self, rules: &RequestRules) -> Result<Decision, (FailKind, u32)> {
        let is_long = rules.style == HeaderStyle::Extended;
        self.flags(if is_long { command_flag::PAYLOAD_LEN } else { 0 })?;
        let extent = self.changed(rules)?;
        Ok(if self.length == 0 {
            Decision::Nothing
        } else {
            Decision::Write(extent, self.durability(rules))
        })
    }

    fn change(
        &self,
        rules: &RequestRules,
        kind: StepKind,
        flags: u16,
    ) -> Result<Decision, (FailKind, u32)> {
        self.flags(flags)?;
        let extent = self.changed(rules)?;
        Ok(Steps::of(kind, extent, self.durability(rules)))
    }

    fn cache(&self, rules: &RequestRules) -> Result<Decision, (FailKind, u32)> {
        self.flags(0)?;
        let window = self.window(rules, self.length)?;
        Ok(Steps::of(StepKind::Cache, window.extent, Durability::Cached))
    }

    fn status(&self, rules: &RequestRules, payload: u64) -> Result<Decision, (FailKind, u32)> {
        let is_long = rules.style == HeaderStyle::Extended;
        let filter = if is_long { command_flag::PAYLOAD_LEN } else { 0 };
        self.flags(command_flag::REQ_ONE | filter)?;
        if rules.contexts.is_empty() || payload > FILTER_BYTES_MAX {
            return Err((FailKind::Malformed, error::EINVAL));
        }
        if self.flags & filter != 0 {
            let bytes = usize::try_from(payload).expect("few");
            return Ok(Decision::StatusFilter(bytes));
        }
        self.question(rules, self.length, rules.contexts)
    }

    fn question(
        &self,
        rules: &RequestRules,
        length: u64,
        contexts: MetaContexts,
    ) -> Result<Decision, (FailKind, u32)> {
        if length == 0 {
            return Err((FailKind::Malformed, error::EINVAL));
        }
        let window = self.window(rules, length)?;
        let one = self.flags & command_flag::REQ_ONE != 0;
        Ok(Decision::Status(StatusQuestion { window, contexts, one }))
    }

    /// What is to be done for a block status request, when what follows its header is there.
    pub(crate) fn decide_filtered(&self, rules: &RequestRules, payload: &[u8]) -> Decision {
        let decided = match filter(payload, rules.contexts) {
            Some((length, contexts)) => self.question(rules, length, contexts),
            None => Err((FailKind::Malformed, error::EINVAL)),
        };
        decided
            .unwrap_or_else(|(kind, error)| Decision::Refuse(Refusal { kind, error, payload: 0 }))
    }
}

/// How many bytes are asked about, and which contexts are wanted: each of them once, and one that was agreed on.
fn filter(payload: &[u8], agreed: MetaContexts) -> Option<(u64, MetaContexts)> {
    let mut fields = Fields(payload);
    let length = fields.u64()?;
    let mut contexts = MetaContexts::default();
    while !fields.0.is_empty() {
        let context = MetaContext::of_id(fields.u32()?).filter(|context| agreed.has(*context))?;
        if contexts.has(context) {
            return None;
        }
        contexts = contexts.with(context);
    }
    (!contexts.is_empty()).then_some((length, contexts))
}

/// What is said of bytes that the disk does not have: nothing can be stored there, and nothing else makes sense.
fn out_of_range(command: u16) -> u32 {
    match command {
        command::WRITE | command::WRITE_ZEROES => error::ENOSPC,
        _ => error::EINVAL,
    }
}

/// What a client is told of a request that has failed.
pub(crate) fn error_of(kind: FailKind, command: u16) -> u32 {
    match kind {
        FailKind::Io => error::EIO,
        FailKind::NoSpace => error::ENOSPC,
        FailKind::ReadOnly => error::EPERM,
        FailKind::OutOfRange => out_of_range(command),
        FailKind::Malformed => error::EINVAL,
        FailKind::Unsupported => error::ENOTSUP,
        // It was given up because nobody is served any more.
        FailKind::Cancelled => error::ESHUTDOWN,
    }
}

impl Steps {
    fn of(kind: StepKind, extent: Extent, durability: Durability) -> Decision {
        let (next, end) = (extent.bytes().start, extent.bytes().end);
        if next == end {
            return Decision::Nothing;
        }
        let mut steps = Self { kind, durability, next, end, is_flush_due: false };
        if durability == Durability::Stable && end - next > STEP_BYTES {
            // One sync for all of them.
            (steps.durability, steps.is_flush_due) = (Durability::Cached, true);
        }
        Decision::Steps(steps)
    }

    /// Whether all were made.
    pub(crate) fn are_over(&self) -> bool {
        self.next == self.end && !self.is_flush_due
    }

    /// How much memory each needs, if it needs some.
    pub(crate) fn memory_bytes(&self) -> Option<u64> {
        match self.kind {
            StepKind::Cache => Some(CACHE_STEP_BYTES.min(self.end - self.next)),
            StepKind::Discard | StepKind::Zero(_) => None,
        }
    }

    /// The next step; `None` if all were made. Those before are over, and went well.
    pub(crate) fn next(&mut self, size: DiskSize) -> Option<Operation> {
        if self.next == self.end {
            return std::mem::take(&mut self.is_flush_due).then_some(Operation::Flush);
        }
        let most = match self.kind {
            StepKind::Discard | StepKind::Zero(_) => STEP_BYTES,
            StepKind::Cache => CACHE_STEP_BYTES,
        };
        let count = most.min(self.end - self.next);
        // A disk that became smaller meanwhile has nothing there.
        let extent = size.check(ByteOffset(self.next), ByteCount(count)).ok();
        let Some(extent) = extent else {
            self.next = self.end;
            return self.next(size);
        };
        self.next += count;
        Some(match self.kind {
            StepKind::Discard => Operation::Discard(extent, self.durability),
            StepKind::Zero(terms) => Operation::WriteZeroes(extent, terms, self.durability),
            StepKind::Cache => Operation::Read(extent),
        })
    }
}
