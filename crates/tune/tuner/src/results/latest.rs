//! Of lines with one key the last: what both readers of a results file, and the one that writes it, go by. Pure.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::Line;
use crate::plan::RunKey;

/// The lines that count, in the order in which their keys first came.
#[derive(Clone, Debug)]
pub(super) struct Latest<L> {
    lines: Vec<L>,
    places: HashMap<RunKey, usize>,
}

impl<L: Borrow<Line>> Latest<L> {
    pub(super) fn new() -> Self {
        Self { lines: Vec::new(), places: HashMap::new() }
    }

    /// Adds a line; the one with its key, which counts no more.
    pub(super) fn add(&mut self, line: L) -> Option<L> {
        match self.places.entry(line.borrow().key().clone()) {
            Entry::Occupied(place) => Some(std::mem::replace(&mut self.lines[*place.get()], line)),
            Entry::Vacant(place) => {
                place.insert(self.lines.len());
                self.lines.push(line);
                None
            }
        }
    }

    pub(super) fn get(&self, key: &RunKey) -> Option<&L> {
        self.places.get(key).map(|place| &self.lines[*place])
    }

    pub(super) fn lines(&self) -> &[L] {
        &self.lines
    }

    pub(super) fn into_lines(self) -> Vec<L> {
        self.lines
    }
}

impl<L: Borrow<Line>> FromIterator<L> for Latest<L> {
    fn from_iter<I: IntoIterator<Item = L>>(lines: I) -> Self {
        let mut latest = Self::new();
        for line in lines {
            latest.add(line);
        }
        latest
    }
}
