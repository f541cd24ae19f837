//! A lane that works for its requests: it has internal I/Os before and after an answer, keeps what was carried
//! out, waits for other threads, and answers again; while rings are moved and stopped and the graph below
//! them changes.

mod working;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use block::{Access, DiscardPolicy, Node};
use disk::FileNode;
use kernel_io::{Aio, Caching, FileKind, FileTable, OpenOptions, ReactorChoice};

use crate::drains::drain;
use crate::guest::{Ask, BLOCK, Guest, SLOTS};
use crate::holding::{FOR_EVER, LIMIT, holding, null};
use crate::moves::{BLOCKS, Load, Progress, RINGS, Seeded};
use crate::open_requests::pipe_node;
use crate::setup::{iothreads, on_both, place};
use testkit::loop_device::LoopDevice;
use testkit::report;
use working::{Behaviour, WorkingNode};

const BYTES: u64 = RINGS * BLOCKS * BLOCK as u64;
const MEMORY: &str = "/dev/shm";

/// virtio 1.2, 5.2.6: VIRTIO_BLK_S_IOERR.
const IO_ERROR: u8 = 1;

/// A file with room for the disk and for what the lane notes of it.
fn image(files: &Arc<FileTable>, directory: &str, aio: Aio) -> (Arc<dyn Node>, tempfile::TempPath) {
    let image = tempfile::NamedTempFile::new_in(directory).unwrap();
    image.as_file().set_len(2 * BYTES).unwrap();
    let caching = if directory == MEMORY { Caching::Buffered } else { Caching::Direct };
    let options =
        OpenOptions { caching, aio, ..OpenOptions::regular(image.path(), Access::ReadWrite) };
    let node = FileNode::open("image", &options, DiscardPolicy::Unmap, files).unwrap();
    (Arc::new(node), image.into_temp_path())
}

/// The places of files: where they have asynchronous I/O, and where what is done is done at once.
fn directories() -> Vec<&'static str> {
    let mut all = vec![env!("CARGO_TARGET_TMPDIR")];
    all.extend(Path::new(MEMORY).is_dir().then_some(MEMORY));
    all
}

/// Loads rings while they move and the graph is drained; then looks at all bytes.
fn load(reactors: ReactorChoice, directory: &str, aio: Aio, behaviour: Behaviour) {
    let files = Arc::new(FileTable::default());
    let threads = iothreads::<3>(&files, reactors);
    let (below, image) = image(&files, directory, aio);
    let node = WorkingNode::over(below, BYTES, behaviour);
    let top: Arc<dyn Node> = Arc::clone(&node) as _;
    let mut loads: Vec<Load> = (0..RINGS).map(Load::new).collect();
    let placed: Vec<_> = loads.iter().map(|load| place(&load.guest, &top, &threads[0])).collect();
    let (over, progress) = (AtomicBool::new(false), Progress::default());
    std::thread::scope(|scope| {
        for load in &mut loads {
            scope.spawn(|| load.run(&over, &progress));
        }
        let mut random = Seeded(7);
        let mut moves = 0_u32;
        while moves < 200 || progress.least() < 100 {
            moves += 1;
            let ring = usize::try_from(random.below(RINGS)).unwrap();
            let to = usize::try_from(random.below(3)).unwrap();
            placed[ring].move_to(&threads[to]).unwrap();
            if moves.is_multiple_of(20) {
                let drained = drain(&threads, &top);
                assert_eq!(node.lanes_open(), 0, "drained, but a lane is open");
                drained.end().unwrap();
            }
        }
        over.store(true, Ordering::Relaxed);
    });
    for placed in placed {
        assert_eq!(placed.stop().in_flight(), 0);
    }
    drop(threads);
    let bytes = std::fs::read(&image).unwrap();
    loads.iter().for_each(|load| load.check_image(&bytes));
    if behaviour != Behaviour::Working {
        return assert!(node.kept() > 0, "nothing was put to the test");
    }
    // Each write was noted once, after its bytes were there.
    for (block, version) in loads.iter().flat_map(Load::versions) {
        let place = usize::try_from(BYTES + block * BLOCK as u64).unwrap();
        let noted = u64::from_le_bytes(bytes[place..place + 8].try_into().unwrap());
        assert_eq!(noted, version, "block {block} in {directory}");
    }
    let kept = node.kept();
    assert!(kept > 0 && node.background() > 0, "nothing was put to the test");
}

#[test]
fn a_working_lane_under_load_loses_nothing_and_repeats_nothing() {
    on_both(|reactors| {
        for directory in directories() {
            load(reactors, directory, Aio::Automatic, Behaviour::Working);
        }
        load(reactors, env!("CARGO_TARGET_TMPDIR"), Aio::Threads, Behaviour::Working);
        load(reactors, env!("CARGO_TARGET_TMPDIR"), Aio::Native, Behaviour::Working);
    });
}

/// Each request needs a wake of the other thread, which sleeps by then, and one back.
#[test]
fn reads_find_what_their_lane_keeps_in_memory() {
    on_both(|reactors| {
        for directory in directories() {
            load(reactors, directory, Aio::Automatic, Behaviour::Keeping);
        }
    });
}

#[test]
fn a_wake_that_comes_as_a_thread_goes_to_sleep_is_not_lost() {
    on_both(|reactors| {
        let files = Arc::new(FileTable::default());
        let threads = iothreads::<2>(&files, reactors);
        let (below, _image) = image(&files, directories().last().unwrap(), Aio::Automatic);
        let node: Arc<dyn Node> = WorkingNode::over(below, BYTES, Behaviour::default());
        let (mut guest, other) = (Guest::new(), Guest::new());
        let idle = place(&other, &node, &threads[0]);
        let placed = place(&guest, &node, &threads[1]);
        for round in 0..3000 {
            guest.submit(0, Ask::Write, round % BLOCKS);
            assert_eq!(guest.completions(), [0]);
            assert_eq!(guest.status(0), 0);
        }
        assert_eq!(placed.stop().in_flight() + idle.stop().in_flight(), 0);
    });
}

#[test]
fn a_stop_waits_for_the_work_of_a_lane_and_the_lane_closes_after_it() {
    on_both(|reactors| {
        let files = Arc::new(FileTable::default());
        let threads = iothreads::<2>(&files, reactors);
        for directory in directories() {
            let (below, _image) = image(&files, directory, Aio::Automatic);
            let node = WorkingNode::over(below, BYTES, Behaviour::default());
            let top: Arc<dyn Node> = Arc::clone(&node) as _;
            for round in 0..100_usize {
                let mut guest = Guest::new();
                let placed = place(&guest, &top, &threads[round % 2]);
                for slot in 0..SLOTS {
                    let ask = [Ask::Write, Ask::Read, Ask::Flush][usize::from(slot) % 3];
                    guest.submit(slot, ask, u64::from(slot));
                }
                if round % 3 == 0 {
                    placed.move_to(&threads[(round + 1) % 2]).unwrap();
                }
                let source = placed.stop();
                assert_eq!(source.in_flight(), 0);
                let counters = source.counters();
                let done = guest.poll();
                let served = counters.reads + counters.writes + counters.flushes;
                assert_eq!(done.len() as u64, served);
                assert!(done.into_iter().all(|slot| guest.status(slot) == 0));
            }
            // Internal I/Os that nobody waits for keep a lane open for as long as they last.
            let drained = drain(&threads, &top);
            assert_eq!(node.lanes_open(), 0);
            drained.end().unwrap();
        }
    });
}

#[test]
fn an_errand_that_fails_fails_its_request_and_no_other() {
    if let Some(reason) = LoopDevice::missing() {
        return report::skipped(reason);
    }
    on_both(|reactors| {
        let files = Arc::new(FileTable::default());
        let [a, _] = iothreads::<2>(&files, reactors);
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let path = directory.path().join("device");
        std::fs::File::create(&path).unwrap().set_len(2 * BYTES).unwrap();
        let device = LoopDevice::attach(&path, 512).unwrap();
        let options = OpenOptions {
            kind: FileKind::BlockDevice,
            caching: Caching::Direct,
            ..OpenOptions::regular(device.path(), Access::ReadWrite)
        };
        let below = FileNode::open("device", &options, DiscardPolicy::Unmap, &files).unwrap();
        // What is noted of the second half lies behind the end of the device now.
        device.resize(&path, BYTES + BYTES / 2).unwrap();
        let node: Arc<dyn Node> = WorkingNode::over(Arc::new(below), BYTES, Behaviour::default());
        let mut guest = Guest::new();
        let placed = place(&guest, &node, &a);
        let blocks = RINGS * BLOCKS;
        for round in 0..20 {
            guest.submit(0, Ask::Write, round);
            guest.submit(1, Ask::Write, blocks - 1 - round);
            // Behind the end are zeroes: nothing was noted.
            guest.submit(2, Ask::Read, blocks / 2 + round);
            let mut done = 0;
            while done < 3 {
                done += guest.completions().len();
            }
            assert_eq!([0, 1, 2].map(|slot| guest.status(slot)), [0, IO_ERROR, 0]);
        }
        assert_eq!(placed.stop().in_flight(), 0);
    });
}

#[test]
fn a_lane_that_always_has_something_to_do_leaves_others_their_turns() {
    on_both(|reactors| {
        let files = Arc::new(FileTable::default());
        let [a, _] = iothreads::<2>(&files, reactors);
        let node = WorkingNode::over(null(), BYTES, Behaviour::Spinning);
        let spinning: Arc<dyn Node> = Arc::clone(&node) as _;
        let (mut guest, mut other) = (Guest::new(), Guest::new());
        let (placed, beside) = (place(&guest, &spinning, &a), place(&other, &null(), &a));
        guest.submit(0, Ask::Read, 0);
        for _ in 0..200 {
            other.submit(0, Ask::Read, 0);
            assert_eq!(other.completions(), [0]);
        }
        assert!(guest.poll().is_empty());
        node.let_go();
        assert_eq!(guest.completions(), [0]);
        assert_eq!(placed.stop().in_flight() + beside.stop().in_flight(), 0);
    });
}

/// What is kept is held below again, for ever, if nobody waits for it.
#[test]
fn a_stop_waits_for_nothing_that_is_held_for_its_second_answer() {
    on_both(|reactors| {
        let files = Arc::new(FileTable::default());
        let threads = iothreads::<2>(&files, reactors);
        let (below, tells) = holding(null(), FOR_EVER);
        let node: Arc<dyn Node> = WorkingNode::over(below, 1 << 20, Behaviour::AskingTwice);
        let mut guest = Guest::new();
        let placed = place(&guest, &node, &threads[0]);
        for slot in 0..SLOTS {
            guest.submit(slot, Ask::Read, 0);
            tells.recv_timeout(LIMIT).unwrap();
            // Some of them where the ring is no longer.
            placed.move_to(&threads[usize::from(slot) % 2]).unwrap();
        }
        assert!(guest.poll().is_empty());
        assert_eq!(placed.stop().in_flight(), 0);
        assert_eq!(guest.poll().len(), usize::from(SLOTS));
    });
}

#[test]
fn a_stop_waits_for_nothing_that_is_held_after_it_began() {
    on_both(|reactors| {
        let files = Arc::new(FileTable::default());
        let [a, b] = iothreads::<2>(&files, reactors);
        let (pipe, mut writer, begun) = pipe_node(&files);
        let (held, _tells) = holding(null(), FOR_EVER);
        let node = WorkingNode::over_two(pipe, held, Behaviour::AskingTwice);
        let node: Arc<dyn Node> = node;
        let mut guest = Guest::new();
        let placed = place(&guest, &node, &a);
        // One where the ring was, one where it is.
        guest.submit(0, Ask::Read, 0);
        begun.recv_timeout(LIMIT).unwrap();
        placed.move_to(&b).unwrap();
        guest.submit(1, Ask::Read, 0);
        begun.recv_timeout(LIMIT).unwrap();
        std::thread::scope(|scope| {
            let stop = scope.spawn(|| placed.stop().in_flight());
            // They are in flight while the stop begins: it may be late, which proves nothing then.
            std::thread::park_timeout(Duration::from_millis(50));
            std::io::Write::write_all(&mut writer, &[7; 2 * BLOCK]).unwrap();
            assert_eq!(stop.join().unwrap(), 0);
        });
        assert_eq!(guest.poll().len(), 2);
    });
}
