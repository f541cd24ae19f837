//! The numbers of NBD, by the names that the specification has for them.
//!
//! Where it stands: beside everything that reads or writes bytes of a connection, in the server (`nbd`) as in the client
//! (`nbd_client`). All numbers are big-endian on the wire.
//!
//! Not here: what they mean together. The specification is `doc/proto.md` of the project NetworkBlockDevice/nbd; extended
//! headers are described on its branch `extension-ext-header`.

#![forbid(unsafe_code)]

/// The first bytes that a server sends, `NBDMAGIC`.
pub const INIT_MAGIC: u64 = 0x4e42_444d_4147_4943;

/// What follows in the handshake of servers before fixed newstyle, which have one export and no options.
pub const OLD_MAGIC: u64 = 0x0000_4202_8186_1253;

/// What follows, and what each option begins with, `IHAVEOPT`.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;

/// What each reply to an option begins with.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;

/// The longest string, in bytes: names, descriptions, queries and sentences.
pub const STRING_BYTES_MAX: usize = 4096;

/// The zeroes behind the answer to `NBD_OPT_EXPORT_NAME`.
pub const EXPORT_NAME_ZEROES: usize = 124;

/// Handshake flags: what the server offers, and the client's answer to it has the same bits.
pub mod handshake {
    /// `NBD_FLAG_FIXED_NEWSTYLE`.
    pub const FIXED_NEWSTYLE: u16 = 1 << 0;
    /// `NBD_FLAG_NO_ZEROES`.
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// Transmission flags, `NBD_FLAG_*`.
pub mod transmission {
    /// Always set.
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// Changes are refused.
    pub const READ_ONLY: u16 = 1 << 1;
    /// `NBD_CMD_FLUSH` is understood.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// `NBD_CMD_FLAG_FUA` is understood.
    pub const SEND_FUA: u16 = 1 << 3;
    /// `NBD_CMD_TRIM` is understood.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// `NBD_CMD_WRITE_ZEROES` is understood.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// `NBD_CMD_FLAG_DF` is understood.
    pub const SEND_DF: u16 = 1 << 7;
    /// A flush covers what was answered on any connection.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// `NBD_CMD_CACHE` is understood.
    pub const SEND_CACHE: u16 = 1 << 10;
    /// `NBD_CMD_FLAG_FAST_ZERO` is understood.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
    /// A block status request may name the contexts it wants.
    pub const BLOCK_STATUS_PAYLOAD: u16 = 1 << 12;
}

/// Options, `NBD_OPT_*`.
pub mod option {
    /// Choose an export and begin the transmission.
    pub const EXPORT_NAME: u32 = 1;
    /// End the session.
    pub const ABORT: u32 = 2;
    /// List the exports.
    pub const LIST: u32 = 3;
    /// Begin TLS.
    pub const STARTTLS: u32 = 5;
    /// Describe an export.
    pub const INFO: u32 = 6;
    /// Describe an export and begin the transmission.
    pub const GO: u32 = 7;
    /// Use structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// List metadata contexts.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Choose metadata contexts.
    pub const SET_META_CONTEXT: u32 = 10;
    /// Use extended headers.
    pub const EXTENDED_HEADERS: u32 = 11;
}

/// Replies to options, `NBD_REP_*`.
pub mod reply {
    /// Done.
    pub const ACK: u32 = 1;
    /// An export.
    pub const SERVER: u32 = 2;
    /// Something about an export.
    pub const INFO: u32 = 3;
    /// A metadata context.
    pub const META_CONTEXT: u32 = 4;
    /// The bit of errors.
    pub const ERROR: u32 = 1 << 31;
    /// Not known.
    pub const ERR_UNSUP: u32 = ERROR + 1;
    /// Known, and forbidden here.
    pub const ERR_POLICY: u32 = ERROR + 2;
    /// Wrong.
    pub const ERR_INVALID: u32 = ERROR + 3;
    /// Only with TLS.
    pub const ERR_TLS_REQD: u32 = ERROR + 5;
    /// There is no such export.
    pub const ERR_UNKNOWN: u32 = ERROR + 6;
    /// Only for those who ask for block sizes.
    pub const ERR_BLOCK_SIZE_REQD: u32 = ERROR + 8;
    /// Too much.
    pub const ERR_TOO_BIG: u32 = ERROR + 9;
    /// Only with extended headers, or no way back from them.
    pub const ERR_EXT_HEADER_REQD: u32 = ERROR + 10;
}

/// What can be told of an export, `NBD_INFO_*`.
pub mod info {
    /// Size and transmission flags.
    pub const EXPORT: u16 = 0;
    /// The canonical name.
    pub const NAME: u16 = 1;
    /// For people.
    pub const DESCRIPTION: u16 = 2;
    /// What sizes suit it.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Requests.
pub mod request {
    /// What a compact request begins with.
    pub const MAGIC: u32 = 0x2560_9513;
    /// What an extended request begins with.
    pub const EXTENDED_MAGIC: u32 = 0x21e4_1c71;
    /// The header of a compact request.
    pub const COMPACT_BYTES: usize = 28;
    /// The header of an extended request.
    pub const EXTENDED_BYTES: usize = 32;
}

/// Commands, `NBD_CMD_*`.
pub mod command {
    /// Read.
    pub const READ: u16 = 0;
    /// Write.
    pub const WRITE: u16 = 1;
    /// End the session.
    pub const DISC: u16 = 2;
    /// Make durable what was answered.
    pub const FLUSH: u16 = 3;
    /// Discard.
    pub const TRIM: u16 = 4;
    /// Read soon.
    pub const CACHE: u16 = 5;
    /// Zero.
    pub const WRITE_ZEROES: u16 = 6;
    /// Tell what bytes are.
    pub const BLOCK_STATUS: u16 = 7;
}

/// Flags of commands, `NBD_CMD_FLAG_*`.
pub mod command_flag {
    /// Durable before it is answered.
    pub const FUA: u16 = 1 << 0;
    /// Zeroes that take storage.
    pub const NO_HOLE: u16 = 1 << 1;
    /// The data in one chunk.
    pub const DF: u16 = 1 << 2;
    /// One extent is enough.
    pub const REQ_ONE: u16 = 1 << 3;
    /// Zeroes only if that is quick.
    pub const FAST_ZERO: u16 = 1 << 4;
    /// Bytes follow the header, as many as its length says.
    pub const PAYLOAD_LEN: u16 = 1 << 5;
}

/// What replies begin with.
pub mod reply_magic {
    /// `NBD_SIMPLE_REPLY_MAGIC`.
    pub const SIMPLE: u32 = 0x6744_6698;
    /// `NBD_STRUCTURED_REPLY_MAGIC`.
    pub const STRUCTURED: u32 = 0x668e_33ef;
    /// `NBD_EXTENDED_REPLY_MAGIC`.
    pub const EXTENDED: u32 = 0x6e8a_278c;
}

/// Chunks of replies, `NBD_REPLY_TYPE_*`.
pub mod chunk {
    /// Nothing: the request went well.
    pub const NONE: u16 = 0;
    /// Data.
    pub const OFFSET_DATA: u16 = 1;
    /// Zeroes, which are not sent.
    pub const OFFSET_HOLE: u16 = 2;
    /// Block status.
    pub const BLOCK_STATUS: u16 = 5;
    /// Block status with numbers of 64 bits.
    pub const BLOCK_STATUS_EXT: u16 = 6;
    /// The bit of errors.
    pub const ERROR_BIT: u16 = 1 << 15;
    /// The request has failed.
    pub const ERROR: u16 = ERROR_BIT + 1;
    /// The request has failed at some place.
    pub const ERROR_OFFSET: u16 = ERROR_BIT + 2;
}

/// Flags of chunks, `NBD_REPLY_FLAG_*`.
pub mod chunk_flag {
    /// The last one of its reply.
    pub const DONE: u16 = 1 << 0;
}

/// What `base:allocation` tells, `NBD_STATE_*`.
pub mod state {
    /// No storage.
    pub const HOLE: u32 = 1 << 0;
    /// Zeroes.
    pub const ZERO: u32 = 1 << 1;
    /// Of `qemu:dirty-bitmap:`: dirty.
    pub const DIRTY: u32 = 1 << 0;
}

/// Errors, `NBD_E*`.
pub mod error {
    /// None.
    pub const NONE: u32 = 0;
    /// Not permitted.
    pub const EPERM: u32 = 1;
    /// Input or output.
    pub const EIO: u32 = 5;
    /// No memory.
    pub const ENOMEM: u32 = 12;
    /// Not valid.
    pub const EINVAL: u32 = 22;
    /// No space.
    pub const ENOSPC: u32 = 28;
    /// Too large.
    pub const EOVERFLOW: u32 = 75;
    /// Not supported.
    pub const ENOTSUP: u32 = 95;
    /// The server ends.
    pub const ESHUTDOWN: u32 = 108;
}

/// The fields of a message, taken off its front one after the other.
#[derive(Debug, Clone, Copy)]
pub struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    /// So many bytes; `None`, and nothing is taken, if there are fewer. So it is with the numbers.
    pub fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(bytes)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*bytes)
    }

    /// A number of 16 bits.
    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    /// A number of 32 bits.
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    /// A number of 64 bits.
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }
}
