//! `copy-before-write`: the child's bytes, of which what is changed is copied to a target that stores nothing.
//!
//! Not here: what is found in the copy (`instants`).

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use block::{Access, ByteCount, Child, DiscardPolicy, DiskSize, Node};
use disk::{NullNode, ReadContent};
use layers::{CbwErrorPolicy, CopyBeforeWriteNode, CopyBeforeWriteSettings};
use testkit::conformance::stack::{Chosen, Home, Parts, Shape, Subject};
use testkit::rng::Rng;

#[derive(Debug)]
pub(crate) struct CopyBeforeWrite;

impl Subject for CopyBeforeWrite {
    fn name(&self) -> &'static str {
        "copy-before-write"
    }

    fn children(&self) -> (usize, usize) {
        (1, 1)
    }

    fn choose(&self, rng: &mut Rng, below: &Shape) -> Option<Arc<dyn Chosen>> {
        let latency = if rng.one_in(2) { Duration::from_micros(200) } else { Duration::ZERO };
        Some(Arc::new(ChosenCopy { size: below.size, latency }))
    }
}

#[derive(Clone, Copy, Debug)]
struct ChosenCopy {
    size: u64,
    /// How long the target takes.
    latency: Duration,
}

impl Chosen for ChosenCopy {
    fn describe(&self) -> String {
        format!("latency {:?}", self.latency)
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn home(&self, at: u64) -> Home {
        Home::Child(0, at)
    }

    fn build(&self, parts: Parts<'_>) -> Result<Arc<dyn Node>> {
        let child = Arc::clone(parts.children.first().context("what is below")?);
        let size = DiskSize(ByteCount(self.size));
        let null = NullNode::new("target", size, Access::ReadWrite, ReadContent::Zeroes);
        let target = null.with_latency(self.latency, Arc::clone(parts.clock));
        // So a change is carried out also where what it changes cannot be read.
        let settings = CopyBeforeWriteSettings {
            on_error: CbwErrorPolicy::BreakSnapshot,
            ..CopyBeforeWriteSettings::default()
        };
        let children = (child, Child::new(Arc::new(target)));
        let policies = (Access::ReadWrite, DiscardPolicy::Unmap);
        let clock = Arc::clone(parts.clock);
        let node = CopyBeforeWriteNode::new(parts.name, children, policies, settings, clock)?;
        Ok(Arc::new(node))
    }

    fn has_errands(&self) -> bool {
        true
    }

    fn waits_for_copies(&self) -> bool {
        true
    }
}
