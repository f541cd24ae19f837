//! What can be tested, and random stacks of it.
//!
//! Where it stands: a node joins the suite as a [`Subject`], which chooses its options at random and says by its own
//! arithmetic where each sector lives. The suite stacks subjects on each other and holds them to that.
//!
//! Invariants: a stack depends on its seed and the list of subjects alone; it can be built again on the same files.
//! Limits: `LAYERS_MAX` nodes above the end of a stack, `FILES_MAX` ends.

use std::fmt;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use block::{Child, Clock, FileId, Node};

use super::checked::{CheckedNode, Complaints, Order, Waiting};
use super::faults::{Faults, Faulty};
use super::stamp::SECTOR_BYTES;
use super::{index, number};
use crate::channel::Remote;
use crate::rng::Rng;

/// The most nodes that stand on each other above the end of a stack.
pub const LAYERS_MAX: usize = 4;
/// The most ends that one stack has.
const FILES_MAX: usize = 12;
/// How often options are looked for that fit what is below.
const TRIES_MAX: usize = 8;

/// A kind of node that the suite tests.
pub trait Subject: fmt::Debug {
    /// Its driver's name.
    fn name(&self) -> &'static str;

    /// The fewest and the most children; none for the end of a stack.
    fn children(&self) -> (usize, usize) {
        (0, 0)
    }

    /// Chooses its options for these children; `None` if there are none that fit them.
    fn choose(&self, rng: &mut Rng, below: &Shape) -> Option<Arc<dyn Chosen>>;
}

/// What a subject is to stand on. All children are alike.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// How many.
    pub children: usize,
    /// The bytes of each.
    pub size: u64,
}

/// A subject with its options.
pub trait Chosen: fmt::Debug {
    /// The options as text, so that a reader can make the same again.
    fn describe(&self) -> String;

    /// The bytes of the node.
    fn size(&self) -> u64;

    /// Where the sector lives that starts at this byte.
    fn home(&self, at: u64) -> Home;

    /// Makes the node. May be called again for the same files, when the former one is gone.
    fn build(&self, parts: Parts<'_>) -> Result<Arc<dyn Node>>;

    /// Whether discards end here, whatever is below.
    fn drops_discards(&self) -> bool {
        false
    }

    /// Whether reads may write what they have read.
    fn copies_on_read(&self) -> bool {
        false
    }

    /// Whether requests may wait here for copies of others.
    fn waits_for_copies(&self) -> bool {
        self.copies_on_read()
    }

    /// What a test can make go wrong here.
    fn faults(&self) -> Option<&Arc<Faults>> {
        None
    }

    /// Whether it holds requests for internal I/Os, and not only for a time.
    fn has_errands(&self) -> bool {
        self.faults().is_some_and(|faults| faults.has_errands())
    }

    /// Whether it wants to be told of the ends of requests: then a layer above it that joins several has one wait for others.
    fn is_told_of_ends(&self) -> bool {
        false
    }

    /// Whether a lane's requests are over in the order in which they came.
    fn keeps_order(&self) -> bool {
        false
    }

    /// Where it writes everything a second time, at the same place.
    fn second_copy(&self) -> Option<&Arc<Remote>> {
        None
    }

    /// The same options with a state of its own, if two nodes of one stack must not share it.
    fn fresh(&self) -> Option<Arc<dyn Chosen>> {
        None
    }
}

/// Where a node keeps a sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// At this byte of a child.
    Child(usize, u64),
    /// At this byte of its file.
    File(u64),
    /// Nowhere: it reads as zeroes, whatever was written.
    Zeroes,
    /// Nowhere: a read leaves the memory as it is.
    Nothing,
}

/// What a node is made of.
#[derive(Debug)]
pub struct Parts<'a> {
    /// Its node-name.
    pub name: &'a str,
    /// What it stands on.
    pub children: &'a [Arc<Child>],
    /// The number of its file, if it is the end of a stack.
    pub file: usize,
    /// The time.
    pub clock: &'a Arc<dyn Clock>,
}

/// What to stack.
#[derive(Clone, Copy, Debug)]
pub enum Which<'a> {
    /// Anything.
    Any,
    /// This subject alone.
    Alone(&'a dyn Subject),
}

/// A stack that can be built.
#[derive(Debug)]
pub struct Stack {
    root: Layer,
    /// By number: the end that has it.
    files: usize,
}

#[derive(Clone, Debug)]
struct Layer {
    name: &'static str,
    chosen: Arc<dyn Chosen>,
    below: Below,
}

#[derive(Clone, Debug)]
enum Below {
    /// The number of its file.
    End(usize),
    Children(Vec<Layer>),
}

impl Stack {
    /// A random stack. The subjects without children are its ends.
    pub fn new(rng: &mut Rng, subjects: &[Arc<dyn Subject>], which: Which<'_>) -> Result<Self> {
        match which {
            Which::Any => {
                let layers = rng.index(LAYERS_MAX + 1);
                Self::random(rng, subjects, layers)
            }
            Which::Alone(subject) => Self::alone(rng, subjects, subject),
        }
    }

    /// With so many layers at most.
    fn random(rng: &mut Rng, subjects: &[Arc<dyn Subject>], layers: usize) -> Result<Self> {
        let (ends, above): (Vec<_>, Vec<_>) =
            subjects.iter().partition(|subject| subject.children().1 == 0);
        ensure!(!ends.is_empty(), "no subject can be the end of a stack");
        let shape = Shape { children: 0, size: 0 };
        let end = ends[rng.index(ends.len())];
        let chosen = end.choose(rng, &shape).context("an end needs nothing below")?;
        let mut root = Layer { name: end.name(), chosen, below: Below::End(0) };
        let mut files = 1;
        for _ in 0..layers {
            if let Some(subject) = above.get(rng.index(above.len().max(1))) {
                root = on_top(rng, subject.as_ref(), root, files);
                files = root.count_files();
            }
        }
        root.settle(&mut 0);
        Ok(Self { root, files })
    }

    /// This subject alone on random ends; nodes with faults may stand above and below it.
    fn alone(rng: &mut Rng, subjects: &[Arc<dyn Subject>], subject: &dyn Subject) -> Result<Self> {
        for _ in 0..TRIES_MAX * TRIES_MAX {
            let Self { mut root, files } = Self::random(rng, subjects, 0)?;
            if rng.one_in(2) {
                root = on_top(rng, &Faulty, root, files);
            }
            let below = root.count();
            root = on_top(rng, subject, root, files);
            if root.count() == below {
                continue;
            }
            let files = root.count_files();
            if rng.one_in(2) {
                root = on_top(rng, &Faulty, root, files);
            }
            root.settle(&mut 0);
            return Ok(Self { root, files });
        }
        anyhow::bail!("{} finds no options that fit what is below", subject.name())
    }

    /// How many files it ends in.
    pub fn files(&self) -> usize {
        self.files
    }

    /// The names of all subjects in it.
    pub fn names(&self) -> Vec<&'static str> {
        let mut names = Vec::new();
        self.root.visit(&mut |layer| names.push(layer.name));
        names
    }

    /// The bytes of the disk.
    pub fn size(&self) -> u64 {
        self.root.chosen.size()
    }

    /// Whether requests may wait for copies of others.
    pub fn waits_for_copies(&self) -> bool {
        let mut copies = false;
        self.root.visit(&mut |layer| copies |= layer.chosen.waits_for_copies());
        copies
    }

    /// Everything in it that a test can make go wrong.
    pub fn faults(&self) -> Vec<Arc<Faults>> {
        let mut all = Vec::new();
        self.root.visit(&mut |layer| all.extend(layer.chosen.faults().cloned()));
        all
    }

    /// Builds the nodes, with a check of the contract between any two.
    pub fn build(
        &self,
        clock: &Arc<dyn Clock>,
        complaints: &Arc<Complaints>,
        sizes: &Sizes,
    ) -> Result<Arc<dyn Node>> {
        let mut names = 0;
        self.root.build(&mut names, &Build { clock, complaints, sizes })
    }

    /// Follows a sector of the disk down, and calls for each node on the way with the place there;
    /// returns the end.
    pub fn follow(&self, at: u64, visit: &mut dyn FnMut(&dyn Chosen, u64)) -> End {
        let (mut layer, mut at) = (&self.root, at);
        loop {
            visit(layer.chosen.as_ref(), at);
            match (layer.chosen.home(at), &layer.below) {
                (Home::Zeroes, _) => return End::Zeroes,
                (Home::Nothing, _) => return End::Nothing,
                (Home::File(at), Below::End(file)) => return End::File(*file, at),
                (Home::Child(child, place), Below::Children(below)) => {
                    (layer, at) = (&below[child], place);
                }
                (home @ (Home::File(_) | Home::Child(..)), _) => {
                    panic!("{} says {home:?} of byte {at}", layer.name)
                }
            }
        }
    }
}

/// Where a sector of the disk lives in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// At this byte of the file of that number.
    File(usize, u64),
    /// Nowhere: it reads as zeroes.
    Zeroes,
    /// Nowhere: a read leaves the memory as it is.
    Nothing,
}

/// Tells the size of a file, if there is such a file.
pub type Sizes = Arc<dyn Fn(FileId) -> Option<u64> + Send + Sync>;

/// Puts a subject on as many copies of what is there as it takes; or leaves that, if it does not fit.
fn on_top(rng: &mut Rng, subject: &dyn Subject, below: Layer, files: usize) -> Layer {
    let (fewest, most) = subject.children();
    let most = most.min(FILES_MAX / files);
    if most < fewest {
        return below;
    }
    let children = fewest + rng.index(most - fewest + 1);
    let shape = Shape { children, size: below.chosen.size() };
    match (0..TRIES_MAX).find_map(|_| subject.choose(rng, &shape)) {
        None => below,
        Some(chosen) => {
            let below = Below::Children(vec![below; children]);
            Layer { name: subject.name(), chosen, below }
        }
    }
}

struct Build<'a> {
    clock: &'a Arc<dyn Clock>,
    complaints: &'a Arc<Complaints>,
    sizes: &'a Sizes,
}

impl Layer {
    fn build(&self, names: &mut usize, with: &Build<'_>) -> Result<Arc<dyn Node>> {
        let name = format!("{}{names}", self.name);
        *names += 1;
        let mut children = Vec::new();
        let mut file = 0;
        match &self.below {
            Below::End(number) => file = *number,
            Below::Children(below) => {
                for layer in below {
                    children.push(Child::new(layer.build(names, with)?));
                }
            }
        }
        let parts = Parts { name: &name, children: &children, file, clock: with.clock };
        let node = self.chosen.build(parts).with_context(|| format!("build {self}"))?;
        ensure!(node.name() == name, "{self} calls itself {}", node.name());
        let (size, expected) = (node.size().0.0, self.chosen.size());
        ensure!(size == expected, "{self} has {size} bytes and not {expected}");
        let clock = Arc::clone(with.clock);
        let complaints = Arc::clone(with.complaints);
        let mut waiting = Waiting::ForTime;
        self.visit(&mut |layer| {
            let chosen = &layer.chosen;
            if chosen.has_errands() || chosen.keeps_order() || chosen.is_told_of_ends() {
                waiting = Waiting::ForOthers;
            }
        });
        let order = if self.chosen.keeps_order() { Order::AsAsked } else { Order::Any };
        let sizes = Arc::clone(with.sizes);
        Ok(Arc::new(CheckedNode::new(node, clock, complaints, sizes, (waiting, order))))
    }

    fn visit(&self, visitor: &mut dyn FnMut(&Self)) {
        visitor(self);
        if let Below::Children(below) = &self.below {
            below.iter().for_each(|layer| layer.visit(visitor));
        }
    }

    fn count(&self) -> usize {
        let mut count = 0;
        self.visit(&mut |_| count += 1);
        count
    }

    fn count_files(&self) -> usize {
        match &self.below {
            Below::End(_) => 1,
            Below::Children(below) => below.iter().map(Self::count_files).sum(),
        }
    }

    /// Gives each end its file, and each node what it must not share.
    fn settle(&mut self, next: &mut usize) {
        if let Some(fresh) = self.chosen.fresh() {
            self.chosen = fresh;
        }
        match &mut self.below {
            Below::End(file) => {
                *file = *next;
                *next += 1;
            }
            Below::Children(below) => below.iter_mut().for_each(|layer| layer.settle(next)),
        }
    }
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]", self.name, self.chosen.describe())?;
        match &self.below {
            Below::End(_) => Ok(()),
            Below::Children(below) if below.len() == 1 => write!(f, " > {}", below[0]),
            // They are alike.
            Below::Children(below) => write!(f, " > {} × ({})", below.len(), below[0]),
        }
    }
}

impl fmt::Display for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.root)
    }
}

/// How many sectors these bytes are.
pub(super) fn sectors(bytes: u64) -> usize {
    index(bytes / number(SECTOR_BYTES))
}
