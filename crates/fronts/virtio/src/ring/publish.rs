//! How a batch of completions becomes visible: one order for both layouts.
//!
//! Where it stands in the life of a request: at its end. A ring stages completions, each in a used
//! entry that the driver does not look at yet, and publishes them together.
//!
//! Invariants: the driver sees nothing of a batch before [`UsedBatch::show`] and all of it after. The
//! order is the one of vhost-user's "Inflight I/O tracking": whatever single store the process
//! dies after, the in-flight region tells a successor whether the batch was seen.

use crate::fault_point::{FaultPoint, reached};

/// A batch of staged completions, and the steps by which it becomes visible to the driver.
pub(crate) trait UsedBatch {
    /// Whether it has an in-flight region. Only then the other steps are taken.
    fn is_tracked(&self) -> bool;
    /// Names the chains in the region, and where the used ring will be.
    fn link(&mut self);
    /// Makes the used entries visible with one store.
    fn show(&mut self);
    /// Clears the marks of the chains.
    fn unmark(&mut self);
    /// Notes in the region that this is over.
    fn commit(&mut self);
}

/// Shows the driver what was staged.
#[inline]
pub(crate) fn publish(batch: &mut impl UsedBatch) {
    if !batch.is_tracked() {
        return batch.show();
    }
    batch.link();
    reached(FaultPoint::BatchLinked);
    batch.show();
    reached(FaultPoint::UsedPublished);
    batch.unmark();
    reached(FaultPoint::MarksCleared);
    batch.commit();
    reached(FaultPoint::BatchCommitted);
}
