//! The long form: qemu-storage-daemon's `--object`, `--blockdev` and `--export`, in order.

use super::fault::{Fault, OptionError};
use super::names::Names;
use super::plan::{HelpTopic, Step};
use super::words::{Name, StepName, Word};
use super::{blockdev, export, files, keyval, object};

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
    keyval::asks_for_help(word.argument.to_str()?).then_some(topic)
}

/// Reads the steps in the order given and checks each against those before it.
pub(super) fn steps(words: &[Word]) -> Result<Vec<Step>, OptionError> {
    let mut names = Names::default();
    let mut steps = Vec::new();
    for word in words {
        let Name::Step(name) = word.name else {
            continue;
        };
        let text = word.text()?;
        let step = step(name, text, &mut names).map_err(|fault| OptionError::Argument {
            option: word.option,
            text: text.to_owned(),
            fault: Box::new(fault),
        })?;
        steps.push(step);
    }
    Ok(steps)
}

fn step(name: StepName, text: &str, names: &mut Names) -> Result<Step, Fault> {
    let step = match name {
        StepName::Object => Step::Object(object::parse(text)?),
        StepName::Blockdev => Step::Blockdev(blockdev::parse(text)?),
        StepName::Export => Step::Export(export::parse(text)?),
    };
    names.admit(&step)?;
    files::check(&step)?;
    Ok(step)
}
