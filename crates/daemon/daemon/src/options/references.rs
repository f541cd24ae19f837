//! What a line refers to: each step is put into the model, and what the model refuses is told by what the rest of the
//! line says.
//!
//! Limits: names may be given twice and lead in circles in what is looked at here.

use std::collections::HashMap;

use super::plan::Step;
use crate::drivers::{AutoReadOnly, Blockdev, ChildNode, NamedChild};
use crate::model::{Edge, Model, ModelFault, NODE, ObjectName, Owner, way_down};
use crate::syntax::{Fault, Hint, Takes, is_identifier, nearest};

/// A name of something that is not there.
#[derive(Debug, thiserror::Error)]
enum ReferenceFault {
    /// It does not exist.
    #[error("{what} '{name}' is not defined before its use{}", Hint(nearest.as_deref()))]
    NotFound {
        /// What kind of thing it names.
        what: &'static str,
        /// The name.
        name: String,
        /// What was probably meant.
        nearest: Option<String>,
    },
    /// It comes too late.
    #[error("{what} '{name}' is defined only after its use; options are carried out in order")]
    Later {
        /// What kind of thing it names.
        what: &'static str,
        /// The name.
        name: String,
    },
}

/// Puts a step into the model. What it refuses is told with a look at all steps.
pub(super) fn admit(model: &mut Model, step: &Step, all: &[Step]) -> Result<(), Fault> {
    let admitted = match step {
        Step::Object(object) => model.add_object(object.name()),
        Step::Blockdev(blockdev) => {
            admit_node(model, blockdev, &blockdev.name_below("", ""), Owner::Operator)
        }
        Step::Export(export) => {
            check_reference(&export.node_name, None).and_then(|()| model.add_export(export.entry()))
        }
    };
    admitted.map_err(|fault| explain(fault, model, all))
}

/// Adds a node, and those inside it, from the bottom up. Its children are looked at in order: what one names is there
/// before the next one is made.
fn admit_node(
    model: &mut Model,
    blockdev: &Blockdev,
    name: &str,
    owner: Owner,
) -> Result<(), ModelFault> {
    for NamedChild { key, node } in &blockdev.children {
        match node {
            ChildNode::Reference(child) => {
                check_reference(child, Some(name))?;
                model.check_child(child, name)?;
            }
            ChildNode::Inline(inner) => {
                admit_node(model, inner, &inner.name_below(name, key), Owner::Parent)?;
            }
        }
    }
    model.add_node(blockdev.entry(name, blockdev.edges(name), owner))
}

/// Nodes inside others that were given no name have one that nobody can give.
fn check_reference(name: &str, user: Option<&str>) -> Result<(), ModelFault> {
    if is_identifier(name) {
        return Ok(());
    }
    let user = user.map(str::to_owned);
    Err(ModelFault::NotFound { what: NODE, name: name.to_owned(), user })
}

/// Tells a name that comes too late from one that never comes, and a circle of names from both.
fn explain(fault: ModelFault, model: &Model, all: &[Step]) -> Fault {
    let ModelFault::NotFound { what, name, user } = fault else { return Fault::own(fault) };
    if let Some(user) = user
        && let Some(way) = path(all, &name, &user)
    {
        return Fault::own(ModelFault::Circle { way: [vec![user], way].concat() });
    }
    if is_identifier(&name) && all.iter().any(|step| defines(step, what, &name)) {
        return Fault::own(ReferenceFault::Later { what, name });
    }
    let known = model.names(what).into_iter().filter(|name| is_identifier(name));
    let nearest = nearest(&name, known).map(str::to_owned);
    Fault::own(ReferenceFault::NotFound { what, name, nearest })
}

fn defines(step: &Step, what: &str, name: &str) -> bool {
    match step {
        Step::Object(object) => {
            let ObjectName { kind, id } = object.name();
            (kind, id) == (what, name)
        }
        Step::Blockdev(blockdev) => {
            let mut names = blockdev.nodes().into_iter().map(|node| node.node_name.as_deref());
            what == NODE && names.any(|known| known == Some(name))
        }
        Step::Export(_) => false,
    }
}

/// The way down from one node to another on a line, both included.
fn path(all: &[Step], from: &str, to: &str) -> Option<Vec<String>> {
    fn note(blockdev: &Blockdev, name: &str, below: &mut HashMap<String, Vec<Edge>>) {
        below.entry(name.to_owned()).or_default().extend(blockdev.edges(name));
        blockdev.inner(name).for_each(|(name, inner)| note(inner, &name, below));
    }
    let mut below = HashMap::new();
    for step in all {
        if let Step::Blockdev(blockdev) = step {
            note(blockdev, &blockdev.name_below("", ""), &mut below);
        }
    }
    way_down(&|node| below.get(node).map_or(&[], Vec::as_slice), from, to)
}

/// `backing=null` on a command line is a text: it stands for nothing, unless there is a node of that name.
pub(super) fn settle_null(steps: &mut [Step]) {
    if steps.iter().any(|step| defines(step, NODE, "null")) {
        return;
    }
    for_each_node(steps, &mut |blockdev, _| {
        let driver = blockdev.driver;
        blockdev.children.retain(|child| {
            let mut keys = driver.keys.supported().filter(|key| key.name == child.key);
            let may_be_null = keys.any(|key| matches!(key.takes, Takes::NodeOrNull));
            !may_be_null || child.node != ChildNode::Reference("null".to_owned())
        });
    });
}

/// Has files opened read-only that nothing on the line writes, if that was asked for.
pub(super) fn settle_read_only(steps: &mut [Step], model: &Model) {
    for_each_node(steps, &mut |blockdev, name| {
        let is_auto = blockdev.base.auto_read_only == AutoReadOnly::On;
        let opens_a_file = !blockdev.options.needs().files.is_empty();
        if is_auto && opens_a_file && !model.is_written(name) {
            blockdev.base.read_only = true;
        }
    });
}

fn for_each_node(steps: &mut [Step], work: &mut dyn FnMut(&mut Blockdev, &str)) {
    for step in steps {
        if let Step::Blockdev(blockdev) = step {
            let name = blockdev.name_below("", "");
            blockdev.for_each_mut(&name, work);
        }
    }
}
