//! Limits of bytes and operations per second, alone or for several disks together (driver `throttle`).
//!
//! Where it stands in the life of a request: a request that is within the limits passes to the node
//! below; others wait until they are. Flushes pass always.
//!
//! A request pays from its lane's *lease* (`queue`). Leases come from the *buckets* that all iothreads share
//! (`bucket`): each limit of a group is one atomic number, up to when its rate is spent. A lease is 1 ms of the rate or
//! more, so one usually pays for many requests, and limits that do not limit cost little: most requests neither read
//! the clock nor write what is shared. When nothing is left in a bucket, a lane reserves what comes next: that moves
//! the number into the future, and the reservation is good from where the number was. So reservations queue up without
//! a lock or a list.
//!
//! Disks share a limit evenly because all lanes of a disk together have at most one reservation in the future, for
//! which they take turns (`member`), and because all reservations are of one size while several disks wait: 1 ms of the
//! rate, or one operation or 4 KiB if that is more. A request that needs more gathers several reservations; one that
//! needs less leaves a lease. A disk whose threads were late may take more to catch up.
//!
//! Invariants: what passes is what the limits allow, and bursts. Every disk of a group gets the same share of
//! what is scarce, or less if it asks for less. Nothing waits for ever: each lane looks at what it
//! holds by itself, whatever other threads do.
//! Not here: what the options are called on the command line (`daemon`), time (`iothread`).

mod bucket;
mod bucket_set;
mod group;
mod lane;
mod limits;
mod member;
mod queue;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use block::{Access, Child, Claim, ClaimError, Lane, LaneContext, LaneError, Node, Rights};

pub use group::ThrottleGroup;
pub use limits::{
    Limit, LimitKind, LimitsError, THROTTLE_RATE_MAX, ThrottleLimits, ThrottleSettings,
};

use crate::child_node::same_as_child;
use lane::ThrottleLane;
use member::GroupMember;

/// A disk whose requests keep to the limits of a group.
#[derive(Debug)]
pub struct ThrottleNode {
    name: String,
    child: Arc<Child>,
    group: Arc<ThrottleGroup>,
    member: Arc<GroupMember>,
    access: Access,
}

impl ThrottleNode {
    /// Makes the node a member of the group.
    pub fn new(name: &str, child: Arc<Child>, group: Arc<ThrottleGroup>, access: Access) -> Self {
        let (name, member) = (name.to_owned(), Arc::new(GroupMember::default()));
        Self { name, child, group, member, access }
    }

    /// The group that it is a member of.
    pub fn group(&self) -> &Arc<ThrottleGroup> {
        &self.group
    }
}

impl Node for ThrottleNode {
    same_as_child!();

    fn claim(&self, rights: Rights) -> Result<Claim, ClaimError> {
        self.child.node().claim(rights)
    }

    fn open_lane(&self, io: &LaneContext) -> Result<Box<dyn Lane>, LaneError> {
        let below = self.child.node().open_lane(io)?;
        Ok(Box::new(ThrottleLane::new(&self.group, &self.member, below)))
    }
}
