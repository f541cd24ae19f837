//! The driver `copy-on-read`: another node's bytes, and what is read of its backing files is copied to it.

use std::sync::Arc;

use block::Child;
use layers::{CopyOnReadNode, CopySource};
use syntax::{ArgumentError, Keys, OptionFields, ValueType, optional, required};

use super::base::{BASE, BASE_LATER, BaseOptions, pair};
use super::driver::{
    Driver, DriverOptions, MadeNode, NodeContext, NodeError, NodeRequirements, Options,
    ThrottleGroups,
};
use super::raw;
use crate::model::ChildRole;

/// `driver=copy-on-read`.
pub(super) static COPY_ON_READ: Driver = Driver {
    name: "copy-on-read",
    keys: Keys {
        of: "--blockdev driver=copy-on-read",
        supported: &[
            BASE,
            &[required("file", ValueType::Node), optional("bottom", ValueType::Text)],
        ],
        later: &[BASE_LATER],
    },
    changeable: &[],
    roles: &[("file", ChildRole::CopiedTo)],
    help: "  --blockdev [driver=]copy-on-read,node-name=N,file=NODE[,bottom=NODE]
                         another node's bytes; what is read and is in its backing files, down
                         to that one, is copied to it
",
    as_format: None,
    read,
};

/// The options of `driver=copy-on-read`.
#[derive(Debug)]
struct CopyOnReadOptions {
    /// The lowest image of the chain that is copied from.
    bottom: Option<String>,
}

fn read(fields: &mut OptionFields, _: &BaseOptions) -> Result<Options, ArgumentError> {
    Ok(Arc::new(CopyOnReadOptions { bottom: fields.text("bottom")? }))
}

impl DriverOptions for CopyOnReadOptions {
    fn needs(&self) -> NodeRequirements<'_> {
        NodeRequirements { bottom: self.bottom.as_deref(), ..NodeRequirements::default() }
    }

    fn describe(&self, _: &ThrottleGroups) -> Vec<(String, String)> {
        vec![pair("bottom", self.bottom.as_deref().unwrap_or(""))]
    }

    fn make(&self, context: &NodeContext<'_>) -> Result<MadeNode, NodeError> {
        let source = context.depth.map_or(CopySource::All, CopySource::Nearest);
        let access = context.base.access();
        let node = CopyOnReadNode::new(context.name, context.file(), access, source);
        Ok(MadeNode::of(raw::discarding(context, Child::new(Arc::new(node))).node()))
    }
}
