//! What a batch asks of a lane below.
//!
//! Where it stands in the life of a request: the fast path puts its questions here, and asks them with one
//! call. Names are kept from batch to batch; only what is held takes one away.

use block::{Answer, Mapping, Operation, PieceList, Token};

use crate::storage::Storage;

/// The questions of a batch to one lane.
#[derive(Debug)]
pub(crate) struct Questions {
    storage: Storage,
    asked: Vec<Mapping>,
    /// Names for so many questions.
    names: Vec<Token>,
}

impl Questions {
    /// None yet.
    pub(crate) fn new(storage: &Storage) -> Self {
        Self { storage: storage.clone(), asked: Vec::new(), names: Vec::new() }
    }

    /// Adds a question and returns its number.
    pub(crate) fn add(&mut self, operation: Operation) -> usize {
        let number = self.asked.len();
        if number == self.names.len() {
            self.names.push(self.storage.name());
        }
        self.asked.push(Mapping::new(self.names[number], operation));
        number
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.asked.len()
    }

    /// Takes back all but the first ones, which were not asked yet.
    pub(crate) fn truncate(&mut self, count: usize) {
        self.asked.truncate(count);
    }

    /// A question, and its answer when all were asked.
    pub(crate) fn get(&self, number: usize) -> &Mapping {
        &self.asked[number]
    }

    /// Changes what is asked.
    pub(crate) fn get_mut(&mut self, number: usize) -> &mut Mapping {
        &mut self.asked[number]
    }

    /// Asks them all.
    pub(crate) fn ask(&mut self, pieces: &mut PieceList) {
        if !self.asked.is_empty() {
            self.storage.map(&mut self.asked, pieces);
        }
    }

    /// Forgets the questions. Whoever waits for one that is held has its name.
    pub(crate) fn clear(&mut self) {
        for (question, name) in self.asked.drain(..).zip(&mut self.names) {
            if question.answer == Answer::Held {
                *name = self.storage.name();
            }
        }
    }

    /// The lane that is asked.
    pub(crate) fn storage(&self) -> &Storage {
        &self.storage
    }
}
