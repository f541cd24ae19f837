//! Replies: headers in front of data, and errors with a sentence.
//!
//! Where it stands in the life of a request: at its end.
//!
//! Invariants: a header ends where its data begin, so that both are sent as one part. Replies with data are structured or
//! extended if that was agreed on, and those to reads always; other good ones may be simple with structured replies.
//! What a read has found to be zero is sent as a hole, but in simple replies.
//! Limits: [`HEADER_BYTES_MAX`] in front of data, [`SHORT_BYTES_MAX`] for what has none.

use crate::HeaderStyle;
use crate::wire::{chunk, chunk_flag, command, error, reply_magic};

/// The longest header in front of data, with the offset of the data.
pub(crate) const HEADER_BYTES_MAX: usize = 40;

/// The longest reply without data: an error with its sentence.
pub(crate) const SHORT_BYTES_MAX: usize = 128;

const SIMPLE_BYTES: usize = 16;
const STRUCTURED_BYTES: usize = 20;
const EXTENDED_BYTES: usize = HEADER_BYTES_MAX - 8;

/// To which request a reply is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReplyTo {
    pub(crate) style: HeaderStyle,
    pub(crate) cookie: u64,
    /// Where the request begins, as its header says.
    pub(crate) offset: u64,
}

/// Puts bytes one behind the other.
struct Place<'a> {
    bytes: &'a mut [u8],
    used: usize,
}

impl Place<'_> {
    fn put(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes[self.used..self.used + bytes.len()].copy_from_slice(bytes);
        self.used += bytes.len();
        self
    }
}

impl ReplyTo {
    /// Writes the header of the data of a read such that it ends at `end`; returns where it begins.
    #[inline]
    pub(crate) fn write_data_header(self, bytes: &mut [u8], end: usize, count: u64) -> usize {
        let head = match self.style {
            HeaderStyle::Simple => SIMPLE_BYTES,
            HeaderStyle::Structured => STRUCTURED_BYTES + 8,
            HeaderStyle::Extended => EXTENDED_BYTES + 8,
        };
        let start = end - head;
        let mut place = Place { bytes: &mut bytes[start..end], used: 0 };
        if self.style == HeaderStyle::Simple {
            self.put_simple(&mut place, error::NONE);
        } else {
            self.put_chunk(&mut place, chunk_flag::DONE, chunk::OFFSET_DATA, count + 8);
            place.put(&self.offset.to_be_bytes());
        }
        start
    }

    /// Writes the header of a chunk with so many bytes of payload; returns its length. Not with simple replies.
    pub(crate) fn write_chunk_header(
        self,
        bytes: &mut [u8],
        flags: u16,
        kind: u16,
        payload: usize,
    ) -> usize {
        let mut place = Place { bytes, used: 0 };
        self.put_chunk(&mut place, flags, kind, payload as u64);
        place.used
    }

    /// Writes that a request went well which has no data; returns how long that is.
    pub(crate) fn write_done(self, bytes: &mut [u8], command: u16) -> usize {
        let mut place = Place { bytes, used: 0 };
        match self.style {
            HeaderStyle::Simple => self.put_simple(&mut place, error::NONE),
            HeaderStyle::Structured if command != command::READ => {
                self.put_simple(&mut place, error::NONE);
            }
            HeaderStyle::Structured | HeaderStyle::Extended => {
                self.put_chunk(&mut place, chunk_flag::DONE, chunk::NONE, 0);
            }
        }
        place.used
    }

    /// Writes that all bytes of a read are zero; returns how long that is. Not with simple replies.
    pub(crate) fn write_hole(self, bytes: &mut [u8], count: u32) -> usize {
        let mut place = Place { bytes, used: 0 };
        self.put_chunk(&mut place, chunk_flag::DONE, chunk::OFFSET_HOLE, 12);
        place.put(&self.offset.to_be_bytes()).put(&count.to_be_bytes());
        place.used
    }

    /// Writes that a request has failed; returns how long that is.
    pub(crate) fn write_error(self, bytes: &mut [u8], error: u32) -> usize {
        let mut place = Place { bytes, used: 0 };
        if self.style == HeaderStyle::Simple {
            self.put_simple(&mut place, error);
            return place.used;
        }
        let text = sentence(error).as_bytes();
        self.put_chunk(&mut place, chunk_flag::DONE, chunk::ERROR, 6 + text.len() as u64);
        let count = u16::try_from(text.len()).expect("a short sentence");
        place.put(&error.to_be_bytes()).put(&count.to_be_bytes()).put(text);
        place.used
    }

    fn put_simple(self, place: &mut Place<'_>, error: u32) {
        place.put(&reply_magic::SIMPLE.to_be_bytes());
        place.put(&error.to_be_bytes()).put(&self.cookie.to_be_bytes());
    }

    fn put_chunk(self, place: &mut Place<'_>, flags: u16, kind: u16, payload: u64) {
        let is_long = self.style == HeaderStyle::Extended;
        let magic = if is_long { reply_magic::EXTENDED } else { reply_magic::STRUCTURED };
        place.put(&magic.to_be_bytes()).put(&flags.to_be_bytes()).put(&kind.to_be_bytes());
        place.put(&self.cookie.to_be_bytes());
        if is_long {
            place.put(&self.offset.to_be_bytes()).put(&payload.to_be_bytes());
        } else {
            let payload = u32::try_from(payload).expect("below the bound on payloads");
            place.put(&payload.to_be_bytes());
        }
    }
}

/// What a person at the client is told.
fn sentence(error: u32) -> &'static str {
    match error {
        error::EPERM => "the export is read-only",
        error::EIO => "the server could not read or write",
        error::EINVAL => "the request is not valid for this export",
        error::ENOSPC => "there is no space for this on the server",
        error::EOVERFLOW => "the request is too large",
        error::ENOTSUP => "the export does not do this",
        error::ESHUTDOWN => "the server ends",
        _ => "the request has failed",
    }
}
