//! Options as they are sent, and replies to them as they are read.

use std::io::{self, Read, Write};

use nbd_wire::{OPTION_MAGIC, OPTION_REPLY_MAGIC, reply};

use super::{HandshakeError, REPLY_BYTES_MAX, SENTENCE_BYTES_MAX};

/// A reply to an option.
#[derive(Debug)]
pub(super) struct OptionReply {
    /// `NBD_REP_*`.
    pub(super) kind: u32,
    /// What stands in it.
    pub(super) data: Vec<u8>,
}

/// Sends an option.
pub(super) fn ask(stream: &mut impl Write, option: u32, data: &[u8]) -> io::Result<()> {
    let count = u32::try_from(data.len()).expect("options are short");
    let mut bytes = OPTION_MAGIC.to_be_bytes().to_vec();
    bytes.extend(option.to_be_bytes());
    bytes.extend(count.to_be_bytes());
    bytes.extend(data);
    stream.write_all(&bytes)?;
    stream.flush()
}

pub(super) fn read_array<const N: usize>(stream: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

impl OptionReply {
    /// Reads a reply to this option.
    pub(super) fn read(stream: &mut impl Read, option: u32) -> Result<Self, HandshakeError> {
        if u64::from_be_bytes(read_array(stream)?) != OPTION_REPLY_MAGIC {
            return Err(HandshakeError::Broken("a reply does not begin as one"));
        }
        if u32::from_be_bytes(read_array(stream)?) != option {
            return Err(HandshakeError::Broken("it answers an option that was not sent"));
        }
        let kind = u32::from_be_bytes(read_array(stream)?);
        let count = u32::from_be_bytes(read_array(stream)?);
        let room = usize::try_from(count).ok().filter(|count| *count <= REPLY_BYTES_MAX);
        let mut data = vec![0; room.ok_or(HandshakeError::TooLong { option, count })?];
        stream.read_exact(&mut data)?;
        Ok(Self { kind, data })
    }

    /// What the server says to an error, without anything that a terminal would take for more than text.
    pub(super) fn sentence(&self) -> String {
        let text = String::from_utf8_lossy(&self.data);
        text.chars().filter(|it| !it.is_control()).take(SENTENCE_BYTES_MAX).collect()
    }

    /// Why an answer ends the handshake that is not one of those that go on.
    pub(super) fn unexpected(&self, option: u32) -> HandshakeError {
        match self.kind {
            reply::ERR_TLS_REQD => HandshakeError::NeedsTls { option },
            code if code & reply::ERROR != 0 => {
                HandshakeError::Refused { option, code, sentence: self.sentence() }
            }
            _ => HandshakeError::Broken("it answers an option with what is no answer to it"),
        }
    }
}
