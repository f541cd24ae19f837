//! Operations that are taken back before anybody has begun them.
//!
//! Where it stands in the life of a request: at its end, if its front end does not want it any more. What the kernel has
//! it keeps: it lets go of no transfer of a file.

use block::Tag;

use super::{Kernel, RetryDecision};
use crate::completion_kind::WITHDRAWN;
use crate::in_flight::SlotIndex;

impl Kernel {
    /// Takes back the reads and writes with such tags that nobody has begun: they fail ([`crate::is_withdrawn`]). The others
    /// go on. Looks at all that is in flight.
    pub fn withdraw(&mut self, is_it: impl Fn(Tag) -> bool) {
        for (index, file) in self.in_flight.with_tags(is_it) {
            let is_it = |waiting: &SlotIndex| *waiting == index;
            if !self.cached.withdraw(file.0 as usize, is_it).is_empty()
                || self.workers.withdraw(index, file)
            {
                let decision = self.conclude(index, (-WITHDRAWN.raw_os_error()).into());
                assert_eq!(decision, RetryDecision::Done, "nobody begins it any more");
            }
        }
    }
}
