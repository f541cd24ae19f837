//! `null-co`: stores nothing.

use std::sync::Arc;

use anyhow::Result;
use block::{Access, ByteCount, DiskSize, Node};
use disk::{NullNode, ReadContent};
use testkit::conformance::stack::{Chosen, Home, Parts, Shape, Subject};
use testkit::rng::Rng;

#[derive(Debug)]
pub(crate) struct Null;

impl Subject for Null {
    fn name(&self) -> &'static str {
        "null"
    }

    fn choose(&self, rng: &mut Rng, _: &Shape) -> Option<Arc<dyn Chosen>> {
        let size = (1 + rng.below(1024)) * block::SECTOR_BYTES;
        let content = if rng.one_in(2) { ReadContent::Zeroes } else { ReadContent::Untouched };
        Some(Arc::new(ChosenNull { size, content }))
    }
}

#[derive(Debug)]
struct ChosenNull {
    size: u64,
    content: ReadContent,
}

impl Chosen for ChosenNull {
    fn describe(&self) -> String {
        format!("{} B, {:?}", self.size, self.content)
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn home(&self, _: u64) -> Home {
        match self.content {
            ReadContent::Zeroes => Home::Zeroes,
            ReadContent::Untouched => Home::Nothing,
        }
    }

    fn build(&self, parts: Parts<'_>) -> Result<Arc<dyn Node>> {
        let size = DiskSize(ByteCount(self.size));
        Ok(Arc::new(NullNode::new(parts.name, size, Access::ReadWrite, self.content)))
    }
}
