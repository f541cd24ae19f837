//! The driver `throttle`.

use std::sync::Arc;

use block::{Child, Node};
use disk::Window;
use layers::{ThrottleGroup, ThrottleNode};

use super::{Graph, GraphError, access, raw};
use crate::options::{Blockdev, Discard, ThrottleGroupObject};

impl Graph {
    /// Makes the group that was asked for.
    pub(crate) fn add_throttle_group(&mut self, object: &ThrottleGroupObject) {
        let group = ThrottleGroup::new(&object.id, object.limits, Arc::clone(&self.clock));
        self.throttle_groups.insert(object.id.clone(), group);
    }

    pub(super) fn make_throttle(
        &self,
        name: &str,
        group: &str,
        blockdev: &Blockdev,
        child: Arc<Child>,
    ) -> Result<Arc<dyn Node>, GraphError> {
        let Some(group) = self.throttle_groups.get(group) else {
            let (node, group) = (name.to_owned(), group.to_owned());
            return Err(GraphError::UnknownThrottleGroup { node, group });
        };
        let node = ThrottleNode::new(name, child, Arc::clone(group), access(blockdev));
        match blockdev.discard {
            Discard::Unmap => Ok(Arc::new(node)),
            // As in QEMU, discards that do nothing cost nothing: they end above the throttle.
            Discard::Ignore => raw(name, Window::WHOLE, blockdev, Child::new(Arc::new(node))),
        }
    }
}

#[cfg(test)]
mod tests {
    use block::{
        Answer, ByteCount, ByteOffset, Durability, LaneIo, Mapping, Operation, PieceList,
        SystemClock, Token,
    };

    use super::*;
    use crate::options::{Command, Object, Plan, Step, parse};

    /// Which of four requests of 4 KiB a disk holds that may write, or do, one in a thousand seconds:
    /// two discards, two writes.
    fn held(limits: &str, discard: &str) -> [bool; 4] {
        let group = format!("--object=throttle-group,id=g,{limits}");
        let node = format!(
            "--blockdev=throttle,node-name=n,throttle-group=g,file.driver=null-co{discard}"
        );
        let Command::Serve(Plan { steps, .. }) = parse([group.into(), node.into()]).unwrap() else {
            panic!("{limits} is no plan")
        };
        let mut graph = Graph::new(Arc::default(), Arc::new(SystemClock));
        for step in &steps {
            match step {
                Step::Object(Object::ThrottleGroup(group)) => graph.add_throttle_group(group),
                Step::Blockdev(blockdev) => graph.add(blockdev).unwrap(),
                Step::Object(_) | Step::Export(_) => panic!("{step:?}"),
            }
        }
        let node = graph.node("n").unwrap();
        let extent = node.size().check(ByteOffset(0), ByteCount(4096)).unwrap();
        let discard = Operation::Discard(extent, Durability::Cached);
        let write = Operation::Write(extent, Durability::Cached);
        let mut batch = [discard, discard, write, write];
        let mut tokens = (0..).map(Token);
        let mut batch =
            batch.each_mut().map(|operation| Mapping::new(tokens.next().unwrap(), *operation));
        node.open_lane(&LaneIo::idle()).unwrap().map(&mut batch, &mut PieceList::default());
        batch.map(|mapping| mapping.answer == Answer::Held)
    }

    #[test]
    fn discards_are_paid_for_if_they_do_something() {
        assert_eq!(held("x-bps-write=4", ",discard=unmap"), [false, true, true, true]);
        assert_eq!(held("x-bps-write=4", ""), [false, false, false, true]);
        assert_eq!(held("x-bps-read=4,limits.iops-read=1", ""), [false; 4]);
    }
}
