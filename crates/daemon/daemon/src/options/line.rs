//! The line as a whole: help and version, the form it has, and what both forms share.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use super::fault::{LineFault, OptionError};
use super::plan::{
    AttachFormat, Command, Daemonize, GuestMemoryOptions, HelpTopic, Plan, Sandboxing, Step,
    Takeover,
};
use super::words::{Name, SharedName, ShortName, Word};
#[cfg(test)]
use super::{export, object};
use super::{long, short, words};
use crate::drivers;
use crate::graph::NamedFiles;
#[cfg(test)]
use crate::syntax::Keys;
use crate::syntax::{Fault, parse_flag, parse_size};

/// Reads the arguments of `ringloom serve` or qemu-storage-daemon, without the program's name.
///
/// It looks at the files that are named, but changes nothing.
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Command, OptionError> {
    let words = words::split(arguments)?;
    match words.last().map(|word| word.name) {
        Some(Name::Help) => return Ok(Command::Help(HelpTopic::Serve)),
        Some(Name::Version) => return Ok(Command::Version),
        Some(Name::Step(_) | Name::Shared(_) | Name::Short(_) | Name::Later) | None => {}
    }
    if let Some(topic) = words.iter().find_map(long::help_topic) {
        return Ok(Command::Help(topic));
    }
    if let Some(word) = words.iter().find(|word| word.name == Name::Later) {
        return Err(LineFault::NotYet { option: word.option }.into());
    }
    let Shared { mut plan, socket_mode, socket_group } = Shared::read(&words)?;
    let form = form(&words)?;
    plan.steps = match form {
        Form::Long => long::steps(&words)?,
        Form::Short => short::steps(&words)?,
    };
    for step in &mut plan.steps {
        if let Step::Export(export) = step {
            export.socket.mode = socket_mode;
            export.socket.group.clone_from(&socket_group);
        }
    }
    // Whoever uses the short form has no other place to learn how to attach a guest.
    plan.print = plan.print.or((form == Form::Short).then_some(AttachFormat::Qemu));
    Ok(Command::Serve(plan))
}

/// How a line says what to serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// Step by step, as for qemu-storage-daemon.
    Long,
    /// An image and what to do with it.
    Short,
}

/// Which form a line has. The two cannot be mixed.
fn form(words: &[Word]) -> Result<Form, LineFault> {
    let long = words.iter().find(|word| matches!(word.name, Name::Step(_)));
    let short = words.iter().find(|word| matches!(word.name, Name::Short(_)));
    match (long, short) {
        (Some(long), Some(short)) => {
            let short = if short.name == Name::Short(ShortName::Image) {
                format!("'{}'", short.argument.display())
            } else {
                short.option.to_owned()
            };
            Err(LineFault::Mixed { short, long: long.option })
        }
        (Some(_), None) => Ok(Form::Long),
        (None, Some(_)) => Ok(Form::Short),
        (None, None) => Err(LineFault::Nothing),
    }
}

/// What both forms have: a plan without steps. The last of several wins, as in qemu-storage-daemon.
#[derive(Debug)]
struct Shared {
    plan: Plan,
    socket_mode: Option<u32>,
    socket_group: Option<String>,
}

impl Shared {
    fn read(words: &[Word]) -> Result<Self, OptionError> {
        let plan = Plan {
            steps: Vec::new(),
            pidfile: None,
            log_file: None,
            daemonize: Daemonize::Foreground,
            takeover: Takeover::Never,
            print: None,
            sandbox: Sandboxing::Possible,
            named_files: NamedFiles::Refused,
            guest_memory: GuestMemoryOptions::default(),
        };
        let mut shared = Self { plan, socket_mode: None, socket_group: None };
        for word in words {
            if let Name::Shared(name) = word.name {
                shared.take(name, word)?;
            }
        }
        Ok(shared)
    }

    fn take(&mut self, name: SharedName, word: &Word) -> Result<(), OptionError> {
        let wrong = |fault| word.wrong(fault);
        let path = |what| match word.argument.is_empty() {
            true => Err(wrong(Fault::EmptyPath { what })),
            false => Ok(PathBuf::from(&word.argument)),
        };
        match name {
            SharedName::Pidfile => self.plan.pidfile = Some(path("pidfile's path")?),
            SharedName::LogFile => self.plan.log_file = Some(path("log file's path")?),
            SharedName::Daemonize => self.plan.daemonize = Daemonize::Background,
            SharedName::Takeover => self.plan.takeover = Takeover::WhereServed,
            SharedName::Print => self.plan.print = Some(print(word.text()?).map_err(wrong)?),
            SharedName::SocketMode => {
                self.socket_mode = Some(socket_mode(word.text()?).map_err(wrong)?);
            }
            SharedName::SocketGroup => {
                let text = word.text()?;
                if text.is_empty() {
                    return Err(wrong(Fault::ExpectsAlone { expected: "a group" }));
                }
                self.socket_group = Some(text.to_owned());
            }
            SharedName::NamedFiles => self.allow_named_files(&word.argument).map_err(wrong)?,
            SharedName::MemoryFiles => {
                let directory = directory(Path::new(&word.argument)).map_err(wrong)?;
                self.plan.guest_memory.directories.push(directory);
            }
            SharedName::MaxGuestMemory => {
                let text = word.text()?;
                let fault = Fault::ExpectsAlone { expected: "a size above 0, as 16T" };
                let bytes = parse_size(text).filter(|bytes| *bytes > 0);
                let bytes = bytes.ok_or_else(|| wrong(fault))?;
                self.plan.guest_memory.bytes_max = Some(bytes);
            }
            SharedName::Sandbox => {
                let text = word.text()?;
                let fault = Fault::ExpectsAlone { expected: "'on' or 'off'" };
                self.plan.sandbox = match parse_flag(text) {
                    Some(true) => Sandboxing::Required,
                    Some(false) => Sandboxing::Off,
                    None => return Err(wrong(fault)),
                };
            }
        }
        Ok(())
    }
}

impl Shared {
    /// Directories add up; `on` and `off` put an end to what was said before.
    fn allow_named_files(&mut self, argument: &OsStr) -> Result<(), Fault> {
        match argument.to_str().and_then(parse_flag) {
            Some(true) => self.plan.named_files = NamedFiles::Anywhere,
            Some(false) => self.plan.named_files = NamedFiles::Refused,
            None if argument.is_empty() => {
                return Err(Fault::ExpectsAlone { expected: "'on', 'off' or a directory" });
            }
            None => {
                let directory = directory(Path::new(argument))?;
                match &mut self.plan.named_files {
                    NamedFiles::Below(directories) => directories.push(directory),
                    NamedFiles::Refused | NamedFiles::Anywhere => {
                        self.plan.named_files = NamedFiles::Below(vec![directory]);
                    }
                }
            }
        }
        Ok(())
    }
}

fn directory(path: &Path) -> Result<PathBuf, Fault> {
    drivers::directory(path).map_err(Fault::own)
}

fn print(text: &str) -> Result<AttachFormat, Fault> {
    match text {
        "qemu" => Ok(AttachFormat::Qemu),
        "libvirt" => Ok(AttachFormat::Libvirt),
        _ => Err(Fault::ExpectsAlone { expected: "'qemu' or 'libvirt'" }),
    }
}

/// Permission bits in octal, with or without a leading zero.
fn socket_mode(text: &str) -> Result<u32, Fault> {
    let all_digits = text.bytes().all(|byte| byte.is_ascii_digit());
    u32::from_str_radix(text, 8)
        .ok()
        .filter(|mode| all_digits && *mode <= 0o777)
        .ok_or(Fault::ExpectsAlone { expected: "permission bits in octal, 0 to 0777" })
}

/// Every name that a user can write and that works: the options and the keys of their arguments.
/// The documents are checked against it.
#[cfg(test)]
pub(crate) fn documented_names() -> Vec<String> {
    let options = words::OPTIONS
        .iter()
        .filter(|known| known.name != Name::Later)
        .map(|known| known.long.to_owned());
    let objects = object::TABLE.iter().map(|entry| &entry.keys);
    let drivers = drivers::ALL.iter().map(|driver| &driver.keys);
    let all =
        objects.chain(drivers).chain([&export::VHOST_USER_BLK]).flat_map(|keys| names(keys, ""));
    // A property of a throttle group is an `x-` before what is a limit as well; the texts say that and name the limits.
    options.chain(all.filter(|name| !name.starts_with("x-"))).collect()
}

/// The names of keys, and of those inside them where there are such: of these two with what stands before them.
#[cfg(test)]
fn names(keys: &Keys, prefix: &str) -> Vec<String> {
    let name = |key: &crate::syntax::Key| {
        let prefixed = format!("{prefix}{}", key.name);
        let before = if ["cache", "addr"].contains(&key.name) {
            format!("{}.", key.name)
        } else {
            String::new()
        };
        let inner = key.takes.inner().into_iter().flat_map(|keys| names(keys, &before));
        if before.is_empty() {
            inner.chain([prefixed]).collect::<Vec<_>>()
        } else {
            inner.collect()
        }
    };
    keys.supported().flat_map(name).collect()
}
