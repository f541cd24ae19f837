//! The line as a whole: help and version, the form it has, and what both forms share.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use block::Access;
use exports::{AttachLinesFormat, ExportKind, ExportOptions, GuestMemoryOptions};
use graph::{ConnectGrant, NamedFilesPolicy, real_directory};
use metrics::MetricsOptions;
use monitor::{ChardevOptions, MonitorOptions};
use nbd_server::{ListenGrant, NbdServerOptions};
use sandbox::{AllowedDirectory, SandboxMode};
use syntax::{ArgumentError, parse_flag, parse_number, parse_size, socket_mode};

use super::fault::{CommandLineError, CommandLineSyntaxError};
use super::getopt::{EitherFormOption, OptionKind, ParsedOption};
use super::log_settings::{LevelSetting, LogFormat};
use super::plan::{Daemonize, HelpTopic, OldState, Plan, PlanStep, ServeCommand, TakeoverMode};
use super::{config, getopt, long, short};

/// Reads the arguments of `ringloom serve` or qemu-storage-daemon, without the program's name.
///
/// It looks at the files that are named, but changes nothing.
pub fn parse(
    arguments: impl IntoIterator<Item = OsString>,
) -> Result<ServeCommand, CommandLineError> {
    let words = getopt::split(arguments)?;
    let has_files = words.iter().any(|word| word.name == OptionKind::Config);
    read(words).map_err(|error| if has_files { error.with_files() } else { error })
}

fn read(words: Vec<ParsedOption>) -> Result<ServeCommand, CommandLineError> {
    match words.last().map(|word| word.name) {
        Some(OptionKind::Help) => return Ok(ServeCommand::Help(HelpTopic::Serve)),
        Some(OptionKind::Version) => return Ok(ServeCommand::Version),
        Some(
            OptionKind::Config
            | OptionKind::Step(_)
            | OptionKind::Shared(_)
            | OptionKind::Short(_)
            | OptionKind::Later,
        )
        | None => {}
    }
    if let Some(topic) = words.iter().find_map(long::help_topic) {
        return Ok(ServeCommand::Help(topic));
    }
    if let Some(word) = words.iter().find(|word| word.name == OptionKind::Later) {
        return Err(CommandLineSyntaxError::NotYet(word.option).into());
    }
    let (words, sources) = config::with_files(words)?;
    let mut common = CommonOptions::read(&words)?;
    common.plan.config = sources;
    let printed = common.prints_config.then(|| config::printed(&words)).transpose()?;
    let CommonOptions { mut plan, socket_mode, socket_group, .. } = common;
    let form = form(&words)?;
    plan.steps = match form {
        CommandLineForm::Long => long::steps(&words)?,
        CommandLineForm::Short => {
            let (steps, server) = short::steps(&words)?;
            if server.is_some() && plan.nbd_server.is_some() {
                return Err(CommandLineSyntaxError::TwoNbdServers.into());
            }
            plan.nbd_server = plan.nbd_server.or(server);
            steps
        }
    };
    let is_nbd = |export: &&ExportOptions| matches!(export.kind, ExportKind::Nbd(_));
    if let (Some(export), None) = (plan.exports().find(is_nbd), &plan.nbd_server) {
        return Err(CommandLineSyntaxError::NoNbdServer(export.id.clone()).into());
    }

    for step in &mut plan.steps {
        if let PlanStep::Export(export) = step
            && let Some(own) = export.vhost_user_blk_mut()
        {
            own.socket.mode = socket_mode;
            own.socket.group.clone_from(&socket_group);
        }
    }
    plan.socket_rights = (socket_mode, socket_group);
    if let Some(server) = &mut plan.nbd_server {
        server.set_rights(&plan.socket_rights);
    }
    // Whoever uses the short form has no other place to learn how to attach a guest.
    plan.print_by_default = (form == CommandLineForm::Short).then_some(AttachLinesFormat::Qemu);
    if let Some(printed) = printed {
        return Ok(ServeCommand::Config(printed));
    }
    Ok(ServeCommand::Serve(Box::new(plan)))
}

/// Whether a command line is in the long form or the short one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CommandLineForm {
    /// Step by step, as for qemu-storage-daemon.
    Long,
    /// An image and what to do with it.
    Short,
}

/// Which form a line has. The two cannot be mixed.
fn form(words: &[ParsedOption]) -> Result<CommandLineForm, CommandLineSyntaxError> {
    let long = words.iter().find(|word| matches!(word.name, OptionKind::Step(_)));
    let short = words.iter().find(|word| matches!(word.name, OptionKind::Short(_)));
    match (long, short) {
        (Some(long), Some(short)) => {
            Err(CommandLineSyntaxError::Mixed { short: short.shown(), long: long.shown() })
        }
        (Some(_), None) => Ok(CommandLineForm::Long),
        (None, Some(_)) => Ok(CommandLineForm::Short),
        // Monitors can make all that is served, and a state may hold it.
        (None, None) if words.iter().any(is_monitor_or_state) => Ok(CommandLineForm::Long),
        (None, None) => Err(CommandLineSyntaxError::Nothing),
    }
}

fn is_monitor_or_state(word: &ParsedOption) -> bool {
    use EitherFormOption::{Monitor, State};
    [Monitor, State].map(OptionKind::Shared).contains(&word.name)
}

/// The options that both forms have: a plan without steps. The last of several wins, as in qemu-storage-daemon.
#[derive(Debug)]
struct CommonOptions {
    plan: Plan,
    /// Whether `--print config` is the last one of its kind.
    prints_config: bool,
    socket_mode: Option<u32>,
    socket_group: Option<String>,
}

impl CommonOptions {
    fn read(words: &[ParsedOption]) -> Result<Self, CommandLineError> {
        let plan = Plan {
            steps: Vec::new(),
            pidfile: None,
            log_file: None,
            log_format: None,
            log_levels: Vec::new(),
            daemonize: Daemonize::Foreground,
            takeover: TakeoverMode::Never,
            print: None,
            print_by_default: None,
            sandbox: SandboxMode::Possible,
            named_files: NamedFilesPolicy::Refused,
            guest_memory: GuestMemoryOptions::default(),
            gauges: None,
            metrics: None,
            socket_rights: (None, None),
            nbd_server: None,
            allow_listen: Vec::new(),
            allow_connect: Vec::new(),
            chardevs: Vec::new(),
            monitors: Vec::new(),
            state: None,
            old_state: OldState::Used,
            allowed: Vec::new(),
            config: Vec::new(),
        };
        let mut shared = Self { plan, prints_config: false, socket_mode: None, socket_group: None };
        for word in words {
            if let OptionKind::Shared(name) = word.name {
                shared.take(name, word)?;
            }
        }
        shared.check_metrics(words)?;
        Ok(shared)
    }

    /// Metrics that others can reach are asked for where their address is said: on the line, wherever, or in a file. A file does
    /// not say it for an address of the line.
    fn check_metrics(&self, words: &[ParsedOption]) -> Result<(), CommandLineError> {
        let is = |name| move |word: &&ParsedOption| word.name == OptionKind::Shared(name);
        let word = words.iter().rfind(is(EitherFormOption::Metrics));
        let Some((word, metrics)) = word.zip(self.plan.metrics.as_ref()) else { return Ok(()) };
        let covers = |said: &ParsedOption| said.place.is_none() || word.place.is_some();
        if words.iter().filter(is(EitherFormOption::MetricsInsecure)).any(covers) {
            return Ok(());
        }
        metrics.check_is_local().map_err(|fault| word.wrong(fault))
    }

    fn allow_listen(&mut self, text: &str) -> Result<(), ArgumentError> {
        let grant = ListenGrant::parse(text).ok_or(ArgumentError::ExpectsAlone("[HOST:]PORT"))?;
        self.plan.allow_listen.push(grant);
        Ok(())
    }

    fn allow_connect(&mut self, text: &str) -> Result<(), ArgumentError> {
        let grant = ConnectGrant::parse(text).ok_or(ArgumentError::ExpectsAlone("HOST:PORT"))?;
        self.plan.allow_connect.push(grant);
        Ok(())
    }

    fn print(&mut self, word: &ParsedOption) -> Result<(), CommandLineError> {
        // A file that only prints itself is none to serve with.
        self.prints_config = word.text()? == "config" && word.place.is_none();
        if !self.prints_config {
            self.plan.print = Some(print(word.text()?).map_err(|fault| word.wrong(fault))?);
        }
        Ok(())
    }

    fn add_log_level(&mut self, word: &ParsedOption) -> Result<(), CommandLineError> {
        let setting = LevelSetting::parse(word.text()?);
        let wrong = |error| word.wrong(ArgumentError::own(error));
        self.plan.log_levels.push(setting.map_err(wrong)?);
        Ok(())
    }

    fn socket_group(&mut self, word: &ParsedOption) -> Result<(), CommandLineError> {
        let text = word.text()?;
        if text.is_empty() {
            return Err(word.wrong(ArgumentError::ExpectsAlone("a group")));
        }
        self.socket_group = Some(text.to_owned());
        Ok(())
    }

    fn take(
        &mut self,
        name: EitherFormOption,
        word: &ParsedOption,
    ) -> Result<(), CommandLineError> {
        let wrong = |fault| word.wrong(fault);
        let path = |what| match word.argument.is_empty() {
            true => Err(wrong(ArgumentError::EmptyPath(what))),
            false => Ok(PathBuf::from(&word.argument)),
        };
        match name {
            EitherFormOption::Pidfile => self.plan.pidfile = Some(path("pidfile's path")?),
            EitherFormOption::LogFile => self.plan.log_file = Some(path("log file's path")?),
            EitherFormOption::LogFormat => {
                self.plan.log_format = Some(LogFormat::parse(word.text()?).map_err(wrong)?);
            }
            EitherFormOption::LogLevel => self.add_log_level(word)?,
            EitherFormOption::Daemonize => self.plan.daemonize = Daemonize::Background,
            EitherFormOption::Takeover => self.plan.takeover = TakeoverMode::WhereServed,
            EitherFormOption::Print => self.print(word)?,
            EitherFormOption::SocketMode => {
                self.socket_mode = Some(mode(word.text()?).map_err(wrong)?);
            }
            EitherFormOption::SocketGroup => self.socket_group(word)?,
            EitherFormOption::NamedFiles => {
                self.allow_named_files(&word.argument).map_err(wrong)?
            }
            EitherFormOption::GuestMemoryFilePolicy => {
                let directory = directory(Path::new(&word.argument)).map_err(wrong)?;
                self.plan.guest_memory.directories.push(directory);
            }
            EitherFormOption::MaxGuestMemory => {
                let text = word.text()?;
                let fault = ArgumentError::ExpectsAlone("a size above 0, as 16T");
                let bytes = parse_size(text).filter(|bytes| *bytes > 0);
                let bytes = bytes.ok_or_else(|| wrong(fault))?;
                self.plan.guest_memory.bytes_max = Some(bytes);
            }
            EitherFormOption::GaugesDescriptor => {
                let fault = ArgumentError::ExpectsAlone("the number of an open descriptor");
                let number = parse_number(word.text()?).and_then(|it| i32::try_from(it).ok());
                self.plan.gauges = Some(number.ok_or_else(|| wrong(fault))?);
            }
            EitherFormOption::Metrics => {
                self.plan.metrics = Some(MetricsOptions::parse(word.text()?).map_err(wrong)?);
            }
            // See `check_metrics`.
            EitherFormOption::MetricsInsecure => {}
            EitherFormOption::Chardev => self.add_chardev(word)?,
            EitherFormOption::Monitor => self.add_monitor(word)?,
            EitherFormOption::State => self.plan.state = Some(path("state file's path")?),
            EitherFormOption::StateReset => self.plan.old_state = OldState::Forgotten,
            EitherFormOption::AllowBelow => {
                let allowed = allowed(word.text()?).map_err(wrong)?;
                self.plan.allowed.push(allowed);
            }
            EitherFormOption::NbdServer => {
                self.plan.nbd_server = Some(NbdServerOptions::parse(word.text()?).map_err(wrong)?);
            }
            EitherFormOption::AllowListen => self.allow_listen(word.text()?).map_err(wrong)?,
            EitherFormOption::AllowConnect => self.allow_connect(word.text()?).map_err(wrong)?,
            EitherFormOption::Sandbox => {
                let text = word.text()?;
                let fault = ArgumentError::ExpectsAlone("'on' or 'off'");
                self.plan.sandbox = match parse_flag(text) {
                    Some(true) => SandboxMode::Required,
                    Some(false) => SandboxMode::Off,
                    None => return Err(wrong(fault)),
                };
            }
        }
        Ok(())
    }
}

/// A monitor, or a character device, that does not fit the others. QEMU's sentences where it has some.
#[derive(Debug, thiserror::Error)]
enum MonitorError {
    /// One id twice.
    #[error("Chardev with id '{0}' already exists")]
    ChardevTwice(String),
    /// No such device before it on the line.
    #[error("chardev \"{0}\" not found; it has to stand before the monitor")]
    NoChardev(String),
    /// A device of two monitors.
    #[error("Device '{0}' is in use by another monitor")]
    InUse(String),
}

impl CommonOptions {
    fn add_chardev(&mut self, word: &ParsedOption) -> Result<(), CommandLineError> {
        let chardev = ChardevOptions::parse(word.text()?).map_err(|fault| word.wrong(fault))?;
        if self.plan.chardevs.iter().any(|other| other.id == chardev.id) {
            return Err(word.wrong(ArgumentError::own(MonitorError::ChardevTwice(chardev.id))));
        }
        self.plan.chardevs.push(chardev);
        Ok(())
    }

    fn add_monitor(&mut self, word: &ParsedOption) -> Result<(), CommandLineError> {
        let monitor = MonitorOptions::parse(word.text()?).map_err(|fault| word.wrong(fault))?;
        self.check_monitor(&monitor).map_err(|it| word.wrong(ArgumentError::own(it)))?;
        self.plan.monitors.push(monitor);
        Ok(())
    }

    fn check_monitor(&self, monitor: &MonitorOptions) -> Result<(), MonitorError> {
        let id = &monitor.chardev;
        if self.plan.chardevs.iter().all(|chardev| chardev.id != *id) {
            return Err(MonitorError::NoChardev(id.clone()));
        }
        if self.plan.monitors.iter().any(|other| other.chardev == *id) {
            return Err(MonitorError::InUse(id.clone()));
        }
        Ok(())
    }

    /// Directories add up; `on` and `off` put an end to what was said before.
    fn allow_named_files(&mut self, argument: &OsStr) -> Result<(), ArgumentError> {
        match argument.to_str().and_then(parse_flag) {
            Some(true) => self.plan.named_files = NamedFilesPolicy::Anywhere,
            Some(false) => self.plan.named_files = NamedFilesPolicy::Refused,
            None if argument.is_empty() => {
                return Err(ArgumentError::ExpectsAlone("'on', 'off' or a directory"));
            }
            None => {
                let directory = directory(Path::new(argument))?;
                match &mut self.plan.named_files {
                    NamedFilesPolicy::Below(directories) => directories.push(directory),
                    NamedFilesPolicy::Refused | NamedFilesPolicy::Anywhere => {
                        self.plan.named_files = NamedFilesPolicy::Below(vec![directory]);
                    }
                }
            }
        }
        Ok(())
    }
}

fn directory(path: &Path) -> Result<PathBuf, ArgumentError> {
    real_directory(path).map_err(ArgumentError::own)
}

/// `DIRECTORY` or `DIRECTORY,ro`.
fn allowed(text: &str) -> Result<AllowedDirectory, ArgumentError> {
    let (path, access) = match text.strip_suffix(",ro") {
        Some(path) => (path, Access::ReadOnly),
        None => (text, Access::ReadWrite),
    };
    Ok(AllowedDirectory { path: directory(Path::new(path))?, access })
}

fn print(text: &str) -> Result<AttachLinesFormat, ArgumentError> {
    match text {
        "qemu" => Ok(AttachLinesFormat::Qemu),
        "libvirt" => Ok(AttachLinesFormat::Libvirt),
        _ => Err(ArgumentError::ExpectsAlone("'qemu', 'libvirt' or 'config'")),
    }
}

fn mode(text: &str) -> Result<u32, ArgumentError> {
    socket_mode(text).ok_or(ArgumentError::ExpectsAlone("permission bits in octal, 0 to 0777"))
}
