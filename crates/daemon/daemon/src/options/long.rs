//! The long form: qemu-storage-daemon's `--object`, `--blockdev` and `--export`, in order.

use super::ahead::Ahead;
use super::fault::OptionError;
use super::names::Names;
use super::plan::{HelpTopic, Step};
use super::words::{Name, StepName, Word};
use super::{export, object};
use crate::drivers;
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
    let (mut read, mut fault) = (Vec::new(), None);
    for word in words {
        let Name::Step(name) = word.name else {
            continue;
        };
        match step(name, word) {
            Ok(step) => read.push((word, step)),
            Err(error) => {
                fault = Some(error);
                break;
            }
        }
    }
    let ahead = Ahead::of(read.iter().map(|(_, step)| step));
    for (_, step) in &mut read {
        if let Step::Blockdev(blockdev) = step {
            let name = blockdev.name_below("", "");
            ahead.settle_null(blockdev);
            ahead.settle_read_only(blockdev, &name);
        }
    }
    let mut names = Names::new(ahead);
    for (word, step) in &read {
        let checked = names.admit(step).and_then(|()| check_files(step));
        checked.map_err(|fault| wrong(word, fault))?;
    }
    match fault {
        Some(fault) => Err(fault),
        None => Ok(read.into_iter().map(|(_, step)| step).collect()),
    }
}

fn step(name: StepName, word: &Word) -> Result<Step, OptionError> {
    let text = word.text()?;
    let step = match name {
        StepName::Object => object::parse(text).map(Step::Object),
        StepName::Blockdev => drivers::parse(text).map(Step::Blockdev),
        StepName::Export => export::parse(text).map(Step::Export),
    };
    step.map_err(|fault| wrong(word, fault))
}

fn wrong(word: &Word, fault: Fault) -> OptionError {
    let text = word.argument.display().to_string();
    OptionError::Argument { option: word.option, text, fault: Box::new(fault) }
}

/// Whether the files of a step are there and ours to open.
pub(super) fn check_files(step: &Step) -> Result<(), Fault> {
    match step {
        Step::Blockdev(blockdev) => drivers::check_files(blockdev),
        Step::Object(_) | Step::Export(_) => Ok(()),
    }
}
