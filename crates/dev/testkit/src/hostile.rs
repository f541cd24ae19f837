//! The hostile campaign: one daemon, attackers on most of its exports, and beside them clients that keep all rules and
//! must notice nothing.
//!
//! Where it stands: `campaign` starts the daemon and everybody else, and judges; `service` is what all threads know of
//! the daemon; `bystander` is a client whose data and times are checked; `attacks` has the table of attacks, each in the
//! file of its family; `operator` replaces, kills and starts the daemon meanwhile; `waiter` waits for image locks that it
//! must never get; `watch` holds what the daemon has against bounds; `disks` makes what is served.
//!
//! What can go wrong, and what shows it:
//! - a bystander gets a wrong byte, an error, or an answer twice: `Survivor`, at once or in its image at the end;
//! - it waits: for one request more than [`STALL_MAX`], or at the 99th percentile of a window more than its own quiet run
//!   allows (`bystander`);
//! - it is hung up on, or the daemon ends without a kill (`operator`);
//! - the daemon grows, or keeps what attackers left (`watch`), or writes lines without a bound (`operator`);
//! - somebody else gets an image that is served (`waiter`);
//! - the daemon does not end when it is asked to, or not even when it is killed (`operator`).
//!
//! Not here: single attacks with their exact outcomes, which are tests of `ringloom` (`hostile::`).

mod attacks;
mod bystander;
pub mod campaign;
mod disks;
mod operator;
mod service;
mod waiter;
mod watch;

use std::time::Duration;

/// The longest that a request of a bystander may take, whatever is done to others.
pub const STALL_MAX: Duration = Duration::from_secs(5);
