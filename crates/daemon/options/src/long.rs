//! The long form: qemu-storage-daemon's `--object`, `--blockdev` and `--export`, in order.

use control::Configuration;
use exports::{ExportKind, ExportOptions, MissingBitmaps};
use graph::{Blockdev, GraphModel, ObjectOptions};
use nbd_server::NbdServerOptions;
use serde_json::Value;
use syntax::{ArgumentError, asks_for_help};

use super::fault::CommandLineError;
use super::getopt::{LongFormOption, OptionKind, ParsedOption};
use super::plan::{HelpTopic, PlanStep, SocketRights};
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

/// The steps that make a configuration that was kept, and its NBD server. What is wrong with it is told with the option that it stands for.
pub fn restored(
    configuration: &Configuration,
    rights: &SocketRights,
) -> Result<(Vec<PlanStep>, Option<NbdServerOptions>), CommandLineError> {
    let Configuration { objects, nodes, exports, nbd_server, jobs: _ } = configuration;
    let wrong = |option: &'static str, json: &Value, fault: ArgumentError| {
        CommandLineError::Argument { option, text: json.to_string(), fault: Box::new(fault) }
    };
    let mut of = Vec::new();
    let mut steps = Vec::new();
    for (option, all) in [("--object", objects), ("--blockdev", nodes), ("--export", exports)] {
        for json in all {
            let text = json.to_string();
            let step = match option {
                "--object" => ObjectOptions::parse(&text).map(PlanStep::Object),
                "--blockdev" => Blockdev::parse(&text).map(PlanStep::Blockdev),
                _ => export(&text).map(|mut export| {
                    match &mut export.kind {
                        ExportKind::VhostUserBlk(own) => {
                            (own.socket.mode, own.socket.group) = rights.clone();
                        }
                        ExportKind::Nbd(own) => own.missing_bitmaps = MissingBitmaps::LeftOut,
                    }
                    PlanStep::Export(export)
                }),
            };
            steps.push(step.map_err(|fault| wrong(option, json, fault))?);
            of.push((option, json));
        }
    }
    let mut model = GraphModel::default();
    for (step, (option, json)) in steps.iter().zip(&of) {
        let admitted = references::admit(&mut model, step, &steps);
        admitted.map_err(|fault| wrong(option, json, fault))?;
    }
    references::settle_read_only(&mut steps, &model);
    for (step, (option, json)) in steps.iter().zip(&of) {
        check_files(step).map_err(|fault| wrong(option, json, fault))?;
    }
    let server = nbd_server.as_ref().map(|json| -> Result<_, CommandLineError> {
        let read = NbdServerOptions::parse(&json.to_string());
        let mut server = read.map_err(|fault| wrong("--nbd-server", json, fault))?;
        server.set_rights(rights);
        Ok(server)
    });
    Ok((steps, server.transpose()?))
}

fn step(name: LongFormOption, word: &ParsedOption) -> Result<PlanStep, CommandLineError> {
    let text = word.text()?;
    let step = match name {
        LongFormOption::Object => ObjectOptions::parse(text).map(PlanStep::Object),
        LongFormOption::Blockdev => Blockdev::parse(text).map(PlanStep::Blockdev),
        LongFormOption::Export => export(text).map(PlanStep::Export),
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

fn export(text: &str) -> Result<ExportOptions, ArgumentError> {
    ExportOptions::parse(text)?.with_inherited_socket()
}
