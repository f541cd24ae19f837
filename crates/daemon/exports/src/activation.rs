//! When an export holds its node: always, or only while it serves rings (`active=off`).
//!
//! An inactive node is what live migration needs: two daemons offer one image to the two halves of
//! a migration, and only the one whose half runs the guest has it. The first ring that is started
//! activates the node, which takes its locks; when the last one has been stopped (GET_VRING_BASE; not
//! while rings pause for a change of cache mode or wait for their memory), what was written is made
//! durable and the locks are given back, before the front end hears that it has stopped.
//!
//! Invariants: no ring is served without a claim. If the flush fails the claim stays, so that nobody
//! goes on with an image that lacks something.
//! Threads: the thread of the export's session, which may wait for a lock as a starting daemon does;
//! the end of the connection ends the wait, and so does another process that wants to go on with the
//! export, which then waits itself.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use block::{Claim, Clock, LogRateLimit, Node, Rights};
use kernel_io::Notifier;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

use crate::claim::{
    ExportClaimError, InterruptibleWait, LOCK_WAIT_MAX, WaitPolicy, WaitResult, claim,
};
use crate::connection::Connection;

/// When an export claims its node: always, or only while it serves rings (`active=off`).
#[derive(Debug)]
pub enum ActivationPolicy {
    /// As long as there is the export; whoever built it has the claim.
    Always,
    /// While it serves rings.
    WhileServed(Box<OnDemandClaim>),
}

/// A claim that an export takes with its first ring and gives back after its last.
#[derive(Debug)]
pub struct OnDemandClaim {
    rights: Rights,
    clock: Arc<dyn Clock>,
    slot: Mutex<ClaimSlot>,
}

/// The claim, if there is one now, and the rate of log lines about it.
#[derive(Debug, Default)]
struct ClaimSlot {
    claim: Option<Claim>,
    rate: LogRateLimit,
}

/// A node could not be activated.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ActivateError {
    /// Its image is not to be had.
    #[error(transparent)]
    Claim(#[from] ExportClaimError),
    /// Its image is not what it was.
    #[error("node {node} cannot be activated")]
    Refresh {
        /// The node-name.
        node: String,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// A node could not be inactivated: it stays active.
#[derive(Debug, thiserror::Error)]
#[error("node {node} stays active, because its last flush failed")]
pub struct InactivateError {
    node: String,
    #[source]
    source: io::Error,
}

impl OnDemandClaim {
    pub(crate) fn new(rights: Rights, clock: Arc<dyn Clock>) -> Self {
        Self { rights, clock, slot: Mutex::default() }
    }

    /// Whether there is a claim. A session that waits for one just now has none.
    pub fn is_held(&self) -> bool {
        self.slot.try_lock().is_ok_and(|slot| slot.claim.is_some())
    }

    /// Holds a claim that was made in the place of another process.
    pub fn hold(&self, claim: Claim) {
        self.slot.lock().expect("no holder of this lock panics").claim = Some(claim);
    }
}

/// A lock on an on-demand claim: nobody takes or gives it back meanwhile.
#[derive(Debug)]
pub struct ClaimLock<'a> {
    slot: MutexGuard<'a, ClaimSlot>,
}

impl ClaimLock<'_> {
    /// The claim; none while no ring is served.
    pub fn claim(&mut self) -> &mut Option<Claim> {
        &mut self.slot.claim
    }
}

impl OnDemandClaim {
    /// Lets nobody claim or give back meanwhile; `None` while a session does so just now, which may
    /// take it as long as it waits for a lock.
    pub fn lock_claim(&self) -> Option<ClaimLock<'_>> {
        self.slot.try_lock().ok().map(|slot| ClaimLock { slot })
    }
}

/// Whether a node was activated, or that was postponed for a takeover.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "without its node no ring may be served"]
pub(crate) enum ActivationResult {
    /// The node is held.
    Held,
    /// It is not yet, and another process wants to go on with the export.
    Postponed,
}

impl ActivationPolicy {
    /// Called before the first ring is served. Blocks.
    pub(crate) fn begin(
        &self,
        export: &str,
        node: &dyn Node,
        mut wait: &ConnectionWait<'_>,
    ) -> Result<ActivationResult, ActivateError> {
        let Self::WhileServed(on_demand) = self else { return Ok(ActivationResult::Held) };
        let OnDemandClaim { rights, clock, slot } = &**on_demand;
        let mut slot = slot.lock().expect("no holder of this lock panics");
        if slot.claim.is_some() {
            return Ok(ActivationResult::Held);
        }
        let rate = &mut slot.rate;
        let policy = &mut WaitPolicy { limit: LOCK_WAIT_MAX, wait: &mut wait, rate };
        let claimed = match claim(export, node, *rights, &**clock, policy) {
            Err(ExportClaimError::Stopped(..)) if wait.is_wanted() => {
                return Ok(ActivationResult::Postponed);
            }
            claimed => claimed?,
        };
        claimed
            .refresh()
            .map_err(|source| ActivateError::Refresh { node: node.name().to_owned(), source })?;
        slot.claim = Some(claimed);
        tracing::debug!("export {export}: node {} is active", node.name());
        Ok(ActivationResult::Held)
    }

    /// Called after the last ring has been stopped, not for a pause; more than once does no harm. Blocks.
    pub fn end(&self, export: &str, node: &dyn Node) -> Result<(), InactivateError> {
        let Self::WhileServed(on_demand) = self else { return Ok(()) };
        let mut slot = on_demand.slot.lock().expect("no holder of this lock panics");
        let Some(claim) = &slot.claim else { return Ok(()) };
        claim.flush().map_err(|source| InactivateError { node: node.name().to_owned(), source })?;
        slot.claim = None;
        tracing::debug!("export {export}: node {} is inactive", node.name());
        Ok(())
    }
}

/// A wait that ends when the client disconnects, or another process wants to take over.
pub(crate) struct ConnectionWait<'a> {
    pub(crate) session: &'a Connection,
    pub(crate) freeze_notifier: &'a Notifier,
}

impl ConnectionWait<'_> {
    /// Whether another process wants to go on with the export, and there is a client to go on with.
    fn is_wanted(&self) -> bool {
        let [session, freeze_notifier] = self.poll(Duration::ZERO);
        freeze_notifier && !session
    }

    /// Waits until the session has ended, or the freezer rings; which of them is so.
    fn poll(&self, time: Duration) -> [bool; 2] {
        let time = rustix::event::Timespec::try_from(time).expect("a wait is short");
        // Of the connection only its end is told: it may be readable.
        let mut fds = [
            PollFd::new(self.session, PollFlags::RDHUP),
            PollFd::new(self.freeze_notifier, PollFlags::IN),
        ];
        match rustix::event::poll(&mut fds, Some(&time)) {
            Ok(_) | Err(Errno::INTR) => fds.map(|fd| !fd.revents().is_empty()),
            // Two descriptors are both open and need no memory of the kernel's, so this does not happen; if it
            // did, the limit of the wait would end it.
            Err(_) => [false; 2],
        }
    }
}

impl InterruptibleWait for &ConnectionWait<'_> {
    fn pause(&mut self, time: Duration) -> WaitResult {
        if self.poll(time) == [false; 2] { WaitResult::GoOn } else { WaitResult::Stop }
    }

    fn done(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    use block::{
        Access, BlockLimits, ByteCount, ClaimError, ClaimGuard, DiskSize, Lane, LaneContext,
        LaneError, RetryHint, SystemClock,
    };

    /// A node that notes what is done with claims on it.
    #[derive(Debug, Default)]
    struct Noting {
        notes: Arc<Mutex<Vec<&'static str>>>,
        /// What flushes and refreshes come to.
        broken: bool,
        /// Whether another process has it.
        taken: bool,
    }

    #[derive(Debug)]
    struct NotingClaim(Arc<Mutex<Vec<&'static str>>>, bool);

    impl NotingClaim {
        fn note(&self, what: &'static str) -> io::Result<()> {
            self.0.lock().unwrap().push(what);
            if self.1 { Err(io::Error::other("broken")) } else { Ok(()) }
        }
    }

    impl ClaimGuard for NotingClaim {
        fn flush(&self) -> io::Result<()> {
            self.note("flush")
        }

        fn refresh(&self) -> io::Result<()> {
            self.0.lock().unwrap().push("refresh");
            Ok(())
        }
    }

    impl Drop for NotingClaim {
        fn drop(&mut self) {
            self.0.lock().unwrap().push("give back");
        }
    }

    impl Node for Noting {
        fn name(&self) -> &str {
            "n"
        }

        fn size(&self) -> DiskSize {
            DiskSize(ByteCount(512))
        }

        fn limits(&self) -> BlockLimits {
            let block = 512.try_into().unwrap();
            BlockLimits {
                request_alignment: block,
                physical_block: block,
                discard: false,
                discard_granularity: block,
                allocation_unit: block,
            }
        }

        fn access(&self) -> Access {
            Access::ReadWrite
        }

        fn flush(&self) -> io::Result<()> {
            unreachable!("what is given back is flushed by its claim")
        }

        fn claim(&self, _: Rights) -> Result<Claim, ClaimError> {
            if self.taken {
                let (node, outlook) = ("n".to_owned(), RetryHint::Transient);
                return Err(ClaimError { node, outlook, source: "somebody has it".into() });
            }
            self.notes.lock().unwrap().push("claim");
            Ok(Claim::of(NotingClaim(Arc::clone(&self.notes), self.broken)))
        }

        fn open_lane(&self, _: &LaneContext) -> Result<Box<dyn Lane>, LaneError> {
            panic!("nothing is served")
        }
    }

    fn on_demand() -> ActivationPolicy {
        let rights = Rights::of_user(Access::ReadWrite);
        ActivationPolicy::WhileServed(Box::new(OnDemandClaim::new(rights, Arc::new(SystemClock))))
    }

    /// A session, nobody who wants to go on with it, and its client.
    fn session() -> (Connection, Notifier, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (Connection::new(ours), Notifier::new().unwrap(), theirs)
    }

    #[test]
    fn a_node_is_refreshed_when_it_comes_and_flushed_before_it_goes() {
        let (node, activation, (session, freeze_notifier, _client)) =
            (Noting::default(), on_demand(), session());
        let ours = &ConnectionWait { session: &session, freeze_notifier: &freeze_notifier };
        for _ in 0..2 {
            assert_eq!(activation.begin("e", &node, ours).unwrap(), ActivationResult::Held);
            assert_eq!(activation.begin("e", &node, ours).unwrap(), ActivationResult::Held);
            activation.end("e", &node).unwrap();
            let notes = std::mem::take(&mut *node.notes.lock().unwrap());
            assert_eq!(notes, ["claim", "refresh", "flush", "give back"]);
        }
    }

    #[test]
    fn a_node_whose_flush_failed_is_not_given_back() {
        let node = Noting { broken: true, ..Noting::default() };
        let (activation, (session, freeze_notifier, _client)) = (on_demand(), session());
        let ours = &ConnectionWait { session: &session, freeze_notifier: &freeze_notifier };
        assert_eq!(activation.begin("e", &node, ours).unwrap(), ActivationResult::Held);
        let error = activation.end("e", &node).unwrap_err();
        assert_eq!(error.to_string(), "node n stays active, because its last flush failed");
        assert_eq!(*node.notes.lock().unwrap(), ["claim", "refresh", "flush"]);
    }

    #[test]
    fn a_client_that_leaves_ends_the_wait() {
        let node = Noting { taken: true, ..Noting::default() };
        let (activation, (session, freeze_notifier, client)) = (on_demand(), session());
        let ours = &ConnectionWait { session: &session, freeze_notifier: &freeze_notifier };
        let leaving = std::thread::spawn(move || drop(client));
        let error = activation.begin("e", &node, ours).unwrap_err();
        assert!(matches!(error, ActivateError::Claim(ExportClaimError::Stopped(..))), "{error}");
        leaving.join().unwrap();
        assert!(node.notes.lock().unwrap().is_empty());
    }

    #[test]
    fn a_process_that_wants_the_export_ends_the_wait_and_what_was_asked_for_is_put_off() {
        let node = Noting { taken: true, ..Noting::default() };
        let (activation, (session, freeze_notifier, client)) = (on_demand(), session());
        let ours = &ConnectionWait { session: &session, freeze_notifier: &freeze_notifier };
        std::thread::scope(|scope| {
            scope.spawn(|| freeze_notifier.wake());
            assert_eq!(activation.begin("e", &node, ours).unwrap(), ActivationResult::Postponed);
        });
        // It is asked again after the pause, and there is no reason to put it off any more.
        freeze_notifier.clear();
        let free = Noting { notes: Arc::clone(&node.notes), ..Noting::default() };
        assert_eq!(activation.begin("e", &free, ours).unwrap(), ActivationResult::Held);
        activation.end("e", &free).unwrap();
        // A client that has left is not handed over.
        freeze_notifier.wake();
        drop(client);
        let error = activation.begin("e", &node, ours).unwrap_err();
        assert!(matches!(error, ActivateError::Claim(ExportClaimError::Stopped(..))), "{error}");
    }

    #[test]
    fn an_export_that_always_holds_its_node_leaves_it_alone() {
        let (node, (session, freeze_notifier, _client)) = (Noting::default(), session());
        let ours = &ConnectionWait { session: &session, freeze_notifier: &freeze_notifier };
        assert_eq!(
            ActivationPolicy::Always.begin("e", &node, ours).unwrap(),
            ActivationResult::Held
        );
        ActivationPolicy::Always.end("e", &node).unwrap();
        assert!(node.notes.lock().unwrap().is_empty());
    }
}
