//! How a batch of completions becomes visible: one order for both layouts.
//!
//! Where it stands in the life of a request: at its end. A ring stages completions and publishes
//! them together.
//!
//! Invariants: the driver sees nothing of a batch before [`Batch::show`] and all of it after. The
//! order is the one of vhost-user's "Inflight I/O tracking": whatever single store the process
//! dies after, the in-flight region tells a successor whether the batch was seen.

use crate::step::{Step, reached};

/// A completed chain that the driver has not been shown yet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Staged {
    /// Its head, or its buffer id in a packed ring.
    pub(crate) head: u16,
    /// How many bytes of its memory were written.
    pub(crate) written: u32,
    /// How many descriptors of the ring it has; only known of a packed ring, otherwise 1.
    pub(crate) descriptors: u16,
}

/// A ring with staged completions, at least one. Without an in-flight region `link`, `unmark` and
/// `commit` do nothing.
pub(crate) trait Batch {
    /// Names the chains in the in-flight region, and where the used ring will be.
    fn link(&mut self);
    /// Writes the used entries except for what makes them visible.
    fn write_used(&mut self);
    /// Makes them visible with one store.
    fn show(&mut self);
    /// Clears the marks of the chains.
    fn unmark(&mut self);
    /// Notes in the region that this is over.
    fn commit(&mut self);
}

/// Shows the driver what was staged.
#[inline]
pub(crate) fn publish(batch: &mut impl Batch) {
    batch.link();
    reached(Step::BatchLinked);
    batch.write_used();
    reached(Step::UsedWritten);
    batch.show();
    reached(Step::UsedPublished);
    batch.unmark();
    reached(Step::MarksCleared);
    batch.commit();
    reached(Step::BatchCommitted);
}
