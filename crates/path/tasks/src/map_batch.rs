//! What a batch asks of a lane below.
//!
//! Where it stands in the life of a request: the fast path puts its questions here, and asks them with one
//! call. Names are kept from batch to batch; only what is not over with its answer takes one away.

use block::{AfterPiecesAction, Answer, BatchPieces, FailKind, Mapping, Operation, Token};

use crate::child_io::{AsyncChild, ChildMapAnswer, ChildMapReply};

/// What the list keeps of its room after a batch.
const ASKED_KEPT: usize = 1024;

/// A batch of operations that a child's lane is asked to map with one call.
#[derive(Debug)]
pub struct ChildMapBatch {
    storage: AsyncChild,
    asked: Vec<Mapping>,
    /// Names for so many questions.
    names: Vec<Token>,
}

impl ChildMapBatch {
    /// None yet.
    pub fn new(storage: &AsyncChild) -> Self {
        Self { storage: storage.clone(), asked: Vec::new(), names: Vec::new() }
    }

    /// Adds a question and returns its number.
    pub fn add(&mut self, operation: Operation) -> usize {
        let number = self.asked.len();
        if number == self.names.len() {
            self.names.push(self.storage.name());
        }
        self.asked.push(Mapping::new(self.names[number], operation));
        number
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.asked.len()
    }

    /// Takes back all but the first ones, which were not asked yet.
    pub fn truncate(&mut self, count: usize) {
        self.asked.truncate(count);
    }

    /// A question, and its answer when all were asked.
    pub fn get(&self, number: usize) -> &Mapping {
        &self.asked[number]
    }

    /// Changes what is asked.
    pub fn get_mut(&mut self, number: usize) -> &mut Mapping {
        &mut self.asked[number]
    }

    /// Asks them all.
    pub fn ask(&mut self, pieces: &mut BatchPieces) {
        if !self.asked.is_empty() {
            self.storage.map(&mut self.asked, pieces);
        }
    }

    /// The answer to a question, for a task. Of one that is not over it takes the name along, once.
    pub fn reply(&self, number: usize, pieces: &BatchPieces) -> Result<ChildMapReply, FailKind> {
        let question = &self.asked[number];
        match question.answer {
            _ if !is_over(question) => self.storage.reply(question, pieces),
            Answer::Now(range) => {
                let (operation, memory) = (question.operation, question.memory);
                let pieces = pieces.get(range).to_vec();
                Ok(ChildMapReply::Found(ChildMapAnswer { operation, pieces, memory, notice: None }))
            }
            Answer::Refused(kind) => Err(kind),
            Answer::Held => panic!("what is held is not over"),
        }
    }

    /// Forgets the questions. Whoever waits for more of one has its name.
    pub fn clear(&mut self) {
        for (question, name) in self.asked.drain(..).zip(&mut self.names) {
            if !is_over(&question) {
                *name = self.storage.name();
            }
        }
        self.asked.shrink_to(ASKED_KEPT);
    }
}

/// Whether nothing more comes of a question when its answer was carried out.
pub fn is_over(question: &Mapping) -> bool {
    match question.answer {
        Answer::Held => false,
        Answer::Now(_) => question.after == AfterPiecesAction::Finish,
        Answer::Refused(_) => true,
    }
}
