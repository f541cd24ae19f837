//! `raw`: the child's bytes.

use std::sync::Arc;

use anyhow::Result;
use block::{Access, Node};
use disk::{DiscardPolicy, RawNode};
use testkit::conformance::stack::{Chosen, Home, Parts, Shape, Subject};
use testkit::rng::Rng;

#[derive(Debug)]
pub(crate) struct Raw;

impl Subject for Raw {
    fn name(&self) -> &'static str {
        "raw"
    }

    fn children(&self) -> (usize, usize) {
        (1, 1)
    }

    fn choose(&self, rng: &mut Rng, below: &Shape) -> Option<Arc<dyn Chosen>> {
        let discard = if rng.one_in(2) { DiscardPolicy::Unmap } else { DiscardPolicy::Ignore };
        Some(Arc::new(ChosenRaw { size: below.size, discard }))
    }
}

#[derive(Debug)]
struct ChosenRaw {
    size: u64,
    discard: DiscardPolicy,
}

impl Chosen for ChosenRaw {
    fn describe(&self) -> String {
        format!("discard {:?}", self.discard)
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn home(&self, at: u64) -> Home {
        Home::Child(0, at)
    }

    fn build(&self, parts: Parts<'_>) -> Result<Arc<dyn Node>> {
        let child = Arc::clone(&parts.children[0]);
        Ok(Arc::new(RawNode::new(parts.name, child, Access::ReadWrite, self.discard)))
    }

    fn drops_discards(&self) -> bool {
        self.discard == DiscardPolicy::Ignore
    }
}
