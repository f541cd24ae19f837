//! Disks that are kept as they were, by `copy-before-write`, while guests change them: the rig of `testkit::conformance::instant`.
//!
//! Not here: that guests find what they wrote (`subjects`).

use std::sync::Arc;

use anyhow::{Context, Result};
use block::{Access, DiscardPolicy, Node};
use layers::{CbwErrorPolicy, CopyBeforeWriteNode, CopyBeforeWriteSettings};
use testkit::conformance::instant::{InstantNodes, InstantParts, play_instant};
use testkit::conformance::play::Played;
use testkit::conformance::workload::Tally;

/// Plays the game of this seed.
pub(crate) fn play(seed: u64) -> Result<Played> {
    let played = play_instant(seed, &|parts| make(parts).map(|(nodes, _)| nodes))?;
    let tally = Tally { done: played.judged, refused: played.failed };
    Ok(Played { names: vec!["snapshot-access"], tally, held: 0, kept: 0 })
}

/// The layer, seen from both sides, and itself.
fn make(parts: InstantParts<'_>) -> Result<(InstantNodes, Arc<CopyBeforeWriteNode>)> {
    let on_error = match parts.breaks_snapshot {
        true => CbwErrorPolicy::BreakSnapshot,
        false => CbwErrorPolicy::BreakGuestWrite,
    };
    let settings =
        CopyBeforeWriteSettings { on_error, timeout: parts.timeout, min_cluster_bytes: 0 };
    let children = (parts.source, parts.target);
    let access = (Access::ReadWrite, DiscardPolicy::Unmap);
    let clock = Arc::clone(parts.clock);
    let node = Arc::new(CopyBeforeWriteNode::new("kept", children, access, settings, clock)?);
    let snapshot = node.snapshot().context("it keeps a snapshot")?;
    let state = Arc::clone(node.state());
    let is_broken = Box::new(move || state.broken().is_some());
    Ok((InstantNodes { guest: Arc::clone(&node) as Arc<dyn Node>, snapshot, is_broken }, node))
}

#[cfg(test)]
mod tests;
