//! The graph is changed below nodes that rings use: nothing is in flight and no lane is open meanwhile,
//! whatever rings do, and nothing is lost or repeated.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use block::{
    Access, BatchPieces, BlockLimits, Child, Claim, ClaimError, DiskSize, Lane, LaneContext,
    LaneError, Mapping, Node, Rights, SystemClock,
};
use iothread::{DrainedSection, Iothread};
use kernel_io::FileTable;

use crate::guest::{Ask, BLOCK, Guest, SLOTS};
use crate::holding::{FOR_EVER, LIMIT, holding, null};
use crate::moves::{BLOCKS, Load, Progress, RINGS, Seeded};
use crate::open_requests::pipe_node;
use crate::setup::{file_node, iothreads, on_both, place};

/// The fewest changes under load, and requests of each ring under them.
const CHANGES: u32 = 2000;
const REQUESTS_MIN: u64 = 400;

/// virtio 1.2, 5.2.6: VIRTIO_BLK_S_IOERR.
const IO_ERROR: u8 = 1;

/// A node whose child is replaced. It counts its lanes, and opens none when told so.
#[derive(Debug)]
pub(crate) struct Top {
    child: Arc<Child>,
    lanes: Arc<AtomicUsize>,
    refuses: AtomicBool,
}

#[derive(Debug)]
struct TopLane {
    below: Box<dyn Lane>,
    lanes: Arc<AtomicUsize>,
}

impl Top {
    pub(crate) fn over(node: Arc<dyn Node>) -> Arc<Self> {
        let (lanes, refuses) = (Arc::default(), AtomicBool::new(false));
        Arc::new(Self { child: Child::new(node), lanes, refuses })
    }

    pub(crate) fn lanes(&self) -> usize {
        self.lanes.load(Ordering::SeqCst)
    }

    pub(crate) fn refuse(&self, refuses: bool) {
        self.refuses.store(refuses, Ordering::SeqCst);
    }
}

impl Node for Top {
    fn name(&self) -> &str {
        "top"
    }

    fn size(&self) -> DiskSize {
        self.child.node().size()
    }

    fn limits(&self) -> BlockLimits {
        self.child.node().limits()
    }

    fn access(&self) -> Access {
        self.child.node().access()
    }

    fn flush(&self) -> std::io::Result<()> {
        self.child.node().flush()
    }

    fn claim(&self, rights: Rights) -> Result<Claim, ClaimError> {
        self.child.node().claim(rights)
    }

    fn open_lane(&self, io: &LaneContext) -> Result<Box<dyn Lane>, LaneError> {
        if self.refuses.load(Ordering::SeqCst) {
            let source = std::io::Error::other("told so");
            return Err(LaneError { node: "top".to_owned(), source });
        }
        let below = self.child.node().open_lane(io)?;
        self.lanes.fetch_add(1, Ordering::SeqCst);
        Ok(Box::new(TopLane { below, lanes: Arc::clone(&self.lanes) }))
    }
}

impl Lane for TopLane {
    fn map(&mut self, batch: &mut [Mapping], pieces: &mut BatchPieces) {
        self.below.map(batch, pieces);
    }

    block::pass_on_to!(below);
}

impl Drop for TopLane {
    fn drop(&mut self) {
        self.lanes.fetch_sub(1, Ordering::SeqCst);
    }
}

/// On all iothreads of the process that these are of.
pub(crate) fn drain(iothreads: &[Arc<Iothread>], node: &Arc<dyn Node>) -> DrainedSection {
    let nodes = vec![Arc::clone(node)];
    DrainedSection::begin(iothreads[0].sources(), nodes, LIMIT, &SystemClock).unwrap()
}

/// Serves requests of another node until the threads have had some rounds.
fn some_rounds(iothreads: &[Arc<Iothread>]) {
    for iothread in iothreads {
        let mut guest = Guest::new();
        let placed = place(&guest, &null(), iothread);
        for _ in 0..50 {
            guest.submit(0, Ask::Read, 0);
            assert_eq!(guest.completions(), [0]);
        }
        assert_eq!(placed.stop().in_flight(), 0);
    }
}

/// Two images take turns. While nothing may be in flight one is copied over the other: a write that
/// was, or came too early, would be missing there.
#[test]
fn thousands_of_changes_under_load_lose_nothing_and_repeat_nothing() {
    on_both(|reactors| {
        let files = Arc::new(FileTable::default());
        let threads = iothreads::<3>(&files, reactors);
        let bytes = RINGS * BLOCKS * BLOCK as u64;
        let images = [file_node(&files, bytes), file_node(&files, bytes)];
        let top = Top::over(Arc::clone(&images[0].0));
        let node: Arc<dyn Node> = Arc::clone(&top) as _;
        let mut loads: Vec<Load> = (0..RINGS).map(Load::new).collect();
        let placed: Vec<_> =
            loads.iter().map(|load| place(&load.guest, &node, &threads[0])).collect();
        let (over, moved) = (AtomicBool::new(false), AtomicBool::new(false));
        let progress = Progress::default();
        let mut now = 0;
        thread::scope(|scope| {
            for load in &mut loads {
                scope.spawn(|| load.run(&over, &progress));
            }
            let mover = scope.spawn(|| {
                let mut random = Seeded(0x5eed);
                while !moved.load(Ordering::Relaxed) {
                    let ring = usize::try_from(random.below(RINGS)).unwrap();
                    let to = usize::try_from(random.below(3)).unwrap();
                    placed[ring].move_to(&threads[to]).unwrap();
                }
            });
            let mut changes = 0;
            while changes < CHANGES || progress.least() < REQUESTS_MIN {
                let drained = drain(&threads, &node);
                assert_eq!(top.lanes(), 0);
                copy(&images[now].1, &images[1 - now].1);
                now = 1 - now;
                top.child.replace(Arc::clone(&images[now].0));
                drained.end().unwrap();
                changes += 1;
            }
            moved.store(true, Ordering::Relaxed);
            mover.join().unwrap();
            over.store(true, Ordering::Relaxed);
        });
        for (load, placed) in loads.iter().zip(placed) {
            let source = placed.stop();
            assert_eq!(source.in_flight(), 0);
            let counters = source.counters();
            let counted = counters.reads + counters.writes + counters.flushes;
            assert_eq!((counted, counters.errors), (load.completed, 0));
            assert!(load.completed >= REQUESTS_MIN, "only {} requests", load.completed);
        }
        assert_eq!(top.lanes(), 0, "a lane was left open");
        let bytes = std::fs::read(&images[now].1).unwrap();
        loads.iter().for_each(|load| load.check_image(&bytes));
    });
}

fn copy(from: &Path, to: &Path) {
    let bytes = std::fs::read(from).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(to).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &bytes, 0).unwrap();
    // The other image is read and written past the page cache.
    file.sync_data().unwrap();
}

#[test]
fn a_drain_waits_for_what_is_in_flight_also_where_its_ring_has_left() {
    on_both(|reactors| {
        let files = Arc::new(FileTable::default());
        let threads = iothreads::<2>(&files, reactors);
        let (pipe, mut writer, begun) = pipe_node(&files);
        let top = Top::over(pipe);
        let node: Arc<dyn Node> = Arc::clone(&top) as _;
        let mut guest = Guest::new();
        let placed = place(&guest, &node, &threads[0]);
        guest.submit(0, Ask::Read, 0);
        begun.recv_timeout(LIMIT).unwrap();
        placed.move_to(&threads[1]).unwrap();
        guest.submit(1, Ask::Read, 0);
        begun.recv_timeout(LIMIT).unwrap();
        thread::scope(|scope| {
            let draining = scope.spawn(|| drain(&threads, &node));
            some_rounds(&threads);
            for round in 0..2 {
                assert!(!draining.is_finished(), "{round} of two requests are over");
                std::io::Write::write_all(&mut writer, &[7; BLOCK]).unwrap();
                assert_eq!(guest.completions().len(), 1);
            }
            let drained = draining.join().unwrap();
            assert_eq!(top.lanes(), 0);
            top.child.replace(null());
            guest.submit(2, Ask::Read, 0);
            some_rounds(&threads);
            assert!(guest.poll().is_empty(), "served while it was drained");
            drained.end().unwrap();
            assert_eq!(guest.completions(), [2]);
        });
        // The old child has seen none of it.
        assert!(begun.try_recv().is_err());
        assert_eq!(placed.stop().in_flight(), 0);
    });
}

/// The disk of one thread hangs; on the other one the drain is over soon.
#[test]
fn a_drain_is_given_up_after_a_while_and_all_go_on() {
    on_both(|reactors| {
        let files = Arc::new(FileTable::default());
        let threads = iothreads::<2>(&files, reactors);
        let (pipe, mut writer, begun) = pipe_node(&files);
        let top = Top::over(pipe);
        let node: Arc<dyn Node> = Arc::clone(&top) as _;
        let mut guests = [Guest::new(), Guest::new()];
        let placed = [0, 1].map(|thread| place(&guests[thread], &node, &threads[thread]));
        guests[0].submit(0, Ask::Read, 0);
        begun.recv_timeout(LIMIT).unwrap();
        let limit = Duration::from_millis(50);
        let nodes = || vec![Arc::clone(&node)];
        for _ in 0..3 {
            let gave_up = DrainedSection::begin(threads[0].sources(), nodes(), limit, &SystemClock);
            let gave_up = gave_up.unwrap_err();
            assert_eq!((&*gave_up.iothread, &*gave_up.node), ("t0", "top"));
            assert_eq!(top.lanes(), 2);
        }
        for guest in &mut guests {
            guest.submit(1, Ask::Read, 0);
            begun.recv_timeout(LIMIT).unwrap();
        }
        for _ in 0..3 {
            std::io::Write::write_all(&mut writer, &[7; BLOCK]).unwrap();
        }
        let mut answered = 0;
        while answered < 3 {
            answered += guests.iter_mut().map(|guest| guest.poll().len()).sum::<usize>();
            thread::yield_now();
        }
        drain(&threads, &node).end().unwrap();
        for placed in placed {
            assert_eq!(placed.stop().counters().errors, 0);
        }
    });
}

#[test]
fn a_drain_waits_for_nothing_that_is_held() {
    on_both(|reactors| {
        let files = Arc::new(FileTable::default());
        let threads = iothreads::<2>(&files, reactors);
        let (held, tells) = holding(null(), FOR_EVER);
        let top = Top::over(held);
        let node: Arc<dyn Node> = Arc::clone(&top) as _;
        let mut guest = Guest::new();
        let placed = place(&guest, &node, &threads[0]);
        // Some of them where the ring is no longer.
        for slot in 0..SLOTS {
            guest.submit(slot, Ask::Read, 0);
            tells.recv_timeout(LIMIT).unwrap();
            placed.move_to(&threads[usize::from(slot) % 2]).unwrap();
        }
        assert!(guest.poll().is_empty());
        let drained = drain(&threads, &node);
        let mut done = 0;
        while done < usize::from(SLOTS) {
            done += guest.completions().len();
        }
        top.child.replace(null());
        drained.end().unwrap();
        guest.submit(0, Ask::Read, 0);
        assert_eq!(guest.completions(), [0]);
        assert_eq!(placed.stop().in_flight(), 0);
    });
}

#[test]
fn rings_come_move_and_go_while_their_node_is_drained() {
    on_both(|reactors| {
        let files = Arc::new(FileTable::default());
        let threads = iothreads::<3>(&files, reactors);
        let top = Top::over(null());
        let node: Arc<dyn Node> = Arc::clone(&top) as _;
        let [mut stays, mut leaves, mut comes, mut passes] = [(); 4].map(|()| Guest::new());
        let staying = place(&stays, &node, &threads[0]);
        let leaving = place(&leaves, &node, &threads[0]);
        for guest in [&mut stays, &mut leaves] {
            guest.submit(0, Ask::Read, 0);
            assert_eq!(guest.completions(), [0]);
        }
        let drained = drain(&threads, &node);
        // What comes now is there when the ring goes, and nobody has begun it.
        leaves.submit(1, Ask::Read, 0);
        let source = leaving.stop();
        assert_eq!((source.in_flight(), source.counters().reads), (0, 1));
        let coming = place(&comes, &node, &threads[1]);
        comes.submit(0, Ask::Read, 0);
        stays.submit(1, Ask::Read, 0);
        for to in [&threads[1], &threads[2], &threads[0], &threads[1]] {
            staying.move_to(to).unwrap();
        }
        let passing = place(&passes, &node, &threads[2]);
        passes.submit(0, Ask::Read, 0);
        assert_eq!(passing.stop().in_flight(), 0);
        some_rounds(&threads);
        assert_eq!(top.lanes(), 0);
        let all = [&mut stays, &mut leaves, &mut comes, &mut passes];
        assert!(all.into_iter().all(|guest| guest.poll().is_empty()));
        drained.end().unwrap();
        assert_eq!((stays.completions(), comes.completions()), (vec![1], vec![0]));
        assert_eq!(staying.stop().in_flight() + coming.stop().in_flight(), 0);
        some_rounds(&threads);
        assert_eq!(top.lanes(), 0, "a lane was left open");
    });
}

#[test]
fn lanes_are_opened_on_all_threads_or_none() {
    on_both(|reactors| {
        let files = Arc::new(FileTable::default());
        let threads = iothreads::<3>(&files, reactors);
        // The second thread has one already, and the third gets none.
        let (old, bad) = (Top::over(null()), Top::over(null()));
        let top = Top::over(Arc::clone(&old) as _);
        let node: Arc<dyn Node> = Arc::clone(&top) as _;
        let mut guests = [(); 2].map(|()| Guest::new());
        let placed = [0, 1].map(|it| place(&guests[it], &node, &threads[it]));
        let drained = drain(&threads, &node);
        bad.refuse(true);
        top.child.replace(Arc::clone(&bad) as _);
        guests.iter_mut().for_each(|guest| guest.submit(0, Ask::Read, 0));
        let refused = drained.end().unwrap_err();
        assert_eq!(refused.iothread, "t0");
        assert_eq!((top.lanes(), old.lanes(), bad.lanes()), (0, 0, 0));
        some_rounds(&threads);
        assert!(guests.iter_mut().all(|guest| guest.poll().is_empty()));
        top.child.replace(Arc::clone(&old) as _);
        refused.drained.end().unwrap();
        for guest in &mut guests {
            assert_eq!((guest.completions(), guest.status(0)), (vec![0], 0));
        }
        placed.into_iter().for_each(|placed| assert_eq!(placed.stop().in_flight(), 0));
    });
}

#[test]
fn where_no_lane_can_be_opened_any_more_requests_fail_and_nobody_hangs() {
    on_both(|reactors| {
        let files = Arc::new(FileTable::default());
        let threads = iothreads::<2>(&files, reactors);
        let top = Top::over(null());
        let node: Arc<dyn Node> = Arc::clone(&top) as _;
        let mut guest = Guest::new();
        let placed = place(&guest, &node, &threads[0]);
        let drained = drain(&threads, &node);
        guest.submit(0, Ask::Read, 0);
        top.refuse(true);
        drop(drained);
        assert_eq!((guest.completions(), guest.status(0)), (vec![0], IO_ERROR));
        // The next change may repair it.
        let drained = drain(&threads, &node);
        top.refuse(false);
        drained.end().unwrap();
        guest.submit(0, Ask::Read, 0);
        assert_eq!((guest.completions(), guest.status(0)), (vec![0], 0));
        assert_eq!(placed.stop().in_flight(), 0);
    });
}
