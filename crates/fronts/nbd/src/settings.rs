//! What was agreed on when the transmission begins.
//!
//! Where it stands: the negotiation's result, and what a connection is made of.

use block::{Access, DiskSize, SECTOR_BYTES};

use crate::wire::transmission;
use crate::{BlockSizes, ExportOffer, ProtocolString};

/// How requests and replies begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum HeaderStyle {
    /// Compact requests, simple replies.
    Simple,
    /// Compact requests, structured replies.
    Structured,
    /// Extended headers both ways: lengths have 64 bits.
    Extended,
}

/// A metadata context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetaContext {
    /// `base:allocation`: holes and zeroes.
    BaseAllocation,
    /// `qemu:allocation-depth`: from how many backing files below.
    AllocationDepth,
}

impl MetaContext {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::BaseAllocation, Self::AllocationDepth];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::BaseAllocation => "base:allocation",
            Self::AllocationDepth => "qemu:allocation-depth",
        }
    }

    /// Its number on the wire, the same on all connections.
    pub fn id(self) -> u32 {
        match self {
            Self::BaseAllocation => 1,
            Self::AllocationDepth => 2,
        }
    }

    /// The one of that number.
    pub fn of_id(id: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|context| context.id() == id)
    }

    fn bit(self) -> u8 {
        match self {
            Self::BaseAllocation => 1,
            Self::AllocationDepth => 2,
        }
    }
}

/// A set of metadata contexts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MetaContexts(u8);

impl MetaContexts {
    /// With one more.
    #[must_use]
    pub fn with(self, context: MetaContext) -> Self {
        Self(self.0 | context.bit())
    }

    /// Those of both.
    #[must_use]
    pub fn and(self, others: Self) -> Self {
        Self(self.0 & others.0)
    }

    /// Whether this one is among them.
    pub fn has(self, context: MetaContext) -> bool {
        self.0 & context.bit() != 0
    }

    /// Whether there is none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Those that there are.
    pub fn iter(self) -> impl Iterator<Item = MetaContext> {
        MetaContext::ALL.into_iter().filter(move |context| self.has(*context))
    }
}

/// What an export can do for a client, `NBD_FLAG_*`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransmissionFlags(u16);

impl TransmissionFlags {
    /// What is told of an export to a client that uses those headers and contexts.
    ///
    /// One flush covers the completed writes of all connections, so several may be used at once where the server takes
    /// several. FAST_ZERO is not offered: whether zeroes have to be written is known only when a file has refused to make
    /// them otherwise.
    pub fn of(offer: &ExportOffer, style: HeaderStyle, contexts: MetaContexts) -> Self {
        let mut flags = transmission::HAS_FLAGS
            | transmission::SEND_FLUSH
            | transmission::SEND_FUA
            | transmission::SEND_CACHE;
        if offer.multi_conn {
            flags |= transmission::CAN_MULTI_CONN;
        }
        flags |= match offer.access {
            Access::ReadOnly => transmission::READ_ONLY,
            Access::ReadWrite => transmission::SEND_TRIM | transmission::SEND_WRITE_ZEROES,
        };
        if style >= HeaderStyle::Structured {
            flags |= transmission::SEND_DF;
        }
        if style == HeaderStyle::Extended && !contexts.is_empty() {
            flags |= transmission::BLOCK_STATUS_PAYLOAD;
        }
        Self(flags)
    }

    /// The bits.
    pub fn bits(self) -> u16 {
        self.0
    }
}

/// What client and server have agreed on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransmissionSettings {
    /// The canonical name of the export.
    pub export: ProtocolString,
    /// The size that the client was told: whole sectors.
    pub size: DiskSize,
    /// Whether the client may change it.
    pub access: Access,
    /// How requests and replies begin.
    pub style: HeaderStyle,
    /// What a block status tells.
    pub contexts: MetaContexts,
    /// What sizes the client may use.
    pub block_sizes: BlockSizes,
    /// What it was told that it may do.
    pub flags: TransmissionFlags,
}

impl TransmissionSettings {
    /// What a client is told of that export.
    pub(crate) fn of(offer: &ExportOffer, style: HeaderStyle, contexts: MetaContexts) -> Self {
        let mut size = offer.size;
        size.0.0 -= size.0.0 % SECTOR_BYTES;
        Self {
            export: offer.name.clone(),
            size,
            access: offer.access,
            style,
            contexts,
            block_sizes: offer.block_sizes,
            flags: TransmissionFlags::of(offer, style, contexts),
        }
    }
}
