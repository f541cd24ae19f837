//! Filters between a node and all who use it: `ringloom-insert-filter`, `ringloom-remove-filter`; the peer has no such command.
//!
//! Where it stands: the change itself, and that of a transaction which has it among others, is made in `images`.

use serde_json::Value;
use syntax::{Keys, OptionFields, ValueType, required};

use super::CommandContext;
use super::images::{Preparation, VOLATILE, change};
use crate::qmp_error::QmpError;

pub(super) static INSERT: Keys = Keys {
    of: "ringloom-insert-filter",
    supported: &[&[
        required("node", ValueType::Text),
        required("filter", ValueType::Text),
        VOLATILE,
    ]],
    later: &[],
};

pub(super) static REMOVE: Keys = Keys {
    of: "ringloom-remove-filter",
    supported: &[&[required("filter", ValueType::Text), VOLATILE]],
    later: &[],
};

pub(super) fn insert(
    context: &mut CommandContext<'_>,
    mut fields: OptionFields,
) -> Result<Value, QmpError> {
    change(context, |context, preparation| preparation.add_insertion(context, &mut fields))
}

pub(super) fn remove(
    context: &mut CommandContext<'_>,
    mut fields: OptionFields,
) -> Result<Value, QmpError> {
    change(context, |context, preparation| preparation.add_removal(context, &mut fields))
}

impl Preparation {
    /// All who stand on the node come to stand on the filter.
    pub(super) fn add_insertion(
        &mut self,
        context: &CommandContext<'_>,
        fields: &mut OptionFields,
    ) -> Result<(), QmpError> {
        let (node, filter) = (fields.required_text("node")?, fields.required_text("filter")?);
        for name in [&node, &filter] {
            check_node(context, name)?;
        }
        self.edges.extend(context.state.insert_filter(&node, &filter)?);
        self.keep(fields)
    }

    /// All who stand on the filter come to stand on its node.
    pub(super) fn add_removal(
        &mut self,
        context: &CommandContext<'_>,
        fields: &mut OptionFields,
    ) -> Result<(), QmpError> {
        let filter = fields.required_text("filter")?;
        check_node(context, &filter)?;
        self.edges.extend(context.state.remove_filter(&filter)?);
        self.keep(fields)
    }
}

fn check_node(context: &CommandContext<'_>, name: &str) -> Result<(), QmpError> {
    let found = context.state.graph().node(name);
    found.map(drop).map_err(|_missing| QmpError::no_node(name))
}
