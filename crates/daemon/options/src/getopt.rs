//! Cuts a command line into options and their arguments, as `getopt_long` does.
//!
//! Invariants: the first help or version word wins over everything after it and over what is
//! wrong in the arguments before it, as in qemu-storage-daemon; a broken line before it does not.
//! Not here: what the arguments mean (`long`, `short`).

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use syntax::{ArgumentError, nearest};

use super::config::OptionPlace;
use super::fault::{CommandLineError, CommandLineSyntaxError};

/// What an option is, which says where it may stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum OptionKind {
    /// `--help`.
    Help,
    /// `--version`.
    Version,
    /// `--config`: more options.
    Config,
    /// Makes something: the long form.
    Step(LongFormOption),
    /// Belongs to both forms.
    Shared(EitherFormOption),
    /// Belongs to the short form.
    Short(ShortFormOption),
    /// qemu-storage-daemon's, not here yet.
    Later,
}

/// The options of the long form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum LongFormOption {
    Object,
    Blockdev,
    Export,
}

/// The options of `ringloom serve` that stand in the long and in the short form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum EitherFormOption {
    Pidfile,
    LogFile,
    LogFormat,
    LogLevel,
    Daemonize,
    Print,
    SocketMode,
    SocketGroup,
    Sandbox,
    Takeover,
    NamedFiles,
    GuestMemoryFilePolicy,
    MaxGuestMemory,
    GaugesDescriptor,
    Metrics,
    MetricsInsecure,
    Chardev,
    Monitor,
    State,
    StateReset,
    AllowBelow,
    NbdServer,
    AllowListen,
    AllowConnect,
}

/// The image and the options of the short form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum ShortFormOption {
    Image,
    Socket,
    Iothreads,
    ReadOnly,
    NumQueues,
    Direct,
    Format,
    Nbd,
    Writable,
}

impl OptionKind {
    /// Whether it may be abbreviated, as in qemu-storage-daemon. Options of ringloom may not:
    /// adding one must not break a line that worked.
    fn may_be_abbreviated(self) -> bool {
        match self {
            Self::Help | Self::Version | Self::Step(_) | Self::Later => true,
            Self::Shared(name) => {
                matches!(
                    name,
                    EitherFormOption::Pidfile
                        | EitherFormOption::Daemonize
                        | EitherFormOption::Chardev
                        | EitherFormOption::Monitor
                        | EitherFormOption::NbdServer
                )
            }
            Self::Config | Self::Short(_) => false,
        }
    }

    /// Whether nothing after it matters.
    fn ends_the_line(self) -> bool {
        matches!(self, Self::Help | Self::Version)
    }
}

/// Whether an option takes an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ArgumentUse {
    Nothing,
    Argument,
}

/// One entry of the table of options.
#[derive(Debug, Clone, Copy)]
pub(super) struct OptionSpec {
    /// Its long form.
    pub(super) long: &'static str,
    /// The one letter that stands for it.
    pub(super) short: Option<u8>,
    /// What it is for.
    pub(super) name: OptionKind,
    takes: ArgumentUse,
}

const fn known(long: &'static str, name: OptionKind, takes: ArgumentUse) -> OptionSpec {
    OptionSpec { long, short: None, name, takes }
}

const fn brief(short: u8, of: OptionSpec) -> OptionSpec {
    OptionSpec { short: Some(short), ..of }
}

/// Every option there is.
pub(super) const OPTIONS: &[OptionSpec] = &[
    brief(b'h', known("--help", OptionKind::Help, ArgumentUse::Nothing)),
    brief(b'V', known("--version", OptionKind::Version, ArgumentUse::Nothing)),
    known("--config", OptionKind::Config, ArgumentUse::Argument),
    known("--object", OptionKind::Step(LongFormOption::Object), ArgumentUse::Argument),
    known("--blockdev", OptionKind::Step(LongFormOption::Blockdev), ArgumentUse::Argument),
    known("--export", OptionKind::Step(LongFormOption::Export), ArgumentUse::Argument),
    known("--pidfile", OptionKind::Shared(EitherFormOption::Pidfile), ArgumentUse::Argument),
    known("--log-file", OptionKind::Shared(EitherFormOption::LogFile), ArgumentUse::Argument),
    known("--log-format", OptionKind::Shared(EitherFormOption::LogFormat), ArgumentUse::Argument),
    known("--log-level", OptionKind::Shared(EitherFormOption::LogLevel), ArgumentUse::Argument),
    known("--daemonize", OptionKind::Shared(EitherFormOption::Daemonize), ArgumentUse::Nothing),
    known("--print", OptionKind::Shared(EitherFormOption::Print), ArgumentUse::Argument),
    known("--socket-mode", OptionKind::Shared(EitherFormOption::SocketMode), ArgumentUse::Argument),
    known(
        "--socket-group",
        OptionKind::Shared(EitherFormOption::SocketGroup),
        ArgumentUse::Argument,
    ),
    known("--sandbox", OptionKind::Shared(EitherFormOption::Sandbox), ArgumentUse::Argument),
    known("--takeover", OptionKind::Shared(EitherFormOption::Takeover), ArgumentUse::Nothing),
    known("--named-files", OptionKind::Shared(EitherFormOption::NamedFiles), ArgumentUse::Argument),
    known(
        "--memory-files",
        OptionKind::Shared(EitherFormOption::GuestMemoryFilePolicy),
        ArgumentUse::Argument,
    ),
    known(
        "--max-guest-memory",
        OptionKind::Shared(EitherFormOption::MaxGuestMemory),
        ArgumentUse::Argument,
    ),
    known(
        "--gauges-fd",
        OptionKind::Shared(EitherFormOption::GaugesDescriptor),
        ArgumentUse::Argument,
    ),
    known("--metrics", OptionKind::Shared(EitherFormOption::Metrics), ArgumentUse::Argument),
    known(
        "--metrics-insecure",
        OptionKind::Shared(EitherFormOption::MetricsInsecure),
        ArgumentUse::Nothing,
    ),
    known("--chardev", OptionKind::Shared(EitherFormOption::Chardev), ArgumentUse::Argument),
    known("--monitor", OptionKind::Shared(EitherFormOption::Monitor), ArgumentUse::Argument),
    known("--state", OptionKind::Shared(EitherFormOption::State), ArgumentUse::Argument),
    known("--state-reset", OptionKind::Shared(EitherFormOption::StateReset), ArgumentUse::Nothing),
    known("--allow-below", OptionKind::Shared(EitherFormOption::AllowBelow), ArgumentUse::Argument),
    known("--nbd-server", OptionKind::Shared(EitherFormOption::NbdServer), ArgumentUse::Argument),
    known(
        "--allow-listen",
        OptionKind::Shared(EitherFormOption::AllowListen),
        ArgumentUse::Argument,
    ),
    known(
        "--allow-connect",
        OptionKind::Shared(EitherFormOption::AllowConnect),
        ArgumentUse::Argument,
    ),
    known("--nbd", OptionKind::Short(ShortFormOption::Nbd), ArgumentUse::Argument),
    known("--writable", OptionKind::Short(ShortFormOption::Writable), ArgumentUse::Nothing),
    known("--socket", OptionKind::Short(ShortFormOption::Socket), ArgumentUse::Argument),
    known("--iothreads", OptionKind::Short(ShortFormOption::Iothreads), ArgumentUse::Argument),
    known("--read-only", OptionKind::Short(ShortFormOption::ReadOnly), ArgumentUse::Nothing),
    known("--num-queues", OptionKind::Short(ShortFormOption::NumQueues), ArgumentUse::Argument),
    known("--direct", OptionKind::Short(ShortFormOption::Direct), ArgumentUse::Argument),
    known("--format", OptionKind::Short(ShortFormOption::Format), ArgumentUse::Argument),
    brief(b'T', known("--trace", OptionKind::Later, ArgumentUse::Argument)),
];

/// An option of the command line, with its argument.
#[derive(Debug)]
pub(super) struct ParsedOption {
    /// What it is for.
    pub(super) name: OptionKind,
    /// Its long form, for messages.
    pub(super) option: &'static str,
    /// Its argument; empty if it takes none.
    pub(super) argument: OsString,
    /// Where it stands, if that is a file.
    pub(super) place: Option<OptionPlace>,
}

/// Leaves out of an argument what may be a part of a secret, and of what is wrong with it.
fn without_secret(option: &str, text: String, fault: ArgumentError) -> (String, ArgumentError) {
    if option != "--object" {
        return (text, fault);
    }
    let is_secret = text.contains("secret");
    let shown = match (text.find("data"), text.find([',', '{'])) {
        (_, Some(end)) if is_secret => end,
        // What should have been one, misspelled.
        (Some(end), _) => end,
        (_, _) => return (text, fault),
    };
    // A comma in a secret ends it, and what follows is taken for a key.
    let may_show = matches!(
        fault,
        ArgumentError::NoEquals(_)
            | ArgumentError::InvalidKey(_)
            | ArgumentError::Inconsistent(_)
            | ArgumentError::TooDeep { .. }
            | ArgumentError::UnknownKey { .. }
            | ArgumentError::Json(_)
    );
    let fault = if may_show {
        ArgumentError::ExpectsAlone("keys with values; a comma in a value is written twice")
    } else {
        fault
    };
    (format!("{}…", &text[..shown]), fault)
}

impl ParsedOption {
    fn new(known: &OptionSpec, argument: OsString) -> Self {
        Self { name: known.name, option: known.long, argument, place: None }
    }

    fn image(argument: OsString) -> Self {
        let name = OptionKind::Short(ShortFormOption::Image);
        Self { name, option: "an image", argument, place: None }
    }

    /// The option, for a message about several: with its place if it stands in a file.
    pub(super) fn shown(&self) -> String {
        let is_image = self.name == OptionKind::Short(ShortFormOption::Image);
        let shown = match is_image {
            true => format!("'{}'", self.argument.display()),
            false => self.option.to_owned(),
        };
        match &self.place {
            Some(place) => format!("{shown} ({})", place.position()),
            None => shown,
        }
    }

    /// What is wrong with the argument.
    pub(super) fn wrong(&self, fault: ArgumentError) -> CommandLineError {
        if let Some(place) = &self.place {
            let (place, what, fault) = place.of_fault(fault);
            return CommandLineError::InFile { place, what, fault: Box::new(fault) };
        }
        let (text, fault) = without_secret(self.option, self.argument.display().to_string(), fault);
        CommandLineError::Argument { option: self.option, text, fault: Box::new(fault) }
    }

    /// The argument as text.
    pub(super) fn text(&self) -> Result<&str, CommandLineSyntaxError> {
        let not_utf8 = || CommandLineSyntaxError::NotUtf8 {
            option: self.option,
            text: PathBuf::from(&self.argument),
        };
        self.argument.to_str().ok_or_else(not_utf8)
    }
}

/// Cuts a line, without the name of the program, up to the first help or version word.
pub(super) fn split(
    arguments: impl IntoIterator<Item = OsString>,
) -> Result<Vec<ParsedOption>, CommandLineSyntaxError> {
    let mut arguments = arguments.into_iter();
    let mut words = Vec::new();
    while let Some(argument) = arguments.next() {
        let bytes = argument.as_bytes();
        if bytes == b"--" {
            words.extend(arguments.by_ref().map(ParsedOption::image));
        } else if bytes.starts_with(b"--") {
            words.push(long(&argument, &mut arguments)?);
        } else if bytes.starts_with(b"-") && bytes.len() > 1 {
            short(bytes, &mut arguments, &mut words)?;
        } else {
            words.push(ParsedOption::image(argument));
        }
        if words.last().is_some_and(|word| word.name.ends_the_line()) {
            break;
        }
    }
    Ok(words)
}

/// `--option`, `--option argument` or `--option=argument`.
fn long(
    given: &OsStr,
    rest: &mut impl Iterator<Item = OsString>,
) -> Result<ParsedOption, CommandLineSyntaxError> {
    let bytes = given.as_bytes();
    let (option, attached) = match bytes.iter().position(|byte| *byte == b'=') {
        Some(equals) => (&bytes[..equals], Some(OsStr::from_bytes(&bytes[equals + 1..]))),
        None => (bytes, None),
    };
    let known = find(&String::from_utf8_lossy(option))?;
    let option = known.long;
    match (known.takes, attached) {
        (ArgumentUse::Nothing, None) => Ok(ParsedOption::new(known, OsString::new())),
        (ArgumentUse::Nothing, Some(_)) => Err(CommandLineSyntaxError::TakesNoArgument(option)),
        (ArgumentUse::Argument, Some(attached)) => {
            Ok(ParsedOption::new(known, attached.to_owned()))
        }
        (ArgumentUse::Argument, None) => {
            let argument = rest.next().ok_or(CommandLineSyntaxError::NeedsArgument(option))?;
            Ok(ParsedOption::new(known, argument))
        }
    }
}

/// The option with this name, or the only one that it abbreviates.
fn find(option: &str) -> Result<&'static OptionSpec, CommandLineSyntaxError> {
    if let Some(known) = OPTIONS.iter().find(|known| known.long == option) {
        return Ok(known);
    }
    let meant: Vec<&'static OptionSpec> = OPTIONS
        .iter()
        .filter(|known| known.name.may_be_abbreviated())
        .filter(|known| option.len() > 2 && known.long.starts_with(option))
        .collect();
    match meant.as_slice() {
        [only] => Ok(only),
        [] => Err(unknown(option.to_owned())),
        several => Err(CommandLineSyntaxError::Ambiguous {
            option: option.to_owned(),
            names: several.iter().map(|known| known.long).collect(),
        }),
    }
}

fn unknown(option: String) -> CommandLineSyntaxError {
    let there_yet =
        || OPTIONS.iter().filter(|known| known.name != OptionKind::Later).map(|it| it.long);
    let names: Vec<_> =
        there_yet().filter(|name| option.len() > 2 && name.starts_with(option.as_str())).collect();
    if !names.is_empty() {
        return CommandLineSyntaxError::NotAbbreviated { option, names };
    }
    // The dashes are right, and say nothing of what was meant.
    let letters = option.trim_start_matches('-');
    let nearest = there_yet().find(|name| {
        let name = name.trim_start_matches('-');
        nearest(letters, there_yet().map(|it| it.trim_start_matches('-'))) == Some(name)
    });
    CommandLineSyntaxError::Unknown { option, nearest }
}

/// A cluster of one-letter options.
fn short(
    cluster: &[u8],
    rest: &mut impl Iterator<Item = OsString>,
    words: &mut Vec<ParsedOption>,
) -> Result<(), CommandLineSyntaxError> {
    for (position, letter) in cluster.iter().enumerate().skip(1) {
        let known = OPTIONS
            .iter()
            .find(|known| known.short == Some(*letter))
            .ok_or_else(|| unknown(String::from_utf8_lossy(cluster).into_owned()))?;
        let attached = &cluster[position + 1..];
        match known.takes {
            ArgumentUse::Nothing => words.push(ParsedOption::new(known, OsString::new())),
            ArgumentUse::Argument if attached.is_empty() => {
                let option = known.long;
                let argument = rest.next().ok_or(CommandLineSyntaxError::NeedsArgument(option))?;
                words.push(ParsedOption::new(known, argument));
            }
            ArgumentUse::Argument => {
                words.push(ParsedOption::new(known, OsString::from_vec(attached.to_vec())));
                return Ok(());
            }
        }
        if known.name.ends_the_line() {
            return Ok(());
        }
    }
    Ok(())
}
