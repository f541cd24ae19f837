//! Discards below `throttle` and `delay`: `discard=ignore` ends them above the node.

use block::{
    Answer, BatchPieces, ByteCount, ByteOffset, Durability, LaneContext, Mapping, Operation, Token,
};

use super::Graph;
use crate::drivers::Blockdev;
use crate::objects::{ObjectKind, ObjectOptions};

/// A graph with these nodes, and throttle groups if there are some.
fn graph(group: Option<&str>, nodes: &[&str]) -> Graph {
    let mut graph = super::graph();
    if let Some(group) = group.map(|group| ObjectOptions::parse(group).unwrap()) {
        let ObjectKind::ThrottleGroup(limits) = group.kind else { panic!("{group:?}") };
        graph.add_throttle_group(&group.id, limits).unwrap();
    }
    nodes.iter().for_each(|node| graph.add(&Blockdev::parse(node).unwrap()).unwrap());
    graph
}

/// Which of four requests of 4 KiB a disk holds that may write, or do, one in a thousand seconds:
/// two discards, two writes.
fn held(limits: &str, discard: &str) -> [bool; 4] {
    let group = format!("throttle-group,id=g,{limits}");
    let node = format!("throttle,node-name=n,throttle-group=g,file.driver=null-co{discard}");
    let graph = graph(Some(&group), &[&node]);
    let node = graph.node("n").unwrap();
    let extent = node.size().check(ByteOffset(0), ByteCount(4096)).unwrap();
    let discard = Operation::Discard(extent, Durability::Cached);
    let write = Operation::Write(extent, Durability::Cached);
    let mut batch = [discard, discard, write, write];
    let mut tokens = (0..).map(Token);
    let mut batch =
        batch.each_mut().map(|operation| Mapping::new(tokens.next().unwrap(), *operation));
    node.open_lane(&LaneContext::idle()).unwrap().map(&mut batch, &mut BatchPieces::default());
    batch.map(|mapping| mapping.answer == Answer::Held)
}

#[test]
fn discards_are_paid_for_if_they_do_something() {
    assert_eq!(held("x-bps-write=4", ",discard=unmap"), [false, true, true, true]);
    assert_eq!(held("x-bps-write=4", ""), [false, false, false, true]);
    assert_eq!(held("x-bps-read=4,limits.iops-read=1", ""), [false; 4]);
}

/// What a new lane on the node says to a read and a discard.
fn answers(graph: &Graph, name: &str) -> ([Answer; 2], BatchPieces) {
    let node = graph.node(name).unwrap();
    let extent = node.size().check(ByteOffset(0), ByteCount(512)).unwrap();
    let mut pieces = BatchPieces::default();
    let mut batch = [Operation::Read(extent), Operation::Discard(extent, Durability::Cached)]
        .map(|operation| Mapping::new(Token(0), operation));
    node.open_lane(&LaneContext::idle()).unwrap().map(&mut batch, &mut pieces);
    (batch.map(|mapping| mapping.answer), pieces)
}

#[test]
fn discards_pass_only_if_it_may_unmap() {
    let nodes = [
        "null-co,node-name=n",
        "delay,node-name=kept,file=n",
        "delay,node-name=unmapped,file=n,discard=unmap",
    ];
    let graph = graph(None, &nodes);
    for (name, expected) in [("kept", 0), ("unmapped", 1)] {
        let ([_, discard], pieces) = answers(&graph, name);
        let Answer::Now(range) = discard else { panic!("{discard:?}") };
        assert_eq!(pieces.get(range).len(), expected, "{name}");
    }
}
