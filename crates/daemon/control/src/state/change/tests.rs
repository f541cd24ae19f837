//! The graph is changed below exports that clients use.

mod backup;
mod chains;
mod filters;
mod mirror;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use block::{
    Access, BlockLimits, ByteCount, Clock, DiscardPolicy, DiskSize, Lane, LaneContext,
    LogRateLimit, Node, Rights, SystemClock,
};
use disk::{FileNode, NullNode, ReadContent};
use exports::{DescriptorCheck, ExportOptions, InterruptibleWait, WaitPolicy, WaitResult};
use graph::{Blockdev, NamedFilesPolicy, NodeUser, ObjectOptions};
use host::chain_of;
use kernel_io::{FileTable, OpenOptions};
use tempfile::TempDir;
use testkit::client::{Client, EventIndex, Request, RingLayout, Segment, Shape, Status};
use testkit::deadline::Deadline;
use testkit::image;
use testkit::model::{self, DiskModel};

use super::*;
use crate::StateFile;

const IMAGE_BYTES: usize = 1 << 20;

/// The fewest changes under load.
const CHANGES: u32 = 1000;

/// What is waited for comes before.
const LIMIT: Duration = Duration::from_secs(60);

/// Nobody waits for a lock here.
struct Never;

impl InterruptibleWait for Never {
    fn pause(&mut self, _: Duration) -> WaitResult {
        WaitResult::Stop
    }

    fn done(&mut self) {}
}

/// A daemon in this process, with images `a` and `b`.
struct Place {
    built: DaemonState,
    directory: TempDir,
}

impl Place {
    /// Nodes and exports in short: a word with `>` in it is a writable export of the node before it on the socket behind
    /// it, served by two iothreads, with `)` in its place a read-only one.
    fn serving(line: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        for (name, seed) in [("a", 1), ("b", 2)] {
            image::create_filled(&directory.path().join(name), IMAGE_BYTES, seed).unwrap();
        }
        if line.contains("DIR/q") {
            let image = directory.path().join("q");
            qemu_img(&["create", "-q", "-f", "qcow2"], &image, &[&IMAGE_BYTES.to_string()]);
        }
        let root = directory.path().to_str().unwrap();
        let mut built = nothing();
        for id in ["t0", "t1"] {
            let iothread = ObjectOptions::parse(&format!("iothread,id={id}")).unwrap();
            built.add_object(&iothread).unwrap();
        }
        let mut prepared = Vec::new();
        for word in line.split_whitespace() {
            let Some((node, id)) = word.split_once(['>', ')']) else {
                let blockdev = Blockdev::parse(&word.replace("DIR", root)).unwrap();
                built.add_node(&blockdev).unwrap();
                continue;
            };
            let export = ExportOptions::parse(&format!(
                "vhost-user-blk,id={id},node-name={node},addr.type=unix,num-queues=2,\
                 addr.path={root}/{id}.sock,iothread.0=t0,iothread.1=t1,writable={}",
                if word.contains('>') { "on" } else { "off" }
            ));
            prepared.push(built.prepare_export(&export.unwrap(), 1 << 40).unwrap());
        }
        let rate = &mut LogRateLimit::default();
        let policy = &mut WaitPolicy { limit: Duration::ZERO, wait: &mut Never, rate };
        prepared.iter().for_each(|prepared| built.claim(prepared, policy).unwrap());
        for prepared in prepared {
            let listening = DaemonState::listen(prepared).unwrap();
            built.start(listening, None).unwrap();
        }
        Self { built, directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn client(&self, export: &str) -> Client {
        connect(&self.path(&format!("{export}.sock")), 1 << 20)
    }

    fn replace(&mut self, user: &NodeUser, key: &str, by: &str) -> Result<(), String> {
        self.replace_all(&[(user.clone(), key, by)])
    }

    fn replace_all(&mut self, places: &[(NodeUser, &str, &str)]) -> Result<(), String> {
        let replacement = |(user, key, by): &(NodeUser, &str, &str)| EdgeChange {
            user: user.clone(),
            key: (*key).to_owned(),
            by: Some((*by).to_owned()),
        };
        let replacements: Vec<_> = places.iter().map(replacement).collect();
        self.built
            .replace(&replacements, &[], StatePolicy::Volatile)
            .map_err(|error| chain_of(&error).to_string())
    }
}

fn nothing() -> DaemonState {
    let files: Arc<FileTable> = Arc::default();
    let check = DescriptorCheck::on_thread();
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let (policy, watch) = (NamedFilesPolicy::Refused, Arc::default());
    DaemonState::nothing(&files, &clock, None, &check, &policy, &watch)
}

fn connect(socket: &Path, memory_bytes: usize) -> Client {
    let (event_index, layout) = (EventIndex::On, RingLayout::Split);
    let shape = Shape { queues: 2, queue_size: 128, memory_bytes, event_index, layout };
    Client::connect(socket, shape).unwrap()
}

/// Has a client write and check what it reads until that is over, and at the end read all.
fn work(socket: &Path, model: &mut DiskModel, over: &AtomicBool) {
    let plan = |seed| model::Plan { seed, operations: 200, depth: 8, block_bytes: 512 };
    let mut client = connect(socket, plan(0).memory_bytes(2));
    for seed in (0..).take_while(|seed| *seed < 5 || !over.load(Ordering::Relaxed)) {
        model::run(&mut client, model, &plan(seed)).unwrap();
    }
    model::verify_through(&mut client, model).unwrap();
}

fn qemu_img(before: &[&str], image: &Path, after: &[&str]) {
    let status = Command::new("qemu-img").args(before).arg(image).args(after).status().unwrap();
    assert!(status.success(), "qemu-img {before:?}");
}

fn node(name: &str) -> NodeUser {
    NodeUser::Node(name.to_owned())
}

fn export(id: &str) -> NodeUser {
    NodeUser::Export(id.to_owned())
}

/// Whether another daemon could write to the image.
fn is_free(path: &Path) -> bool {
    other(path).claim(Rights::of_user(Access::ReadWrite)).is_ok()
}

/// The image as another daemon has it.
fn other(path: &Path) -> FileNode {
    let options = OpenOptions::regular(path, Access::ReadWrite);
    FileNode::open("other", &options, DiscardPolicy::Ignore, &Arc::default()).unwrap()
}

#[test]
fn guests_run_on_while_the_graph_below_them_is_changed() {
    let mut place = Place::serving(
        "file,node-name=f,filename=DIR/a,discard=unmap raw,node-name=a,file=f,discard=unmap \
         raw,node-name=b,file=f delay,node-name=c,file=f,latency-ns=300000 a>e b>g",
    );
    let path = place.path("a");
    let (over, rounds, visits) = (AtomicBool::new(false), AtomicU32::new(0), AtomicU32::new(0));
    let model = DiskModel::new(fs::read(&path).unwrap());
    let (socket, beside) = (place.path("e.sock"), place.path("g.sock"));
    let model = thread::scope(|scope| {
        let load = scope.spawn(|| {
            let mut model = model;
            let plan = |seed| model::Plan { seed, operations: 200, depth: 8, block_bytes: 512 };
            let mut client = connect(&socket, plan(0).memory_bytes(2));
            while !over.load(Ordering::Relaxed) {
                let seed = 0x67 + u64::from(rounds.fetch_add(1, Ordering::Relaxed));
                model::run(&mut client, &mut model, &plan(seed)).unwrap();
            }
            model::verify_through(&mut client, &model).unwrap();
            model
        });
        // Rings come and go meanwhile, with requests in flight.
        let visitor = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let mut client = connect(&beside, 1 << 20);
                for token in 0..16 {
                    let segments = vec![Segment { offset: 0, length: 4096 }];
                    let read = Request::Read { offset: token * 4096, segments };
                    client.submit(0, &read, token).unwrap();
                }
                client.kick(0).unwrap();
                visits.fetch_add(1, Ordering::Relaxed);
            }
        });
        let mut changes = 0;
        while changes < CHANGES
            || rounds.load(Ordering::Relaxed) < 5
            || visits.load(Ordering::Relaxed) < 20
        {
            for (user, role, by) in [
                (export("e"), "root", "c"),
                (export("g"), "root", "a"),
                (node("a"), "file", "b"),
                (export("e"), "root", "a"),
                (node("b"), "file", "c"),
                (node("a"), "file", "c"),
                (node("b"), "file", "f"),
                (node("a"), "file", "f"),
                (export("g"), "root", "b"),
                (export("e"), "root", "f"),
            ] {
                assert!(!load.is_finished() && !visitor.is_finished());
                place.replace(&user, role, by).unwrap();
                changes += 1;
            }
        }
        over.store(true, Ordering::Relaxed);
        visitor.join().unwrap();
        load.join().unwrap()
    });
    assert!(!is_free(&path), "the image is not locked");
    place.built.stop_exports();
    model.check_image(&path).unwrap();
    drop(place.built);
    assert!(is_free(&path), "the image stays locked");
}

#[test]
fn what_an_export_needs_is_claimed_before_and_given_back_after() {
    let mut place = Place::serving(
        "file,node-name=a,filename=DIR/a file,node-name=b,filename=DIR/b raw,node-name=r,file=a r>e",
    );
    let (a, b) = (place.path("a"), place.path("b"));
    let [of_a, of_b] = [&a, &b].map(|path| fs::read(path).unwrap());
    let mut client = place.client("e");
    assert_eq!(client.read(0, 4096, 0).unwrap(), of_a[..4096]);
    let held = other(&b).claim(Rights::of_user(Access::ReadWrite)).unwrap();
    let said = place.replace(&node("r"), "file", "b").unwrap_err();
    assert!(said.starts_with("export e: node b: Failed to get"), "{said}");
    assert!(!is_free(&a));
    assert_eq!(client.read(4096, 4096, 0).unwrap(), of_a[4096..8192]);
    drop(held);
    assert!(is_free(&b), "something is left of the change that was refused");
    place.replace(&node("r"), "file", "b").unwrap();
    assert_eq!((is_free(&a), is_free(&b)), (true, false));
    assert_eq!(client.read(0, 4096, 0).unwrap(), of_b[..4096]);
    // What a successor is told of is there now.
    let below = place.built.graph.files_below_export("e");
    assert_eq!(
        below.iter().map(|file| file.identity()).collect::<Vec<_>>(),
        [other(&b).file().identity()]
    );
    drop(client);
    drop(place.built);
    assert!(is_free(&b));
}

#[test]
fn an_inactive_node_is_claimed_where_it_stands_when_it_is_served() {
    let mut place = Place::serving(
        "file,node-name=a,filename=DIR/a,active=off file,node-name=b,filename=DIR/b,active=off \
         raw,node-name=r,file=a,active=off r>e",
    );
    let (a, b) = (place.path("a"), place.path("b"));
    let of_b = fs::read(&b).unwrap();
    place.replace(&node("r"), "file", "b").unwrap();
    assert!(is_free(&a) && is_free(&b));
    let mut client = place.client("e");
    assert_eq!(client.read(0, 4096, 0).unwrap(), of_b[..4096]);
    assert_eq!((is_free(&a), is_free(&b)), (true, false));
    place.replace(&node("r"), "file", "a").unwrap();
    assert_eq!((is_free(&a), is_free(&b)), (false, true));
    drop(client);
    let deadline = Deadline::after(LIMIT);
    while !is_free(&a) {
        assert!(!deadline.remaining().is_zero(), "the image stays locked");
        thread::yield_now();
    }
}

#[test]
fn what_is_held_for_an_hour_goes_on_with_the_change() {
    let mut place = Place::serving(
        "file,node-name=f,filename=DIR/a delay,node-name=d,file=f,latency-ns=3600000000000 \
         delay,node-name=upper,file=d,latency-ns=3600000000000 upper>e",
    );
    let before = fs::read(place.path("a")).unwrap();
    let mut client = place.client("e");
    let read =
        |offset| Request::Read { offset, segments: vec![Segment { offset: 0, length: 4096 }] };
    client.submit(0, &read(8192), 7).unwrap();
    client.kick(0).unwrap();
    place.replace(&export("e"), "root", "f").unwrap();
    let done = client.wait_any(Deadline::after(LIMIT)).unwrap();
    assert_eq!((done.len(), done[0].1.status), (1, Status::Ok));
    assert_eq!(client.memory().read(0, 4096), before[8192..12288]);
    assert_eq!(client.read(0, 4096, 0).unwrap(), before[..4096]);
}

#[test]
fn an_image_opened_in_another_way_takes_its_place_and_the_lock_is_never_free() {
    let line = "file,node-name=f,filename=DIR/a file,node-name=d,filename=DIR/a,cache.direct=on \
                file,node-name=n,filename=DIR/a,cache.no-flush=on raw,node-name=r,file=f r>e";
    let mut place = Place::serving(line);
    let (path, socket) = (place.path("a"), place.path("e.sock"));
    let over = AtomicBool::new(false);
    let mut model = DiskModel::new(fs::read(&path).unwrap());
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let mut tries = 0_u32;
            while !over.load(Ordering::Relaxed) {
                assert!(!is_free(&path), "somebody else got the lock after {tries} tries");
                tries += 1;
            }
            tries
        });
        let load = scope.spawn(|| work(&socket, &mut model, &over));
        let mut ways =
            vec![(node("r"), "file", "d"), (node("r"), "file", "n"), (node("r"), "file", "f")];
        ways.extend([
            (export("e"), "root", "d"),
            (node("r"), "file", "n"),
            (export("e"), "root", "r"),
        ]);
        let mut changes = ways.iter().cycle().take(120);
        let changed = changes.try_for_each(|(user, role, by)| place.replace(user, role, by));
        over.store(true, Ordering::Relaxed);
        changed.unwrap();
        load.join().unwrap();
        assert!(waiting.join().unwrap() > 100);
    });
    assert!(!is_free(&path));
    place.built.stop_exports();
    drop(place.built);
    model.check_image(&path).unwrap();
    assert!(is_free(&path), "a lock is left");
}

/// What goes below an export gets its own file in the same change.
#[test]
fn an_image_that_another_place_of_the_change_brings_takes_its_place() {
    let mut place = Place::serving(
        "file,node-name=f,filename=DIR/a file,node-name=d,filename=DIR/a,cache.direct=on \
         file,node-name=b,filename=DIR/b raw,node-name=r,file=f raw,node-name=s,file=b r>e",
    );
    let mut client = place.client("e");
    client.write(0, &[0x44; 4096], 0).unwrap();
    place.replace_all(&[(node("s"), "file", "d"), (export("e"), "root", "s")]).unwrap();
    assert_eq!(client.read(0, 4096, 0).unwrap(), [0x44; 4096]);
    assert!(!is_free(&place.path("a")));
    client.write(0, &[0x45; 4096], 0).unwrap();
    // And back, where the place that is left loses its file in the same change.
    place.replace_all(&[(node("s"), "file", "b"), (export("e"), "root", "r")]).unwrap();
    assert_eq!(client.read(0, 4096, 0).unwrap(), [0x45; 4096]);
    assert!(!is_free(&place.path("a")));
}

#[test]
fn an_image_that_somebody_still_uses_or_knows_is_not_opened_twice() {
    let mut place = Place::serving(
        "file,node-name=f,filename=DIR/a file,node-name=d,filename=DIR/a,cache.direct=on raw,node-name=r,file=f \
         raw,node-name=s,file=f raw,node-name=half,file=d r>e s>g",
    );
    let mut client = place.client("e");
    client.write(0, &[0x44; 4096], 0).unwrap();
    for (user, role, by) in [(node("r"), "file", "d"), (export("g"), "root", "half")] {
        let said = place.replace(&user, role, by).unwrap_err();
        assert!(said.contains("is used by another node of this daemon"), "{said}");
        assert_eq!(client.read(0, 4096, 0).unwrap(), [0x44; 4096]);
        assert!(!is_free(&place.path("a")));
    }
    drop((client, place));
    let mut image = Place::serving(
        "file,node-name=f,filename=DIR/q qcow2,node-name=q,file=f file,node-name=d,filename=DIR/q,cache.direct=on \
         qcow2,node-name=p,file=d file,node-name=h,filename=DIR/q,cache.direct=on q>e",
    );
    let mut client = image.client("e");
    client.write(0, &[0x45; 4096], 0).unwrap();
    let said = image.replace(&export("e"), "root", "p").unwrap_err();
    assert!(said.contains("is used by another node of this daemon"), "{said}");
    assert_eq!(client.read(0, 4096, 0).unwrap(), [0x45; 4096]);
    // The image itself knows nothing of how its file is opened.
    for by in ["h", "f", "h"] {
        image.replace(&node("q"), "file", by).unwrap();
        client.write(0, &[0x46; 65536], 0).unwrap();
        client.write(1 << 19, &[0x47; 65536], 0).unwrap();
        assert!(!is_free(&image.path("q")));
    }
    assert_eq!(client.read((1 << 19) - 512, 1024, 0).unwrap(), [[0; 512], [0x47; 512]].concat());
    drop(client);
    image.built.stop_exports();
    drop(image.built);
    qemu_img(&["check", "-q"], &image.directory.path().join("q"), &[]);
}

/// A node on which no lane can be opened.
#[derive(Debug)]
struct Laneless(NullNode);

impl Node for Laneless {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn size(&self) -> DiskSize {
        self.0.size()
    }

    fn limits(&self) -> BlockLimits {
        self.0.limits()
    }

    fn access(&self) -> Access {
        self.0.access()
    }

    fn flush(&self) -> io::Result<()> {
        self.0.flush()
    }

    fn claim(&self, rights: Rights) -> Result<Claim, ClaimError> {
        self.0.claim(rights)
    }

    fn open_lane(&self, _: &LaneContext) -> Result<Box<dyn Lane>, LaneError> {
        Err(LaneError { node: "laneless".to_owned(), source: io::Error::other("told so") })
    }
}

#[test]
fn where_no_lane_can_be_opened_the_old_node_goes_on() {
    let mut place = Place::serving("file,node-name=f,filename=DIR/a raw,node-name=r,file=f r>e");
    let size = DiskSize(ByteCount(u64::try_from(IMAGE_BYTES).unwrap()));
    let null = NullNode::new("laneless", size, Access::ReadWrite, ReadContent::Zeroes);
    place.built.graph.add_made(Arc::new(Laneless(null)));
    let mut client = place.client("e");
    client.write(0, &[0x42; 4096], 0).unwrap();
    for user in [node("r"), export("e")] {
        let role = if user == export("e") { "root" } else { "file" };
        let said = place.replace(&user, role, "laneless").unwrap_err();
        assert!(said.ends_with("node laneless: cannot open a lane: told so"), "{said}");
        assert_eq!(client.read(0, 4096, 0).unwrap(), [0x42; 4096]);
        assert!(!is_free(&place.path("a")));
    }
    // The graph is what it was: the file is still used, and may be put elsewhere.
    place.replace(&export("e"), "root", "f").unwrap();
    assert_eq!(client.read(0, 4096, 0).unwrap(), [0x42; 4096]);
}

#[test]
fn changes_that_cannot_be_are_named_and_change_nothing() {
    let mut place = Place::serving(
        "file,node-name=f,filename=DIR/a raw,node-name=r,file=f raw,node-name=s,file=r \
         null-co,node-name=small,size=4096 null-co,node-name=fixed,size=1048576,read-only=on \
         null-co,node-name=asleep,size=1048576,active=off null-co,node-name=n,size=524288 \
         null-co,node-name=m,size=524288 stripe,node-name=q,chunk=64k,children.0=n,children.1=m \
         raw,node-name=half,file=n raw,node-name=other,file=m s>e half)g",
    );
    let mut client = place.client("e");
    client.write(0, &[0x43; 4096], 0).unwrap();
    let mut refused = |user: &NodeUser, role: &str, by: &str, expected: &str| {
        assert_eq!(place.replace(user, role, by), Err(expected.to_owned()));
        assert_eq!(client.read(0, 4096, 0).unwrap(), [0x43; 4096]);
    };
    let export_e = export("e");
    refused(&export_e, "root", "nobody", "there is no node 'nobody'");
    refused(&export("x"), "root", "f", "export 'x' has no child 'root'");
    refused(&node("r"), "backing", "f", "node 'r' has no child 'backing'");
    refused(&node("r"), "file", "r", "node 'r' would stand on itself: r -> r");
    refused(&node("r"), "file", "s", "node 'r' would stand on itself: r -> s -> r");
    refused(&export_e, "root", "fixed", "node fixed is read-only, and export 'e' is not");
    refused(&node("r"), "file", "fixed", "node fixed is read-only, and node 'r' is not");
    let asleep = "Inactive 'asleep' can't be a file child of active 'r'";
    refused(&node("r"), "file", "asleep", asleep);
    refused(
        &export_e,
        "root",
        "small",
        "node small has 4096 bytes, and 1048576 bytes are wanted in its place below export 'e'",
    );
    // Who only reads may stand on what belongs together, and nobody may write to it.
    let conflict = "Permission conflict on node 'm': permissions 'write' are both required by node \
                    'other' (uses node 'm' as 'file' child) and unshared by node 'q' (uses node 'm' \
                    as 'children.1' child)";
    drop(client);
    assert_eq!(place.replace(&export("g"), "root", "other"), Ok(()));
    let mut writer = Place::serving(
        "null-co,node-name=n,size=524288 null-co,node-name=m,size=524288 \
         stripe,node-name=q,chunk=64k,children.0=n,children.1=m raw,node-name=other,file=m \
         null-co,node-name=alone,size=524288 alone>e",
    );
    assert_eq!(writer.replace(&export("e"), "root", "other"), Err(conflict.to_owned()));
}

#[test]
fn several_places_change_together_or_not_at_all() {
    let mut place = Place::serving(
        "file,node-name=a,filename=DIR/a file,node-name=b,filename=DIR/b raw,node-name=r,file=a \
         raw,node-name=s,file=b r>e s>g",
    );
    let (a, b) = (place.path("a"), place.path("b"));
    let [of_a, of_b] = [&a, &b].map(|path| fs::read(path).unwrap());
    let (mut one, mut other) = (place.client("e"), place.client("g"));
    let mut check = |below_one: &[u8], below_other: &[u8]| {
        assert_eq!(one.read(4096, 4096, 0).unwrap(), below_one[4096..8192]);
        assert_eq!(other.read(4096, 4096, 0).unwrap(), below_other[4096..8192]);
        assert!(!is_free(&a) && !is_free(&b));
    };
    let crossed = [(node("r"), "file", "b"), (node("s"), "file", "a")];
    place.replace_all(&crossed).unwrap();
    check(&of_b, &of_a);
    // What cannot be in the last place takes the first back.
    let said = place.replace_all(&[(node("r"), "file", "a"), (node("s"), "file", "s")]);
    assert_eq!(said, Err("node 's' would stand on itself: s -> s".to_owned()));
    check(&of_b, &of_a);
    // Each fits what those before it leave.
    let chain = [(node("s"), "file", "r"), (node("r"), "file", "s")];
    let said = place.replace_all(&chain);
    assert_eq!(said, Err("node 'r' would stand on itself: r -> s -> r".to_owned()));
    // Prepared and not committed.
    let back = [("r", "a"), ("s", "b")].map(|(user, by)| EdgeChange {
        user: node(user),
        key: "file".to_owned(),
        by: Some(by.to_owned()),
    });
    let back = |place: &Place| place.built.graph.change(&back, &[]).unwrap();
    let prepared = back(&place);
    drop(place.built.prepare_change(prepared).unwrap());
    check(&of_b, &of_a);
    let prepared = back(&place);
    place.built.prepare_change(prepared).unwrap().commit(|| {}).unwrap();
    check(&of_a, &of_b);
    // One place twice: the last one counts.
    place.replace_all(&[(node("r"), "file", "b"), (node("r"), "file", "a")]).unwrap();
    check(&of_a, &of_b);
}

#[test]
fn what_nothing_uses_can_be_removed_while_others_are_served() {
    let mut place = Place::serving(
        "file,node-name=a,filename=DIR/a raw,node-name=r,file=a \
         raw,node-name=s,file.driver=file,file.filename=DIR/b null-co,node-name=n,size=4096 r>e n>g",
    );
    let refused = |result: Result<(), ModelError>, expected: &str| {
        assert_eq!(result.unwrap_err().to_string(), expected);
    };
    refused(place.built.remove_node("a"), "Block device a is in use");
    refused(place.built.remove_node("r"), "Block device r is in use");
    refused(place.built.remove_node("s/file"), "Block device s/file is in use");
    refused(place.built.remove_node("x"), "there is no node 'x'");
    refused(place.built.remove_object("t0"), "object 't0' is in use, can not be deleted");
    refused(place.built.remove_object("t2"), "object 't2' not found");
    let said = place.built.remove_export("x").unwrap_err();
    assert_eq!(chain_of(&said).to_string(), "Export 'x' is not found");

    let (mut client, mut stays) = (place.client("e"), place.client("g"));
    client.write(0, &[0x51; 4096], 0).unwrap();
    place.built.remove_export("e").unwrap();
    assert!(!place.path("e.sock").exists() && is_free(&place.path("a")));
    assert_eq!(fs::read(place.path("a")).unwrap()[..4096], [0x51; 4096]);
    refused(place.built.remove_node("a"), "Block device a is in use");
    for name in ["r", "a", "s"] {
        place.built.remove_node(name).unwrap();
    }
    let gone = ["r", "a", "s", "s/file"];
    assert!(gone.iter().all(|name| place.built.graph.node(name).is_err()));
    assert!(place.built.files().all().is_empty());
    stays.write(0, &[0x52; 4096], 0).unwrap();
    refused(place.built.remove_object("t1"), "object 't1' is in use, can not be deleted");
    place.built.remove_export("g").unwrap();
    for id in ["t0", "t1"] {
        place.built.remove_object(id).unwrap();
    }
    refused(place.built.remove_object("t1"), "object 't1' not found");
}

/// An overlay is put between an export and its node while a client writes; a start from the state file has both.
#[test]
fn an_overlay_takes_what_is_written_from_then_on_and_is_there_at_the_next_start() {
    let mut place = Place::serving("file,node-name=a,filename=DIR/a,discard=unmap a>e");
    let image = place.path("q");
    qemu_img(&["create", "-q", "-f", "qcow2"], &image, &[&IMAGE_BYTES.to_string()]);
    let (state, none) = StateFile::open(&place.path("state")).unwrap();
    assert_eq!(none, None);
    let text = format!(
        r#"{{"driver":"qcow2","node-name":"q","backing":null,
             "file":{{"driver":"file","filename":"{}"}}}}"#,
        image.display()
    );
    let overlay = Blockdev::parse(&text).unwrap();
    let mut client = place.client("e");
    client.write(0, &[0x51; 4096], 0).unwrap();

    place.built.add_node(&overlay).unwrap();
    let snapshot = place.built.snapshot("a", "q").unwrap();
    let refused = place.built.replace(&snapshot, &[], StatePolicy::Kept).unwrap_err().to_string();
    assert!(refused.starts_with("export 'e' would be served from its old node"), "{refused}");
    place.built.keep_state(state).unwrap();
    place.built.replace(&snapshot, &[], StatePolicy::Kept).unwrap();
    let said = place.built.snapshot("a", "q").unwrap_err().to_string();
    assert_eq!(said, "Node 'a' is busy: node is used as backing hd of 'q'");

    let base = fs::read(place.path("a")).unwrap();
    assert_eq!(base[..4096], [0x51; 4096]);
    client.write(0, &[0x52; 4096], 0).unwrap();
    assert_eq!(client.read(0, 4096, 0).unwrap(), [0x52; 4096]);
    assert_eq!(client.read(4096, 4096, 0).unwrap(), base[4096..8192]);
    assert_eq!(fs::read(place.path("a")).unwrap(), base);
    drop(client);

    let (_, found) = {
        place.built.state_file().unwrap().unlock();
        StateFile::open(&place.path("state")).unwrap()
    };
    let found = found.unwrap();
    assert_eq!(found, place.built.configuration().unwrap());
    assert_eq!(found.exports[0]["node-name"], "q");
    let names: Vec<_> = found.nodes.iter().map(|node| &node["node-name"]).collect();
    assert_eq!(names, ["a", "q"]);
    assert_eq!(
        (&found.nodes[1]["backing"], &found.nodes[1]["file"]["driver"]),
        (&"a".into(), &"file".into())
    );
    let mut again = nothing();
    for object in &found.objects {
        again.add_object(&ObjectOptions::parse(&object.to_string()).unwrap()).unwrap();
    }
    drop(place);
    for node in &found.nodes {
        // The files are gone with their directory: that they are asked for is enough.
        let read = Blockdev::parse(&node.to_string()).unwrap();
        let error = again.add_node(&read).unwrap_err();
        let expected =
            if read.node_name.as_deref() == Some("a") { "node a" } else { "node q/file" };
        assert!(error.to_string().starts_with(expected), "{error}");
    }
}

/// A child that need not be goes, and comes back.
#[test]
fn a_backing_file_can_be_taken_from_an_image_and_given_back() {
    let mut place = Place::serving(
        "file,node-name=a,filename=DIR/a \
         qcow2,node-name=q,file.driver=file,file.filename=DIR/q,backing=a q>e",
    );
    let mut client = place.client("e");
    let base = fs::read(place.path("a")).unwrap();
    let mut change = |by: Option<&str>| {
        let (user, key) = (node("q"), "backing".to_owned());
        let change = EdgeChange { user, key, by: by.map(str::to_owned) };
        place.built.replace(&[change], &[], StatePolicy::Volatile).unwrap();
        place.built.configuration().unwrap().nodes
    };
    assert_eq!(client.read(0, 4096, 0).unwrap(), base[..4096]);
    assert_eq!(change(None)[1]["backing"], serde_json::Value::Null);
    assert_eq!(client.read(0, 4096, 0).unwrap(), [0; 4096]);
    assert_eq!(change(Some("a"))[1]["backing"], "a");
    assert_eq!(client.read(0, 4096, 0).unwrap(), base[..4096]);
}
