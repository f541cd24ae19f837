//! What only the first thread of a daemon knows, and how the thread that answers scrapes gets it.
//!
//! Invariants: a scrape waits for the first thread a moment at most, and not at all if it has not answered the last one:
//! it may be in a system call on storage that hangs, which is when metrics are wanted most. What it told last is shown then,
//! with its age.
//! Threads: the first one answers, one other asks. Limits: [`WAIT_MAX`].

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use block::Clock;
use iothread::IothreadUsage;
use kernel_io::Notifier;

/// How long a scrape waits for the first thread.
const WAIT_MAX: Duration = Duration::from_millis(200);

/// What there is, as the first thread knows it.
#[derive(Debug, Default)]
pub struct Inventory {
    /// The exports.
    pub exports: Vec<ServedExport>,
    /// The iothreads.
    pub iothreads: Vec<IothreadEntry>,
    /// The pools of iothreads.
    pub pools: Vec<PoolEntry>,
    /// The jobs.
    pub jobs: Vec<JobEntry>,
    /// The NBD server, if there is one.
    pub nbd_server: Option<NbdServerLoad>,
    /// The nodes on NBD servers, and for how long each has lacked a connection.
    pub nbd_nodes: Vec<(String, Duration)>,
    /// The nodes that have dirty bitmaps.
    pub bitmaps: Vec<BitmapsOfNode>,
    /// The nodes whose write threshold was exceeded, and how often.
    pub thresholds: Vec<(String, u64)>,
}

/// An export.
#[derive(Debug)]
pub struct ServedExport {
    /// Its name.
    pub id: String,
    /// As `type=` names it.
    pub kind: &'static str,
    /// The node that it offers.
    pub node: String,
    /// How many clients it has.
    pub clients: u64,
    /// The size of its disk.
    pub bytes: u64,
}

/// An iothread, whose counters are read whenever they are asked for.
#[derive(Debug)]
pub struct IothreadEntry {
    /// Its name.
    pub name: String,
    /// What it does.
    pub usage: IothreadUsage,
}

/// A pool of iothreads.
#[derive(Debug)]
pub struct PoolEntry {
    /// Its name.
    pub name: String,
    /// How many iothreads run.
    pub iothreads: u64,
    /// How many may.
    pub iothreads_max: u64,
    /// The exports that it places.
    pub exports: Vec<ExportPlacement>,
}

/// How a pool places an export.
#[derive(Debug)]
pub struct ExportPlacement {
    /// The export.
    pub export: String,
    /// On how many iothreads; `None` if that was not looked at yet.
    pub iothreads: Option<u64>,
    /// What one more would bring at most.
    pub gain_max: Option<f64>,
    /// Whether something is being tried.
    pub is_trying: bool,
}

/// A job.
#[derive(Debug)]
pub struct JobEntry {
    /// Its name.
    pub id: String,
    /// What it does, as QEMU calls it.
    pub kind: &'static str,
    /// Its status, as QEMU calls it.
    pub status: &'static str,
    /// What it has done of how many bytes, and how fast it may be, if it is a block job.
    pub progress: Option<(u64, u64, u64)>,
}

/// How many clients an NBD server has.
#[derive(Debug)]
pub struct NbdServerLoad {
    /// Those that use exports.
    pub connected: u64,
    /// Those in their handshakes.
    pub negotiating: u64,
    /// How many may use exports.
    pub connected_max: u64,
}

/// The dirty bitmaps of a node.
#[derive(Debug)]
pub struct BitmapsOfNode {
    /// The node.
    pub node: String,
    /// How many.
    pub count: u64,
    /// Memory that they take at most.
    pub bytes: u64,
}

/// What was found about the storage of an export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StorageFinding {
    /// The export.
    pub export: String,
    /// Whether a file below was removed, renamed or replaced.
    pub is_removed: bool,
    /// By how much it has grown since its size was looked at, or shrunk.
    pub size_difference: i64,
}

/// Where a scrape asks the first thread, and finds what it told last.
#[derive(Debug)]
pub struct InventoryDesk {
    bell: Notifier,
    state: Mutex<DeskState>,
    answered: Condvar,
}

#[derive(Debug)]
struct DeskState {
    latest: Arc<Inventory>,
    at: Instant,
    is_asked: bool,
}

impl InventoryDesk {
    /// With what there is at first.
    pub fn new(inventory: Inventory, now: Instant) -> std::io::Result<Self> {
        let latest = Arc::new(inventory);
        let state = Mutex::new(DeskState { latest, at: now, is_asked: false });
        Ok(Self { bell: Notifier::new()?, state, answered: Condvar::new() })
    }

    /// The first thread tells what there is now. Called when [`InventoryDesk::as_fd`] is readable.
    pub fn answer(&self, inventory: Inventory, now: Instant) {
        self.bell.clear();
        let mut state = self.state();
        *state = DeskState { latest: Arc::new(inventory), at: now, is_asked: false };
        self.answered.notify_all();
    }

    /// Asks the first thread what there is. Returns what it told last, and how long ago, if it does not answer soon.
    pub(crate) fn ask(&self, clock: &dyn Clock) -> (Arc<Inventory>, Duration) {
        let mut state = self.state();
        // One that has not answered before is not waited for again.
        if !state.is_asked {
            state.is_asked = true;
            self.bell.wake();
            let is_open = |state: &mut DeskState| state.is_asked;
            let waited = self.answered.wait_timeout_while(state, WAIT_MAX, is_open);
            state = waited.expect("no holder of this lock panics").0;
        }
        let age = clock.now().saturating_duration_since(state.at);
        // What was told while it was waited for is of now.
        let age = if state.is_asked { age } else { Duration::ZERO };
        (Arc::clone(&state.latest), age)
    }

    fn state(&self) -> MutexGuard<'_, DeskState> {
        self.state.lock().expect("no holder of this lock panics")
    }
}

/// Readable when the first thread is asked.
impl AsFd for InventoryDesk {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use block::SystemClock;

    use super::*;

    fn with_job(id: &str) -> Inventory {
        let job = JobEntry { id: id.to_owned(), kind: "backup", status: "running", progress: None };
        Inventory { jobs: vec![job], ..Inventory::default() }
    }

    #[test]
    fn a_first_thread_that_is_busy_is_waited_for_once_and_what_it_told_is_shown_with_its_age() {
        let start = SystemClock.now();
        let desk = InventoryDesk::new(with_job("old"), start).unwrap();
        for _ in 0..3 {
            let (found, age) = desk.ask(&SystemClock);
            assert_eq!(found.jobs[0].id, "old");
            assert!(age >= WAIT_MAX);
        }
        assert!(start.elapsed() < 2 * WAIT_MAX, "it was waited for more than once");
        desk.answer(with_job("late"), SystemClock.now());
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| desk.ask(&SystemClock));
            rustix::event::poll(
                &mut [rustix::event::PollFd::new(&desk, rustix::event::PollFlags::IN)],
                None,
            )
            .unwrap();
            desk.answer(with_job("new"), SystemClock.now());
            let (found, age) = asked.join().unwrap();
            assert_eq!((found.jobs[0].id.as_str(), age), ("new", Duration::ZERO));
        });
    }
}
