//! Disks are mirrored while clients write to them.

use std::sync::mpsc::{Receiver, Sender, channel};

use bitmaps::Granularity;
use block::{FailKind, Piece, Target};
use copy::{CopyEnd, CopyError, CopySide, ErrorAction, ErrorPolicy};
use layers::MirrorMode;

use super::*;
use crate::state::{BlockJobError, JobNews, JobObserver, MirrorEnd, MirrorOptions, MirrorSync};
use testkit::deadline::poll_until;

/// Tells a test what happens to its job.
#[derive(Debug)]
pub(super) struct Reporter(pub(super) std::sync::Mutex<Sender<JobNews>>);

impl JobObserver for Reporter {
    fn hear(&self, news: JobNews) {
        // A job may tell something when the test is over.
        let _nobody_listens = self.0.lock().unwrap().send(news);
    }
}

fn options(mode: MirrorMode, sync: MirrorSync) -> MirrorOptions {
    MirrorOptions {
        id: "j".to_owned(),
        source: "a".to_owned(),
        target: "b".to_owned(),
        sync,
        mode,
        granularity: Granularity::new(4096).unwrap(),
        speed: 0,
        on_source_error: ErrorPolicy::Report,
        on_target_error: ErrorPolicy::Report,
        memory: 0,
        replaces: None,
        filter: None,
        is_verified: false,
    }
}

/// Begins a job, and gives what tells of it.
fn start(place: &mut Place, options: &MirrorOptions) -> Receiver<JobNews> {
    let (sender, news) = channel();
    let observer: Arc<dyn JobObserver> = Arc::new(Reporter(std::sync::Mutex::new(sender)));
    place.built.start_mirror(options, &observer).unwrap();
    news
}

/// Waits until source and target were equal once more.
#[track_caller]
fn wait_equal(news: &Receiver<JobNews>) {
    match news.recv_timeout(LIMIT).unwrap() {
        JobNews::Equal => {}
        other @ (JobNews::DiskFailed(..)
        | JobNews::WorkerEnded(_)
        | JobNews::Failed(_)
        | JobNews::Quiet
        | JobNews::NotServed(_)) => {
            panic!("{other:?}")
        }
    }
}

/// Ends a job as soon as source and target are equal; gives how often they were not.
#[track_caller]
pub(super) fn finish(place: &mut Place, news: &Receiver<JobNews>, end: MirrorEnd) -> u32 {
    let mut tries = 0;
    place.built.converge_mirror("j");
    loop {
        wait_equal(news);
        // A discard that is under way is noted when it ends.
        poll_until("what was compared to be equal", LIMIT, || {
            let compared = place.built.compared_by_mirror("j").unwrap_or_default();
            Ok((compared.differing == 0).then_some(()))
        })
        .unwrap();
        match place.built.finish_mirror("j", end) {
            Ok(()) => return tries,
            Err(BlockJobError::Change(GraphChangeError::NotEqual)) => tries += 1,
            Err(error) => panic!("{}", chain_of(&error)),
        }
    }
}

#[test]
fn clients_write_on_while_their_disk_moves_back_and_forth() {
    let mut place = Place::serving(
        "file,node-name=a,filename=DIR/a,discard=unmap file,node-name=b,filename=DIR/b,discard=unmap \
         a>e a>g",
    );
    let [path, other] = [place.path("a"), place.path("b")];
    let socket = place.path("e.sock");
    let over = AtomicBool::new(false);
    let mut model = DiskModel::new(fs::read(&path).unwrap());
    let mut moves = 0;
    thread::scope(|scope| {
        let load = scope.spawn(|| work(&socket, &mut model, &over));
        for round in 0..20 {
            let mode = match round % 4 {
                0 | 1 => MirrorMode::Background,
                _ => MirrorMode::WriteBlocking,
            };
            let mut options = options(mode, MirrorSync::Full);
            options.is_verified = mode == MirrorMode::WriteBlocking;
            if moves % 2 == 1 {
                std::mem::swap(&mut options.source, &mut options.target);
            }
            let news = start(&mut place, &options);
            assert!(!load.is_finished());
            match round % 5 {
                3 => place.built.abort_block_job("j").unwrap(),
                4 => drop(finish(&mut place, &news, MirrorEnd::Stay)),
                _ => {
                    finish(&mut place, &news, MirrorEnd::Switch);
                    moves += 1;
                }
            }
            assert!(!place.built.has_block_jobs());
            let root = if moves % 2 == 1 { "b" } else { "a" };
            assert_eq!(place.built.graph.root("e"), Some(root));
            assert_eq!(place.built.graph.root("g"), Some(root));
        }
        over.store(true, Ordering::Relaxed);
        load.join().unwrap();
    });
    place.built.stop_exports();
    model.check_image(if moves % 2 == 1 { &other } else { &path }).unwrap();
}

#[test]
fn a_mirror_that_stays_leaves_the_target_as_the_source_was() {
    let mut place =
        Place::serving("file,node-name=a,filename=DIR/a file,node-name=b,filename=DIR/b a>e");
    let mut client = place.client("e");
    client.write(8192, &[7; 4096], 0).unwrap();
    let news = start(&mut place, &options(MirrorMode::Background, MirrorSync::Full));
    client.write(65536, &[8; 512], 1).unwrap();
    finish(&mut place, &news, MirrorEnd::Stay);
    let before = fs::read(place.path("a")).unwrap();
    client.write(0, &[9; 512], 1).unwrap();
    assert!(fs::read(place.path("b")).unwrap() == before);
    assert_eq!(fs::read(place.path("a")).unwrap()[..512], [9; 512]);
    // Nobody is left who keeps others off the target.
    assert!(is_free(&place.path("b")));
}

#[test]
fn only_what_is_written_from_now_on_is_mirrored_if_that_was_asked() {
    let mut place =
        Place::serving("file,node-name=a,filename=DIR/a file,node-name=b,filename=DIR/b a>e");
    let mut wanted = fs::read(place.path("b")).unwrap();
    let news = start(&mut place, &options(MirrorMode::Background, MirrorSync::New));
    let mut client = place.client("e");
    client.write(4096, &[7; 4096], 0).unwrap();
    finish(&mut place, &news, MirrorEnd::Stay);
    wanted[4096..8192].fill(7);
    assert!(fs::read(place.path("b")).unwrap() == wanted);
}

#[test]
fn what_a_job_uses_cannot_be_changed_by_others() {
    let mut place = Place::serving(
        "file,node-name=a,filename=DIR/a file,node-name=b,filename=DIR/b \
         null-co,node-name=n,size=1048576 null-co,node-name=small,size=4096 a>e",
    );
    let (sender, _news) = channel();
    let observer: Arc<dyn JobObserver> = Arc::new(Reporter(std::sync::Mutex::new(sender)));
    let good = options(MirrorMode::Background, MirrorSync::Full);
    let refused = |place: &mut Place, source: &str, target: &str| {
        let (id, source, target) = ("k".to_owned(), source.to_owned(), target.to_owned());
        let options = MirrorOptions { id, source, target, ..good.clone() };
        let error = place.built.start_mirror(&options, &observer).unwrap_err();
        chain_of(&error).to_string()
    };
    let said = refused(&mut place, "a", "a");
    assert_eq!(said, "Can't mirror node into itself");
    let said = refused(&mut place, "a", "small");
    assert!(said.ends_with("node 'small' has 4096 bytes, and node 'a' has 1048576"), "{said}");
    // The export writes it.
    let said = refused(&mut place, "b", "a");
    assert!(said.contains("Permission conflict on node 'a'"), "{said}");
    assert!(!place.built.graph.has_filter("b", FilterKind::Job).unwrap());
    place.built.start_mirror(&good, &observer).unwrap();
    let busy = "Node 'a' is busy: block device is in use by block job 'j'";
    assert_eq!(refused(&mut place, "a", "n"), busy);
    assert_eq!(place.replace(&export("e"), "root", "n").unwrap_err(), busy);
    let error = place.built.resize_node("a", 2 << 20).unwrap_err();
    assert!(chain_of(&error).to_string().contains("'source'"), "{error}");
    place.built.abort_block_job("j").unwrap();
    place.replace(&export("e"), "root", "n").unwrap();
}

/// A disk of zeroes that has no space as long as it is told so.
#[derive(Debug)]
struct FullNode {
    is_full: Arc<AtomicBool>,
}

impl Node for FullNode {
    fn name(&self) -> &str {
        "full"
    }

    fn size(&self) -> DiskSize {
        DiskSize(ByteCount(IMAGE_BYTES as u64))
    }

    fn limits(&self) -> BlockLimits {
        let sector = std::num::NonZeroU32::new(512).unwrap();
        BlockLimits {
            request_alignment: sector,
            physical_block: sector,
            discard: false,
            discard_granularity: sector,
            allocation_unit: sector,
        }
    }

    fn access(&self) -> Access {
        Access::ReadWrite
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn claim(&self, _: Rights) -> Result<Claim, ClaimError> {
        Ok(Claim::nothing())
    }

    fn open_lane(&self, _: &LaneContext) -> Result<Box<dyn Lane>, LaneError> {
        Ok(Box::new(FullLane { is_full: Arc::clone(&self.is_full) }))
    }
}

#[derive(Debug)]
struct FullLane {
    is_full: Arc<AtomicBool>,
}

impl block::LeafLane for FullLane {
    fn answer(&mut self, mapping: &mut block::Mapping, pieces: &mut block::BatchPieces) {
        let is_refused = mapping.operation.is_change() && self.is_full.load(Ordering::Relaxed);
        mapping.answer = if is_refused {
            block::Answer::Refused(FailKind::NoSpace)
        } else {
            let count = mapping.operation.extent().map_or(0, |extent| extent.count().0);
            let target =
                if mapping.operation.is_change() { Target::Nothing } else { Target::Zeroes };
            block::Answer::Now(pieces.one(Piece { skip: 0, count: ByteCount(count), target }))
        };
    }
}

#[test]
fn a_target_without_space_stops_the_job_and_no_client() {
    let mut place = Place::serving("file,node-name=a,filename=DIR/a a>e");
    let is_full = Arc::new(AtomicBool::new(true));
    place.built.graph.add_made(Arc::new(FullNode { is_full: Arc::clone(&is_full) }));
    let mut client = place.client("e");
    for (policy, action) in [
        (ErrorPolicy::Report, ErrorAction::Report),
        (ErrorPolicy::Stop, ErrorAction::Stop),
        (ErrorPolicy::Enospc, ErrorAction::Stop),
        (ErrorPolicy::Ignore, ErrorAction::Ignore),
    ] {
        is_full.store(true, Ordering::Relaxed);
        let mut options = options(MirrorMode::WriteBlocking, MirrorSync::Full);
        (options.target, options.on_target_error) = ("full".to_owned(), policy);
        let news = start(&mut place, &options);
        client.write(0, &[3; 4096], 0).unwrap();
        let told = news.recv_timeout(LIMIT).unwrap();
        let JobNews::DiskFailed(CopyError::Disk { side, kind, .. }, found) = told else {
            panic!("{told:?}")
        };
        assert_eq!((side, kind, found), (CopySide::Target, FailKind::NoSpace, action));
        if action == ErrorAction::Report {
            let is_end = |it: &JobNews| matches!(it, JobNews::WorkerEnded(CopyEnd::Failed(_)));
            while !is_end(&news.recv_timeout(LIMIT).unwrap()) {}
        } else {
            is_full.store(false, Ordering::Relaxed);
            place.built.pause_block_job("j", false);
            while news.recv_timeout(LIMIT).unwrap() != JobNews::Equal {}
        }
        client.write(4096, &[4; 4096], 1).unwrap();
        place.built.abort_block_job("j").unwrap();
    }
    assert_eq!(fs::read(place.path("a")).unwrap()[4096..8192], [4; 4096]);
}

#[test]
fn what_stands_above_a_filter_stays_there_when_the_node_below_moves() {
    let mut place = Place::serving(
        "file,node-name=a,filename=DIR/a,discard=unmap file,node-name=b,filename=DIR/b,discard=unmap \
         copy-on-read,node-name=cor,file=a cor>e",
    );
    let [path, other] = [place.path("a"), place.path("b")];
    let socket = place.path("e.sock");
    let over = AtomicBool::new(false);
    let mut model = DiskModel::new(fs::read(&path).unwrap());
    let mut is_moved = false;
    thread::scope(|scope| {
        let load = scope.spawn(|| work(&socket, &mut model, &over));
        for round in 0..9 {
            let (from, to) = if is_moved { ("b", "a") } else { ("a", "b") };
            let mode =
                if round % 2 == 0 { MirrorMode::Background } else { MirrorMode::WriteBlocking };
            let mut options = options(mode, MirrorSync::Full);
            (options.source, options.target) = ("cor".to_owned(), to.to_owned());
            options.replaces = Some(from.to_owned());
            options.memory = 64 << 10;
            options.filter = Some("f".to_owned());
            let news = start(&mut place, &options);
            assert_eq!(place.built.graph.model().job_filter_on("cor").unwrap().name, "f");
            finish(&mut place, &news, MirrorEnd::Switch);
            is_moved = !is_moved;
            assert!(!place.built.has_block_jobs());
            assert_eq!(place.built.graph.root("e"), Some("cor"));
            assert_eq!(place.built.graph.model().filtered("cor"), Some(to));
            assert!(place.built.graph.model().job_filters().next().is_none());
        }
        over.store(true, Ordering::Relaxed);
        load.join().unwrap();
    });
    place.built.stop_exports();
    model.check_image(if is_moved { &other } else { &path }).unwrap();
}

#[test]
fn only_what_shows_the_same_bytes_is_replaced_and_names_are_taken_once() {
    let mut place = Place::serving(
        "file,node-name=a,filename=DIR/a file,node-name=b,filename=DIR/b \
         null-co,node-name=n,size=1048576 copy-on-read,node-name=cor,file=a cor>e a)g",
    );
    let refused = |place: &mut Place, change: &dyn Fn(&mut MirrorOptions)| {
        let mut options = options(MirrorMode::Background, MirrorSync::Full);
        options.source = "cor".to_owned();
        change(&mut options);
        let observer: Arc<dyn JobObserver> = Arc::new(Reporter(std::sync::Mutex::new(channel().0)));
        let error = place.built.start_mirror(&options, &observer).unwrap_err();
        assert!(!place.built.has_block_jobs());
        chain_of(&error).to_string()
    };
    let sentence = refused(&mut place, &|options| options.replaces = Some("n".to_owned()));
    assert!(sentence.starts_with("Cannot replace 'n' by a node mirrored from 'cor'"), "{sentence}");
    let sentence = refused(&mut place, &|options| options.replaces = Some("a".to_owned()));
    assert!(sentence.contains("export 'g' uses it, too"), "{sentence}");
    let sentence = refused(&mut place, &|options| options.filter = Some("n".to_owned()));
    assert_eq!(sentence, "node-name 'n' exists already");
    let mut first = options(MirrorMode::Background, MirrorSync::New);
    first.filter = Some("f".to_owned());
    (first.source, first.target) = ("cor".to_owned(), "b".to_owned());
    drop(start(&mut place, &first));
    let taken = Blockdev::parse("null-co,node-name=f,size=512").unwrap();
    let error = place.built.add_node(&taken).unwrap_err();
    assert_eq!(chain_of(&error).to_string(), "node-name 'f' exists already");
    place.built.abort_block_job("j").unwrap();
    place.built.add_node(&taken).unwrap();
}

#[test]
fn what_never_becomes_equal_is_compared_so_often_and_no_more() {
    let mut place = Place::serving(
        "file,node-name=a,filename=DIR/a null-co,node-name=b,size=1048576,read-zeroes=on a>e",
    );
    let mut options = options(MirrorMode::WriteBlocking, MirrorSync::Full);
    options.is_verified = true;
    let news = start(&mut place, &options);
    wait_equal(&news);
    let (all, compared) = (IMAGE_BYTES as u64, place.built.compared_by_mirror("j").unwrap());
    assert_eq!((compared.bytes, compared.differing), (all, all));
    // It is copied once, and compared four times.
    assert_eq!(place.built.block_job_progress("j").unwrap().current, 5 * all);
    place.built.abort_block_job("j").unwrap();
}
