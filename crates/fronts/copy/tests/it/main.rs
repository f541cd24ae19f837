//! Jobs on real iothreads: files and disks that fail, against plain vectors.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::error::Error;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};

use block::{Access, DiscardPolicy, Node, SystemClock};
use copy::{
    CopiedSource, CopyAction, CopyEnd, CopyError, CopyJob, CopySettings, CopySide, CopyWorker,
    TargetContent,
};
use disk::FileNode;
use iothread::{
    Iothread, PlacedFrontEnd, PollSettings, ProcessResources, SourceName, SourceObserver,
};
use kernel_io::{Caching, FileTable, Notifier, OpenOptions, ReactorChoice};
use request_path::FrontEndSource;

const MIB: usize = 1 << 20;

/// Files and the iothreads that serve them.
struct Scene {
    files: Arc<FileTable>,
    directory: tempfile::TempDir,
    reactors: ReactorChoice,
}

struct Observer(Mutex<Sender<CopyEnd>>);

impl std::fmt::Debug for Observer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Observer")
    }
}

impl SourceObserver for Observer {
    fn broken(&self, fault: &(dyn Error + 'static)) {
        let end = *fault.downcast_ref::<CopyEnd>().unwrap();
        self.0.lock().unwrap().send(end).unwrap();
    }

    fn kicked_while_empty(&self) {}
}

impl Scene {
    fn new(reactors: ReactorChoice) -> Self {
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        Self { files: Arc::default(), directory, reactors }
    }

    fn node(&self, name: &str, bytes: &[u8], direct: bool) -> Arc<dyn Node> {
        let path = self.directory.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let caching = if direct { Caching::Direct } else { Caching::Buffered };
        let options = OpenOptions { caching, ..OpenOptions::regular(&path, Access::ReadWrite) };
        Arc::new(FileNode::open(name, &options, DiscardPolicy::Unmap, &self.files).unwrap())
    }

    fn content(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.directory.path().join(name)).unwrap()
    }

    /// Carries a job out with so many workers; how each of them ended.
    fn run(&self, job: &Arc<CopyJob>, nodes: &[Arc<dyn Node>], workers: u16) -> Vec<CopyEnd> {
        let (sender, ends) = channel();
        let place = |number| {
            let resources = ProcessResources {
                files: Arc::clone(&self.files),
                clock: Arc::new(SystemClock),
                sources: Arc::default(),
                reactors: self.reactors,
                spare_rings: Arc::default(),
                confine: None,
                alarm: None,
            };
            let iothread = Iothread::spawn(&format!("t{number}"), resources, PollSettings::OFF);
            let iothread = Arc::new(iothread.unwrap());
            let nobody = Arc::new(Notifier::new().unwrap());
            let front = CopyWorker::new(job).unwrap();
            let source = FrontEndSource::new(front, nodes.to_vec(), nobody);
            let name = SourceName { export: "copy".to_owned(), queue: number };
            let observer = Arc::new(Observer(Mutex::new(sender.clone())));
            PlacedFrontEnd::on(&iothread, name, source, observer).unwrap()
        };
        let placed: Vec<_> = (0..workers).map(place).collect();
        let ends = placed.iter().map(|_| ends.recv().unwrap()).collect();
        placed.into_iter().for_each(|worker| drop(worker.stop()));
        ends
    }
}

fn settings(action: CopyAction, bytes: usize, target: TargetContent) -> CopySettings {
    let bytes = bytes as u64;
    let target_bytes = bytes.next_multiple_of(512);
    CopySettings {
        action,
        bytes,
        target_bytes,
        target,
        zero_unit: 4096,
        target_unit: 1,
        copied: CopiedSource::Kept,
        bytes_per_second: None,
    }
}

fn job(settings: CopySettings) -> Arc<CopyJob> {
    CopyJob::new(settings, Arc::new(SystemClock))
}

/// Bytes with data and zeroes of all lengths, from a seed.
fn content(bytes: usize, seed: u64) -> Vec<u8> {
    let mut content = vec![0; bytes];
    let (mut at, mut state) = (0, seed | 1);
    while at < bytes {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let count = (1 << (state >> 60)) * 512 * (1 + (state >> 40) as usize % 7);
        let end = bytes.min(at + count);
        if state >> 59 & 1 == 1 {
            content[at..end].fill(state.to_le_bytes()[4] | 1);
        }
        at = end;
    }
    content
}

/// A disk that ends inside a sector is copied to its last byte: what a larger target has behind it in that sector is zero.
#[track_caller]
fn check_odd(reactors: ReactorChoice, direct: bool, has: usize, target_has: usize) {
    let scene = Scene::new(reactors);
    for (wanted, target) in [
        (vec![7; has], TargetContent::Unknown),
        (vec![0; has], TargetContent::Unknown),
        (vec![7; has], TargetContent::Zeroes),
    ] {
        let before = if target == TargetContent::Unknown { 9 } else { 0 };
        let before = vec![before; target_has];
        let nodes = [scene.node("source", &wanted, direct), scene.node("target", &before, direct)];
        let target_bytes = target_has as u64;
        let asked = CopySettings { target_bytes, ..settings(CopyAction::Copy, has, target) };
        let ends = scene.run(&job(asked), &nodes, 2);
        assert!(ends.iter().all(|end| *end == CopyEnd::Done), "{ends:?}");
        let mut expected = before;
        expected[..has].copy_from_slice(&wanted);
        expected[has..has.next_multiple_of(512).min(target_has)].fill(0);
        assert!(scene.content("target") == expected, "{has} of {target_has}, direct: {direct}");
        let compare = job(CopySettings { action: CopyAction::Compare, ..asked });
        let ends = scene.run(&compare, &nodes, 2);
        assert!(ends.iter().all(|end| *end == CopyEnd::Done), "{ends:?}: {:?}", compare.error());
    }
}

#[test]
fn a_disk_that_ends_inside_a_sector_is_copied_to_its_last_byte() {
    for direct in [false, true] {
        for (has, target_has) in
            [(100, 512), (512 * 1025 + 1, 512 * 1026), (262_145, 262_145), (700_001, 700_300)]
        {
            // Past the page cache only whole blocks are written.
            if !direct || target_has % 512 == 0 {
                check_odd(ReactorChoice::Any, direct, has, target_has);
            }
        }
    }
}

#[track_caller]
fn check_copy(reactors: ReactorChoice, direct: bool, target: TargetContent, workers: u16) {
    let scene = Scene::new(reactors);
    let bytes = 70 * MIB + 512 * 3;
    let before = match target {
        TargetContent::Unknown => content(bytes, 99),
        TargetContent::Zeroes => vec![0; bytes],
    };
    let wanted = content(bytes, 7);
    let nodes = [scene.node("source", &wanted, direct), scene.node("target", &before, direct)];
    let copy = job(settings(CopyAction::Copy, bytes, target));
    let ends = scene.run(&copy, &nodes, workers);
    assert!(ends.iter().all(|end| *end == CopyEnd::Done), "{ends:?}");
    assert!(scene.content("target") == wanted, "another copy");
    let progress = copy.progress();
    assert_eq!(progress.done, bytes as u64);
    assert!(progress.written <= progress.data && progress.data <= progress.done, "{progress:?}");
    let compare = job(settings(CopyAction::Compare, bytes, target));
    assert!(scene.run(&compare, &nodes, workers).iter().all(|end| *end == CopyEnd::Done));
}

#[test]
fn a_copy_is_equal() {
    check_copy(ReactorChoice::Any, false, TargetContent::Zeroes, 1);
    check_copy(ReactorChoice::Any, true, TargetContent::Unknown, 3);
    check_copy(ReactorChoice::EpollOnly, false, TargetContent::Unknown, 2);
}

#[test]
fn a_byte_that_differs_is_found_where_it_is() {
    let scene = Scene::new(ReactorChoice::Any);
    for place in [0, 5 * MIB + 77, 33 * MIB, 40 * MIB - 1] {
        let source = content(40 * MIB, 3);
        let mut target = source.clone();
        target[place] ^= 1;
        let nodes = [scene.node("source", &source, false), scene.node("target", &target, false)];
        let compare = job(settings(CopyAction::Compare, source.len(), TargetContent::Unknown));
        scene.run(&compare, &nodes, 2);
        assert_eq!(compare.error(), Some(CopyError::Differs(block::ByteOffset(place as u64))));
    }
}

#[test]
fn a_disk_that_fails_ends_the_job_with_the_place() {
    let scene = Scene::new(ReactorChoice::Any);
    let bytes = 16 * MIB;
    let source = scene.node("source", &vec![1; bytes], false);
    let target = scene.node("target", &vec![0; bytes], false);
    let check = |nodes: &[Arc<dyn Node>], expected: CopySide, at: std::ops::Range<u64>| {
        let copy = job(settings(CopyAction::Copy, bytes, TargetContent::Zeroes));
        let ends = scene.run(&copy, nodes, 2);
        let Some(CopyError::Disk { side, offset, .. }) = copy.error() else { panic!("{ends:?}") };
        assert!(side == expected && at.contains(&offset.0), "{side:?} {offset}");
        assert!(ends.iter().any(|end| matches!(end, CopyEnd::Failed(_))), "{ends:?}");
    };
    let path = scene.directory.path().join("other");
    std::fs::write(&path, vec![0; bytes]).unwrap();
    let options = OpenOptions::regular(&path, Access::ReadOnly);
    let read_only = FileNode::open("ro", &options, DiscardPolicy::Unmap, &scene.files).unwrap();
    check(&[Arc::clone(&source), Arc::new(read_only)], CopySide::Target, 0..bytes as u64);
    // What is cut off while it is copied.
    let path = scene.directory.path().join("source");
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    file.set_len(9 * MIB as u64).unwrap();
    check(&[source, target], CopySide::Source, 8 * MIB as u64..bytes as u64);
}

#[test]
fn a_job_that_is_cancelled_ends() {
    let scene = Scene::new(ReactorChoice::Any);
    let bytes = 64 * MIB;
    let nodes = [
        scene.node("source", &vec![1; bytes], false),
        scene.node("target", &vec![0; bytes], false),
    ];
    let slow = CopySettings {
        bytes_per_second: Some(MIB as u64),
        ..settings(CopyAction::Copy, bytes, TargetContent::Zeroes)
    };
    let copy = job(slow);
    let other = Arc::clone(&copy);
    let cancel = std::thread::spawn(move || {
        while other.progress().done == 0 {
            std::thread::yield_now();
        }
        other.cancel();
    });
    let ends = scene.run(&copy, &nodes, 2);
    cancel.join().unwrap();
    assert!(ends.iter().all(|end| *end == CopyEnd::Cancelled), "{ends:?}");
    assert!(copy.progress().done < 8 * MIB as u64, "{:?}", copy.progress());
}
