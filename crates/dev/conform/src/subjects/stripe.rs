//! `stripe`: chunks of the children in turn.

use std::sync::Arc;

use anyhow::{Context, Result};
use block::{Access, ByteCount, Node};
use layers::{ChunkSize, StripeDiscards, StripeNode};
use testkit::conformance::stack::{Chosen, Home, Parts, Shape, Subject};
use testkit::rng::Rng;

#[derive(Debug)]
pub(crate) struct Stripe;

impl Subject for Stripe {
    fn name(&self) -> &'static str {
        "stripe"
    }

    fn children(&self) -> (usize, usize) {
        (2, 8)
    }

    fn choose(&self, rng: &mut Rng, below: &Shape) -> Option<Arc<dyn Chosen>> {
        let units = (below.size.min(ChunkSize::BYTES_MAX)) / ChunkSize::BYTES_MIN;
        let bits = units.checked_ilog2()?;
        // Most of them small, and not only powers of two.
        let ceiling = (1 << rng.below(u64::from(bits) + 1)).min(units);
        let chunk = (1 + rng.below(ceiling)) * ChunkSize::BYTES_MIN;
        let discards = if rng.one_in(3) { StripeDiscards::Ignored } else { StripeDiscards::Passed };
        let members = u64::try_from(below.children).ok()?;
        // As md has it: whole chunks, and of their sectors what is left of chunks that were a power of two.
        let (chunk_sectors, sector) = (chunk / block::SECTOR_BYTES, block::SECTOR_BYTES);
        let whole = below.size / chunk * chunk_sectors;
        let shown = (whole & !(chunk_sectors - 1)) * sector;
        (shown > 0)
            .then(|| Arc::new(ChosenStripe { chunk, members, shown, discards }) as Arc<dyn Chosen>)
    }
}

#[derive(Debug)]
struct ChosenStripe {
    chunk: u64,
    members: u64,
    /// The bytes of each member that count.
    shown: u64,
    discards: StripeDiscards,
}

impl Chosen for ChosenStripe {
    fn describe(&self) -> String {
        format!("chunk {}, discards {:?}", self.chunk, self.discards)
    }

    fn size(&self) -> u64 {
        self.shown * self.members
    }

    fn home(&self, at: u64) -> Home {
        let row_bytes = self.members * self.chunk;
        let (row, in_row) = (at / row_bytes, at % row_bytes);
        let member = usize::try_from(in_row / self.chunk).expect("at most 64 members");
        Home::Child(member, row * self.chunk + in_row % self.chunk)
    }

    fn build(&self, parts: Parts<'_>) -> Result<Arc<dyn Node>> {
        let chunk = ChunkSize::new(ByteCount(self.chunk)).context("a chunk of that size")?;
        let (access, discards) = (Access::ReadWrite, self.discards);
        let children = parts.children.to_vec();
        Ok(Arc::new(StripeNode::new(parts.name, children, chunk, access, discards)?))
    }

    fn drops_discards(&self) -> bool {
        self.discards == StripeDiscards::Ignored
    }
}
