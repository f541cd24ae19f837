//! Says what the first thread waits for, if it waits for long: a disk that hangs keeps it in a system call, where it
//! can say nothing.
//!
//! Threads: one, from the start to the end of the process ([`StorageWatchdog`]); before there is a log, one for each wait
//! ([`waiting_for`]).
//! Limits: [`TOLD_AFTER`], and what [`StorageWatchdog::set_limit`] says.

use std::io::{self, Write as _};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use block::{Clock, SystemClock};

/// How long storage may take to answer before that is said.
const TOLD_AFTER: Duration = Duration::from_secs(3);

/// A watchdog that logs when the first thread waits for storage for long, and ends the process after a limit.
#[derive(Debug, Default)]
pub struct StorageWatchdog {
    state: Mutex<State>,
    changed: Condvar,
}

/// What the mutex protects: the present wait, and the limit.
#[derive(Debug, Default)]
struct State {
    wait: Option<StorageWaitRecord>,
    /// After so long the process ends.
    limit: Option<Duration>,
}

/// A wait for storage: what for, and since when.
#[derive(Debug)]
struct StorageWaitRecord {
    what: String,
    since: Instant,
    is_told: bool,
}

impl StorageWatchdog {
    /// Begins to watch, on a thread that calls `at_start` first. `before_end` is called before it ends the process, for what
    /// is not written yet of the log.
    pub fn start(
        self: &Arc<Self>,
        at_start: impl FnOnce() + Send + 'static,
        before_end: impl Fn() + Send + 'static,
    ) -> io::Result<()> {
        let watch = Arc::clone(self);
        let work = move || {
            at_start();
            watch.run(&before_end);
        };
        thread::Builder::new().name("watch".to_owned()).spawn(work)?;
        Ok(())
    }

    /// From now on the process ends if it waits for storage for so long.
    pub fn set_limit(&self, limit: Option<Duration>) {
        self.state().limit = limit;
    }

    /// Does something that waits for storage.
    pub fn during<T>(&self, what: String, work: impl FnOnce() -> T) -> T {
        let wait = StorageWaitRecord { what, since: SystemClock.now(), is_told: false };
        let before = self.state().wait.replace(wait);
        self.changed.notify_one();
        let done = work();
        self.state().wait = before;
        done
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder of this lock panics")
    }

    fn run(&self, before_end: &dyn Fn()) {
        let mut state = self.state();
        loop {
            let limit = state.limit;
            let left = match &mut state.wait {
                None => None,
                Some(wait) => {
                    let passed = SystemClock.now().duration_since(wait.since);
                    if passed >= TOLD_AFTER && !wait.is_told {
                        wait.is_told = true;
                        tracing::warn!("{}", still_waiting(&wait.what));
                    }
                    if limit.is_some_and(|limit| passed >= limit) {
                        // With the lock, so that the first thread does not go on any more.
                        end(&wait.what, passed, before_end);
                    }
                    let next = if wait.is_told { limit } else { Some(TOLD_AFTER) };
                    next.map(|next| next.saturating_sub(passed))
                }
            };
            state = match left {
                None => self.changed.wait(state).expect("no holder of this lock panics"),
                Some(left) => {
                    let waited = self.changed.wait_timeout(state, left);
                    waited.expect("no holder of this lock panics").0
                }
            };
        }
    }
}

/// Ends the process, whose first thread cannot do it.
fn end(what: &str, passed: Duration, before_end: &dyn Fn()) {
    let seconds = passed.as_secs();
    tracing::error!(
        "{what}: its storage has not answered for {seconds} s: given up; who serves goes on"
    );
    before_end();
    signal_hook::low_level::exit(1);
}

/// Does something that waits for a file's storage, and says so if it takes long: there is no log yet, and the process may
/// be in a system call that only SIGKILL ends.
pub fn waiting_for<T>(path: &Path, work: impl FnOnce() -> T) -> T {
    let (done, is_done) = mpsc::channel::<()>();
    thread::scope(|scope| {
        // Where no thread can be had, nothing is said.
        let teller = thread::Builder::new().spawn_scoped(scope, move || {
            if is_done.recv_timeout(TOLD_AFTER) == Err(mpsc::RecvTimeoutError::Timeout) {
                let told = writeln!(io::stderr(), "{}", still_waiting(&path.to_string_lossy()));
                // There is nobody else to tell.
                drop(told);
            }
        });
        let result = work();
        drop(done);
        // Its end comes before the process forks, which the end of the scope does not wait for.
        if let Ok(teller) = teller {
            teller.join().expect("it does not panic");
        }
        result
    })
}

fn still_waiting(what: &str) -> String {
    let seconds = TOLD_AFTER.as_secs();
    format!("{what}: its storage has not answered for {seconds} s; waiting")
}
