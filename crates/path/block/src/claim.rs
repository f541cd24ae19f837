//! The right to use a node, taken before its first request and given back after its last.
//!
//! Where it stands: whoever offers a node to clients claims it. The node claims what it stands on,
//! down to the files, which take their locks against other processes.
//!
//! Invariants: a [`Claim`] gives back what it holds when it is dropped, once.

use std::error::Error;
use std::fmt::Debug;
use std::io;
use std::time::Duration;

use crate::Permissions;

/// Whether a node or a file is opened read-only or read-write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Reads and flushes only.
    ReadOnly,
    /// Everything.
    ReadWrite,
}

/// The permissions that a claim uses, and those it shares with others: QEMU's `perm` and `shared`. Claims on one node
/// never rule each other out: they share what it knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rights {
    /// What it does.
    pub uses: Permissions,
    /// What others may do.
    pub shares: Permissions,
}

impl Rights {
    /// What a disk's user needs: one that writes is the only one, one that reads bears with others.
    pub const fn of_user(access: Access) -> Self {
        match access {
            Access::ReadOnly => Self { uses: Permissions::READS, shares: Permissions::ALL },
            Access::ReadWrite => Self::unchanged_by_others(access),
        }
    }

    /// What a user needs that relies on what it knows of the storage.
    pub const fn unchanged_by_others(access: Access) -> Self {
        let uses = match access {
            Access::ReadOnly => Permissions::READS,
            Access::ReadWrite => Permissions::WRITES,
        };
        Self { uses, shares: Permissions::ALL.without(Permissions::CHANGES) }
    }
}

/// Which process owns an image while one takes over from the other: it alone writes, unlocks and closes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TakeoverOwner {
    /// This one.
    #[default]
    This,
    /// The other one.
    Other,
}

/// The right to use a node, down to the image locks of its files. Dropped, it is given back; drop it only when nothing
/// is in flight.
#[derive(Debug, Default)]
#[must_use = "dropped, the rights are given back"]
pub struct Claim {
    held: Vec<Box<dyn ClaimGuard>>,
}

/// One resource that a [`Claim`] holds, released when dropped.
pub trait ClaimGuard: Debug + Send + Sync {
    /// Makes durable what was written under it. Blocks.
    fn flush(&self) -> io::Result<()>;

    /// Forgets what was learnt before it was held, when others could change the storage; fails if
    /// the node is no longer what it was opened as. Blocks.
    fn refresh(&self) -> io::Result<()>;
}

impl Claim {
    /// Nothing: for storage that nobody else can reach.
    pub fn nothing() -> Self {
        Self::default()
    }

    /// One thing.
    pub fn of(held: impl ClaimGuard + 'static) -> Self {
        Self { held: vec![Box::new(held)] }
    }

    /// Makes durable what was written under the claim. Blocks. Tries all; the first error counts.
    pub fn flush(&self) -> io::Result<()> {
        let mut result = Ok(());
        for held in &self.held {
            result = result.and(held.flush());
        }
        result
    }

    /// Forgets what was learnt of the storage before it was claimed. Blocks.
    pub fn refresh(&self) -> io::Result<()> {
        self.held.iter().try_for_each(|held| held.refresh())
    }

    /// These and those of another claim.
    pub fn and(mut self, other: Self) -> Self {
        self.held.extend(other.held);
        self
    }
}

/// A node could not be claimed.
#[derive(Debug, thiserror::Error)]
#[error("node {node}")]
pub struct ClaimError {
    /// The node-name.
    pub node: String,
    /// Whether it is worth trying again.
    pub outlook: RetryHint,
    /// Why.
    #[source]
    pub source: Box<dyn Error + Send + Sync>,
}

/// Whether a claim that failed may succeed later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryHint {
    /// Another process has what is wanted and may give it back.
    Transient,
    /// The same, and if that process is gone, what it held is free after this time at the latest.
    TransientFor(Duration),
    /// It fails again.
    Permanent,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Permission;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[derive(Debug)]
    struct Counted(Arc<AtomicU32>);

    impl ClaimGuard for Counted {
        fn flush(&self) -> io::Result<()> {
            Ok(())
        }

        fn refresh(&self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_claim_gives_everything_back_once() {
        let returned = Arc::new(AtomicU32::new(0));
        let one = || Claim::of(Counted(Arc::clone(&returned)));
        let both = Claim::nothing().and(one()).and(one());
        assert_eq!(returned.load(Ordering::Relaxed), 0);
        drop(both);
        assert_eq!(returned.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_writer_wants_to_be_alone_and_a_reader_does_not() {
        let shares = |access| Rights::of_user(access).shares.has(Permission::Write);
        assert_eq!((shares(Access::ReadWrite), shares(Access::ReadOnly)), (false, true));
    }
}
