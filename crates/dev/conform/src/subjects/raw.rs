//! `raw`: the child's bytes, all or a part.

use std::sync::Arc;

use anyhow::Result;
use block::{Access, DiscardPolicy, Node, SECTOR_BYTES};
use disk::{RawNode, RawWindow};
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
        let window = window(rng, below.size);
        let size = window.check(below.size).ok()?;
        Some(Arc::new(ChosenRaw { window, size, discard }))
    }
}

/// The whole child, or at least half of it.
fn window(rng: &mut Rng, size: u64) -> RawWindow {
    let sectors = size / 2 / SECTOR_BYTES;
    if sectors == 0 || rng.one_in(3) {
        return RawWindow::WHOLE;
    }
    let offset = rng.below(sectors) * SECTOR_BYTES;
    let rest = (size - offset) / SECTOR_BYTES;
    let size = rng.one_in(2).then(|| (rest - rng.below(rest - sectors + 1)) * SECTOR_BYTES);
    RawWindow { offset, size }
}

#[derive(Debug)]
struct ChosenRaw {
    window: RawWindow,
    size: u64,
    discard: DiscardPolicy,
}

impl Chosen for ChosenRaw {
    fn describe(&self) -> String {
        format!("{:?}, discard {:?}", self.window, self.discard)
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn home(&self, at: u64) -> Home {
        Home::Child(0, self.window.offset + at)
    }

    fn build(&self, parts: Parts<'_>) -> Result<Arc<dyn Node>> {
        let child = Arc::clone(&parts.children[0]);
        let access = Access::ReadWrite;
        Ok(Arc::new(RawNode::new(parts.name, child, self.window, access, self.discard)?))
    }

    fn drops_discards(&self) -> bool {
        self.discard == DiscardPolicy::Ignore
    }
}
