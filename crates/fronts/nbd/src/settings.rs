//! What was agreed on when the transmission begins.
//!
//! Where it stands: the negotiation's result, and what a connection is made of.

use std::borrow::Cow;

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
    /// `qemu:dirty-bitmap:NAME`: what a bitmap of the export has marked. Its number among them, below [`BITMAPS_MAX`].
    DirtyBitmap(u8),
}

/// The most bitmaps that an export shows.
pub const BITMAPS_MAX: usize = 30;

/// What the names of their contexts begin with.
const BITMAP_PREFIX: &str = "qemu:dirty-bitmap:";

impl MetaContext {
    /// All that there can be.
    pub fn all() -> impl Iterator<Item = Self> {
        (1..=2 + u32::try_from(BITMAPS_MAX).expect("few")).filter_map(Self::of_id)
    }

    /// Its name, as one of that export.
    pub fn name(self, offer: &ExportOffer) -> Cow<'static, str> {
        match self {
            Self::BaseAllocation => "base:allocation".into(),
            Self::AllocationDepth => "qemu:allocation-depth".into(),
            Self::DirtyBitmap(number) => {
                let name = offer.bitmaps.get(usize::from(number)).map_or("", String::as_str);
                format!("{BITMAP_PREFIX}{name}").into()
            }
        }
    }

    /// Its number on the wire, the same on all connections.
    pub fn id(self) -> u32 {
        match self {
            Self::BaseAllocation => 1,
            Self::AllocationDepth => 2,
            Self::DirtyBitmap(number) => 3 + u32::from(number),
        }
    }

    /// The one of that number.
    pub fn of_id(id: u32) -> Option<Self> {
        match id {
            1 => Some(Self::BaseAllocation),
            2 => Some(Self::AllocationDepth),
            _ => {
                let number = u8::try_from(id.checked_sub(3)?).ok()?;
                (usize::from(number) < BITMAPS_MAX).then_some(Self::DirtyBitmap(number))
            }
        }
    }

    fn bit(self) -> u32 {
        1 << (self.id() - 1)
    }
}

/// A set of metadata contexts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MetaContexts(u32);

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

    /// How many there are.
    pub fn count(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Those that there are.
    pub fn iter(self) -> impl Iterator<Item = MetaContext> {
        MetaContext::all().filter(move |context| self.has(*context))
    }
}

/// What an export can do for a client, `NBD_FLAG_*`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransmissionFlags(u16);

impl TransmissionFlags {
    /// What is told of an export to a client that uses those headers and contexts.
    ///
    /// One flush covers the completed writes of all connections, so several may be used at once where the server takes
    /// several. Whether zeroes are fast is known only when they were asked for: FAST_ZERO is offered, and refused then, as by
    /// QEMU's server.
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
            Access::ReadWrite => {
                transmission::SEND_TRIM
                    | transmission::SEND_WRITE_ZEROES
                    | transmission::SEND_FAST_ZERO
            }
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
