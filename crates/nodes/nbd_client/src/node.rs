//! The node: a disk of an NBD server, and what its lanes answer.
//!
//! Threads: shared by all; a lane belongs to its iothread. Limits: whoever flushes the node without a ring waits for
//! [`FLUSH_MAX`] at most.

mod claim;
mod flush;

use std::io;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use block::{
    Access, BlockLimits, ByteCount, ChannelLane, Claim, ClaimError, DiscardPolicy, DiskSize,
    FlushPolicy, Lane, LaneContext, LaneError, Node, Permission, Rights, StoragePolicy,
};
use claim::WriteClaim;
use nbd_wire::transmission;

use crate::channel::NbdChannel;
use crate::connector::ConnectError;
use crate::known_hosts::KnownHosts;
use crate::remote::{Remote, RemoteOptions};

/// How long a flush without a ring waits for the server.
const FLUSH_MAX: Duration = Duration::from_secs(30);

/// The largest physical block that guests are told, whatever a server likes.
const PHYSICAL_MAX: u32 = 1 << 16;

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
    policy: StoragePolicy,
}

impl NbdNode {
    /// Connects and shakes hands. Blocks, for `open-timeout` or one attempt.
    pub fn open(
        name: &str,
        remote: RemoteOptions,
        policy: StoragePolicy,
        hosts: &KnownHosts,
    ) -> Result<Self, NbdNodeError> {
        let uri = remote.address.uri(&remote.export);
        let remote = Remote::open(remote, hosts)
            .map_err(|source| NbdNodeError::Connect { uri: uri.clone(), source })?;
        if policy.access == Access::ReadWrite && remote.terms.has(transmission::READ_ONLY) {
            return Err(NbdNodeError::ReadOnly { uri });
        }
        Ok(Self { name: name.to_owned(), remote, policy })
    }

    /// Whether there are changes that only a flush makes durable.
    pub fn needs_flush(&self) -> bool {
        self.policy.flushes == FlushPolicy::Obeyed && self.remote.needs_flush()
    }

    /// Server and export, as messages call them.
    pub fn uri(&self) -> &str {
        self.remote.medium.name()
    }

    /// For how long a connection that is needed has been lost, or could not be made; nothing if all are there. While nobody
    /// uses the node, nobody knows.
    pub fn disconnected(&self, now: Instant) -> Duration {
        self.remote.disconnected(now)
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
        let discards = self.policy.discard == DiscardPolicy::Unmap;
        BlockLimits {
            request_alignment: at_least(terms.minimum),
            physical_block: at_least(terms.preferred.min(PHYSICAL_MAX)),
            discard: discards && terms.has(transmission::SEND_TRIM),
            discard_granularity: at_least(terms.minimum),
            allocation_unit: at_least(terms.minimum),
        }
    }

    fn access(&self) -> Access {
        self.policy.access
    }

    fn flush(&self) -> io::Result<()> {
        match self.policy.flushes {
            FlushPolicy::Ignored => Ok(()),
            FlushPolicy::Obeyed => flush::flush(&self.remote, FLUSH_MAX),
        }
    }

    /// The protocol has no locks: nobody is kept out.
    fn claim(&self, rights: Rights) -> Result<Claim, ClaimError> {
        if self.access() == Access::ReadWrite && rights.uses.has(Permission::Write) {
            return Ok(Claim::of(WriteClaim::new(&self.remote, self.policy.flushes)));
        }
        Ok(Claim::nothing())
    }

    fn open_lane(&self, io: &LaneContext) -> Result<Box<dyn Lane>, LaneError> {
        let channel = io.enter(Box::new(NbdChannel::new(&self.remote, io.waker())));
        Ok(Box::new(ChannelLane { channel, policy: self.policy }))
    }
}
