//! The driver `delay`, and how its delays are reached while it is served.

use std::sync::Arc;

use block::{Child, Node};
use layers::{DelayNode, DelaySettings};

use super::{Graph, access, unmapping};
use crate::options::Blockdev;

impl Graph {
    /// The node of that name whose delays are to be changed; `None` if it delays nothing.
    #[cfg_attr(not(test), expect(dead_code, reason = "what QMP will change delays by"))]
    pub(crate) fn delay(&self, name: &str) -> Option<&Arc<DelayNode>> {
        self.delays.get(name)
    }

    pub(super) fn make_delay(
        &mut self,
        name: &str,
        blockdev: &Blockdev,
        child: Arc<Child>,
        (settings, seed): (&DelaySettings, u64),
    ) -> Arc<dyn Node> {
        let child = unmapping(name, blockdev, child);
        let (settings, clock) = (settings.clone(), Arc::clone(&self.clock));
        let node = DelayNode::new(name, child, access(blockdev), settings, seed, clock);
        let node = Arc::new(node);
        self.delays.insert(name.to_owned(), Arc::clone(&node));
        node
    }
}

#[cfg(test)]
mod tests {
    use block::{
        Answer, ByteCount, ByteOffset, Durability, LaneIo, Mapping, Operation, PieceList,
        SystemClock, Token,
    };
    use layers::{Distribution, Latency};

    use super::*;
    use crate::options::{Command, Plan, Step, parse};

    fn graph(blockdevs: &[&str]) -> Graph {
        let line = blockdevs.iter().flat_map(|argument| ["--blockdev", argument]);
        let Command::Serve(Plan { steps, .. }) = parse(line.map(Into::into)).unwrap() else {
            panic!("{blockdevs:?} is no plan")
        };
        let mut graph = Graph::new(Arc::default(), Arc::new(SystemClock));
        for step in &steps {
            let Step::Blockdev(blockdev) = step else { panic!("{step:?} is no node") };
            graph.add(blockdev).unwrap();
        }
        graph
    }

    /// What a new lane on the node says to a read and a discard.
    fn answers(graph: &Graph, name: &str) -> ([Answer; 2], PieceList) {
        let node = graph.node(name).unwrap();
        let extent = node.size().check(ByteOffset(0), ByteCount(512)).unwrap();
        let mut pieces = PieceList::default();
        let mut batch = [Operation::Read(extent), Operation::Discard(extent, Durability::Cached)]
            .map(|operation| Mapping::new(Token(0), operation));
        node.open_lane(&LaneIo::idle()).unwrap().map(&mut batch, &mut pieces);
        (batch.map(|mapping| mapping.answer), pieces)
    }

    #[test]
    fn delays_are_changed_by_node_name() {
        let graph = graph(&[
            "null-co,node-name=n",
            "delay,node-name=d,file=n,latency-ns=1000000000",
            "raw,node-name=r,file=d,discard=unmap",
        ]);
        assert_eq!(answers(&graph, "r").0, [Answer::Held; 2]);
        let node = graph.delay("d").unwrap();
        let write = Distribution::Fixed(Latency::from_ns(1).unwrap());
        let read = Distribution::NONE;
        node.set(DelaySettings { read, write, ..(*node.settings()).clone() });
        assert!(matches!(answers(&graph, "r").0, [Answer::Now(_), Answer::Held]));
        assert!(graph.delay("n").is_none() && graph.delay("r").is_none());
    }

    #[test]
    fn discards_pass_only_if_it_may_unmap() {
        let graph = graph(&[
            "null-co,node-name=n",
            "delay,node-name=kept,file=n",
            "delay,node-name=unmapped,file=n,discard=unmap",
        ]);
        for (name, expected) in [("kept", 0), ("unmapped", 1)] {
            let ([_, discard], pieces) = answers(&graph, name);
            let Answer::Now(range) = discard else { panic!("{discard:?}") };
            assert_eq!(pieces.get(range).len(), expected, "{name}");
        }
    }
}
