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
}

fn observer() -> (Arc<dyn JobObserver>, Receiver<JobNews>) {
    let (sender, news) = channel();
    (Arc::new(Reporter(std::sync::Mutex::new(sender))), news)
}

impl Chain {
    /// One image on another, and an export `e` of the upper one.
    fn new() -> Self {
        let mut place = Place::serving("null-co,node-name=unused,size=512");
        qemu_img(&["create", "-q", "-f", "qcow2"], &place.path("c0"), &[&IMAGE_BYTES.to_string()]);
        add_image(&mut place, "c0");
        let root = place.directory.path().display().to_string();
        let export = ExportOptions::parse(&format!(
            "vhost-user-blk,id=e,node-name=c0,addr.type=unix,num-queues=2,addr.path={root}/e.sock,\
             iothread.0=t0,iothread.1=t1,writable=on"
        ));
        let prepared = place.built.prepare_export(&export.unwrap(), 1 << 40).unwrap();
        let rate = &mut LogRateLimit::default();
        let policy = &mut WaitPolicy { limit: Duration::ZERO, wait: &mut Never, rate };
        place.built.claim(&prepared, policy).unwrap();
        let listening = DaemonState::listen(prepared).unwrap();
        place.built.start(listening, None).unwrap();
        Self { place, nodes: vec!["c0".to_owned()], made: 1 }
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
        self.nodes.insert(0, name);
    }

    fn backing_name(&self, node: &str) -> BackingName {
        let file = self.place.path(node).display().to_string();
        BackingName { file, format: Some("qcow2".to_owned()) }
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
                other @ (JobNews::Equal | JobNews::DiskFailed(..) | JobNews::WorkerEnded(_)) => {
                    panic!("{other:?}")
                }
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
    let mut chain = Chain::new();
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
    let mut chain = Chain::new();
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
    };
    let error = chain.place.built.start_commit(&options, &observer).unwrap_err();
    let sentence =
        "Node 'c0' is busy: node 'other' uses it, too, and would see what is committed into 'c0'";
    assert_eq!(chain_of(&error).to_string(), sentence);
    let wrong = CommitOptions { top: "c0".into(), base: "c1".into(), ..options };
    let error = chain.place.built.start_commit(&wrong, &observer).unwrap_err();
    assert_eq!(chain_of(&error).to_string(), "'c1' is not in this backing chain of 'c0'");
}
