//! Dirty bitmaps: `block-dirty-bitmap-add`, `-remove`, `-clear`, `-enable`, `-disable`, `-merge`, alone and in transactions;
//! `x-debug-block-dirty-bitmap-sha256`.
//!
//! Invariants: the first bitmap of a node is added, and all of a transaction is done, while nothing is in flight on the node; what
//! was done in a transaction that fails is taken back before anything is.

use std::sync::Arc;

use bitmaps::{
    BitmapRefusal, BitmapUndo, BusyBitmap, Granularity, NAME_BYTES_MAX, NewBitmap, NodeBitmaps,
    Persistence, Recording,
};
use block::{Access, Claim};
use control::StatePolicy;
use serde_json::Value;
use sha2::{Digest, Sha256};
use syntax::{Keys, OptionFields, TextOrObject, ValueType, optional, required};

use super::at_instant::{InstantAction, InstantActions};
use super::{CommandContext, answer, done};
use crate::qmp_error::QmpError;
use crate::types::BlockDirtyBitmapSha256;

/// The words that are hashed at a time.
const HASHED_WORDS: usize = 8192;

pub(super) static ADD: Keys = Keys {
    of: "block-dirty-bitmap-add",
    supported: &[&[
        required("node", ValueType::Text),
        required("name", ValueType::Text),
        optional("granularity", ValueType::Number),
        optional("persistent", ValueType::Flag),
        optional("disabled", ValueType::Flag),
    ]],
    later: &[],
};

/// A bitmap of a node.
pub(super) static BITMAP: Keys = Keys {
    of: "a dirty bitmap",
    supported: &[&[required("node", ValueType::Text), required("name", ValueType::Text)]],
    later: &[],
};

pub(super) static MERGE: Keys = Keys {
    of: "block-dirty-bitmap-merge",
    supported: &[&[
        required("node", ValueType::Text),
        required("target", ValueType::Text),
        required("bitmaps", ValueType::List(&ValueType::TextOrObject(&BITMAP))),
    ]],
    later: &[],
};

/// Something that is done with a bitmap of a node.
pub(super) struct BitmapAction {
    node: String,
    of: Arc<NodeBitmaps>,
    what: Deed,
    /// The bitmaps of images are in memory until then.
    _held: Vec<Claim>,
}

/// What is done with it.
enum Deed {
    Add(NewBitmap),
    Remove(String),
    Clear(String),
    Record(String, Recording),
    Merge(String, Vec<MergeSource>),
}

/// A bitmap that is merged into another one.
struct MergeSource {
    /// Those of its node; the name of a node that is not there.
    of: Result<Arc<NodeBitmaps>, String>,
    name: String,
}

/// What was done, until it is sure that it stays.
pub(super) enum BitmapDone {
    /// It can be taken back.
    Undo(BitmapUndo),
    /// It is removed then, and records until then. As in QEMU it is in use, and its name is taken.
    Removal(BusyBitmap),
}

pub(super) fn add(
    context: &mut CommandContext<'_>,
    mut fields: OptionFields,
) -> Result<Value, QmpError> {
    let action = BitmapAction::add(context, &mut fields)?;
    let mut all = InstantActions::new(vec![InstantAction::Bitmap(action)], Ok(()));
    context.state.replace_at_once(&[], &[], StatePolicy::Volatile, &mut all)?;
    done()
}

pub(super) fn remove(
    context: &mut CommandContext<'_>,
    mut fields: OptionFields,
) -> Result<Value, QmpError> {
    BitmapAction::remove(context, &mut fields)?.carry_out()
}

pub(super) fn clear(
    context: &mut CommandContext<'_>,
    mut fields: OptionFields,
) -> Result<Value, QmpError> {
    BitmapAction::clear(context, &mut fields)?.carry_out()
}

pub(super) fn enable(
    context: &mut CommandContext<'_>,
    mut fields: OptionFields,
) -> Result<Value, QmpError> {
    BitmapAction::record(context, &mut fields, Recording::On)?.carry_out()
}

pub(super) fn disable(
    context: &mut CommandContext<'_>,
    mut fields: OptionFields,
) -> Result<Value, QmpError> {
    BitmapAction::record(context, &mut fields, Recording::Off)?.carry_out()
}

pub(super) fn merge(
    context: &mut CommandContext<'_>,
    mut fields: OptionFields,
) -> Result<Value, QmpError> {
    BitmapAction::merge(context, &mut fields)?.carry_out()
}

/// The hash of a bitmap's words, as the peer keeps them.
pub(super) fn sha256(
    context: &mut CommandContext<'_>,
    mut fields: OptionFields,
) -> Result<Value, QmpError> {
    let NodeInUse { of, .. } = bitmaps_of(context, &mut fields)?;
    let bits = of.bits(&fields.required_text("name")?)?;
    let mut hash = Sha256::new();
    let mut words = [0; HASHED_WORDS];
    let mut first = 0;
    while first < bits.word_count() {
        let count = words.len().min(bits.word_count() - first);
        bits.load_words(first, &mut words[..count]);
        words[..count].iter().for_each(|word| hash.update(word.to_le_bytes()));
        first += count;
    }
    let sha256 = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    answer(BlockDirtyBitmapSha256 { sha256 })
}

/// The node that is meant, and its bitmaps.
fn bitmaps_of(
    context: &CommandContext<'_>,
    fields: &mut OptionFields,
) -> Result<NodeInUse, QmpError> {
    let node = fields.required_text("node")?;
    let of = context.state.graph().bitmaps(&node).map(Arc::clone);
    let of = of.map_err(|_missing| no_node(&node))?;
    let held = Vec::from_iter(context.state.hold_bitmaps(&node)?);
    Ok(NodeInUse { node, of, held })
}

/// A node whose bitmaps are in memory.
struct NodeInUse {
    node: String,
    of: Arc<NodeBitmaps>,
    held: Vec<Claim>,
}

impl NodeInUse {
    /// What is done with one of them.
    fn action(self, what: Deed) -> BitmapAction {
        let Self { node, of, held } = self;
        BitmapAction { node, of, what, _held: held }
    }
}

/// QEMU's sentence of these commands.
fn no_node(name: &str) -> QmpError {
    QmpError::generic(format!("Node '{name}' not found"))
}

impl BitmapAction {
    pub(super) fn add(
        context: &mut CommandContext<'_>,
        fields: &mut OptionFields,
    ) -> Result<Self, QmpError> {
        let (node, name) = (fields.required_text("node")?, fields.required_text("name")?);
        if name.is_empty() {
            return Err(BitmapRefusal::NoName.into());
        }
        let graph = context.state.graph();
        let of = graph.bitmaps(&node).map(Arc::clone);
        let of = of.map_err(|_missing| {
            QmpError::generic(format!("Cannot find device='{node}' nor node-name='{node}'"))
        })?;
        let wrong = || QmpError::generic("Granularity must be power of 2 and at least 512");
        let granularity = match fields.number_u32("granularity")? {
            Some(bytes) => Granularity::new(bytes.into()).ok_or_else(wrong)?,
            None => graph.default_granularity(&node),
        };
        let recording = match fields.flag("disabled")? {
            Some(true) => Recording::Off,
            Some(false) | None => Recording::On,
        };
        let persistence = match fields.flag("persistent")? {
            Some(true) => Persistence::Kept,
            Some(false) | None => Persistence::Volatile,
        };
        let new = NewBitmap { name, granularity, recording, persistence };
        if persistence == Persistence::Kept {
            check_storable(context, &node, &new.name)?;
        }
        context.state.put_recorder(&node)?;
        let held = Vec::from_iter(context.state.hold_bitmaps(&node)?);
        Ok(NodeInUse { node, of, held }.action(Deed::Add(new)))
    }

    pub(super) fn remove(
        context: &CommandContext<'_>,
        fields: &mut OptionFields,
    ) -> Result<Self, QmpError> {
        let found = bitmaps_of(context, fields)?;
        Ok(found.action(Deed::Remove(fields.required_text("name")?)))
    }

    pub(super) fn clear(
        context: &CommandContext<'_>,
        fields: &mut OptionFields,
    ) -> Result<Self, QmpError> {
        let found = bitmaps_of(context, fields)?;
        Ok(found.action(Deed::Clear(fields.required_text("name")?)))
    }

    pub(super) fn record(
        context: &CommandContext<'_>,
        fields: &mut OptionFields,
        to: Recording,
    ) -> Result<Self, QmpError> {
        let found = bitmaps_of(context, fields)?;
        Ok(found.action(Deed::Record(fields.required_text("name")?, to)))
    }

    pub(super) fn merge(
        context: &CommandContext<'_>,
        fields: &mut OptionFields,
    ) -> Result<Self, QmpError> {
        let mut found = bitmaps_of(context, fields)?;
        let target = fields.required_text("target")?;
        let missing = || QmpError::generic("parameter 'bitmaps' is missing");
        let all = fields.names_or_objects("bitmaps")?.ok_or_else(missing)?;
        let mut held = Vec::new();
        let source = |it| match it {
            TextOrObject::Text(name) => Ok(MergeSource { of: Ok(Arc::clone(&found.of)), name }),
            TextOrObject::Object(mut fields) => {
                let (node, name) = (fields.required_text("node")?, fields.required_text("name")?);
                let of = context.state.graph().bitmaps(&node).map(Arc::clone);
                if of.is_ok() {
                    held.extend(context.state.hold_bitmaps(&node)?);
                }
                Ok(MergeSource { of: of.map_err(|_missing| node), name })
            }
        };
        let sources = all.into_iter().map(source).collect::<Result<_, QmpError>>()?;
        found.held.extend(held);
        Ok(found.action(Deed::Merge(target, sources)))
    }

    /// Does it by itself. What is in flight meanwhile is recorded, in what is there afterwards.
    fn carry_out(&self) -> Result<Value, QmpError> {
        if let Deed::Remove(name) = &self.what {
            let _stays = self.of.remove(name)?;
        } else {
            self.apply()?;
        }
        done()
    }

    /// The node that is meant.
    pub(super) fn node(&self) -> &str {
        &self.node
    }

    /// Does it, such that it can be taken back.
    pub(super) fn apply(&self) -> Result<BitmapDone, QmpError> {
        let of = &self.of;
        Ok(BitmapDone::Undo(match &self.what {
            Deed::Remove(name) => return Ok(BitmapDone::Removal(of.occupy_to_remove(name)?)),
            Deed::Add(new) => of.add(new)?,
            Deed::Clear(name) => of.clear(name)?,
            Deed::Record(name, to) => of.set_recording(name, *to)?,
            Deed::Merge(target, sources) => {
                let sum = of.begin_merge(target)?;
                for MergeSource { of, name } in sources {
                    of.as_ref().map_err(|node| no_node(node))?.merge_from(name, &sum)?;
                }
                of.merge_into(target, &sum)?
            }
        }))
    }

    /// It stays.
    pub(super) fn commit(&self, done: BitmapDone) {
        if let BitmapDone::Removal(busy) = done {
            let name = busy.name().to_owned();
            drop(busy);
            if let Err(error) = self.of.remove(&name) {
                tracing::error!("node {}: {error}", self.node);
            }
        }
    }

    /// It is as it was.
    pub(super) fn take_back(&self, done: BitmapDone) {
        match done {
            BitmapDone::Undo(undo) => self.of.undo(undo),
            BitmapDone::Removal(busy) => drop(busy),
        }
    }
}

/// Whether the node is an image that can have bitmaps in it. QEMU's sentence.
fn check_storable(context: &CommandContext<'_>, node: &str, name: &str) -> Result<(), QmpError> {
    let info = context.state.graph().node_info(node)?;
    let cannot =
        |why: &str| QmpError::generic(format!("Can't store persistent bitmaps to {node}: {why}"));
    let image = info.image.ok_or_else(|| cannot("Operation not supported"))?;
    if info.access == Access::ReadOnly {
        return Err(cannot("the node is read-only"));
    }
    let too_long = || format!("Name length exceeds maximum ({NAME_BYTES_MAX} characters)");
    let fits = if name.len() > NAME_BYTES_MAX { Err(too_long()) } else { Ok(()) };
    let checked = image.check_bitmaps().map_err(str::to_owned).and(fits);
    checked.map_err(|why| {
        QmpError::generic(format!("Can't make bitmap '{name}' persistent in '{node}': {why}"))
    })
}
