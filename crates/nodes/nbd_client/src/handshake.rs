//! The handshake as a client does it: options and their replies, over anything that sends and receives.
//!
//! Where it stands: between a connection that was made and its first request, on a thread that may wait. It reads no byte
//! that is not its own.
//!
//! Invariants: whatever a server sends, the handshake ends: each option has a bounded number of replies of bounded length.
//! Limits: [`REPLIES_MAX`] replies to an option, [`REPLY_BYTES_MAX`] bytes each; a sentence of the server is shown up to
//! [`SENTENCE_BYTES_MAX`].
//! Not here: time limits and TLS itself (`connector`).

mod options;

use std::io::{self, Read, Write};

use nbd_wire::{
    EXPORT_NAME_ZEROES, Fields, INIT_MAGIC, OLD_MAGIC, OPTION_MAGIC, STRING_BYTES_MAX, handshake,
    info, option, reply,
};

use crate::terms::{HeaderStyle, Terms, TermsError};
use options::{OptionReply, ask, read_array};

/// The most replies to one option.
const REPLIES_MAX: usize = 64;

/// The longest reply to an option: a string and what stands before it.
const REPLY_BYTES_MAX: usize = STRING_BYTES_MAX + 64;

/// As much of a server's sentence is shown.
const SENTENCE_BYTES_MAX: usize = 256;

/// The context that tells holes and zeroes.
const ALLOCATION: &str = "base:allocation";

/// The handshake has failed. QEMU's sentences where it has some.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The connection has failed, or was closed.
    #[error("the handshake was cut off")]
    Connection(#[source] io::Error),
    /// Not NBD.
    #[error("Bad initial magic received: {0:#018x}")]
    NotNbd(u64),
    /// Too old.
    #[error("the server has the old handshake without options, which is not supported")]
    OldStyle,
    /// It breaks the rules.
    #[error("the server breaks the rules of the handshake: {0}")]
    Broken(&'static str),
    /// A reply that is too long.
    #[error(
        "the server answers option {option} with {count} bytes, and {REPLY_BYTES_MAX} are the most"
    )]
    TooLong {
        /// The option.
        option: u32,
        /// As it says.
        count: u32,
    },
    /// There is no end.
    #[error("the server answers option {option} more than {REPLIES_MAX} times")]
    Endless {
        /// The option.
        option: u32,
    },
    /// No such export.
    #[error("Requested export not available: '{export}'{}", said(sentence))]
    NoExport {
        /// Its name.
        export: String,
        /// What the server says.
        sentence: String,
    },
    /// Not for us.
    #[error("the server refuses option {option} with error {code:#x}{}", said(sentence))]
    Refused {
        /// The option.
        option: u32,
        /// Its error.
        code: u32,
        /// What it says.
        sentence: String,
    },
    /// Only with TLS.
    #[error("Server requires TLS for option {option}: give tls-creds")]
    NeedsTls {
        /// The option.
        option: u32,
    },
    /// It has no TLS.
    #[error("the server has no TLS, which tls-creds asks for")]
    NoTls,
    /// Sizes that cannot be.
    #[error(transparent)]
    Terms(#[from] TermsError),
}

fn said(sentence: &str) -> String {
    if sentence.is_empty() { String::new() } else { format!("; it says: {sentence}") }
}

impl From<io::Error> for HandshakeError {
    fn from(error: io::Error) -> Self {
        Self::Connection(error)
    }
}

/// What a server greets with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Greeting {
    flags: u16,
}

impl Greeting {
    /// Reads a greeting, and answers.
    pub(crate) fn take(stream: &mut (impl Read + Write)) -> Result<Self, HandshakeError> {
        let magic = u64::from_be_bytes(read_array(stream)?);
        if magic != INIT_MAGIC {
            return Err(HandshakeError::NotNbd(magic));
        }
        match u64::from_be_bytes(read_array(stream)?) {
            OPTION_MAGIC => {}
            OLD_MAGIC => return Err(HandshakeError::OldStyle),
            _ => return Err(HandshakeError::Broken("it is neither old nor new")),
        }
        let flags = u16::from_be_bytes(read_array(stream)?);
        let known = handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES;
        stream.write_all(&u32::from(flags & known).to_be_bytes())?;
        stream.flush()?;
        Ok(Self { flags })
    }

    fn is_fixed(self) -> bool {
        self.flags & handshake::FIXED_NEWSTYLE != 0
    }

    /// Has the server begin TLS: the next byte is of that.
    pub(crate) fn start_tls(self, stream: &mut (impl Read + Write)) -> Result<(), HandshakeError> {
        if !self.is_fixed() {
            return Err(HandshakeError::NoTls);
        }
        ask(stream, option::STARTTLS, &[])?;
        match OptionReply::read(stream, option::STARTTLS)? {
            OptionReply { kind: reply::ACK, .. } => Ok(()),
            OptionReply { kind: reply::ERR_UNSUP | reply::ERR_POLICY, .. } => {
                Err(HandshakeError::NoTls)
            }
            other => Err(other.unexpected(option::STARTTLS)),
        }
    }

    /// Chooses an export; the transmission begins behind that.
    pub(crate) fn choose(
        self,
        stream: &mut (impl Read + Write),
        export: &str,
    ) -> Result<Terms, HandshakeError> {
        if !self.is_fixed() {
            return self.choose_old(stream, export, HeaderStyle::Simple, None);
        }
        let style = choose_style(stream)?;
        let allocation = match style {
            HeaderStyle::Simple => None,
            HeaderStyle::Structured | HeaderStyle::Extended => choose_context(stream, export)?,
        };
        let mut data = with_length(export);
        data.extend(1_u16.to_be_bytes());
        data.extend(info::BLOCK_SIZE.to_be_bytes());
        ask(stream, option::GO, &data)?;
        let mut told = Told::default();
        for _ in 0..REPLIES_MAX {
            let answer = OptionReply::read(stream, option::GO)?;
            match answer.kind {
                reply::INFO => told.take(&answer.data)?,
                reply::ACK => {
                    let nothing = HandshakeError::Broken("it says nothing of the export");
                    let (size, flags) = told.export.ok_or(nothing)?;
                    return Ok(Terms::check(size, flags, told.blocks, style, allocation)?);
                }
                reply::ERR_UNSUP => return self.choose_old(stream, export, style, allocation),
                reply::ERR_UNKNOWN => {
                    let (export, sentence) = (export.to_owned(), answer.sentence());
                    return Err(HandshakeError::NoExport { export, sentence });
                }
                _ => return Err(answer.unexpected(option::GO)),
            }
        }
        Err(HandshakeError::Endless { option: option::GO })
    }

    /// The same with the option that every server has, and that it can only refuse by going away.
    fn choose_old(
        self,
        stream: &mut (impl Read + Write),
        export: &str,
        style: HeaderStyle,
        allocation: Option<u32>,
    ) -> Result<Terms, HandshakeError> {
        ask(stream, option::EXPORT_NAME, export.as_bytes())?;
        let size = u64::from_be_bytes(read_array(stream)?);
        let flags = u16::from_be_bytes(read_array(stream)?);
        if self.flags & handshake::NO_ZEROES == 0 {
            let _zeroes: [u8; EXPORT_NAME_ZEROES] = read_array(stream)?;
        }
        Ok(Terms::check(size, flags, None, style, allocation)?)
    }
}

/// What was told of an export.
#[derive(Debug, Default)]
struct Told {
    export: Option<(u64, u16)>,
    blocks: Option<(u32, u32, u32)>,
}

impl Told {
    fn take(&mut self, data: &[u8]) -> Result<(), HandshakeError> {
        let mut fields = Fields(data);
        let broken = HandshakeError::Broken("what it says of the export is cut off");
        match fields.u16() {
            Some(info::EXPORT) => {
                let told = fields.u64().zip(fields.u16());
                self.export = Some(told.filter(|_| fields.0.is_empty()).ok_or(broken)?);
            }
            Some(info::BLOCK_SIZE) => {
                let sizes = fields.u32().zip(fields.u32()).zip(fields.u32());
                let sizes = sizes.filter(|_| fields.0.is_empty()).ok_or(broken)?;
                let ((minimum, preferred), maximum) = sizes;
                self.blocks = Some((minimum, preferred, maximum));
            }
            // Whoever tells more than was asked for.
            Some(_) => {}
            None => return Err(broken),
        }
        Ok(())
    }
}

/// The newest kind of headers that the server has.
fn choose_style(stream: &mut (impl Read + Write)) -> Result<HeaderStyle, HandshakeError> {
    let styles = [
        (option::EXTENDED_HEADERS, HeaderStyle::Extended),
        (option::STRUCTURED_REPLY, HeaderStyle::Structured),
    ];
    for (option, style) in styles {
        ask(stream, option, &[])?;
        let answer = OptionReply::read(stream, option)?;
        match answer.kind {
            reply::ACK => return Ok(style),
            reply::ERR_TLS_REQD => return Err(HandshakeError::NeedsTls { option }),
            kind if kind & reply::ERROR != 0 => {}
            _ => return Err(answer.unexpected(option)),
        }
    }
    Ok(HeaderStyle::Simple)
}

/// The number of the context that tells holes and zeroes, if the server has it.
fn choose_context(
    stream: &mut (impl Read + Write),
    export: &str,
) -> Result<Option<u32>, HandshakeError> {
    let mut data = with_length(export);
    data.extend(1_u32.to_be_bytes());
    data.extend(with_length(ALLOCATION));
    ask(stream, option::SET_META_CONTEXT, &data)?;
    let mut found = None;
    for _ in 0..REPLIES_MAX {
        let answer = OptionReply::read(stream, option::SET_META_CONTEXT)?;
        match answer.kind {
            reply::META_CONTEXT => {
                let mut fields = Fields(&answer.data);
                let id = fields.u32();
                if fields.0 != ALLOCATION.as_bytes() || found.is_some() {
                    return Err(HandshakeError::Broken("it has contexts that nobody asked for"));
                }
                found = id;
            }
            reply::ACK => return Ok(found),
            // GO says it better.
            kind if kind & reply::ERROR != 0 => return Ok(None),
            _ => return Err(answer.unexpected(option::SET_META_CONTEXT)),
        }
    }
    Err(HandshakeError::Endless { option: option::SET_META_CONTEXT })
}

fn with_length(text: &str) -> Vec<u8> {
    let count = u32::try_from(text.len()).expect("a string of the protocol is short");
    [&count.to_be_bytes()[..], text.as_bytes()].concat()
}

#[cfg(test)]
mod tests;
