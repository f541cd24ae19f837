//! `null-co`: stores nothing.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use block::{Access, ByteCount, DiskSize, Node};
use disk::{NullNode, ReadContent};
use testkit::conformance::stack::{Chosen, Home, Parts, Shape, Subject};
use testkit::rng::Rng;

use super::Pace;

#[derive(Debug)]
pub(crate) struct Null {
    pub(crate) pace: Pace,
}

impl Subject for Null {
    fn name(&self) -> &'static str {
        "null"
    }

    fn choose(&self, rng: &mut Rng, _: &Shape) -> Option<Arc<dyn Chosen>> {
        let size = (1 + rng.below(1024)) * block::SECTOR_BYTES;
        let content = if rng.one_in(2) { ReadContent::Zeroes } else { ReadContent::Untouched };
        let most = match self.pace {
            Pace::Jumping => Duration::from_secs(3600),
            Pace::Real => Duration::from_micros(200),
        };
        let latency = if rng.one_in(2) { most / 4 } else { Duration::ZERO };
        Some(Arc::new(ChosenNull { size, content, latency }))
    }
}

#[derive(Debug)]
struct ChosenNull {
    size: u64,
    content: ReadContent,
    latency: Duration,
}

impl Chosen for ChosenNull {
    fn describe(&self) -> String {
        format!("{} B, {:?}, latency {:?}", self.size, self.content, self.latency)
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
        let null = NullNode::new(parts.name, size, Access::ReadWrite, self.content);
        Ok(Arc::new(null.with_latency(self.latency, Arc::clone(parts.clock))))
    }
}
