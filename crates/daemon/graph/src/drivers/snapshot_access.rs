//! The driver `snapshot-access`: what a `copy-before-write` node keeps of its disk as it was.

use std::sync::Arc;

use block::{Access, Child, DiscardPolicy};
use disk::{RawNode, RawWindow};
use layers::SnapshotAccessNode;
use syntax::{ArgumentError, Keys, OptionFields, ValueType, required};

use super::base::{BASE, BASE_LATER, BaseOptions};
use super::driver::{
    Driver, DriverOptions, MadeNode, NodeContext, NodeError, NodeRequirements, Options,
    ThrottleGroups,
};
use crate::model::ChildRole;

/// `driver=snapshot-access`.
pub(super) static SNAPSHOT_ACCESS: Driver = Driver {
    name: "snapshot-access",
    keys: Keys {
        of: "--blockdev driver=snapshot-access",
        supported: &[BASE, &[required("file", ValueType::Node)]],
        later: &[BASE_LATER],
    },
    changeable: &[],
    roles: &[("file", ChildRole::AtInstant)],
    help: "  --blockdev [driver=]snapshot-access,node-name=N,file=NODE
                         the disk as the copy-before-write node has kept it. A discard says what
                         need not be kept any more; other changes fail
",
    as_format: None,
    read,
};

/// The options of `driver=snapshot-access`: it has none.
#[derive(Debug)]
struct SnapshotAccessOptions;

fn read(_: &mut OptionFields, _: &BaseOptions) -> Result<Options, ArgumentError> {
    Ok(Arc::new(SnapshotAccessOptions))
}

impl DriverOptions for SnapshotAccessOptions {
    fn needs(&self) -> NodeRequirements<'_> {
        NodeRequirements::default()
    }

    fn describe(&self, _: &ThrottleGroups) -> Vec<(String, String)> {
        Vec::new()
    }

    fn make(&self, context: &NodeContext<'_>) -> Result<MadeNode, NodeError> {
        let (name, access) = (context.name, context.base.access());
        let node = SnapshotAccessNode::new(name, context.file());
        let node = Arc::new(node.map_err(|error| context.failed(error))?);
        if (access, context.base.discard) == (Access::ReadWrite, DiscardPolicy::Unmap) {
            return Ok(MadeNode::of(node));
        }
        let (child, window) = (Child::new(node), RawWindow::WHOLE);
        let node = RawNode::new(name, child, window, access, context.base.discard);
        Ok(MadeNode::of(Arc::new(node.expect("all of it fits"))))
    }
}
