//! Where each sector of a stack lives, and what the way there can do to requests: computed from the subjects'
//! arithmetic alone, before the first request.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use anyhow::{Result, ensure};
use block::{FailKind, Operation};

use super::faults::{Faults, Refusal, Victims};
use super::stack::{Chosen, End, Stack, sectors};
use super::stamp::{SECTOR_BYTES, Stamp};
use super::{index, number};

/// A stack as its user sees it.
#[derive(Debug)]
pub struct Layout {
    /// By sector of the disk: where it is in the end.
    pub ends: Vec<End>,
    faults: Vec<FaultView>,
}

/// Which sectors of the disk pass a node with faults.
#[derive(Debug)]
struct FaultView {
    faults: Arc<Faults>,
    /// By sector of the disk: the byte there.
    places: Vec<Option<u64>>,
    /// Whether discards may end before it.
    is_sheltered: bool,
    /// Whether reads of nodes above may become changes here.
    is_copied: bool,
}

/// What all nodes with faults refuse at one time.
#[derive(Clone, Debug, Default)]
pub struct Refusals(Vec<Option<Refusal>>);

impl Layout {
    /// Follows every sector down; an error if two of them meet.
    pub fn new(stack: &Stack) -> Result<Self> {
        let count = sectors(stack.size());
        let view = |faults| FaultView {
            faults,
            places: vec![None; count],
            is_sheltered: false,
            is_copied: false,
        };
        let mut faults: Vec<FaultView> = stack.faults().into_iter().map(view).collect();
        let mut ends = Vec::with_capacity(count);
        let mut taken = HashMap::new();
        for sector in 0..count {
            let at = number(sector * SECTOR_BYTES);
            let mut drops_discards = false;
            let mut is_copied = false;
            let end = stack.follow(at, &mut |chosen: &dyn Chosen, at| {
                drops_discards |= chosen.drops_discards();
                is_copied |= chosen.copies_on_read();
                let own = chosen.faults();
                let passed =
                    |view: &&mut FaultView| own.is_some_and(|it| Arc::ptr_eq(it, &view.faults));
                if let Some(view) = faults.iter_mut().find(passed) {
                    view.places[sector] = Some(at);
                    view.is_sheltered |= drops_discards;
                    view.is_copied |= is_copied;
                }
            });
            if let End::File(file, at) = end {
                let other = taken.insert((file, at), sector);
                ensure!(other.is_none(), "sectors {other:?} and {sector} live in one place");
            }
            ends.push(end);
        }
        Ok(Self { ends, faults })
    }

    /// A disk whose sectors are those of one file, at the same place.
    #[must_use]
    pub fn of_file(file: usize, sectors: usize) -> Self {
        let end = |sector| End::File(file, number(sector * SECTOR_BYTES));
        Self { ends: (0..sectors).map(end).collect(), faults: Vec::new() }
    }

    /// The nodes with faults, in the order of [`Stack::faults`].
    pub fn faults(&self) -> impl Iterator<Item = &Arc<Faults>> {
        self.faults.iter().map(|view| &view.faults)
    }

    /// What each sector holds before the first request.
    pub fn first_content(&self) -> impl Iterator<Item = Stamp> {
        self.ends.iter().map(|end| match end {
            End::File(file, at) => Stamp::of_file(*file, at / number(SECTOR_BYTES)),
            End::Zeroes | End::Nothing => Stamp::ZEROES,
        })
    }

    /// What is refused now.
    pub fn refusals(&self) -> Refusals {
        Refusals(self.faults.iter().map(|view| view.faults.refusal()).collect())
    }

    /// How a request may fail that can have met any of these refusals, and whether it must. One node after the other
    /// is asked, so a request may meet each of them at another time.
    pub fn failures(&self, operation: &Operation, refusals: &[Refusals]) -> Failures {
        let mut failures = Failures { must: false, may: Vec::new() };
        for (place, view) in self.faults.iter().enumerate() {
            let mut always = true;
            for refusals in refusals {
                match &refusals.0[place] {
                    Some(refusal) if view.touches(operation, refusal) => {
                        failures.may.push(refusal.kind);
                    }
                    Some(refusal) if view.may_copy(operation, refusal) => {
                        failures.may.push(refusal.kind);
                        always = false;
                    }
                    Some(_) | None => always = false,
                }
            }
            let is_sheltered = match operation {
                Operation::Discard(..) => view.is_sheltered,
                // It may end before it comes to that.
                Operation::Status(_) => true,
                Operation::Read(_)
                | Operation::Write(..)
                | Operation::WriteZeroes(..)
                | Operation::Flush => false,
            };
            failures.must |= always && !is_sheltered;
        }
        failures
    }
}

impl FaultView {
    /// Whether a read may be refused because it becomes a change, or is about more than was asked: wherever that lies.
    fn may_copy(&self, operation: &Operation, refusal: &Refusal) -> bool {
        self.is_copied
            && matches!(operation, Operation::Read(_))
            && matches!(refusal.victims, Victims::Changes | Victims::Reads | Victims::All)
    }

    fn touches(&self, operation: &Operation, refusal: &Refusal) -> bool {
        if !refusal.victims.include(operation) {
            return false;
        }
        // A flush is about all.
        let Some(extent) = operation.extent() else { return true };
        let bytes = |place: u64| place + number(SECTOR_BYTES);
        self.places[sector_range(&extent.bytes())]
            .iter()
            .flatten()
            .any(|place| *place < refusal.bytes.end && refusal.bytes.start < bytes(*place))
    }
}

/// How a request may end otherwise than well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failures {
    /// Whether it may not end well.
    pub must: bool,
    /// The kinds.
    pub may: Vec<FailKind>,
}

/// The sectors of these bytes, which are whole ones.
pub(super) fn sector_range(bytes: &Range<u64>) -> Range<usize> {
    let sector = number(SECTOR_BYTES);
    index(bytes.start / sector)..index(bytes.end / sector)
}
