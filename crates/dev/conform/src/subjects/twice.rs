//! A layer that writes everything twice, of which the second copy is judged as the first one is.

use std::sync::Arc;

use anyhow::Result;
use block::{BufferCopyPolicy, Node};
use testkit::channel::{Habits, Remote};
use testkit::conformance::stack::{Chosen, Home, Parts, Shape, Subject};
use testkit::rng::Rng;
use testkit::twice::TwiceNode;

/// Layers whose second copy is behind channels, in a file without a name.
#[derive(Debug)]
pub(crate) struct Twice;

impl Subject for Twice {
    fn name(&self) -> &'static str {
        "twice"
    }

    fn children(&self) -> (usize, usize) {
        (1, 1)
    }

    fn choose(&self, rng: &mut Rng, below: &Shape) -> Option<Arc<dyn Chosen>> {
        let habits = Habits::choose(rng);
        let is_whole = below.size.is_multiple_of(habits.alignment.into());
        let remote = is_whole.then(|| remote(below.size, habits, rng.next_u64()))??;
        Some(Arc::new(ChosenTwice { size: below.size, habits, remote }))
    }
}

/// None if there is no room for the file.
fn remote(size: u64, habits: Habits, seed: u64) -> Option<Arc<Remote>> {
    let file = tempfile::tempfile().ok()?;
    file.set_len(size).ok()?;
    Some(Remote::new("second copy", file, size, habits, seed))
}

#[derive(Debug)]
struct ChosenTwice {
    size: u64,
    habits: Habits,
    remote: Arc<Remote>,
}

impl Chosen for ChosenTwice {
    fn describe(&self) -> String {
        format!("{:?}", self.habits)
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn home(&self, at: u64) -> Home {
        Home::Child(0, at)
    }

    fn build(&self, parts: Parts<'_>) -> Result<Arc<dyn Node>> {
        let (below, copied) = (&parts.children[0], BufferCopyPolicy::Copied);
        Ok(Arc::new(TwiceNode::new(parts.name, below, &self.remote, copied)))
    }

    fn drops_discards(&self) -> bool {
        true
    }

    fn fresh(&self) -> Option<Arc<dyn Chosen>> {
        let remote = remote(self.size, self.habits, 1)?;
        Some(Arc::new(Self { size: self.size, habits: self.habits, remote }))
    }

    fn second_copy(&self) -> Option<&Arc<Remote>> {
        Some(&self.remote)
    }
}
