//! What client and server have agreed on when the transmission begins.
//!
//! Invariants: sizes are such that a medium can be made of them: the smallest is a power of two, the size of the disk a
//! multiple of it, the largest at least as large.

use nbd_wire::transmission;

/// How requests and replies begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum HeaderStyle {
    /// Compact requests, simple replies.
    Simple,
    /// Compact requests, structured replies.
    Structured,
    /// Extended headers both ways: lengths have 64 bits.
    Extended,
}

/// The largest smallest block that is taken: as the specification has it.
const MINIMUM_MAX: u32 = 1 << 16;

/// The most data of a request if the server says nothing.
const MAXIMUM_DEFAULT: u32 = 32 << 20;

/// What suits a server that says nothing.
const PREFERRED_DEFAULT: u32 = 4096;

/// What a server says of an export that cannot be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TermsError {
    /// A size that no disk has.
    #[error("the server says that the export has {0} bytes")]
    Size(u64),
    /// Block sizes against the rules.
    #[error(
        "the server's block sizes make no sense: minimum {minimum}, preferred {preferred}, maximum {maximum}"
    )]
    Blocks {
        /// The smallest.
        minimum: u32,
        /// What it likes.
        preferred: u32,
        /// The largest.
        maximum: u32,
    },
    /// The size does not fit the blocks. QEMU's sentence.
    #[error("export length {size} is not multiple of minimum block size {minimum}")]
    Uneven {
        /// Of the export.
        size: u64,
        /// The smallest block.
        minimum: u32,
    },
}

/// What client and server have agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Terms {
    /// The bytes of the disk.
    pub(crate) size: u64,
    /// What the server can do, `NBD_FLAG_*`.
    pub(crate) flags: u16,
    /// How requests and replies begin.
    pub(crate) style: HeaderStyle,
    /// What requests must be multiples of.
    pub(crate) minimum: u32,
    /// What requests should be multiples of.
    pub(crate) preferred: u32,
    /// The most data of a request.
    pub(crate) maximum: u32,
    /// The number of the context `base:allocation`, if it was agreed on.
    pub(crate) allocation: Option<u32>,
}

impl Terms {
    /// Checks what a server says; `blocks` are minimum, preferred and maximum, if it says them.
    pub(crate) fn check(
        size: u64,
        flags: u16,
        blocks: Option<(u32, u32, u32)>,
        style: HeaderStyle,
        allocation: Option<u32>,
    ) -> Result<Self, TermsError> {
        if i64::try_from(size).is_err() {
            return Err(TermsError::Size(size));
        }
        let (minimum, preferred, maximum) = blocks.unwrap_or_else(|| {
            // It has to take any bytes, and keeps to sectors rather.
            let minimum = if size.is_multiple_of(512) { 512 } else { 1 };
            (minimum, PREFERRED_DEFAULT, MAXIMUM_DEFAULT)
        });
        let is_whole = |bytes: u32| bytes == u32::MAX || bytes.is_multiple_of(minimum);
        let fits = minimum.is_power_of_two()
            && minimum <= MINIMUM_MAX
            && preferred.is_power_of_two()
            && preferred >= minimum
            && is_whole(maximum)
            && maximum >= minimum;
        if !fits {
            return Err(TermsError::Blocks { minimum, preferred, maximum });
        }
        if !size.is_multiple_of(minimum.into()) {
            return Err(TermsError::Uneven { size, minimum });
        }
        Ok(Self { size, flags, style, minimum, preferred, maximum, allocation })
    }

    /// Whether the server has this flag.
    pub(crate) fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// Whether it is the same disk, able to do the same, as far as that can be told.
    pub(crate) fn is_same_disk(&self, other: &Self) -> bool {
        // These depend on what else was agreed on.
        let ignored = transmission::SEND_DF | transmission::BLOCK_STATUS_PAYLOAD;
        let same = |it: &Self| (it.size, it.flags & !ignored, it.minimum, it.maximum);
        same(self) == same(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(size: u64, blocks: Option<(u32, u32, u32)>, expected: Result<(u32, u32), &str>) {
        let found = Terms::check(size, 1, blocks, HeaderStyle::Simple, None);
        let found = found.map(|it| (it.minimum, it.maximum)).map_err(|error| error.to_string());
        match expected {
            Ok(sizes) => assert_eq!(found, Ok(sizes)),
            Err(part) => assert!(found.as_ref().is_err_and(|it| it.contains(part)), "{found:?}"),
        }
    }

    #[test]
    fn sizes_are_those_of_the_specification_or_refused() {
        check(1 << 20, None, Ok((512, 32 << 20)));
        check(1000, None, Ok((1, 32 << 20)));
        check(1 << 20, Some((4096, 4096, 65536)), Ok((4096, 65536)));
        check(1 << 20, Some((1, 4096, u32::MAX)), Ok((1, u32::MAX)));
        check(1 << 63, None, Err("9223372036854775808 bytes"));
        check(1 << 20, Some((0, 4096, 65536)), Err("make no sense"));
        check(1 << 20, Some((3, 4096, 65536)), Err("make no sense"));
        check(1 << 20, Some((1 << 17, 1 << 17, 1 << 20)), Err("make no sense"));
        check(1 << 20, Some((4096, 512, 65536)), Err("make no sense"));
        check(1 << 20, Some((4096, 4096, 5000)), Err("make no sense"));
        check(4096 + 512, Some((4096, 4096, 65536)), Err("not multiple"));
    }
}
