//! The driver `raw`: the bytes of another node as they are, or a part of them.

use std::sync::Arc;

use block::{Child, DiscardPolicy};
use disk::{RawNode, RawWindow};
use syntax::{ArgumentError, Keys, OptionFields, ValueType, optional, required};

use super::base::{BASE, BASE_LATER, BaseOptions, CHANGEABLE, pair};
use super::driver::{
    Driver, DriverOptions, MadeNode, NodeContext, NodeError, NodeRequirements, Options,
    ThrottleGroups,
};
use crate::model::ChildRole;

/// `driver=raw`.
pub(super) static RAW: Driver = Driver {
    name: "raw",
    keys: Keys {
        of: "--blockdev driver=raw",
        supported: &[
            BASE,
            &[
                required("file", ValueType::Node),
                optional("offset", ValueType::Int),
                optional("size", ValueType::Int),
            ],
        ],
        later: &[BASE_LATER],
    },
    changeable: CHANGEABLE,
    roles: &[("file", ChildRole::Filtered)],
    help: "  --blockdev [driver=]raw,node-name=N,file=NODE[,offset=BYTES][,size=BYTES]
                         another node's bytes as they are, all or so many from there; the other
                         node may be written in place: file.driver=file,file.filename=PATH
",
    as_format: Some(|| Arc::new(RawOptions { offset: 0, size: None })),
    read,
};

/// The options of `driver=raw`.
#[derive(Debug)]
struct RawOptions {
    /// Where the bytes begin in the child.
    offset: u64,
    /// How many they are; `None` is all that follow.
    size: Option<u64>,
}

fn read(fields: &mut OptionFields, _: &BaseOptions) -> Result<Options, ArgumentError> {
    let offset = fields.int("offset")?.unwrap_or(0);
    Ok(Arc::new(RawOptions { offset, size: fields.int("size")? }))
}

impl DriverOptions for RawOptions {
    fn needs(&self) -> NodeRequirements<'_> {
        NodeRequirements::default()
    }

    fn describe(&self, _: &ThrottleGroups) -> Vec<(String, String)> {
        let size = self.size.map_or_else(|| "all".to_owned(), |size| size.to_string());
        vec![pair("offset", &self.offset), pair("size", &size)]
    }

    fn make(&self, context: &NodeContext<'_>) -> Result<MadeNode, NodeError> {
        let NodeContext { name, base, .. } = context;
        let window = RawWindow { offset: self.offset, size: self.size };
        let node = RawNode::new(name, context.file(), window, base.access(), base.discard);
        Ok(MadeNode::of(Arc::new(node.map_err(|error| context.failed(error))?)))
    }
}

/// A node through which only those discards come that the node above may pass on (`discard=ignore`).
pub(super) fn discarding(context: &NodeContext<'_>, child: Arc<Child>) -> Arc<Child> {
    match context.base.discard {
        DiscardPolicy::Unmap => child,
        DiscardPolicy::Ignore => {
            let (name, access) = (context.name, context.base.access());
            let node = RawNode::new(name, child, RawWindow::WHOLE, access, DiscardPolicy::Ignore);
            Child::new(Arc::new(node.expect("all of it fits")))
        }
    }
}
