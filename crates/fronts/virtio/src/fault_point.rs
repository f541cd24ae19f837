//! The steps of a request at which a crash is tried out.
//!
//! Where it stands in the life of a request: the code that marks, publishes and recovers says
//! which step it has reached. In normal builds nobody listens and nothing is left of it. With the
//! feature `fault-points` the process kills itself at the step that `RINGLOOM_FAULT` names.
//!
//! Invariants: a step comes after the stores it is named for and before the next.
//! Not here: what has to hold after a crash (the header of `inflight`).

/// A point in the life of a request at which a test can crash the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultPoint {
    /// A chain was read from the ring and is marked nowhere.
    Popped,
    /// Its order, and of a packed ring its descriptors, are in the in-flight region.
    Noted,
    /// It is marked as being in flight.
    Marked,
    /// Its status and its used entry are written; the driver does not look at them yet.
    Staged,
    /// The region names the chains of the batch.
    BatchLinked,
    /// The driver sees the batch.
    UsedPublished,
    /// The marks of the batch are cleared.
    MarksCleared,
    /// The region knows that the batch is over.
    BatchCommitted,
    /// The guest was interrupted if it wanted that.
    Interrupted,
    /// A batch that a crash has cut was finished or taken back.
    BatchRepaired,
    /// The ring has left an iothread and has not arrived at the next.
    Departed,
    /// It has arrived and was not looked at.
    Arrived,
}

/// Notes that a step was reached.
#[inline(always)]
pub fn reached(step: FaultPoint) {
    #[cfg(feature = "fault-points")]
    fault::reached(step);
    #[cfg(not(feature = "fault-points"))]
    let _nobody_listens = step;
}

/// Notes one store to the ring or to the in-flight region, in the order of the program.
#[inline(always)]
pub(crate) fn stored() {
    #[cfg(test)]
    watch::stored();
}

#[cfg(feature = "fault-points")]
mod fault {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    use rustix::process::{Signal, getpid};
    use rustix::thread::gettid;

    use super::FaultPoint;

    /// `STEP:COUNT`: the process ends when it reaches the step for the COUNT-th time.
    const VARIABLE: &str = "RINGLOOM_FAULT";

    /// The crash that RINGLOOM_FAULT asks for: at which point, and how often it is passed before.
    struct InjectedFault {
        step: String,
        left: AtomicU64,
    }

    static FAULT: OnceLock<Option<InjectedFault>> = OnceLock::new();

    fn from_environment() -> Option<InjectedFault> {
        let text = std::env::var(VARIABLE).ok()?;
        let fault = text.split_once(':').and_then(|(step, count)| {
            let left = AtomicU64::new(count.parse().ok()?);
            Some(InjectedFault { step: step.to_owned(), left })
        });
        Some(fault.unwrap_or_else(|| panic!("{VARIABLE}={text} is not STEP:COUNT")))
    }

    /// By a call that a sandboxed daemon may still make.
    #[expect(unsafe_code, reason = "tgkill has no wrapper")]
    fn die() {
        let [process, thread] = [getpid(), gettid()].map(|id| id.as_raw_nonzero().get());
        // SAFETY: the call takes numbers only.
        let result =
            unsafe { libc::syscall(libc::SYS_tgkill, process, thread, Signal::KILL.as_raw()) };
        panic!("a process may end itself: {result}");
    }

    pub(super) fn reached(step: FaultPoint) {
        let Some(fault) = FAULT.get_or_init(from_environment) else { return };
        if fault.step == format!("{step:?}") && fault.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            die();
        }
    }
}

#[cfg(test)]
pub(crate) mod watch {
    use std::cell::RefCell;

    type Watcher = Box<dyn FnMut()>;

    thread_local! {
        static WATCHER: RefCell<Option<Watcher>> = const { RefCell::new(None) };
    }

    pub(super) fn stored() {
        WATCHER.with_borrow_mut(|watcher| {
            if let Some(watcher) = watcher {
                watcher();
            }
        });
    }

    /// Calls `watcher` after each store that `deed` makes on this thread.
    pub(crate) fn during<T>(watcher: impl FnMut() + 'static, deed: impl FnOnce() -> T) -> T {
        WATCHER.set(Some(Box::new(watcher)));
        let done = deed();
        WATCHER.set(None);
        done
    }
}
