//! The long form: qemu-storage-daemon's `--object`, `--blockdev` and `--export`, in order.

use super::fault::OptionError;
use super::plan::{HelpTopic, Step};
use super::references;
use super::words::{Name, StepName, Word};
use super::{export, object};
use crate::drivers;
use crate::model::Model;
use crate::syntax::{Fault, asks_for_help};

/// The help an argument asks for, as `--object help` does.
pub(super) fn help_topic(word: &Word) -> Option<HelpTopic> {
    let Name::Step(name) = word.name else {
        return None;
    };
    let topic = match name {
        StepName::Object => HelpTopic::Object,
        StepName::Blockdev => HelpTopic::Blockdev,
        StepName::Export => HelpTopic::Export,
    };
    asks_for_help(word.argument.to_str()?).then_some(topic)
}

/// Reads the steps in the order given and checks each against those before it. What is wrong with the
/// earliest step counts.
pub(super) fn steps(words: &[Word]) -> Result<Vec<Step>, OptionError> {
    let (mut of, mut steps, mut fault) = (Vec::new(), Vec::new(), None);
    for word in words {
        let Name::Step(name) = word.name else {
            continue;
        };
        match step(name, word) {
            Ok(step) => {
                of.push(word);
                steps.push(step);
            }
            Err(error) => {
                fault = Some(error);
                break;
            }
        }
    }
    references::settle_null(&mut steps);
    let mut model = Model::default();
    let mut admitted = steps.len();
    for (place, (step, word)) in steps.iter().zip(&of).enumerate() {
        // What comes behind a fault still says what is written.
        if let Err(error) = references::admit(&mut model, step, &steps)
            && place < admitted
        {
            admitted = place;
            fault = Some(word.wrong(error));
        }
    }
    references::settle_read_only(&mut steps, &model);
    for (step, word) in steps.iter().zip(&of).take(admitted) {
        check_files(step).map_err(|fault| word.wrong(fault))?;
    }
    match fault {
        Some(fault) => Err(fault),
        None => Ok(steps),
    }
}

fn step(name: StepName, word: &Word) -> Result<Step, OptionError> {
    let text = word.text()?;
    let step = match name {
        StepName::Object => object::parse(text).map(Step::Object),
        StepName::Blockdev => drivers::parse(text).map(Step::Blockdev),
        StepName::Export => export::parse(text).map(Step::Export),
    };
    step.map_err(|fault| word.wrong(fault))
}

/// Whether the files of a step are there and ours to open.
pub(super) fn check_files(step: &Step) -> Result<(), Fault> {
    match step {
        Step::Blockdev(blockdev) => drivers::check_files(blockdev),
        Step::Object(_) | Step::Export(_) => Ok(()),
    }
}
