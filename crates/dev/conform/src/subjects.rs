//! What is tested: one file for each kind of node.

mod copy_before_write;
mod copy_on_read;
mod delay;
mod file;
mod nbd;
mod null;
mod raw;
mod rbd;
mod recorder;
mod remote;
mod stripe;
mod throttle;
mod twice;

use std::sync::Arc;

use testkit::conformance::stack::Subject;

pub(crate) use file::{FileEnd, Medium};
pub(crate) use nbd::NbdEnd;
pub(crate) use rbd::RbdEnd;
pub(crate) use remote::RemoteEnd;
pub(crate) use twice::Twice;

/// How time passes in a form of the suite: it bounds what may be held for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// It jumps: an hour costs nothing.
    Jumping,
    /// As it does.
    Real,
}

/// All kinds of nodes but those that end in a file or behind a channel.
pub(crate) fn all(pace: Pace) -> Vec<Arc<dyn Subject>> {
    vec![
        Arc::new(null::Null { pace }),
        Arc::new(raw::Raw),
        Arc::new(throttle::Throttle(pace)),
        Arc::new(delay::Delay(pace)),
        Arc::new(stripe::Stripe),
        Arc::new(copy_on_read::CopyOnRead),
        Arc::new(recorder::Recorder),
        Arc::new(copy_before_write::CopyBeforeWrite),
    ]
}
