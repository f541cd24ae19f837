//! A disk behind channels, another end of the stacks on iothreads.

use std::fs::File;
use std::sync::Arc;

use anyhow::Result;
use block::Node;
use testkit::channel::{Habits, Remote, RemoteNode};
use testkit::conformance::stack::{Chosen, Home, Parts, Shape, Subject};
use testkit::rng::Rng;

use super::file::Medium;

/// The longest one.
const SECTORS_MAX: u64 = 4096;

/// Remote disks whose bytes are on a medium.
#[derive(Debug)]
pub(crate) struct RemoteEnd(pub(crate) Arc<Medium>);

impl Subject for RemoteEnd {
    fn name(&self) -> &'static str {
        "remote"
    }

    fn choose(&self, rng: &mut Rng, _: &Shape) -> Option<Arc<dyn Chosen>> {
        let ceiling = SECTORS_MAX >> rng.below(5);
        let habits = Habits::choose(rng);
        let size = (1 + rng.below(ceiling)) * block::SECTOR_BYTES;
        let size = size.next_multiple_of(habits.alignment.into());
        let (medium, seed) = (Arc::clone(&self.0), rng.next_u64());
        Some(Arc::new(ChosenRemote { medium, size, habits, seed }))
    }
}

#[derive(Debug)]
struct ChosenRemote {
    medium: Arc<Medium>,
    size: u64,
    habits: Habits,
    seed: u64,
}

impl Chosen for ChosenRemote {
    fn describe(&self) -> String {
        format!("{} B, {:?}, seed {:#x}", self.size, self.habits, self.seed)
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn home(&self, at: u64) -> Home {
        Home::File(at)
    }

    fn build(&self, parts: Parts<'_>) -> Result<Arc<dyn Node>> {
        let path = self.medium.write_stamped(parts.file, self.size)?;
        let file = File::options().read(true).write(true).open(&path)?;
        let name = path.display().to_string();
        let remote = Remote::new(&name, file, self.size, self.habits, self.seed);
        Ok(Arc::new(RemoteNode::new(parts.name, &remote)))
    }
}
