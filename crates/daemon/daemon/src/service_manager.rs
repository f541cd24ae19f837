//! What the service manager (systemd) is told: that the daemon is ready, that it ends or another process goes on, and that
//! it is alive, as long as every iothread turns.
//!
//! Invariants: a disk that hangs is no reason to end a daemon that serves others: neither requests that are open nor what the
//! first thread waits for is looked at. An iothread that stands still is asked once, and nothing is told until it
//! answers or has ended.
//! Threads: the first one, and one from the time that the daemon is ready to the end of the process.
//! Limits: [`INTERVAL_MAX`].

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use block::{Clock, SystemClock};
use control::DaemonState;
use host::ServiceManager;
use iothread::SourceRegistry;
use options::{Daemonize, Plan, TakeoverMode};
use sandbox::Sandbox;

/// The longest time from one word to the next. A process that has taken over is not told what is expected of it, so that a
/// service should expect no less than twice as much.
const INTERVAL_MAX: Duration = Duration::from_secs(5);

/// The service manager that has started the process waits for that, and not for one in the background.
#[derive(Debug, thiserror::Error)]
#[error(
    "--daemonize (daemonize = true): a service manager has started this process and waits for it, not for another one in the \
     background: leave it out"
)]
pub struct BackgroundService;

/// Refuses to go to the background below a service manager that waits for this process. One that only takes another's place
/// tells it which process goes on.
pub fn check_service(plan: &Plan) -> Result<(), BackgroundService> {
    let is_wrong = plan.daemonize == Daemonize::Background
        && plan.takeover == TakeoverMode::Never
        && ServiceManager::waits_for_this();
    if is_wrong { Err(BackgroundService) } else { Ok(()) }
}

/// The service manager that has started the daemon, if there is one that can be told something.
pub(crate) fn service_manager() -> Option<Arc<ServiceManager>> {
    match ServiceManager::of_environment() {
        Ok(manager) => manager.map(Arc::new),
        Err(error) => {
            tracing::warn!("the service manager cannot be told anything: {error}");
            None
        }
    }
}

/// Tells it that the daemon serves, by which process, and from now on that it is alive.
pub(crate) fn tell_ready(
    manager: &Arc<ServiceManager>,
    built: &DaemonState,
    sandbox: Option<&Sandbox>,
) {
    let process = std::process::id();
    manager.tell(&format!("READY=1\nMAINPID={process}\nSTATUS=serving"));
    let wanted = manager.watchdog().map_or(INTERVAL_MAX, |limit| limit / 3);
    let interval = wanted.min(INTERVAL_MAX);
    let (manager, sources) = (Arc::clone(manager), Arc::clone(built.source_registry()));
    let report = LivenessReport { manager, sources, interval };
    let start = || thread::Builder::new().name("alive".to_owned()).spawn(move || report.run());
    if let Err(error) = Sandbox::start_inside(sandbox, start).flatten() {
        tracing::error!("cannot tell the service manager that the daemon is alive: {error}");
    }
}

/// Tells it that the daemon ends, or which process goes on: before this one ends, which it would take for the end.
pub(crate) fn tell_end(manager: &ServiceManager, successor: Option<u32>) {
    match successor {
        None => manager.tell("STOPPING=1\nSTATUS=finishing what is open"),
        Some(process) => manager.tell(&format!("MAINPID={process}")),
    }
}

/// Tells the service manager from time to time that the daemon is alive.
struct LivenessReport {
    manager: Arc<ServiceManager>,
    sources: Arc<SourceRegistry>,
    interval: Duration,
}

impl LivenessReport {
    fn run(self) -> ! {
        loop {
            let next = SystemClock.now() + self.interval;
            self.wait_for_turns();
            self.manager.tell("WATCHDOG=1");
            while let Some(rest) = next.checked_duration_since(SystemClock.now()) {
                thread::park_timeout(rest);
            }
        }
    }

    /// Waits until all have turned, or have ended. Which of them has not is said by whoever watches them
    /// (`control::health`).
    fn wait_for_turns(&self) {
        for turned in self.sources.turn_all() {
            // One that has ended has nothing to answer.
            let _turned_or_ended = turned.recv();
        }
    }
}
