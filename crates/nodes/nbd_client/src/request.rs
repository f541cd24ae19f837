//! Requests: the header that a server gets.
//!
//! Where it stands in the life of a request: at its beginning on the wire.

use nbd_wire::{command, command_flag, request};

use crate::terms::HeaderStyle;

/// The most bytes that a request without 64-bit lengths is about; a multiple of every block.
const COMPACT_BYTES_MAX: u64 = (1 << 32) - (1 << 16);

/// What is asked of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WireRequest {
    /// `NBD_CMD_*`.
    pub(crate) command: u16,
    /// `NBD_CMD_FLAG_*`, but what the header itself needs.
    pub(crate) flags: u16,
    /// The first byte.
    pub(crate) offset: u64,
    /// How many.
    pub(crate) count: u64,
}

impl WireRequest {
    /// The most bytes that one request without data is about.
    pub(crate) fn count_max(style: HeaderStyle) -> u64 {
        match style {
            HeaderStyle::Simple | HeaderStyle::Structured => COMPACT_BYTES_MAX,
            HeaderStyle::Extended => i64::MAX.unsigned_abs(),
        }
    }

    /// Adds the header.
    pub(crate) fn write(&self, style: HeaderStyle, cookie: u64, out: &mut Vec<u8>) {
        let Self { command, mut flags, offset, count } = *self;
        let is_extended = style == HeaderStyle::Extended;
        if is_extended && command == command::WRITE {
            flags |= command_flag::PAYLOAD_LEN;
        }
        let magic = if is_extended { request::EXTENDED_MAGIC } else { request::MAGIC };
        out.extend(magic.to_be_bytes());
        out.extend(flags.to_be_bytes());
        out.extend(command.to_be_bytes());
        out.extend(cookie.to_be_bytes());
        out.extend(offset.to_be_bytes());
        if is_extended {
            out.extend(count.to_be_bytes());
        } else {
            let count = u32::try_from(count).expect("it is cut to what the header takes");
            out.extend(count.to_be_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_those_of_the_specification() {
        let write = WireRequest { command: command::WRITE, flags: 1, offset: 512, count: 4096 };
        let mut compact = Vec::new();
        write.write(HeaderStyle::Structured, 7, &mut compact);
        let expected = "25609513000100010000000000000007000000000000020000001000";
        let hex = |bytes: &[u8]| bytes.iter().map(|it| format!("{it:02x}")).collect::<String>();
        assert_eq!(hex(&compact), expected);
        let mut extended = Vec::new();
        write.write(HeaderStyle::Extended, 7, &mut extended);
        let expected = "21e41c7100210001000000000000000700000000000002000000000000001000";
        assert_eq!(hex(&extended), expected);
    }
}
