//! The node: a disk of an NBD server, and what its lanes answer.
//!
//! Threads: shared by all; a lane belongs to its iothread. Limits: whoever flushes the node without a ring waits for
//! [`FLUSH_MAX`] at most.

mod flush;

use std::io;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use block::{
    Access, Answer, BatchPieces, BlockLimits, ByteCount, ByteOffset, ChannelId, Claim, ClaimError,
    DiskSize, Durability, FailKind, Lane, LaneContext, LaneError, LeafLane, Mapping, Node,
    Operation, Piece, PieceRange, Rights, Target, Unmap,
};
use nbd_wire::transmission;

use crate::channel::NbdChannel;
use crate::connector::ConnectError;
use crate::known_hosts::KnownHosts;
use crate::remote::{Remote, RemoteOptions};

/// How long a flush without a ring waits for the server.
const FLUSH_MAX: Duration = Duration::from_secs(30);

/// The largest physical block that guests are told, whatever a server likes.
const PHYSICAL_MAX: u32 = 1 << 16;

/// Whether discards reach the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnDiscard {
    /// They complete without any effect.
    Ignore,
    /// They give space back.
    Unmap,
}

/// Whether flushes reach the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnFlush {
    /// They complete without any effect.
    Ignore,
    /// They make durable what was written.
    Obey,
}

/// How a node uses its export.
#[derive(Debug, Clone, Copy)]
pub struct NbdNodeOptions {
    /// Whether it takes changes.
    pub access: Access,
    /// What a discard does.
    pub discard: OnDiscard,
    /// What a flush does.
    pub flush: OnFlush,
}

/// The node cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum NbdNodeError {
    /// No connection.
    #[error("NBD export {uri}")]
    Connect {
        /// Which.
        uri: String,
        /// Why.
        #[source]
        source: ConnectError,
    },
    /// The server takes no changes. QEMU's sentence.
    #[error("NBD export {uri}: request for write access denied; read-only=on reads it")]
    ReadOnly {
        /// Which.
        uri: String,
    },
}

/// A disk of an NBD server.
#[derive(Debug)]
pub struct NbdNode {
    name: String,
    remote: Arc<Remote>,
    options: NbdNodeOptions,
}

impl NbdNode {
    /// Connects and shakes hands. Blocks, for `open-timeout` or one attempt.
    pub fn open(
        name: &str,
        remote: RemoteOptions,
        options: NbdNodeOptions,
        hosts: &KnownHosts,
    ) -> Result<Self, NbdNodeError> {
        let uri = remote.address.uri(&remote.export);
        let remote = Remote::open(remote, hosts)
            .map_err(|source| NbdNodeError::Connect { uri: uri.clone(), source })?;
        if options.access == Access::ReadWrite && remote.terms.has(transmission::READ_ONLY) {
            return Err(NbdNodeError::ReadOnly { uri });
        }
        Ok(Self { name: name.to_owned(), remote, options })
    }

    /// Whether each iothread has a connection of its own.
    pub fn has_several_connections(&self) -> bool {
        self.remote.shared.is_none()
    }
}

impl Node for NbdNode {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> DiskSize {
        DiskSize(ByteCount(self.remote.terms.size))
    }

    fn limits(&self) -> BlockLimits {
        let terms = &self.remote.terms;
        let least = NonZeroU32::new(512).expect("512 is not zero");
        let at_least = |bytes: u32| NonZeroU32::new(bytes).map_or(least, |bytes| bytes.max(least));
        let discards = self.options.discard == OnDiscard::Unmap;
        BlockLimits {
            request_alignment: at_least(terms.minimum),
            physical_block: at_least(terms.preferred.min(PHYSICAL_MAX)),
            discard: discards && terms.has(transmission::SEND_TRIM),
            discard_granularity: at_least(terms.minimum),
            allocation_unit: at_least(terms.minimum),
        }
    }

    fn access(&self) -> Access {
        self.options.access
    }

    fn flush(&self) -> io::Result<()> {
        match self.options.flush {
            OnFlush::Ignore => Ok(()),
            OnFlush::Obey => flush::flush(&self.remote, FLUSH_MAX),
        }
    }

    /// The protocol has no locks.
    fn claim(&self, _: Rights) -> Result<Claim, ClaimError> {
        Ok(Claim::nothing())
    }

    fn open_lane(&self, io: &LaneContext) -> Result<Box<dyn Lane>, LaneError> {
        let channel = io.enter(Box::new(NbdChannel::new(&self.remote, io.waker())));
        Ok(Box::new(NbdLane { channel, options: self.options }))
    }
}

/// One iothread's handle on an [`NbdNode`].
#[derive(Debug)]
struct NbdLane {
    channel: ChannelId,
    options: NbdNodeOptions,
}

impl LeafLane for NbdLane {
    fn answer(&mut self, mapping: &mut Mapping, pieces: &mut BatchPieces) {
        let NbdNodeOptions { access, discard, flush } = self.options;
        if mapping.operation.is_change() && access == Access::ReadOnly {
            mapping.answer = Answer::Refused(FailKind::ReadOnly);
            return;
        }
        if flush == OnFlush::Ignore {
            mapping.operation = cached(mapping.operation);
        }
        let ignores_discards = discard == OnDiscard::Ignore;
        mapping.answer = Answer::Now(match mapping.operation {
            Operation::Flush if flush == OnFlush::Ignore => pieces.none(),
            Operation::Discard(..) if ignores_discards => pieces.none(),
            Operation::WriteZeroes(extent, Unmap::Allowed, durability) if ignores_discards => {
                mapping.operation = Operation::WriteZeroes(extent, Unmap::Keep, durability);
                self.whole(pieces, extent.count(), extent.start())
            }
            Operation::Read(extent)
            | Operation::Status(extent)
            | Operation::Write(extent, _)
            | Operation::Discard(extent, _)
            | Operation::WriteZeroes(extent, _, _) => {
                self.whole(pieces, extent.count(), extent.start())
            }
            Operation::Flush => self.whole(pieces, ByteCount(0), ByteOffset(0)),
        });
    }

    fn locate(&mut self, operation: Operation) -> Option<Target> {
        let NbdNodeOptions { access, flush, .. } = self.options;
        let offset = match operation {
            Operation::Read(extent) => extent.start(),
            Operation::Write(extent, durability)
                if access == Access::ReadWrite
                    && (durability == Durability::Cached || flush == OnFlush::Obey) =>
            {
                extent.start()
            }
            Operation::Write(..)
            | Operation::Status(_)
            | Operation::Discard(..)
            | Operation::WriteZeroes(..)
            | Operation::Flush => return None,
        };
        Some(Target::Channel { channel: self.channel, offset })
    }
}

impl NbdLane {
    fn whole(&self, pieces: &mut BatchPieces, count: ByteCount, offset: ByteOffset) -> PieceRange {
        let target = Target::Channel { channel: self.channel, offset };
        pieces.one(Piece { skip: 0, count, target })
    }
}

/// The same change, complete as soon as the server has it.
fn cached(operation: Operation) -> Operation {
    match operation {
        Operation::Read(_) | Operation::Status(_) | Operation::Flush => operation,
        Operation::Write(extent, _) => Operation::Write(extent, Durability::Cached),
        Operation::Discard(extent, _) => Operation::Discard(extent, Durability::Cached),
        Operation::WriteZeroes(extent, unmap, _) => {
            Operation::WriteZeroes(extent, unmap, Durability::Cached)
        }
    }
}
