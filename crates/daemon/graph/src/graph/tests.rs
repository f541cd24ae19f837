//! What is left of nodes that are not made, or not needed any more; discards through layers (`layers`).

mod layers;

use std::fs;
use std::path::Path;

use block::{DiscardPolicy, RetryHint, Rights, SystemClock};
use disk::FileNode;
use host::chain_of;
use kernel_io::OpenOptions;
use tempfile::TempDir;

use super::*;

/// A directory with the images `a` and `b` of 64 KiB.
fn images() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    for name in ["a", "b"] {
        fs::write(directory.path().join(name), [0x61; 64 << 10]).unwrap();
    }
    directory
}

fn graph() -> Graph {
    let clock = Arc::new(SystemClock);
    Graph::new(Arc::default(), clock, NamedFilesPolicy::Refused, Arc::default())
}

/// Adds nodes, up to the first that cannot be made; says what is wrong with it.
fn add(graph: &mut Graph, directory: &TempDir, line: &str) -> Result<(), String> {
    let line = line.replace("DIR", directory.path().to_str().unwrap());
    line.split_whitespace().try_for_each(|word| {
        graph.add(&Blockdev::parse(word).unwrap()).map_err(|error| chain_of(&error).to_string())
    })
}

/// A node over one that there is, with these options.
fn above(child: &str, options: &str) -> Blockdev {
    Blockdev::parse(&format!("{options},file={child}")).unwrap()
}

/// How many descriptors of this process lead there.
fn descriptors(directory: &TempDir, name: &str) -> usize {
    let path = directory.path().join(name);
    let links = fs::read_dir("/proc/self/fd").unwrap();
    // Those of other tests come and go.
    let leads = |entry: fs::DirEntry| fs::read_link(entry.path()).is_ok_and(|to| to == path);
    links.filter_map(Result::ok).map(leads).filter(|leads| *leads).count()
}

/// Whether another daemon could write to the image.
fn is_free(path: &Path) -> bool {
    let options = OpenOptions::regular(path, Access::ReadWrite);
    let node = FileNode::open("other", &options, DiscardPolicy::Ignore, &Arc::default()).unwrap();
    match node.claim(Rights::of_user(Access::ReadWrite)) {
        Ok(_claim) => true,
        Err(error) => {
            assert_eq!(error.outlook, RetryHint::Transient);
            false
        }
    }
}

/// A node that was written inside another one and lost its place there is the operator's business.
#[test]
fn a_node_that_cannot_be_made_takes_none_away_that_was_there() {
    let directory = images();
    let mut graph = graph();
    let line = "raw,node-name=r,file.driver=null-co,file.node-name=inner null-co,node-name=n";
    add(&mut graph, &directory, line).unwrap();
    let user = NodeUser::Node("r".to_owned());
    let mut change = graph
        .change(&[EdgeChange { user, key: "file".to_owned(), by: Some("n".to_owned()) }], &[])
        .unwrap();
    change.swap();
    graph.changed(change);
    let refused = graph.add(&above("inner", "raw,node-name=q,offset=1099511627776,size=512"));
    assert!(matches!(refused, Err(GraphError::Driver(_))), "{refused:?}");
    graph.node("inner").unwrap();
    graph.add(&above("inner", "raw,node-name=q")).unwrap();
}

/// Lines are checked before; whoever adds nodes later, one by one, gets the same answers.
#[test]
fn what_the_graph_refuses_by_itself_leaves_what_was_there() {
    let directory = images();
    let mut graph = graph();
    add(&mut graph, &directory, "file,node-name=a,filename=DIR/a null-co,node-name=n").unwrap();
    add(&mut graph, &directory, "null-co,node-name=i,active=off").unwrap();
    for (line, expected) in [
        ("null-co,node-name=a", "node-name 'a' exists already"),
        ("raw,node-name=n,file.driver=null-co,file.node-name=m", "node-name 'n' exists already"),
        ("raw,node-name=r,file.driver=null-co,file.node-name=n", "node-name 'n' exists already"),
    ] {
        assert_eq!(add(&mut graph, &directory, line), Err(expected.to_owned()), "{line}");
    }
    let above = |child: &str| above(child, "raw,node-name=r");
    let refused = graph.add(&above("i")).unwrap_err().to_string();
    assert_eq!(refused, "Inactive 'i' can't be a file child of active 'r'");
    assert!(graph.node("m").is_err() && graph.node("r").is_err());
    assert_eq!(descriptors(&directory, "a"), 1);
    graph.add(&above("n")).unwrap();
}

#[test]
fn of_a_node_that_cannot_be_made_nothing_is_left() {
    let directory = images();
    let mut graph = graph();
    let line = "file,node-name=n,filename=DIR/a raw,node-name=r,size=131072,file.driver=raw,\
                file.node-name=m,file.file.driver=file,file.file.filename=DIR/b,\
                file.file.node-name=k";
    let said = add(&mut graph, &directory, line).unwrap_err();
    assert!(said.starts_with("node r: The sum of offset (0) and size (131072)"), "{said}");
    // What was made before is there, what was made for it is not.
    assert_eq!((descriptors(&directory, "a"), descriptors(&directory, "b")), (1, 0));
    for name in ["r", "m", "k"] {
        assert!(graph.node(name).is_err(), "{name} is there");
    }
    // The names are free again, and nobody seems to use what is below.
    let again = "file,node-name=k,filename=DIR/b raw,node-name=m,file=k raw,node-name=r,file=m";
    add(&mut graph, &directory, again).unwrap();
    assert_eq!(descriptors(&directory, "b"), 1);
    drop(graph);
    assert_eq!((descriptors(&directory, "a"), descriptors(&directory, "b")), (0, 0));
}

#[test]
fn a_file_is_closed_and_free_when_the_last_that_stands_on_it_is_gone() {
    let directory = images();
    let path = directory.path().join("a");
    let mut graph = graph();
    add(&mut graph, &directory, "file,node-name=n,filename=DIR/a raw,node-name=r,file=n").unwrap();
    let raw = Arc::clone(graph.node("r").unwrap());
    let claim = raw.claim(Rights::of_user(Access::ReadWrite)).unwrap();
    assert!(!is_free(&path));
    drop(graph);
    // The upper node holds what it stands on.
    assert_eq!((descriptors(&directory, "a"), is_free(&path)), (1, false));
    drop(raw);
    assert_eq!((descriptors(&directory, "a"), is_free(&path)), (1, false));
    drop(claim);
    assert_eq!((descriptors(&directory, "a"), is_free(&path)), (0, true));
}
