//! Cuts a command line into options and their arguments, as `getopt_long` does.
//!
//! Invariants: the first help or version word wins over everything after it and over what is
//! wrong in the arguments before it, as in qemu-storage-daemon; a broken line before it does not.
//! Not here: what the arguments mean (`long`, `short`).

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use super::fault::{LineFault, OptionError};
use crate::syntax::{Fault, nearest};

/// What an option is for, which says where it may stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Name {
    /// `--help`.
    Help,
    /// `--version`.
    Version,
    /// Makes something: the long form.
    Step(StepName),
    /// Belongs to both forms.
    Shared(SharedName),
    /// Belongs to the short form.
    Short(ShortName),
    /// qemu-storage-daemon's, not here yet.
    Later,
}

/// The options of the long form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StepName {
    Object,
    Blockdev,
    Export,
}

/// The options of both forms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SharedName {
    Pidfile,
    LogFile,
    Daemonize,
    Print,
    SocketMode,
    SocketGroup,
    Sandbox,
    Takeover,
    NamedFiles,
    MemoryFiles,
    MaxGuestMemory,
}

/// The image and the options of the short form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ShortName {
    Image,
    Socket,
    Iothreads,
    ReadOnly,
    NumQueues,
    Direct,
    Format,
}

impl Name {
    /// Whether it may be abbreviated, as in qemu-storage-daemon. Options of ringloom may not:
    /// adding one must not break a line that worked.
    fn may_be_abbreviated(self) -> bool {
        match self {
            Self::Help | Self::Version | Self::Step(_) | Self::Later => true,
            Self::Shared(SharedName::Pidfile | SharedName::Daemonize) => true,
            Self::Shared(
                SharedName::Print
                | SharedName::LogFile
                | SharedName::SocketMode
                | SharedName::SocketGroup
                | SharedName::Sandbox
                | SharedName::Takeover
                | SharedName::NamedFiles
                | SharedName::MemoryFiles
                | SharedName::MaxGuestMemory,
            ) => false,
            Self::Short(_) => false,
        }
    }

    /// Whether nothing after it matters.
    fn ends_the_line(self) -> bool {
        matches!(self, Self::Help | Self::Version)
    }
}

/// Whether an option takes an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Takes {
    Nothing,
    Argument,
}

/// One option.
#[derive(Debug, Clone, Copy)]
pub(super) struct Known {
    /// Its long form.
    pub(super) long: &'static str,
    short: Option<u8>,
    /// What it is for.
    pub(super) name: Name,
    takes: Takes,
}

const fn known(long: &'static str, name: Name, takes: Takes) -> Known {
    Known { long, short: None, name, takes }
}

const fn brief(short: u8, of: Known) -> Known {
    Known { short: Some(short), ..of }
}

/// Every option there is.
pub(super) const OPTIONS: &[Known] = &[
    brief(b'h', known("--help", Name::Help, Takes::Nothing)),
    brief(b'V', known("--version", Name::Version, Takes::Nothing)),
    known("--object", Name::Step(StepName::Object), Takes::Argument),
    known("--blockdev", Name::Step(StepName::Blockdev), Takes::Argument),
    known("--export", Name::Step(StepName::Export), Takes::Argument),
    known("--pidfile", Name::Shared(SharedName::Pidfile), Takes::Argument),
    known("--log-file", Name::Shared(SharedName::LogFile), Takes::Argument),
    known("--daemonize", Name::Shared(SharedName::Daemonize), Takes::Nothing),
    known("--print", Name::Shared(SharedName::Print), Takes::Argument),
    known("--socket-mode", Name::Shared(SharedName::SocketMode), Takes::Argument),
    known("--socket-group", Name::Shared(SharedName::SocketGroup), Takes::Argument),
    known("--sandbox", Name::Shared(SharedName::Sandbox), Takes::Argument),
    known("--takeover", Name::Shared(SharedName::Takeover), Takes::Nothing),
    known("--named-files", Name::Shared(SharedName::NamedFiles), Takes::Argument),
    known("--memory-files", Name::Shared(SharedName::MemoryFiles), Takes::Argument),
    known("--max-guest-memory", Name::Shared(SharedName::MaxGuestMemory), Takes::Argument),
    known("--socket", Name::Short(ShortName::Socket), Takes::Argument),
    known("--iothreads", Name::Short(ShortName::Iothreads), Takes::Argument),
    known("--read-only", Name::Short(ShortName::ReadOnly), Takes::Nothing),
    known("--num-queues", Name::Short(ShortName::NumQueues), Takes::Argument),
    known("--direct", Name::Short(ShortName::Direct), Takes::Argument),
    known("--format", Name::Short(ShortName::Format), Takes::Argument),
    known("--chardev", Name::Later, Takes::Argument),
    known("--monitor", Name::Later, Takes::Argument),
    known("--nbd-server", Name::Later, Takes::Argument),
    brief(b'T', known("--trace", Name::Later, Takes::Argument)),
];

/// One option with its argument.
#[derive(Debug)]
pub(super) struct Word {
    /// What it is for.
    pub(super) name: Name,
    /// Its long form, for messages.
    pub(super) option: &'static str,
    /// Its argument; empty if it takes none.
    pub(super) argument: OsString,
}

impl Word {
    fn new(known: &Known, argument: OsString) -> Self {
        Self { name: known.name, option: known.long, argument }
    }

    fn image(argument: OsString) -> Self {
        Self { name: Name::Short(ShortName::Image), option: "an image", argument }
    }

    /// What is wrong with the argument.
    pub(super) fn wrong(&self, fault: Fault) -> OptionError {
        let text = self.argument.display().to_string();
        OptionError::Argument { option: self.option, text, fault: Box::new(fault) }
    }

    /// The argument as text.
    pub(super) fn text(&self) -> Result<&str, LineFault> {
        let not_utf8 =
            || LineFault::NotUtf8 { option: self.option, text: PathBuf::from(&self.argument) };
        self.argument.to_str().ok_or_else(not_utf8)
    }
}

/// Cuts a line, without the name of the program, up to the first help or version word.
pub(super) fn split(arguments: impl IntoIterator<Item = OsString>) -> Result<Vec<Word>, LineFault> {
    let mut arguments = arguments.into_iter();
    let mut words = Vec::new();
    while let Some(argument) = arguments.next() {
        let bytes = argument.as_bytes();
        if bytes == b"--" {
            words.extend(arguments.by_ref().map(Word::image));
        } else if bytes.starts_with(b"--") {
            words.push(long(&argument, &mut arguments)?);
        } else if bytes.starts_with(b"-") && bytes.len() > 1 {
            short(bytes, &mut arguments, &mut words)?;
        } else {
            words.push(Word::image(argument));
        }
        if words.last().is_some_and(|word| word.name.ends_the_line()) {
            break;
        }
    }
    Ok(words)
}

/// `--option`, `--option argument` or `--option=argument`.
fn long(given: &OsStr, rest: &mut impl Iterator<Item = OsString>) -> Result<Word, LineFault> {
    let bytes = given.as_bytes();
    let (option, attached) = match bytes.iter().position(|byte| *byte == b'=') {
        Some(equals) => (&bytes[..equals], Some(OsStr::from_bytes(&bytes[equals + 1..]))),
        None => (bytes, None),
    };
    let known = find(&String::from_utf8_lossy(option))?;
    let option = known.long;
    match (known.takes, attached) {
        (Takes::Nothing, None) => Ok(Word::new(known, OsString::new())),
        (Takes::Nothing, Some(_)) => Err(LineFault::TakesNoArgument { option }),
        (Takes::Argument, Some(attached)) => Ok(Word::new(known, attached.to_owned())),
        (Takes::Argument, None) => {
            let argument = rest.next().ok_or(LineFault::NeedsArgument { option })?;
            Ok(Word::new(known, argument))
        }
    }
}

/// The option with this name, or the only one that it abbreviates.
fn find(option: &str) -> Result<&'static Known, LineFault> {
    if let Some(known) = OPTIONS.iter().find(|known| known.long == option) {
        return Ok(known);
    }
    let meant: Vec<&'static Known> = OPTIONS
        .iter()
        .filter(|known| known.name.may_be_abbreviated())
        .filter(|known| option.len() > 2 && known.long.starts_with(option))
        .collect();
    match meant.as_slice() {
        [only] => Ok(only),
        [] => Err(unknown(option.to_owned())),
        several => Err(LineFault::Ambiguous {
            option: option.to_owned(),
            names: several.iter().map(|known| known.long).collect(),
        }),
    }
}

fn unknown(option: String) -> LineFault {
    let there_yet = || OPTIONS.iter().filter(|known| known.name != Name::Later).map(|it| it.long);
    let names: Vec<_> =
        there_yet().filter(|name| option.len() > 2 && name.starts_with(option.as_str())).collect();
    if !names.is_empty() {
        return LineFault::NotAbbreviated { option, names };
    }
    // The dashes are right, and say nothing of what was meant.
    let letters = option.trim_start_matches('-');
    let nearest = there_yet().find(|name| {
        let name = name.trim_start_matches('-');
        nearest(letters, there_yet().map(|it| it.trim_start_matches('-'))) == Some(name)
    });
    LineFault::Unknown { option, nearest }
}

/// A cluster of one-letter options.
fn short(
    cluster: &[u8],
    rest: &mut impl Iterator<Item = OsString>,
    words: &mut Vec<Word>,
) -> Result<(), LineFault> {
    for (position, letter) in cluster.iter().enumerate().skip(1) {
        let known = OPTIONS
            .iter()
            .find(|known| known.short == Some(*letter))
            .ok_or_else(|| unknown(String::from_utf8_lossy(cluster).into_owned()))?;
        let attached = &cluster[position + 1..];
        match known.takes {
            Takes::Nothing => words.push(Word::new(known, OsString::new())),
            Takes::Argument if attached.is_empty() => {
                let option = known.long;
                let argument = rest.next().ok_or(LineFault::NeedsArgument { option })?;
                words.push(Word::new(known, argument));
            }
            Takes::Argument => {
                words.push(Word::new(known, OsString::from_vec(attached.to_vec())));
                return Ok(());
            }
        }
        if known.name.ends_the_line() {
            return Ok(());
        }
    }
    Ok(())
}
