//! Completions for shells, made by clap of what it knows of the commands, and of the table of `serve`'s options.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgAction, Command, ValueHint};
use clap_complete::{Shell, generate};
use options::{OptionDescription, ValueForm};

/// Where each shell of Debian looks for completions of commands, and which those are.
pub const PLACES: &[(Shell, &str)] = &[
    (Shell::Bash, "usr/share/bash-completion/completions/ringloom"),
    (Shell::Zsh, "usr/share/zsh/vendor-completions/_ringloom"),
    (Shell::Fish, "usr/share/fish/vendor_completions.d/ringloom.fish"),
];

/// Completions of one shell.
pub fn text(shell: Shell) -> Vec<u8> {
    let mut text = Vec::new();
    generate(shell, &mut program(), "ringloom", &mut text);
    text
}

/// Writes the completions of all shells below a root.
pub fn write(root: &Path) -> Result<()> {
    for (shell, place) in PLACES {
        let path = root.join(place);
        let directory = path.parent().expect("it is below the root");
        fs::create_dir_all(directory).with_context(|| format!("{}", directory.display()))?;
        fs::write(&path, text(*shell)).with_context(|| format!("{}", path.display()))?;
    }
    Ok(())
}

/// All commands of the program.
fn program() -> Command {
    let serve = || options::descriptions().filter_map(argument);
    let image = || Arg::new("IMAGE").value_hint(ValueHint::FilePath);
    let of_serve = |name: &'static str, about: &'static str| {
        Command::new(name).about(about).args(serve()).arg(image())
    };
    let others = ringloom::commands::all().into_iter().map(|(name, command)| command.name(name));
    Command::new("ringloom")
        .version(env!("CARGO_PKG_VERSION"))
        .subcommand(of_serve("serve", "Serves disks to virtual machines"))
        .subcommand(of_serve("check", "Says what a line of serve would do"))
        .subcommands(others)
}

/// An option of `serve`; the help and the version are clap's.
fn argument(option: OptionDescription) -> Option<Arg> {
    let long = option.long.trim_start_matches('-');
    if ["help", "version"].contains(&long) {
        return None;
    }
    let argument = Arg::new(long).long(long);
    let (form, argument) = if let ValueForm::Several(form) = option.form {
        (*form, argument.action(ArgAction::Append))
    } else {
        (option.form, argument)
    };
    Some(match form {
        ValueForm::Flag => argument.action(ArgAction::SetTrue),
        ValueForm::Switch => argument.value_parser(PossibleValuesParser::new(["on", "off"])),
        ValueForm::Word(words) => argument.value_parser(PossibleValuesParser::new(words)),
        ValueForm::File => argument.value_hint(ValueHint::FilePath),
        ValueForm::Directory | ValueForm::DirectoryOrSwitch => {
            argument.value_hint(ValueHint::DirPath)
        }
        ValueForm::Number
        | ValueForm::Text
        | ValueForm::TextOrNumber
        | ValueForm::Table
        | ValueForm::Tables(_)
        | ValueForm::LineOnly(_)
        | ValueForm::Several(_) => argument.value_hint(ValueHint::Other),
    })
}
