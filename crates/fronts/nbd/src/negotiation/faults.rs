//! Why a negotiation cannot go on: what the log says of a client.
//!
//! Limits: names that a client has sent are cut to `SHOWN_MAX` characters.

use std::fmt;

/// How much of a name is shown.
const SHOWN_MAX: usize = 100;

/// Why a negotiation cannot go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NegotiationFault {
    /// Flags that nobody has offered.
    #[error("its handshake flags are {0:#x}, and 0x3 were offered")]
    ClientFlags(u32),
    /// No option begins so.
    #[error("an option begins with {0:#018x}")]
    OptionMagic(u64),
    /// An option from a client that has not agreed to send any.
    #[error("option {0} without fixed newstyle")]
    NotFixed(u32),
    /// Too many data, for which there is no reply.
    #[error("option {option} with {bytes} bytes of data")]
    OptionBytes {
        /// Which one.
        option: u32,
        /// What its header says.
        bytes: u32,
    },
    /// Too many options.
    #[error("more than {max} options", max = super::OPTIONS_MAX)]
    Options,
    /// Too much of everything.
    #[error("more than {max} bytes, and no export was chosen", max = super::RECEIVED_BYTES_MAX)]
    Bytes,
    /// Options without an end.
    #[error("options that wait for no reply")]
    Unread,
    /// More than was to be sent, before TLS or behind the end.
    #[error("bytes behind an option that has to be the last one")]
    Early,
    /// TLS is needed, and this option has no reply that could say so.
    #[error("an export was chosen without TLS")]
    PlainClient,
    /// That option does not go with extended headers.
    #[error("NBD_OPT_EXPORT_NAME after extended headers were agreed on")]
    ExportNameAfterExtended,
    /// No name.
    #[error("the name of the export is none")]
    ExportName,
    /// There is no such export, and no reply that could say so.
    #[error("there is no export {}", Shown(.0))]
    UnknownExport(String),
    /// Who chooses that export has to ask for its block sizes, and this option cannot.
    #[error("an export with blocks of {0} bytes was chosen with NBD_OPT_EXPORT_NAME")]
    BlockSizes(u32),
}

/// A name that a client has sent.
struct Shown<'a>(&'a str);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.char_indices().nth(SHOWN_MAX) {
            Some((end, _)) => write!(f, "{:?}…", &self.0[..end]),
            None => write!(f, "{:?}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_are_cut_and_odd_characters_written_out() {
        let sentence = |name: &str| NegotiationFault::UnknownExport(name.to_owned()).to_string();
        assert_eq!(sentence("disk\n1"), "there is no export \"disk\\n1\"");
        assert_eq!(
            sentence(&"ä".repeat(100)).chars().count(),
            "there is no export \"\"".len() + 100
        );
        assert!(sentence(&"ä".repeat(101)).ends_with("ä\"…"));
    }
}
