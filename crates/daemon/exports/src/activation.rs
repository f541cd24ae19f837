//! When an export holds its node: always, or only while it serves rings (`active=off`).
//!
//! An inactive node is what live migration needs: two daemons offer one image to the two halves of
//! a migration, and only the one whose half runs the guest has it. The first ring that is started
//! activates the node, which takes its locks; when the last one has been stopped (GET_VRING_BASE; not
//! while rings pause for a change of cache mode or wait for their memory), what was written is made
//! durable and the locks are given back, before the front end hears that it has stopped.
//!
//! A command may change which of both it is (`blockdev-set-active`).
//!
//! Invariants: no ring is served without a claim. If the flush fails the claim stays, so that nobody
//! goes on with an image that lacks something.
//! Threads: the thread of the export's session, which may wait for a lock as a starting daemon does;
//! the end of the connection ends the wait, and so does another process that wants to go on with the
//! export, which then waits itself.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use block::{Claim, Clock, LogRateLimit, Node, Rights};
use graph::Activity;
use kernel_io::Notifier;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

use crate::claim::{
    ExportClaimError, InterruptibleWait, LOCK_WAIT_MAX, WaitPolicy, WaitResult, claim,
};
use crate::connection::Connection;

/// The claim of an export on its node: from its start to its end, or only while it serves rings (`active=off`).
#[derive(Debug)]
pub struct ExportClaim {
    export: String,
    node: Arc<dyn Node>,
    rights: Rights,
    /// Whether it is held whoever is served.
    is_active: AtomicBool,
    /// Whether rings are served. Set before `is_active` is looked at, and taken back before: of two threads that change one
    /// each, one sees what the other did, and the claim is not forgotten. Hence sequentially consistent, both.
    is_serving: AtomicBool,
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
pub enum ActivateError {
    /// A session waits for its image, or gives it back.
    #[error("export {0} is being activated or inactivated just now")]
    Busy(String),
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

/// A lock on the claim of an export: nobody takes or gives it back meanwhile.
#[derive(Debug)]
pub struct ClaimLock<'a> {
    slot: MutexGuard<'a, ClaimSlot>,
}

impl ClaimLock<'_> {
    /// The claim; none while no ring of an inactive node is served.
    pub fn claim(&mut self) -> &mut Option<Claim> {
        &mut self.slot.claim
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

impl ExportClaim {
    pub(crate) fn new(
        export: &str,
        node: &Arc<dyn Node>,
        rights: Rights,
        activity: Activity,
        clock: &Arc<dyn Clock>,
    ) -> Self {
        let (export, node, clock) = (export.to_owned(), Arc::clone(node), Arc::clone(clock));
        let is_active = AtomicBool::new(activity == Activity::Active);
        let (is_serving, slot) = (AtomicBool::new(false), Mutex::default());
        Self { export, node, rights, is_active, is_serving, clock, slot }
    }

    /// Claims the node, unless that is done only when it serves rings. Called before the export starts. Blocks.
    pub fn take_at_start(&self, policy: &mut WaitPolicy<'_>) -> Result<(), ExportClaimError> {
        if self.is_active() { self.take(policy) } else { Ok(()) }
    }

    /// Holds the node from now on whoever is served, as it is found now. Blocks.
    pub fn hold(&self, policy: &mut WaitPolicy<'_>) -> Result<(), ActivateError> {
        let busy = |_| ActivateError::Busy(self.export.clone());
        let mut slot = self.slot.try_lock().map_err(busy)?;
        if slot.claim.is_none() {
            let claimed = claim(&self.export, &*self.node, self.rights, &*self.clock, policy)?;
            claimed.refresh().map_err(|source| self.stale(source))?;
            slot.claim = Some(claimed);
        }
        self.is_active.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// Holds the node from now on only while rings are served: if none is, it is given back, with what was written. After
    /// an error it is held as before. Blocks.
    pub fn hold_while_serving(&self) -> Result<(), InactivateError> {
        self.is_active.store(false, Ordering::SeqCst);
        if self.is_serving() {
            return Ok(());
        }
        let released = self.release();
        released.map_err(|source| {
            self.is_active.store(true, Ordering::SeqCst);
            InactivateError { node: self.node.name().to_owned(), source }
        })
    }

    /// Whether the node is held whoever is served.
    pub fn is_active(&self) -> bool {
        self.is_active.load(Ordering::SeqCst)
    }

    /// Whether rings are served now.
    pub fn is_serving(&self) -> bool {
        self.is_serving.load(Ordering::SeqCst)
    }

    fn stale(&self, source: io::Error) -> ActivateError {
        ActivateError::Refresh { node: self.node.name().to_owned(), source }
    }

    /// Claims the node now. Blocks.
    pub fn take(&self, policy: &mut WaitPolicy<'_>) -> Result<(), ExportClaimError> {
        let claimed = claim(&self.export, &*self.node, self.rights, &*self.clock, policy)?;
        self.slot().claim = Some(claimed);
        Ok(())
    }

    /// Whether the node is claimed. A session that waits for that just now has no claim.
    pub fn is_held(&self) -> bool {
        self.slot.try_lock().is_ok_and(|slot| slot.claim.is_some())
    }

    /// Lets nobody claim or give back meanwhile; `None` while a session does so just now, which may
    /// take it as long as it waits for a lock.
    pub fn lock(&self) -> Option<ClaimLock<'_>> {
        self.slot.try_lock().ok().map(|slot| ClaimLock { slot })
    }

    /// Makes what was written durable and gives the claim back, if there is one. After an error it stays, so that nobody
    /// goes on with an image that lacks something. Blocks.
    pub fn release(&self) -> io::Result<()> {
        let mut slot = self.slot();
        if let Some(claim) = &slot.claim {
            claim.flush()?;
            slot.claim = None;
            tracing::debug!("export {}: node {} is inactive", self.export, self.node.name());
        }
        Ok(())
    }

    /// Called before the first ring is served. Blocks.
    pub(crate) fn begin(
        &self,
        wait: &SessionEndWait<'_>,
    ) -> Result<ActivationResult, ActivateError> {
        self.is_serving.store(true, Ordering::SeqCst);
        let result = self.begin_serving(wait);
        if !matches!(result, Ok(ActivationResult::Held)) {
            self.is_serving.store(false, Ordering::SeqCst);
        }
        result
    }

    fn begin_serving(
        &self,
        mut wait: &SessionEndWait<'_>,
    ) -> Result<ActivationResult, ActivateError> {
        if self.is_active() {
            return Ok(ActivationResult::Held);
        }
        let (mut slot, name) = (self.slot(), self.node.name());
        if slot.claim.is_some() {
            return Ok(ActivationResult::Held);
        }
        let rate = &mut slot.rate;
        let policy = &mut WaitPolicy { limit: LOCK_WAIT_MAX, wait: &mut wait, rate };
        let claimed = match claim(&self.export, &*self.node, self.rights, &*self.clock, policy) {
            Err(ExportClaimError::Stopped(..)) if wait.is_wanted() => {
                return Ok(ActivationResult::Postponed);
            }
            claimed => claimed?,
        };
        claimed.refresh().map_err(|source| self.stale(source))?;
        slot.claim = Some(claimed);
        tracing::debug!("export {}: node {name} is active", self.export);
        Ok(ActivationResult::Held)
    }

    /// Called after the last ring has been stopped, not for a pause; more than once does no harm. Blocks.
    pub fn end(&self) -> Result<(), InactivateError> {
        self.is_serving.store(false, Ordering::SeqCst);
        if self.is_active() {
            return Ok(());
        }
        let node = || self.node.name().to_owned();
        self.release().map_err(|source| InactivateError { node: node(), source })
    }

    fn slot(&self) -> MutexGuard<'_, ClaimSlot> {
        self.slot.lock().expect("no holder of this lock panics")
    }
}

/// A wait while storage is activated, cut short when the client disconnects or another process wants to take over.
pub(crate) struct SessionEndWait<'a> {
    pub(crate) session: &'a Connection,
    pub(crate) freeze_notifier: &'a Notifier,
}

impl SessionEndWait<'_> {
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

impl InterruptibleWait for &SessionEndWait<'_> {
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
        taken: AtomicBool,
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
            if self.taken.load(Ordering::Relaxed) {
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

    fn claim_of(node: &Arc<Noting>, activity: Activity) -> ExportClaim {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let node = Arc::clone(node) as Arc<dyn Node>;
        ExportClaim::new("e", &node, Rights::of_user(Access::ReadWrite), activity, &clock)
    }

    fn on_demand(node: &Arc<Noting>) -> ExportClaim {
        claim_of(node, Activity::Inactive)
    }

    /// A session, nobody who wants to go on with it, and its client.
    fn session() -> (Connection, Notifier, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (Connection::new(ours), Notifier::new().unwrap(), theirs)
    }

    #[test]
    fn a_node_is_refreshed_when_it_comes_and_flushed_before_it_goes() {
        let node = Arc::<Noting>::default();
        let (held, (session, freeze_notifier, _client)) = (on_demand(&node), session());
        let ours = &SessionEndWait { session: &session, freeze_notifier: &freeze_notifier };
        for _ in 0..2 {
            assert_eq!(held.begin(ours).unwrap(), ActivationResult::Held);
            assert_eq!(held.begin(ours).unwrap(), ActivationResult::Held);
            held.end().unwrap();
            let notes = std::mem::take(&mut *node.notes.lock().unwrap());
            assert_eq!(notes, ["claim", "refresh", "flush", "give back"]);
        }
    }

    #[test]
    fn a_node_whose_flush_failed_is_not_given_back() {
        let node = Arc::new(Noting { broken: true, ..Noting::default() });
        let (held, (session, freeze_notifier, _client)) = (on_demand(&node), session());
        let ours = &SessionEndWait { session: &session, freeze_notifier: &freeze_notifier };
        assert_eq!(held.begin(ours).unwrap(), ActivationResult::Held);
        let error = held.end().unwrap_err();
        assert_eq!(error.to_string(), "node n stays active, because its last flush failed");
        assert_eq!(*node.notes.lock().unwrap(), ["claim", "refresh", "flush"]);
    }

    #[test]
    fn a_client_that_leaves_ends_the_wait() {
        let node = Arc::new(Noting { taken: true.into(), ..Noting::default() });
        let (held, (session, freeze_notifier, client)) = (on_demand(&node), session());
        let ours = &SessionEndWait { session: &session, freeze_notifier: &freeze_notifier };
        let leaving = std::thread::spawn(move || drop(client));
        let error = held.begin(ours).unwrap_err();
        assert!(matches!(error, ActivateError::Claim(ExportClaimError::Stopped(..))), "{error}");
        leaving.join().unwrap();
        assert!(node.notes.lock().unwrap().is_empty());
    }

    #[test]
    fn a_process_that_wants_the_export_ends_the_wait_and_what_was_asked_for_is_put_off() {
        let node = Arc::new(Noting { taken: true.into(), ..Noting::default() });
        let (held, (session, freeze_notifier, client)) = (on_demand(&node), session());
        let ours = &SessionEndWait { session: &session, freeze_notifier: &freeze_notifier };
        std::thread::scope(|scope| {
            scope.spawn(|| freeze_notifier.wake());
            assert_eq!(held.begin(ours).unwrap(), ActivationResult::Postponed);
        });
        // It is asked again after the pause, and there is no reason to put it off any more.
        freeze_notifier.clear();
        node.taken.store(false, Ordering::Relaxed);
        assert_eq!(held.begin(ours).unwrap(), ActivationResult::Held);
        held.end().unwrap();
        // A client that has left is not handed over.
        node.taken.store(true, Ordering::Relaxed);
        freeze_notifier.wake();
        drop(client);
        let error = held.begin(ours).unwrap_err();
        assert!(matches!(error, ActivateError::Claim(ExportClaimError::Stopped(..))), "{error}");
    }

    #[test]
    fn an_export_that_always_holds_its_node_leaves_it_alone() {
        let node = Arc::<Noting>::default();
        let (held, (session, freeze_notifier, _client)) =
            (claim_of(&node, Activity::Active), session());
        let ours = &SessionEndWait { session: &session, freeze_notifier: &freeze_notifier };
        assert_eq!(held.begin(ours).unwrap(), ActivationResult::Held);
        held.end().unwrap();
        assert!(node.notes.lock().unwrap().is_empty());
    }

    #[test]
    fn what_is_held_always_and_what_is_held_on_demand_are_changed_into_each_other() {
        let node = Arc::<Noting>::default();
        let (held, (session, freeze_notifier, _client)) = (on_demand(&node), session());
        let ours = &SessionEndWait { session: &session, freeze_notifier: &freeze_notifier };
        let rate = &mut LogRateLimit::default();
        let limit = Duration::ZERO;
        let policy = &mut WaitPolicy { limit, wait: &mut &*ours, rate };
        let notes = || std::mem::take(&mut *node.notes.lock().unwrap());
        held.hold(policy).unwrap();
        assert_eq!(notes(), ["claim", "refresh"]);
        // It is served from what is held, and stays so.
        assert_eq!(held.begin(ours).unwrap(), ActivationResult::Held);
        held.end().unwrap();
        assert!(held.is_held() && notes().is_empty());
        // While it is served it keeps what it needs.
        assert_eq!(held.begin(ours).unwrap(), ActivationResult::Held);
        held.hold_while_serving().unwrap();
        assert!(held.is_held() && held.is_serving() && notes().is_empty());
        held.end().unwrap();
        assert_eq!(notes(), ["flush", "give back"]);
        held.hold(policy).unwrap();
        held.hold_while_serving().unwrap();
        assert_eq!(notes(), ["claim", "refresh", "flush", "give back"]);
        node.taken.store(true, Ordering::Relaxed);
        held.hold(policy).unwrap_err();
        assert!(!held.is_active());
    }

    #[test]
    fn what_cannot_be_flushed_is_held_as_before() {
        let node = Arc::new(Noting { broken: true, ..Noting::default() });
        let (held, (session, freeze_notifier, _client)) =
            (claim_of(&node, Activity::Active), session());
        let ours = &SessionEndWait { session: &session, freeze_notifier: &freeze_notifier };
        let rate = &mut LogRateLimit::default();
        held.take(&mut WaitPolicy { limit: Duration::ZERO, wait: &mut &*ours, rate }).unwrap();
        held.hold_while_serving().unwrap_err();
        assert!(held.is_active() && held.is_held());
    }
}
