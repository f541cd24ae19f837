//! What a line refers to: each step is put into the model, and what the model refuses is told by what the rest of the
//! line says.
//!
//! Limits: names may be given twice and lead in circles in what is looked at here.

use std::collections::HashMap;

use exports::ExportOptions;
use graph::{
    AutoReadOnly, Blockdev, BlockdevRef, Edge, GraphModel, KeyedChild, ModelError, NODE, NodeOwner,
    ObjectKind, ObjectOptions, PoolOptions, TypedObjectId, path_down,
};
use syntax::{ArgumentError, Hint, Key, ValueType, is_identifier, nearest};

use super::plan::PlanStep;

/// A name that refers to nothing, or to something that comes later.
#[derive(Debug, thiserror::Error)]
enum ReferenceError {
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

/// Pins that no pool can keep.
#[derive(Debug, thiserror::Error)]
enum PinError {
    /// Its queues are on iothreads that are named.
    #[error(
        "parameter pin needs a pool of iothreads, as iothread=auto; named iothreads serve the same queues anyway"
    )]
    NoPool,
    /// The pool has no such iothread.
    #[error(
        "parameter pin: iothread-pool '{pool}' has no iothread {iothread}; it has {max}, the first is 0"
    )]
    NoIothread {
        /// The pool.
        pool: String,
        /// Which of its iothreads.
        iothread: u16,
        /// How many it may have.
        max: usize,
    },
}

/// The pool that is there if an export names it and nothing else is called so.
pub(super) const AUTO: &str = "auto";

/// Makes the pool `auto` before the first export that names it, if no object is called so. Returns where.
pub(super) fn add_auto_pool(steps: &mut Vec<PlanStep>) -> Option<usize> {
    let is_there = |step: &PlanStep| matches!(step, PlanStep::Object(object) if object.id == AUTO);
    let names = |step: &PlanStep| match step {
        PlanStep::Export(export) => export.iothreads.iter().any(|id| id == AUTO),
        PlanStep::Object(_) | PlanStep::Blockdev(_) => false,
    };
    let place = steps.iter().position(names).filter(|_| !steps.iter().any(is_there))?;
    let kind = ObjectKind::IothreadPool(PoolOptions::default());
    steps.insert(place, PlanStep::Object(ObjectOptions { id: AUTO.to_owned(), kind }));
    Some(place)
}

/// Puts a step into the model. What it refuses is told with a look at all steps.
pub(super) fn admit(
    model: &mut GraphModel,
    step: &PlanStep,
    all: &[PlanStep],
) -> Result<(), ArgumentError> {
    let admitted = match step {
        PlanStep::Object(object) => model.add_object(object.name()),
        PlanStep::Blockdev(blockdev) => {
            admit_node(model, blockdev, &blockdev.name_below("", ""), NodeOwner::Operator)
        }
        PlanStep::Export(export) => {
            check_reference(&export.node_name, None).and_then(|()| model.add_export(export.entry()))
        }
    };
    admitted.map_err(|fault| explain(fault, model, all))?;
    match step {
        PlanStep::Export(export) => check_pins(export, all).map_err(ArgumentError::own),
        PlanStep::Object(_) | PlanStep::Blockdev(_) => Ok(()),
    }
}

/// Whether the iothreads of the export's pool are there that its pins name.
fn check_pins(export: &ExportOptions, all: &[PlanStep]) -> Result<(), PinError> {
    let Some(most) = export.pins().iter().map(|pin| pin.iothread).max() else { return Ok(()) };
    let pool = all.iter().find_map(|step| match step {
        PlanStep::Object(ObjectOptions { id, kind: ObjectKind::IothreadPool(options) })
            if export.iothreads.first() == Some(id) =>
        {
            Some((id, options.settings(options.cpus.as_ref()).ok()?.max()))
        }
        PlanStep::Object(_) | PlanStep::Blockdev(_) | PlanStep::Export(_) => None,
    });
    match pool {
        None => Err(PinError::NoPool),
        Some((_, max)) if usize::from(most) < max => Ok(()),
        Some((id, max)) => Err(PinError::NoIothread { pool: id.clone(), iothread: most, max }),
    }
}

/// Adds a node, and those inside it, from the bottom up. Its children are looked at in order: what one names is there
/// before the next one is made.
fn admit_node(
    model: &mut GraphModel,
    blockdev: &Blockdev,
    name: &str,
    owner: NodeOwner,
) -> Result<(), ModelError> {
    for KeyedChild { key, node } in &blockdev.children {
        match node {
            BlockdevRef::Reference(child) => {
                check_reference(child, Some(name))?;
                model.check_child(child, name)?;
            }
            BlockdevRef::Inline(inner) => {
                admit_node(model, inner, &inner.name_below(name, key), NodeOwner::Parent)?;
            }
        }
    }
    model.add_node(blockdev.entry(name, blockdev.edges(name), owner))
}

/// Nodes inside others that were given no name have one that nobody can give.
fn check_reference(name: &str, user: Option<&str>) -> Result<(), ModelError> {
    if is_identifier(name) {
        return Ok(());
    }
    let user = user.map(str::to_owned);
    Err(ModelError::NotFound { what: NODE, name: name.to_owned(), user })
}

/// Tells a name that comes too late from one that never comes, and a circle of names from both.
fn explain(fault: ModelError, model: &GraphModel, all: &[PlanStep]) -> ArgumentError {
    let ModelError::NotFound { what, name, user } = fault else { return ArgumentError::own(fault) };
    if let Some(user) = user
        && let Some(way) = path(all, &name, &user)
    {
        return ArgumentError::own(ModelError::Circle([vec![user], way].concat()));
    }
    if is_identifier(&name) && all.iter().any(|step| defines(step, what, &name)) {
        return ArgumentError::own(ReferenceError::Later { what, name });
    }
    let known = model.names(what).into_iter().filter(|name| is_identifier(name));
    let nearest = nearest(&name, known).map(str::to_owned);
    ArgumentError::own(ReferenceError::NotFound { what, name, nearest })
}

fn defines(step: &PlanStep, what: &str, name: &str) -> bool {
    match step {
        PlanStep::Object(object) => {
            let TypedObjectId { kind, id } = object.name();
            (kind, id) == (what, name)
        }
        PlanStep::Blockdev(blockdev) => {
            let mut names = blockdev.nodes().into_iter().map(|node| node.node_name.as_deref());
            what == NODE && names.any(|known| known == Some(name))
        }
        PlanStep::Export(_) => false,
    }
}

/// The way down from one node to another on a line, both included.
fn path(all: &[PlanStep], from: &str, to: &str) -> Option<Vec<String>> {
    fn note(blockdev: &Blockdev, name: &str, below: &mut HashMap<String, Vec<Edge>>) {
        below.entry(name.to_owned()).or_default().extend(blockdev.edges(name));
        blockdev.inner(name).for_each(|(name, inner)| note(inner, &name, below));
    }
    let mut below = HashMap::new();
    for step in all {
        if let PlanStep::Blockdev(blockdev) = step {
            note(blockdev, &blockdev.name_below("", ""), &mut below);
        }
    }
    path_down(&|node| below.get(node).map_or(&[], Vec::as_slice), from, to)
}

/// `backing=null` on a command line is a text: it stands for nothing, unless there is a node of that name.
pub(super) fn settle_null(steps: &mut [PlanStep]) {
    if steps.iter().any(|step| defines(step, NODE, "null")) {
        return;
    }
    for_each_node(steps, &mut |blockdev, _| {
        let null = BlockdevRef::Reference("null".to_owned());
        let may_be_null = |key: &&Key| matches!(key.takes, ValueType::NodeOrNull);
        for key in blockdev.driver.keys.supported().filter(may_be_null) {
            if blockdev.children.iter().any(|it| it.key == key.name && it.node == null) {
                blockdev.clear_child(key.name);
            }
        }
    });
}

/// Has files opened read-only that nothing on the line writes, if that was asked for.
pub(super) fn settle_read_only(steps: &mut [PlanStep], model: &GraphModel) {
    for_each_node(steps, &mut |blockdev, name| {
        let is_auto = blockdev.base.auto_read_only == AutoReadOnly::On;
        let opens_a_file = !blockdev.files().is_empty();
        if is_auto && opens_a_file && !model.is_written(name) {
            blockdev.base.read_only = true;
        }
    });
}

fn for_each_node(steps: &mut [PlanStep], work: &mut dyn FnMut(&mut Blockdev, &str)) {
    for step in steps {
        if let PlanStep::Blockdev(blockdev) = step {
            let name = blockdev.name_below("", "");
            blockdev.for_each_mut(&name, work);
        }
    }
}
