//! Claims the node of an export, and waits for whoever has its image.
//!
//! A daemon that was killed holds its locks until its last request in flight is done: whoever
//! takes its place waits here for that, and touches nothing before. Storage that takes longer to forget a
//! daemon that was killed says so with its refusal, and is waited for as long.
//!
//! Invariants: an export has its claim before its socket exists, unless its node is inactive
//! (`activation`).
//! Limits: [`LOCK_WAIT_MAX`]. Threads: the process's first, or that of a session; a signal or the
//! end of the session ends the wait.
//! Not here: the locks (`kernel_io`), which claim needs which (`disk`).

use std::fmt;
use std::time::Duration;

use block::{Claim, ClaimError, Clock, LogRateLimit, Node, RetryHint, Rights};
use host::chain_of;

/// How long a starting daemon tries to get a lock that another process has.
pub const LOCK_WAIT_MAX: Duration = Duration::from_secs(30);

/// How long it rests between two tries.
const REST: Duration = Duration::from_millis(100);

/// By how much the rests of two processes differ at most, so that two that come at once, and refuse
/// each other, do not go on in step.
const SPREAD: u32 = 64;

/// How a thread waits between tries: until a time, or an event that ends the wait.
pub trait InterruptibleWait {
    /// Lets this time pass, or less if a signal comes.
    fn pause(&mut self, time: Duration) -> WaitResult;

    /// The wait is over. Called once after any number of pauses.
    fn done(&mut self);
}

/// Whether to go on waiting, or to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitResult {
    /// Nothing.
    GoOn,
    /// The daemon is to stop.
    Stop,
}

/// How long to retry a claim, how to wait between tries, and how often that is logged.
pub struct WaitPolicy<'a> {
    /// For how long.
    pub limit: Duration,
    /// How.
    pub wait: &'a mut dyn InterruptibleWait,
    /// How often it may be said: a client can cause some waits.
    pub rate: &'a mut LogRateLimit,
}

impl fmt::Debug for WaitPolicy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitPolicy").field("limit", &self.limit).finish_non_exhaustive()
    }
}

/// An export could not claim its node.
#[derive(Debug, thiserror::Error)]
pub enum ExportClaimError {
    /// It cannot be.
    #[error("export {export}")]
    Refused {
        /// The export.
        export: String,
        /// Why.
        #[source]
        source: ClaimError,
    },
    /// Another process kept the image.
    #[error("export {export}: gave up after {} s", limit.as_secs())]
    Kept {
        /// The export.
        export: String,
        /// How long it was tried.
        limit: Duration,
        /// What was refused last.
        #[source]
        source: ClaimError,
    },
    /// A signal came, or the client left, while it waited.
    #[error("export {0}: stopped while it waited for a lock")]
    Stopped(String),
}

/// Claims a node for an export, and tries again as long as another process has its image.
pub(crate) fn claim(
    export: &str,
    node: &dyn Node,
    rights: Rights,
    clock: &dyn Clock,
    policy: &mut WaitPolicy<'_>,
) -> Result<Claim, ExportClaimError> {
    let error = match node.claim(rights) {
        Ok(claim) => return Ok(claim),
        Err(error) => error,
    };
    let Some(limit) = time_for(error.outlook, policy.limit) else {
        return Err(ExportClaimError::Refused { export: export.to_owned(), source: error });
    };
    let is_told = policy.rate.admit(clock.now()).is_some();
    if is_told {
        let (sentence, seconds) = (chain_of(&error), limit.as_secs());
        tracing::warn!("export {export}: {sentence}; trying for up to {seconds} s");
    }
    let began = clock.now();
    let policy = &mut WaitPolicy { limit, wait: policy.wait, rate: policy.rate };
    let result = retry(export, node, rights, clock, policy, error);
    policy.wait.done();
    if is_told && result.is_ok() {
        let waited = clock.now().duration_since(began).as_secs_f64();
        let name = node.name();
        tracing::info!("export {export}: node {name}: has the lock after {waited:.1} s");
    }
    result
}

/// For how long a claim that was refused is tried again, by whoever waits so long for a lock; `None` if it is not.
fn time_for(outlook: RetryHint, limit: Duration) -> Option<Duration> {
    match outlook {
        _ if limit.is_zero() => None,
        RetryHint::Permanent => None,
        RetryHint::Transient => Some(limit),
        RetryHint::TransientFor(time) => Some(limit.max(time)),
    }
}

fn retry(
    export: &str,
    node: &dyn Node,
    rights: Rights,
    clock: &dyn Clock,
    policy: &mut WaitPolicy<'_>,
    mut source: ClaimError,
) -> Result<Claim, ExportClaimError> {
    let began = clock.now();
    let export = || export.to_owned();
    let rest = REST + Duration::from_millis((std::process::id() % SPREAD).into());
    while clock.now().duration_since(began) < policy.limit {
        if policy.wait.pause(rest) == WaitResult::Stop {
            return Err(ExportClaimError::Stopped(export()));
        }
        match node.claim(rights) {
            Ok(claim) => return Ok(claim),
            Err(error) if error.outlook != RetryHint::Permanent => source = error,
            Err(source) => return Err(ExportClaimError::Refused { export: export(), source }),
        }
    }
    Err(ExportClaimError::Kept { export: export(), limit: policy.limit, source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};
    use std::time::Instant;

    use block::{Access, Claim, DiscardPolicy};
    use disk::FileNode;
    use kernel_io::OpenOptions;

    /// Time that passes only in pauses, and what happens after some of them.
    struct Hours {
        now: Mutex<Instant>,
    }

    impl fmt::Debug for Hours {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("Hours")
        }
    }

    impl Clock for Hours {
        fn now(&self) -> Instant {
            *self.now.lock().unwrap()
        }
    }

    struct Pauses<'a> {
        clock: &'a Hours,
        count: u32,
        done: u32,
        /// Called with the number of each pause.
        then: Box<dyn FnMut(u32) -> WaitResult + 'a>,
    }

    impl InterruptibleWait for Pauses<'_> {
        fn pause(&mut self, time: Duration) -> WaitResult {
            *self.clock.now.lock().unwrap() += time;
            self.count += 1;
            (self.then)(self.count)
        }

        fn done(&mut self) {
            self.done += 1;
        }
    }

    /// A node on the image, as another daemon has it.
    fn node(image: &tempfile::NamedTempFile) -> FileNode {
        let options = OpenOptions::regular(image.path(), Access::ReadWrite);
        FileNode::open("n", &options, DiscardPolicy::Ignore, &Arc::default()).unwrap()
    }

    /// Claims while another daemon has the image, which gives it up as `then` says. Gives what came
    /// of it, and how many pauses there were.
    fn waited(then: impl Fn(u32, &mut Option<Claim>) -> WaitResult) -> (Result<(), String>, u32) {
        let image = tempfile::NamedTempFile::new().unwrap();
        let (ours, other) = (node(&image), node(&image));
        let rights = Rights::of_user(Access::ReadWrite);
        let mut held = Some(other.claim(rights).unwrap());
        let clock = Hours { now: Mutex::new(block::SystemClock.now()) };
        let then = Box::new(move |count| then(count, &mut held));
        let mut pauses = Pauses { clock: &clock, count: 0, done: 0, then };
        let mut policy = WaitPolicy {
            limit: Duration::from_secs(30),
            wait: &mut pauses,
            rate: &mut LogRateLimit::default(),
        };
        let result = claim("e", &ours, rights, &clock, &mut policy);
        assert_eq!(pauses.done, 1);
        let result = result.map(drop).map_err(|error| {
            chain_of(&error).to_string().replace(image.path().to_str().unwrap(), "d.img")
        });
        (result, pauses.count)
    }

    #[test]
    fn a_lock_that_is_given_back_in_time_is_taken() {
        let (result, pauses) = waited(|count, held| {
            if count == 7 {
                drop(held.take());
            }
            WaitResult::GoOn
        });
        assert_eq!((result, pauses), (Ok(()), 7));
    }

    #[test]
    fn after_its_limit_it_gives_up_in_qemus_words() {
        let (result, pauses) = waited(|_, _| WaitResult::GoOn);
        let sentence = "export e: gave up after 30 s: node n: Failed to get \"write\" lock: Is another \
                        process using the image [d.img]?";
        assert_eq!(result, Err(sentence.to_owned()));
        // A rest lasts 100 to 163 ms.
        assert!((180..=301).contains(&pauses), "{pauses}");
    }

    #[test]
    fn a_signal_ends_the_wait() {
        let (result, pauses) =
            waited(|count, _| if count == 3 { WaitResult::Stop } else { WaitResult::GoOn });
        assert_eq!(result, Err("export e: stopped while it waited for a lock".to_owned()));
        assert_eq!(pauses, 3);
    }

    #[test]
    fn storage_that_forgets_a_dead_process_later_is_waited_for_as_long() {
        let (limit, seconds) = (Duration::from_secs(30), Duration::from_secs);
        assert_eq!(time_for(RetryHint::Transient, limit), Some(limit));
        assert_eq!(time_for(RetryHint::TransientFor(seconds(45)), limit), Some(seconds(45)));
        assert_eq!(time_for(RetryHint::TransientFor(seconds(5)), limit), Some(limit));
        assert_eq!(time_for(RetryHint::Permanent, limit), None);
        // A command waits for nobody.
        assert_eq!(time_for(RetryHint::TransientFor(seconds(45)), Duration::ZERO), None);
    }

    #[test]
    fn what_cannot_pass_is_not_waited_for() {
        let image = tempfile::NamedTempFile::new().unwrap();
        let table = Arc::default();
        let options = OpenOptions::regular(image.path(), Access::ReadWrite);
        let open = || FileNode::open("n", &options, DiscardPolicy::Ignore, &table).unwrap();
        let (one, two) = (open(), open());
        let rights = Rights::of_user(Access::ReadWrite);
        let held = one.claim(rights).unwrap();
        let clock = Hours { now: Mutex::new(block::SystemClock.now()) };
        let then = Box::new(|_| panic!("it waits"));
        let mut pauses = Pauses { clock: &clock, count: 0, done: 0, then };
        let mut policy = WaitPolicy {
            limit: LOCK_WAIT_MAX,
            wait: &mut pauses,
            rate: &mut LogRateLimit::default(),
        };
        let error = claim("e", &two, rights, &clock, &mut policy).unwrap_err();
        assert!(matches!(error, ExportClaimError::Refused { .. }), "{error}");
        drop(held);
    }
}
