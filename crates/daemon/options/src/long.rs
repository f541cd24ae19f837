//! The long form: qemu-storage-daemon's `--object`, `--blockdev` and `--export`, in order.

use exports::ExportOptions;
use graph::{Blockdev, GraphModel, ObjectOptions};
use syntax::{ArgumentError, asks_for_help};

use super::fault::CommandLineError;
use super::getopt::{LongFormOption, OptionKind, ParsedOption};
use super::plan::{HelpTopic, PlanStep};
use super::references;

/// The help an argument asks for, as `--object help` does.
pub(super) fn help_topic(word: &ParsedOption) -> Option<HelpTopic> {
    let OptionKind::Step(name) = word.name else { return None };
    let topic = match name {
        LongFormOption::Object => HelpTopic::Object,
        LongFormOption::Blockdev => HelpTopic::Blockdev,
        LongFormOption::Export => HelpTopic::Export,
    };
    asks_for_help(word.argument.to_str()?).then_some(topic)
}

/// Reads the steps in the order given and checks each against those before it. What is wrong with the
/// earliest step counts.
pub(super) fn steps(words: &[ParsedOption]) -> Result<Vec<PlanStep>, CommandLineError> {
    let (mut of, mut steps, mut fault) = (Vec::new(), Vec::new(), None);
    for word in words {
        let OptionKind::Step(name) = word.name else { continue };
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
    if let Some(place) = references::add_auto_pool(&mut steps) {
        of.insert(place, of[place]);
    }
    let mut model = GraphModel::default();
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

fn step(name: LongFormOption, word: &ParsedOption) -> Result<PlanStep, CommandLineError> {
    let text = word.text()?;
    let step = match name {
        LongFormOption::Object => ObjectOptions::parse(text).map(PlanStep::Object),
        LongFormOption::Blockdev => Blockdev::parse(text).map(PlanStep::Blockdev),
        LongFormOption::Export => ExportOptions::parse(text).map(PlanStep::Export),
    };
    step.map_err(|fault| word.wrong(fault))
}

/// Whether the files of a step are there and ours to open.
pub(super) fn check_files(step: &PlanStep) -> Result<(), ArgumentError> {
    match step {
        PlanStep::Blockdev(blockdev) => blockdev.check_files(),
        PlanStep::Object(_) | PlanStep::Export(_) => Ok(()),
    }
}
