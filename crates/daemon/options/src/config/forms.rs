//! What the argument of each option is, in a file and for a shell that completes it.
//!
//! Invariants: an option without a row here does not build.

use serde_json::{Map, Value};
use syntax::Keys;

use crate::getopt::{
    EitherFormOption, LongFormOption, OPTIONS, OptionKind, OptionSpec, ShortFormOption,
};
use crate::log_settings::LogFormat;

/// The key of the image of the short form, which has no option on a line.
pub(super) const IMAGE: &str = "image";

/// What `--print` takes.
const PRINT: &[&str] = &["qemu", "libvirt", "config"];

/// The formats of the short form.
const FORMATS: &[&str] = &["raw", "qcow2"];

/// What an option takes: on a line a word, in a file a value of this type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueForm {
    /// Nothing; in a file `true`.
    Flag,
    /// `on` or `off`; in a file also `true` or `false`.
    Switch,
    /// One of these words.
    Word(&'static [&'static str]),
    /// A whole number.
    Number,
    /// A text.
    Text,
    /// A text that may be a number.
    TextOrNumber,
    /// The path of a file.
    File,
    /// The path of a directory.
    Directory,
    /// The path of a directory, or `on` or `off`.
    DirectoryOrSwitch,
    /// Any number of these; in a file one or a list.
    Several(&'static ValueForm),
    /// Keys with values; in a file a table.
    Table,
    /// Any number of such, each known by this key; in a file a list of tables.
    Tables(&'static str),
    /// What no file can have, and why.
    LineOnly(&'static str),
}

impl ValueForm {
    /// What one of several is.
    pub(super) fn of_one(self) -> Self {
        if let Self::Several(of) = self { *of } else { self }
    }

    pub(super) fn takes_switch(self) -> bool {
        matches!(self, Self::Switch | Self::DirectoryOrSwitch)
    }

    pub(super) fn takes_number(self) -> bool {
        matches!(self, Self::Number | Self::TextOrNumber)
    }

    pub(super) fn takes_text(self) -> bool {
        match self {
            Self::Switch
            | Self::Word(_)
            | Self::Text
            | Self::TextOrNumber
            | Self::File
            | Self::Directory
            | Self::DirectoryOrSwitch => true,
            Self::Flag
            | Self::Number
            | Self::Several(_)
            | Self::Table
            | Self::Tables(_)
            | Self::LineOnly(_) => false,
        }
    }

    /// What a file should have had.
    pub(super) fn expected(self, key: &str) -> String {
        match self {
            Self::Flag => "true or false".to_owned(),
            Self::Switch => "true or false, or \"on\" or \"off\"".to_owned(),
            Self::Number => "a whole number".to_owned(),
            Self::Word(_) | Self::Text | Self::File | Self::Directory => "a string".to_owned(),
            Self::TextOrNumber => "a string or a whole number".to_owned(),
            Self::DirectoryOrSwitch => "a string, or true or false".to_owned(),
            Self::Several(of) => format!("{}, or a list of such", of.expected(key)),
            Self::Table => format!("a table: [{key}]"),
            Self::Tables(_) => format!("a list of tables: [[{key}]]"),
            Self::LineOnly(why) => why.to_owned(),
        }
    }
}

/// An option, for whoever describes the command line: manual pages and completions.
#[derive(Debug, Clone, Copy)]
pub struct OptionDescription {
    /// Its name with the dashes.
    pub long: &'static str,
    /// The one letter that stands for it, if there is one.
    pub short: Option<char>,
    /// What it takes.
    pub form: ValueForm,
}

/// All options that work.
pub fn descriptions() -> impl Iterator<Item = OptionDescription> {
    let there = OPTIONS.iter().filter(|spec| spec.name != OptionKind::Later);
    there.map(|spec| OptionDescription {
        long: spec.long,
        short: spec.short.map(char::from),
        form: match spec.name {
            // On a line these are words like others.
            OptionKind::Config => ValueForm::Several(&ValueForm::File),
            OptionKind::Help | OptionKind::Version => ValueForm::Flag,
            OptionKind::Shared(EitherFormOption::StateReset) => ValueForm::Flag,
            name @ (OptionKind::Step(_)
            | OptionKind::Shared(_)
            | OptionKind::Short(_)
            | OptionKind::Later) => form(name),
        },
    })
}

/// The option that a key of a file stands for.
pub(super) fn spec(key: &str) -> Option<&'static OptionSpec> {
    OPTIONS.iter().find(|spec| key_of(spec) == key)
}

/// The key of an option in a file.
pub(super) fn key_of(spec: &OptionSpec) -> &'static str {
    spec.long.trim_start_matches('-')
}

/// The keys that a file may have.
pub(super) fn file_keys() -> impl Iterator<Item = &'static str> {
    let is_there = |spec: &&OptionSpec| !matches!(form(spec.name), ValueForm::LineOnly(_));
    OPTIONS.iter().filter(is_there).map(key_of).chain([IMAGE])
}

/// What an option takes.
pub(super) fn form(name: OptionKind) -> ValueForm {
    match name {
        OptionKind::Help | OptionKind::Version => ValueForm::LineOnly("it ends the program"),
        OptionKind::Config => ValueForm::LineOnly("a file names no other file"),
        OptionKind::Later => ValueForm::LineOnly("it is not supported yet"),
        OptionKind::Step(name) => of_step(name),
        OptionKind::Shared(name) => of_either(name),
        OptionKind::Short(name) => of_short(name),
    }
}

fn of_step(name: LongFormOption) -> ValueForm {
    match name {
        LongFormOption::Object | LongFormOption::Export => ValueForm::Tables("id"),
        LongFormOption::Blockdev => ValueForm::Tables("node-name"),
    }
}

fn of_either(name: EitherFormOption) -> ValueForm {
    match name {
        EitherFormOption::Pidfile | EitherFormOption::LogFile | EitherFormOption::State => {
            ValueForm::File
        }
        EitherFormOption::LogFormat => ValueForm::Word(LogFormat::NAMES),
        EitherFormOption::LogLevel => ValueForm::Several(&ValueForm::Text),
        EitherFormOption::Daemonize | EitherFormOption::Takeover => ValueForm::Flag,
        EitherFormOption::Print => ValueForm::Word(PRINT),
        EitherFormOption::SocketMode => ValueForm::Text,
        EitherFormOption::SocketGroup | EitherFormOption::MaxGuestMemory => ValueForm::TextOrNumber,
        EitherFormOption::Sandbox => ValueForm::Switch,
        EitherFormOption::NamedFiles => ValueForm::Several(&ValueForm::DirectoryOrSwitch),
        EitherFormOption::GuestMemoryFilePolicy | EitherFormOption::AllowBelow => {
            ValueForm::Several(&ValueForm::Directory)
        }
        EitherFormOption::GaugesDescriptor => ValueForm::Number,
        EitherFormOption::Metrics => ValueForm::Text,
        EitherFormOption::MetricsInsecure => ValueForm::Flag,
        EitherFormOption::Chardev => ValueForm::Tables("id"),
        EitherFormOption::Monitor => ValueForm::Tables("chardev"),
        EitherFormOption::StateReset => {
            ValueForm::LineOnly("a file would forget the state at each start")
        }
        EitherFormOption::NbdServer => ValueForm::Table,
        EitherFormOption::AllowListen | EitherFormOption::AllowConnect => {
            ValueForm::Several(&ValueForm::TextOrNumber)
        }
    }
}

fn of_short(name: ShortFormOption) -> ValueForm {
    match name {
        ShortFormOption::Image | ShortFormOption::Socket | ShortFormOption::Nbd => ValueForm::File,
        ShortFormOption::Iothreads => ValueForm::TextOrNumber,
        ShortFormOption::ReadOnly | ShortFormOption::Writable => ValueForm::Flag,
        ShortFormOption::NumQueues => ValueForm::Number,
        ShortFormOption::Direct => ValueForm::Switch,
        ShortFormOption::Format => ValueForm::Word(FORMATS),
    }
}

/// The table of keys of what an option makes, by the one among these that says its kind.
pub(super) fn option_keys(name: OptionKind, map: &Map<String, Value>) -> Option<&'static Keys> {
    let tag = |key: &str| map.get(key).and_then(Value::as_str);
    match name {
        OptionKind::Step(LongFormOption::Object) => {
            let kind = tag("qom-type")?;
            graph::OBJECT_TYPES.iter().find(|entry| entry.name == kind).map(|it| &it.keys)
        }
        OptionKind::Step(LongFormOption::Blockdev) => driver_keys(map),
        OptionKind::Step(LongFormOption::Export) => {
            let kind = tag("type")?;
            exports::EXPORT_TYPES.iter().find(|(name, _)| *name == kind).map(|(_, keys)| keys)
        }
        OptionKind::Shared(EitherFormOption::Chardev) => {
            let kind = tag("backend")?;
            monitor::CHARDEVS.iter().find(|(name, _)| *name == kind).map(|(_, keys)| keys)
        }
        OptionKind::Shared(EitherFormOption::Monitor) => Some(&monitor::MONITOR),
        OptionKind::Shared(EitherFormOption::NbdServer) => Some(&nbd_server::NBD_SERVER),
        OptionKind::Help
        | OptionKind::Version
        | OptionKind::Config
        | OptionKind::Shared(_)
        | OptionKind::Short(_)
        | OptionKind::Later => None,
    }
}

/// The table of keys of a node, by its driver.
pub(super) fn driver_keys(map: &Map<String, Value>) -> Option<&'static Keys> {
    let name = map.get("driver").and_then(Value::as_str)?;
    graph::DRIVERS.iter().find(|driver| driver.name == name).map(|driver| &driver.keys)
}

/// The key by which the argument of an option is read if it begins with a value alone, and by which its table begins.
pub(super) fn first_key(name: OptionKind) -> &'static str {
    match name {
        OptionKind::Step(LongFormOption::Object) => "qom-type",
        OptionKind::Step(LongFormOption::Blockdev) => "driver",
        OptionKind::Step(LongFormOption::Export) => "type",
        OptionKind::Shared(EitherFormOption::Chardev) => "backend",
        OptionKind::Shared(EitherFormOption::Monitor) => "chardev",
        OptionKind::Help
        | OptionKind::Version
        | OptionKind::Config
        | OptionKind::Shared(_)
        | OptionKind::Short(_)
        | OptionKind::Later => "",
    }
}
