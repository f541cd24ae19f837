//! Replies: from bytes of a server to what becomes of requests. Pure: no socket, no memory of requests.
//!
//! Where it stands in the life of a request: at its end on the wire, before anything is copied.
//!
//! Invariants: whatever a server sends, an event names a request that is under way and bytes inside it; each request ends
//! once. A cookie has the number of the slot's use, so a reply to an earlier request in the same slot is found out.
//! Limits: nothing is kept of what a server sends. Headers and errors have to lie in one piece, of [`ERROR_BYTES_MAX`] and a
//! header; data and extents go through as they come.

use nbd_wire::{Fields, chunk, chunk_flag, command, reply_magic};

use crate::request::WireRequest;
use crate::terms::HeaderStyle;

/// The most bytes of an error chunk: an error, a string and an offset.
const ERROR_BYTES_MAX: u64 = 4 + 2 + nbd_wire::STRING_BYTES_MAX as u64 + 8;

/// The most extents of a chunk: as many as anybody sends, and more.
const EXTENTS_MAX: u64 = 1 << 21;

/// A server breaks the rules: nothing that it sends means anything any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReplyFault {
    /// Not the beginning of a reply.
    #[error("a reply begins with {0:#010x}")]
    Magic(u32),
    /// Nobody has asked.
    #[error("a reply to no request: cookie {0:#x}")]
    Cookie(u64),
    /// Not what was asked.
    #[error("a reply of another kind than the request: chunk type {0:#x}")]
    Kind(u16),
    /// A length that cannot be.
    #[error("a chunk of type {kind:#x} with {count} bytes")]
    Length {
        /// The type.
        kind: u16,
        /// How many.
        count: u64,
    },
    /// Bytes that were not asked for.
    #[error("a reply about {count} bytes at {offset}, which were not asked for")]
    Range {
        /// The first.
        offset: u64,
        /// How many.
        count: u64,
    },
    /// Not all that was asked for.
    #[error("a reply that has {covered} bytes of {count}")]
    Partial {
        /// What came.
        covered: u64,
        /// What was asked for.
        count: u64,
    },
    /// A context that was not agreed on.
    #[error("a block status of context {0}, which was not asked for")]
    Context(u32),
    /// A failure without an error.
    #[error("an error chunk without an error")]
    NoError,
}

/// What a reply says of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReplyEvent<'a> {
    /// These bytes were read, so far behind its first.
    Data { slot: u32, skip: u64, bytes: &'a [u8] },
    /// So many zeroes were read.
    Zeroes { slot: u32, skip: u64, count: u64 },
    /// The next bytes of a status are that (`NBD_STATE_*`).
    Extent { slot: u32, skip: u64, count: u64, state: u32 },
    /// The request is over: `NBD_E*`.
    Over { slot: u32, error: u32 },
}

/// A request under way, as its replies have to fit it.
#[derive(Debug, Clone, Copy)]
struct Pending {
    command: u16,
    offset: u64,
    count: u64,
    covered: u64,
    error: u32,
}

/// What comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Header,
    Data { slot: u32, skip: u64, left: u64, is_last: bool },
    Hole { slot: u32, skip: u64, count: u64, is_last: bool },
    Extents { slot: u32, left: u64, is_last: bool },
    End { slot: u32 },
}

/// The header of a chunk.
#[derive(Debug, Clone, Copy)]
struct Chunk {
    slot: u32,
    kind: u16,
    count: u64,
    is_last: bool,
}

/// Reads the replies of one connection.
#[derive(Debug)]
pub(crate) struct ReplyReader {
    style: HeaderStyle,
    allocation: Option<u32>,
    part: Part,
    pending: Vec<Option<Pending>>,
    /// How often each slot was used.
    numbers: Vec<u32>,
}

impl ReplyReader {
    /// Of a connection on which that was agreed on.
    pub(crate) fn new(style: HeaderStyle, allocation: Option<u32>) -> Self {
        Self { style, allocation, part: Part::Header, pending: Vec::new(), numbers: Vec::new() }
    }

    /// A request is sent in this slot, which is free; returns its cookie.
    pub(crate) fn expect(&mut self, slot: u32, request: &WireRequest) -> u64 {
        let index = slot as usize;
        if self.pending.len() <= index {
            self.pending.resize(index + 1, None);
            self.numbers.resize(index + 1, 0);
        }
        assert!(self.pending[index].is_none(), "slot {slot} is under way");
        let WireRequest { command, offset, count, .. } = *request;
        self.pending[index] = Some(Pending { command, offset, count, covered: 0, error: 0 });
        self.numbers[index] = self.numbers[index].wrapping_add(1);
        u64::from(self.numbers[index]) << 32 | u64::from(slot)
    }

    /// Whether nothing is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.part == Part::Header && self.pending.iter().all(Option::is_none)
    }

    /// Takes from the front of what was received: how much was taken, and what that says. Nothing taken and nothing said:
    /// more is needed.
    pub(crate) fn next<'a>(
        &mut self,
        input: &'a [u8],
    ) -> Result<(usize, Option<ReplyEvent<'a>>), ReplyFault> {
        let mut taken = 0;
        loop {
            let before = (taken, self.part);
            let (count, event) = self.step(&input[taken..])?;
            taken += count;
            if event.is_some() || (taken, self.part) == before {
                return Ok((taken, event));
            }
        }
    }

    fn step<'a>(&mut self, input: &'a [u8]) -> Result<(usize, Option<ReplyEvent<'a>>), ReplyFault> {
        match self.part {
            Part::Header => Ok((self.header(input)?.unwrap_or(0), None)),
            Part::Hole { slot, skip, count, is_last } => {
                self.part = self.behind(slot, is_last);
                Ok((0, Some(ReplyEvent::Zeroes { slot, skip, count })))
            }
            Part::Data { slot, skip, left, is_last } => {
                let there = input.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                let count = there as u64;
                self.part = match left - count {
                    0 => self.behind(slot, is_last),
                    left => Part::Data { slot, skip: skip + count, left, is_last },
                };
                let bytes = &input[..there];
                let event = (there > 0).then_some(ReplyEvent::Data { slot, skip, bytes });
                Ok((there, event))
            }
            Part::Extents { slot, left, is_last } => self.extent(input, slot, left, is_last),
            Part::End { slot } => {
                self.part = Part::Header;
                let error = self.end(slot)?;
                Ok((0, Some(ReplyEvent::Over { slot, error })))
            }
        }
    }

    fn behind(&self, slot: u32, is_last: bool) -> Part {
        if is_last { Part::End { slot } } else { Part::Header }
    }

    /// Ends a request; returns its error.
    fn end(&mut self, slot: u32) -> Result<u32, ReplyFault> {
        let pending = self.pending[slot as usize].take().expect("it is under way");
        let Pending { command, count, covered, error, .. } = pending;
        let is_whole = match command {
            command::READ => covered == count,
            command::BLOCK_STATUS => covered > 0,
            _ => true,
        };
        if error == 0 && !is_whole {
            return Err(ReplyFault::Partial { covered, count });
        }
        Ok(error)
    }

    fn find(&self, cookie: u64) -> Result<(u32, Pending), ReplyFault> {
        let slot = u32::try_from(cookie & u64::from(u32::MAX)).expect("masked to 32 bits");
        let index = slot as usize;
        let number = self.numbers.get(index).copied();
        let pending = self.pending.get(index).copied().flatten();
        match pending.filter(|_| number.map(u64::from) == Some(cookie >> 32)) {
            Some(pending) => Ok((slot, pending)),
            None => Err(ReplyFault::Cookie(cookie)),
        }
    }

    fn pending(&mut self, slot: u32) -> &mut Pending {
        self.pending[slot as usize].as_mut().expect("it is under way")
    }

    /// Reads a header; returns how much that was, or `None` if some is missing.
    fn header(&mut self, input: &[u8]) -> Result<Option<usize>, ReplyFault> {
        let mut fields = Fields(input);
        let Some(magic) = fields.u32() else { return Ok(None) };
        match (magic, self.style) {
            (reply_magic::SIMPLE, HeaderStyle::Simple | HeaderStyle::Structured) => {
                let (Some(error), Some(cookie)) = (fields.u32(), fields.u64()) else {
                    return Ok(None);
                };
                self.simple(error, cookie)?;
                Ok(Some(input.len() - fields.0.len()))
            }
            (reply_magic::STRUCTURED, HeaderStyle::Structured)
            | (reply_magic::EXTENDED, HeaderStyle::Extended) => {
                let is_extended = self.style == HeaderStyle::Extended;
                let (Some(flags), Some(kind)) = (fields.u16(), fields.u16()) else {
                    return Ok(None);
                };
                let Some(cookie) = fields.u64() else { return Ok(None) };
                let count = if is_extended {
                    let (Some(offset), Some(count)) = (fields.u64(), fields.u64()) else {
                        return Ok(None);
                    };
                    let (_, pending) = self.find(cookie)?;
                    if offset != pending.offset {
                        return Err(ReplyFault::Range { offset, count: pending.count });
                    }
                    count
                } else {
                    let Some(count) = fields.u32() else { return Ok(None) };
                    count.into()
                };
                let (slot, _) = self.find(cookie)?;
                let is_last = flags & chunk_flag::DONE != 0;
                let rest = fields.0.len();
                let head = self.chunk(Chunk { slot, kind, count, is_last }, fields)?;
                Ok(head.map(|behind| input.len() - rest + behind))
            }
            (magic, _) => Err(ReplyFault::Magic(magic)),
        }
    }

    fn simple(&mut self, error: u32, cookie: u64) -> Result<(), ReplyFault> {
        let (slot, Pending { command, count, .. }) = self.find(cookie)?;
        let is_structured = self.style == HeaderStyle::Structured;
        self.part = match command {
            command::READ | command::BLOCK_STATUS if is_structured && error == 0 => {
                return Err(ReplyFault::Kind(command));
            }
            command::READ if error == 0 => {
                self.pending(slot).covered = count;
                Part::Data { slot, skip: 0, left: count, is_last: true }
            }
            _ => {
                self.pending(slot).error = error;
                Part::End { slot }
            }
        };
        Ok(())
    }

    /// Reads what stands at the beginning of a chunk behind its header; returns how much that was.
    fn chunk(&mut self, chunk: Chunk, mut fields: Fields<'_>) -> Result<Option<usize>, ReplyFault> {
        let Chunk { slot, kind, count, is_last } = chunk;
        let (there, command) = (fields.0.len(), self.pending(slot).command);
        let wrong = Err(ReplyFault::Length { kind, count });
        match (kind, command) {
            (chunk::NONE, _) => {
                if count != 0 || !is_last {
                    return wrong;
                }
                self.part = Part::End { slot };
            }
            (chunk::OFFSET_DATA, command::READ) => {
                let Some(left) = count.checked_sub(8).filter(|left| *left > 0) else {
                    return wrong;
                };
                let Some(offset) = fields.u64() else { return Ok(None) };
                let skip = self.cover(slot, offset, left)?;
                self.part = Part::Data { slot, skip, left, is_last };
            }
            (chunk::OFFSET_HOLE, command::READ) => {
                if count != 12 {
                    return wrong;
                }
                let (Some(offset), Some(zeroes)) = (fields.u64(), fields.u32()) else {
                    return Ok(None);
                };
                let skip = self.cover(slot, offset, zeroes.into())?;
                self.part = Part::Hole { slot, skip, count: zeroes.into(), is_last };
            }
            (chunk::BLOCK_STATUS, command::BLOCK_STATUS)
                if self.style == HeaderStyle::Structured =>
            {
                let Some(context) = fields.u32() else { return Ok(None) };
                self.part = self.extents(chunk, context, 4, 8)?;
            }
            (chunk::BLOCK_STATUS_EXT, command::BLOCK_STATUS)
                if self.style == HeaderStyle::Extended =>
            {
                let (Some(context), Some(extents)) = (fields.u32(), fields.u32()) else {
                    return Ok(None);
                };
                self.part = self.extents(chunk, context, 8, 16)?;
                // It says itself how many they are.
                if u64::from(extents) != (count - 8) / 16 {
                    return wrong;
                }
            }
            (kind, _) if kind & chunk::ERROR_BIT != 0 => {
                if !(6..=ERROR_BYTES_MAX).contains(&count) {
                    return wrong;
                }
                let count = usize::try_from(count).expect("a short one");
                let Some(body) = fields.bytes(count) else { return Ok(None) };
                let error = Fields(body).u32().filter(|error| *error != 0);
                self.pending(slot).error = error.ok_or(ReplyFault::NoError)?;
                self.part = self.behind(slot, is_last);
            }
            (kind, _) => return Err(ReplyFault::Kind(kind)),
        }
        Ok(Some(there - fields.0.len()))
    }

    /// Notes bytes of a read; returns how far behind its first they are.
    fn cover(&mut self, slot: u32, offset: u64, count: u64) -> Result<u64, ReplyFault> {
        let fault = ReplyFault::Range { offset, count };
        let pending = self.pending(slot);
        let skip = offset.checked_sub(pending.offset).ok_or(fault)?;
        let fits = skip.checked_add(count).is_some_and(|end| end <= pending.count);
        // What is told twice is missing elsewhere.
        if !fits || count == 0 || count > pending.count - pending.covered {
            return Err(fault);
        }
        pending.covered += count;
        Ok(skip)
    }

    /// Checks the beginning of a chunk of extents: `head` bytes, then so many for each.
    fn extents(
        &mut self,
        chunk: Chunk,
        context: u32,
        head: u64,
        each: u64,
    ) -> Result<Part, ReplyFault> {
        let Chunk { slot, kind, count, is_last } = chunk;
        let bytes = count.checked_sub(head).filter(|bytes| bytes.is_multiple_of(each));
        let left = bytes.map(|bytes| bytes / each).filter(|it| (1..=EXTENTS_MAX).contains(it));
        let left = left.ok_or(ReplyFault::Length { kind, count })?;
        if Some(context) != self.allocation || self.pending(slot).covered > 0 {
            return Err(ReplyFault::Context(context));
        }
        Ok(Part::Extents { slot, left, is_last })
    }

    /// Reads an extent. What it says of bytes behind those that were asked about is left out.
    fn extent<'a>(
        &mut self,
        input: &'a [u8],
        slot: u32,
        left: u64,
        is_last: bool,
    ) -> Result<(usize, Option<ReplyEvent<'a>>), ReplyFault> {
        let mut fields = Fields(input);
        let read = match self.style {
            HeaderStyle::Extended => fields.u64().zip(fields.u64()),
            HeaderStyle::Simple | HeaderStyle::Structured => {
                fields.u32().map(u64::from).zip(fields.u32().map(u64::from))
            }
        };
        let Some((count, state)) = read else { return Ok((0, None)) };
        self.part = match left - 1 {
            0 => self.behind(slot, is_last),
            left => Part::Extents { slot, left, is_last },
        };
        let pending = self.pending(slot);
        let (offset, skip) = (pending.offset, pending.covered);
        if count == 0 {
            return Err(ReplyFault::Range { offset, count });
        }
        let count = count.min(pending.count - skip);
        pending.covered += count;
        // The upper half has no flags.
        let state = u32::try_from(state & u64::from(u32::MAX)).expect("masked to 32 bits");
        let event = (count > 0).then_some(ReplyEvent::Extent { slot, skip, count, state });
        Ok((input.len() - fields.0.len(), event))
    }
}

#[cfg(test)]
mod tests;
