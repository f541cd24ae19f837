//! Filters without a name are put below exports that clients use, and taken away.

use super::*;

/// A filter that passes everything on, and says in its name what it is.
#[derive(Debug)]
struct PassingNode {
    name: String,
    child: Arc<Child>,
}

impl PassingNode {
    fn over(prefix: &str, child: Arc<Child>) -> Arc<dyn Node> {
        let name = format!("{prefix}({})", child.node().name());
        Arc::new(Self { name, child })
    }
}

impl Node for PassingNode {
    fn name(&self) -> &str {
        &self.name
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

    fn flush(&self) -> io::Result<()> {
        self.child.node().flush()
    }

    fn claim(&self, rights: Rights) -> Result<Claim, ClaimError> {
        self.child.node().claim(rights)
    }

    fn open_lane(&self, io: &LaneContext) -> Result<Box<dyn Lane>, LaneError> {
        self.child.node().open_lane(io)
    }
}

/// What the users of a node stand on, from the top: the names of its filters with the node.
fn shown(place: &Place, name: &str) -> String {
    place.built.graph.node(name).unwrap().name().to_owned()
}

#[test]
fn filters_come_and_go_while_guests_run() {
    let mut place = Place::serving(
        "file,node-name=f,filename=DIR/a,discard=unmap raw,node-name=a,file=f a>e a>g",
    );
    let (path, socket) = (place.path("a"), place.path("e.sock"));
    let over = AtomicBool::new(false);
    let mut model = DiskModel::new(fs::read(&path).unwrap());
    let before = place.built.configuration().unwrap();
    thread::scope(|scope| {
        let load = scope.spawn(|| work(&socket, &mut model, &over));
        for _ in 0..50 {
            let built = &mut place.built;
            for name in ["a", "f"] {
                built.put_filter(name, FilterKind::Job, |it| PassingNode::over("job", it)).unwrap();
                built
                    .put_filter(name, FilterKind::Recorder, |it| PassingNode::over("rec", it))
                    .unwrap();
            }
            // The upper one was made over the bare node, and stands on the lower one by now.
            assert_eq!(shown(&place, "a"), "job(a)");
            // Another node below what has filters.
            place.replace(&export("g"), "root", "f").unwrap();
            place.replace(&export("g"), "root", "a").unwrap();
            let built = &mut place.built;
            assert_eq!(built.configuration().unwrap(), before, "a restart would find filters");
            built.take_filter("a", FilterKind::Job).unwrap();
            assert_eq!(shown(&place, "a"), "rec(a)");
            assert_eq!(shown(&place, "f"), "job(f)");
            let built = &mut place.built;
            built.take_filter("f", FilterKind::Recorder).unwrap();
            built.take_filter("f", FilterKind::Job).unwrap();
            built.take_filter("a", FilterKind::Recorder).unwrap();
            assert_eq!((shown(&place, "a"), shown(&place, "f")), ("a".into(), "f".into()));
        }
        over.store(true, Ordering::Relaxed);
        load.join().unwrap();
    });
    place.built.stop_exports();
    model.check_image(&path).unwrap();
}
