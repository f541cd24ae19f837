//! Chains of backing files become shorter and longer while a client writes.

use std::sync::mpsc::{Receiver, channel};

use bitmaps::Granularity;
use copy::{CopyEnd, ErrorPolicy};
use layers::MirrorMode;
use testkit::rng::Rng;

use super::mirror::{Reporter, finish};
use super::*;
use crate::state::{
    BackingName, CommitOptions, JobNews, JobObserver, MirrorEnd, MirrorOptions, MirrorSync,
    StreamOptions,
};

/// A chain of images, the lowest first; each has some bytes that those below do not have.
struct Chain {
    place: Place,
    /// The nodes from the uppermost down.
    nodes: Vec<String>,
    made: u32,
    /// What those below the uppermost take.
    below: Access,
}

fn observer() -> (Arc<dyn JobObserver>, Receiver<JobNews>) {
    let (sender, news) = channel();
    (Arc::new(Reporter(std::sync::Mutex::new(sender))), news)
}

impl Chain {
    /// One image on another, and an export `e` of the upper one.
    fn new(below: Access) -> Self {
        let mut place = Place::serving("null-co,node-name=unused,size=512");
        qemu_img(&["create", "-q", "-f", "qcow2"], &place.path("c0"), &[&IMAGE_BYTES.to_string()]);
        add_image(&mut place, "c0");
        start_export(&mut place, "c0");
        Self { place, nodes: vec!["c0".to_owned()], made: 1, below }
    }

    /// Puts one more image on the chain.
    fn grow(&mut self) {
        let name = format!("c{}", self.made);
        self.made += 1;
        let (top, path) = (&self.nodes[0], self.place.path(&name));
        let backing = self.place.path(top);
        let size = IMAGE_BYTES.to_string();
        let before =
            ["create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", backing.to_str().unwrap()];
        qemu_img(&before, &path, &[&size]);
        add_image(&mut self.place, &name);
        let changes = self.place.built.snapshot(top, &name).unwrap();
        self.place.built.replace(&changes, &[], StatePolicy::Volatile).unwrap();
        if self.below == Access::ReadOnly {
            self.place.built.protect(top);
        }
        self.nodes.insert(0, name);
    }

    fn backing_name(&self, node: &str) -> BackingName {
        let file = self.place.path(node).display().to_string();
        BackingName { file, format: Some("qcow2".to_owned()) }
    }

    /// Looks whether all take what they took before.
    #[track_caller]
    fn check_access(&self) {
        for (place, node) in self.nodes.iter().enumerate() {
            let expected = if place == 0 { Access::ReadWrite } else { self.below };
            assert_eq!(self.place.built.graph.model().access(node).unwrap(), expected, "{node}");
        }
    }

    /// Waits until all of a job is copied, and has its result count.
    fn end(&mut self, news: &Receiver<JobNews>) {
        loop {
            match news.recv_timeout(LIMIT).unwrap() {
                JobNews::WorkerEnded(CopyEnd::Done) => {
                    if self.place.built.block_job_worker_ended("j") {
                        break;
                    }
                }
                other @ (JobNews::Equal
                | JobNews::DiskFailed(..)
                | JobNews::WorkerEnded(_)
                | JobNews::Failed(_)
                | JobNews::Quiet
                | JobNews::NotServed(_)) => panic!("{other:?}"),
            }
        }
        self.place.built.finish_block_job("j").unwrap();
    }

    /// Merges the images between two of the chain into the lower one.
    fn commit(&mut self, top: usize, base: usize) {
        let (observer, news) = observer();
        let (from, to) = (self.nodes[top].clone(), self.nodes[base].clone());
        if top == 0 {
            let options = MirrorOptions {
                id: "j".to_owned(),
                source: from,
                target: to,
                sync: MirrorSync::Commit,
                mode: MirrorMode::Background,
                granularity: Granularity::new(4096).unwrap(),
                speed: 0,
                on_source_error: ErrorPolicy::Report,
                on_target_error: ErrorPolicy::Report,
                memory: 0,
                replaces: None,
                filter: None,
                is_verified: false,
            };
            self.place.built.start_mirror(&options, &observer).unwrap();
            finish(&mut self.place, &news, MirrorEnd::Switch);
        } else {
            let options = CommitOptions {
                id: "j".to_owned(),
                top: from,
                backing: self.backing_name(&to),
                base: to,
                speed: 0,
                on_error: ErrorPolicy::Report,
                filter: None,
            };
            self.place.built.start_commit(&options, &observer).unwrap();
            self.end(&news);
        }
        self.forget(top..base);
    }

    /// Copies what is between two of the chain into the upper one; `base` may be behind the last.
    fn stream(&mut self, top: usize, base: usize) {
        let (observer, news) = observer();
        let to = self.nodes.get(base).cloned();
        let options = StreamOptions {
            id: "j".to_owned(),
            top: self.nodes[top].clone(),
            backing: to.as_ref().map_or_else(BackingName::default, |to| self.backing_name(to)),
            base: to,
            speed: 0,
            on_error: ErrorPolicy::Report,
            filter: None,
        };
        self.place.built.start_stream(&options, &observer).unwrap();
        self.end(&news);
        self.forget(top + 1..base);
    }

    /// Lets go of images that are not in the chain any more, and of their files.
    fn forget(&mut self, gone: std::ops::Range<usize>) {
        for name in self.nodes.drain(gone) {
            self.place.built.remove_node(&name).unwrap();
            fs::remove_file(self.place.path(&name)).unwrap();
        }
    }
}

/// Starts an export `e` of a node.
fn start_export(place: &mut Place, node: &str) {
    let root = place.directory.path().display().to_string();
    let export = ExportOptions::parse(&format!(
        "vhost-user-blk,id=e,node-name={node},addr.type=unix,num-queues=2,addr.path={root}/e.sock,\
         iothread.0=t0,iothread.1=t1,writable=on"
    ));
    let prepared = place.built.prepare_export(&export.unwrap(), 1 << 40).unwrap();
    let rate = &mut LogRateLimit::default();
    let policy = &mut WaitPolicy { limit: Duration::ZERO, wait: &mut Never, rate };
    place.built.claim(&prepared, policy).unwrap();
    let listening = DaemonState::listen(prepared).unwrap();
    place.built.start(listening, None).unwrap();
}

fn add_image(place: &mut Place, name: &str) {
    let path = place.path(name).display().to_string();
    let line = format!(
        "{{\"driver\":\"qcow2\",\"node-name\":\"{name}\",\"backing\":null,\"discard\":\"unmap\",\
         \"file\":{{\"driver\":\"file\",\"filename\":\"{path}\",\"discard\":\"unmap\"}}}}"
    );
    place.built.add_node(&Blockdev::parse(&line).unwrap()).unwrap();
}

#[test]
fn a_chain_is_merged_in_any_order_while_a_client_writes() {
    merge(Chain::new(Access::ReadWrite));
}

#[test]
fn images_that_were_opened_to_be_read_are_merged_and_read_only_again() {
    merge(Chain::new(Access::ReadOnly));
}

fn merge(mut chain: Chain) {
    let (socket, over) = (chain.place.path("e.sock"), AtomicBool::new(false));
    let mut model = DiskModel::new(vec![0; IMAGE_BYTES]);
    let rng = &mut Rng::new(0x22);
    thread::scope(|scope| {
        let load = scope.spawn(|| {
            let plan = |seed| model::Plan { seed, operations: 100, depth: 4, block_bytes: 512 };
            let mut client = connect(&socket, plan(0).memory_bytes(2));
            for seed in (0..).take_while(|seed| *seed < 3 || !over.load(Ordering::Relaxed)) {
                model::run(&mut client, &mut model, &plan(seed)).unwrap();
            }
            model::verify_through(&mut client, &model).unwrap();
        });
        for _ in 0..3 {
            while chain.nodes.len() < 6 {
                assert!(!load.is_finished());
                chain.grow();
            }
            while chain.nodes.len() > 1 {
                let last = chain.nodes.len() - 1;
                let pick =
                    |rng: &mut Rng, end: usize| usize::try_from(rng.below(end as u64)).unwrap();
                if rng.below(2) == 0 {
                    let top = pick(rng, last);
                    let base = top + 1 + pick(rng, last - top);
                    chain.commit(top, base);
                } else {
                    let top = pick(rng, last);
                    let base = top + 2 + pick(rng, last - top);
                    chain.stream(top, base);
                }
                assert!(!chain.place.built.has_block_jobs());
                chain.check_access();
                assert_eq!(chain.place.built.graph.root("e"), Some(chain.nodes[0].as_str()));
            }
        }
        over.store(true, Ordering::Relaxed);
        load.join().unwrap();
    });
    chain.place.built.stop_exports();
    let Chain { place, nodes, .. } = chain;
    let Place { built, directory } = place;
    drop(built);
    let (image, flat) = (directory.path().join(&nodes[0]), directory.path().join("flat"));
    qemu_img(&["check", "-q", "-f", "qcow2"], &image, &[]);
    qemu_img(&["convert", "-f", "qcow2", "-O", "raw"], &image, &[flat.to_str().unwrap()]);
    model.check_image(&flat).unwrap();
}

#[test]
fn what_others_see_is_not_committed_into() {
    let mut chain = Chain::new(Access::ReadWrite);
    chain.grow();
    chain.grow();
    let other = chain.place.path("other");
    let backing = chain.place.path("c0");
    let before = ["create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", backing.to_str().unwrap()];
    qemu_img(&before, &other, &[&IMAGE_BYTES.to_string()]);
    add_image(&mut chain.place, "other");
    let edge = EdgeChange { user: node("other"), key: "backing".into(), by: Some("c0".into()) };
    chain.place.built.replace(&[edge], &[], StatePolicy::Volatile).unwrap();
    let (observer, _news) = observer();
    let options = CommitOptions {
        id: "j".to_owned(),
        top: "c1".to_owned(),
        base: "c0".to_owned(),
        backing: chain.backing_name("c0"),
        speed: 0,
        on_error: ErrorPolicy::Report,
        filter: None,
    };
    let error = chain.place.built.start_commit(&options, &observer).unwrap_err();
    let sentence =
        "Node 'c0' is busy: node 'other' uses it, too, and would see what is committed into 'c0'";
    assert_eq!(chain_of(&error).to_string(), sentence);
    let wrong = CommitOptions { top: "c0".into(), base: "c1".into(), ..options };
    let error = chain.place.built.start_commit(&wrong, &observer).unwrap_err();
    assert_eq!(chain_of(&error).to_string(), "'c1' is not in this backing chain of 'c0'");
}

/// An image on a base of half its size that is only read, with an export of it, and one between them if that is asked.
fn on_small_base(has_middle: bool) -> Place {
    let mut place = Place::serving("null-co,node-name=unused,size=512");
    let half = u64::try_from(IMAGE_BYTES / 2).unwrap();
    image::create_filled(&place.path("base"), IMAGE_BYTES / 2, 7).unwrap();
    let base = place.path("base").display().to_string();
    let line = format!("file,node-name=base,filename={base},read-only=on");
    place.built.add_node(&Blockdev::parse(&line).unwrap()).unwrap();
    let mut below = ("base", "raw", half);
    for name in if has_middle { &["middle", "top"][..] } else { &["top"] } {
        let (path, backing) = (place.path(name), place.path(below.0));
        let options =
            ["create", "-q", "-f", "qcow2", "-F", below.1, "-b", backing.to_str().unwrap()];
        qemu_img(&options, &path, &[&IMAGE_BYTES.to_string()]);
        let line = format!(
            "{{\"driver\":\"qcow2\",\"node-name\":\"{name}\",\"backing\":\"{}\",\
             \"file\":{{\"driver\":\"file\",\"filename\":\"{}\"}}}}",
            below.0,
            path.display()
        );
        place.built.add_node(&Blockdev::parse(&line).unwrap()).unwrap();
        below = (name, "qcow2", half);
    }
    start_export(&mut place, "top");
    place
}

/// What a client sees, and has written behind the end of the base.
fn small_base_seen(place: &Place) -> Vec<u8> {
    let half = IMAGE_BYTES / 2;
    let mut wanted = fs::read(place.path("base")).unwrap()[..half].to_vec();
    wanted.resize(IMAGE_BYTES, 0);
    wanted[half + 65536..half + 65536 + 4096].fill(9);
    let mut client = place.client("e");
    client.write(u64::try_from(half + 65536).unwrap(), &[9; 4096], 0).unwrap();
    assert!(client.read(0, IMAGE_BYTES, 0).unwrap() == wanted);
    wanted
}

#[test]
fn a_base_grows_for_the_uppermost_image() {
    let mut place = on_small_base(false);
    let wanted = small_base_seen(&place);
    let (observer, news) = observer();
    let options = MirrorOptions {
        id: "j".to_owned(),
        source: "top".to_owned(),
        target: "base".to_owned(),
        sync: MirrorSync::Commit,
        mode: MirrorMode::Background,
        granularity: Granularity::new(4096).unwrap(),
        speed: 0,
        on_source_error: ErrorPolicy::Report,
        on_target_error: ErrorPolicy::Report,
        memory: 4096,
        replaces: None,
        filter: None,
        is_verified: false,
    };
    place.built.start_mirror(&options, &observer).unwrap();
    place.built.abort_block_job("j").unwrap();
    assert_eq!(place.built.graph.model().access("base").unwrap(), Access::ReadOnly);
    assert!(place.client("e").read(0, IMAGE_BYTES, 0).unwrap() == wanted);
    drop(news);
    let (observer, news) = self::observer();
    place.built.start_mirror(&options, &observer).unwrap();
    finish(&mut place, &news, MirrorEnd::Switch);
    assert_eq!(place.built.graph.root("e"), Some("base"));
    let written = place.built.graph.written_node("base").unwrap();
    assert_eq!(written["read-only"], false);
    assert!(place.client("e").read(0, IMAGE_BYTES, 0).unwrap() == wanted);
    place.client("e").write(0, &[3; 512], 0).unwrap();
    place.built.stop_exports();
    assert!(fs::read(place.path("base")).unwrap()[512..] == wanted[512..]);
}

#[test]
fn a_base_grows_for_an_image_in_the_middle() {
    let mut place = on_small_base(true);
    let wanted = small_base_seen(&place);
    let (observer, news) = observer();
    let options = CommitOptions {
        id: "j".to_owned(),
        top: "middle".to_owned(),
        base: "base".to_owned(),
        backing: BackingName {
            file: place.path("base").display().to_string(),
            format: Some("raw".to_owned()),
        },
        speed: 0,
        on_error: ErrorPolicy::Report,
        filter: None,
    };
    place.built.start_commit(&options, &observer).unwrap();
    let mut chain = Chain { place, nodes: Vec::new(), made: 0, below: Access::ReadOnly };
    chain.end(&news);
    let place = chain.place;
    assert_eq!(place.built.graph.model().access("base").unwrap(), Access::ReadOnly);
    assert_eq!(place.built.graph.written_node("base").unwrap()["read-only"], true);
    assert!(place.client("e").read(0, IMAGE_BYTES, 0).unwrap() == wanted);
    assert_eq!(
        fs::metadata(place.path("base")).unwrap().len(),
        u64::try_from(IMAGE_BYTES).unwrap()
    );
}
