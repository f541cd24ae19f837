//! Finds the subcommand in an argument list.

use std::error::Error;
use std::ffi::{OsStr, OsString};
use std::fmt::{self, Display};
use std::path::Path;

use options::nearest;

/// The program's own name.
pub const PROGRAM: &str = "ringloom";

/// The name under which the program is a drop-in replacement.
const DROP_IN: &str = "qemu-storage-daemon";

/// How the program was invoked: its name, the subcommand and its arguments.
#[derive(Debug, PartialEq, Eq)]
pub struct Invocation {
    /// The name for messages.
    pub program: &'static str,
    /// What to do.
    pub subcommand: Subcommand,
    /// What belongs to the subcommand.
    pub rest: Vec<OsString>,
}

/// The subcommands of `ringloom`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subcommand {
    /// Serve disks.
    Serve,
    /// Say what a line of `serve` would do.
    Check,
    /// Measure disks.
    TuneCommand,
    /// Render what was measured.
    ReportCommand,
    /// Control a running daemon.
    CtlCommand,
    /// Show what running daemons do.
    TopCommand,
    /// Copy a disk.
    ConvertCommand,
    /// Say what the bytes of a disk are.
    MapCommand,
    /// Run fio for a tuner elsewhere.
    AgentCommand,
    /// Print the help and leave.
    Help,
    /// Print the version and leave.
    Version,
}

/// A command line without a known subcommand.
#[derive(Debug, PartialEq, Eq)]
pub enum InvocationError {
    /// No subcommand.
    Nothing,
    /// No such subcommand.
    Unknown {
        /// The word as written.
        given: String,
        /// What was probably meant.
        meant: Option<&'static str>,
    },
}

impl Error for InvocationError {}

impl Display for InvocationError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => formatter.write_str(
                "say what to do: serve, check, ctl, top, convert, map, tune, report or help",
            ),
            Self::Unknown { given, meant: None } => {
                write!(formatter, "unknown command '{given}'; see {PROGRAM} --help")
            }
            Self::Unknown { given, meant: Some(meant) } => {
                write!(formatter, "unknown command '{given}'; did you mean '{meant}'?")
            }
        }
    }
}

/// Finds the subcommand. `help serve` is `serve --help`.
pub fn read(arguments: impl IntoIterator<Item = OsString>) -> Result<Invocation, InvocationError> {
    let mut arguments = arguments.into_iter();
    let name = arguments.next().unwrap_or_default();
    if Path::new(&name).file_name() == Some(OsStr::new(DROP_IN)) {
        let rest = arguments.collect();
        return Ok(Invocation { program: DROP_IN, subcommand: Subcommand::Serve, rest });
    }
    let first = arguments.next().ok_or(InvocationError::Nothing)?;
    let mut rest: Vec<OsString> = arguments.collect();
    let mut subcommand = find(&first)?;
    if subcommand == Subcommand::Help
        && let Some(topic) = rest.first()
    {
        subcommand = find(topic)?;
        rest = vec!["--help".into()];
    }
    Ok(Invocation { program: PROGRAM, subcommand, rest })
}

fn find(word: &OsStr) -> Result<Subcommand, InvocationError> {
    match word.to_str() {
        Some("serve") => Ok(Subcommand::Serve),
        Some("check") => Ok(Subcommand::Check),
        Some("tune") => Ok(Subcommand::TuneCommand),
        Some("report") => Ok(Subcommand::ReportCommand),
        Some("ctl") => Ok(Subcommand::CtlCommand),
        Some("top") => Ok(Subcommand::TopCommand),
        Some("convert") => Ok(Subcommand::ConvertCommand),
        Some("map") => Ok(Subcommand::MapCommand),
        Some("agent") => Ok(Subcommand::AgentCommand),
        Some("help" | "-h" | "--help") => Ok(Subcommand::Help),
        Some("-V" | "--version") => Ok(Subcommand::Version),
        _ => {
            let given = word.display().to_string();
            let names = [
                "serve",
                "check",
                "ctl",
                "top",
                "convert",
                "map",
                "tune",
                "report",
                "agent",
                "help",
                "--help",
                "--version",
            ];
            Err(InvocationError::Unknown { meant: nearest(&given, names), given })
        }
    }
}

/// The help of the program as a whole, ending in a newline.
pub fn help() -> String {
    format!(
        "\
Usage: {PROGRAM} COMMAND [OPTIONS]
Serves virtual disks over several threads and finds out how many are best.

Commands:
  serve   serve disks to virtual machines over vhost-user-blk, and over NBD
  check   say what a line of serve would open, lock and refuse, without serving
  ctl     control a running daemon: list, resize, snapshot, throttle and more
  top     show live what queues, iothreads and jobs of running daemons do
  convert copy a disk into another one, and compare them
  map     say what the bytes of a disk are: data, zeroes, holes
  tune    measure a disk with different numbers of threads and recommend one
  report  render what tune measured again, or compare two such results
  help    print this help, or that of a command: {PROGRAM} help serve

Options:
  -h, --help     print this help and leave
  -V, --version  print the version and leave

Start here:
  {PROGRAM} tune
  {PROGRAM} serve disk.img --socket disk.sock --iothreads 4
"
    )
}

/// The help of `check`, ending in a newline.
pub fn check_help() -> String {
    format!(
        "\
Usage: {PROGRAM} check [ARGUMENTS OF SERVE]
Says what {PROGRAM} serve would open, lock and refuse with the same arguments, without serving:
images are looked at, locks are tried and given back, no socket is made and nothing is written.
The exit status is 0 if a start would serve this, and 1 if it would fail.

Examples:
  {PROGRAM} check --config /etc/ringloom/vm1.toml
  {PROGRAM} check disk.img --socket disk.sock --iothreads 4

All arguments: {PROGRAM} serve --help
"
    )
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::{DROP_IN, Invocation, InvocationError, PROGRAM, Subcommand, read};

    #[track_caller]
    fn check(line: &[&str], subcommand: Subcommand, rest: &[&str]) {
        let rest = rest.iter().map(OsString::from).collect();
        let program = if line[0].ends_with(DROP_IN) { DROP_IN } else { PROGRAM };
        let called = Invocation { program, subcommand, rest };
        assert_eq!(read(line.iter().map(OsString::from)), Ok(called));
    }

    #[track_caller]
    fn refuse(line: &[&str], expected: &InvocationError) {
        assert_eq!(read(line.iter().map(OsString::from)).as_ref(), Err(expected));
    }

    #[test]
    fn the_first_word_or_the_name_says_what_to_do() {
        check(&["ringloom", "serve", "a", "--socket"], Subcommand::Serve, &["a", "--socket"]);
        check(&["/bin/qemu-storage-daemon", "--help"], Subcommand::Serve, &["--help"]);
        check(&["qemu-storage-daemon", "tune"], Subcommand::Serve, &["tune"]);
        check(&["ringloom", "tune"], Subcommand::TuneCommand, &[]);
        check(&["ringloom", "report", "a", "b"], Subcommand::ReportCommand, &["a", "b"]);
        check(&["ringloom", "ctl", "list"], Subcommand::CtlCommand, &["list"]);
        check(&["ringloom", "top", "--once"], Subcommand::TopCommand, &["--once"]);
        check(&["ringloom", "agent", "hold"], Subcommand::AgentCommand, &["hold"]);
        check(&["x", "--help"], Subcommand::Help, &[]);
        check(&["x", "-h"], Subcommand::Help, &[]);
        check(&["x", "help"], Subcommand::Help, &[]);
        check(&["x", "help", "tune"], Subcommand::TuneCommand, &["--help"]);
        check(&["x", "--version"], Subcommand::Version, &[]);
    }

    #[test]
    fn a_wrong_word_is_answered_with_the_nearest_one() {
        let unknown =
            |given: &str, meant| InvocationError::Unknown { given: given.to_owned(), meant };
        refuse(&["ringloom"], &InvocationError::Nothing);
        refuse(&[], &InvocationError::Nothing);
        refuse(&["ringloom", "sreve"], &unknown("sreve", Some("serve")));
        refuse(&["ringloom", "help", "tun"], &unknown("tun", Some("tune")));
        refuse(&["ringloom", "reprot"], &unknown("reprot", Some("report")));
        refuse(&["ringloom", "--object"], &unknown("--object", None));
    }
}
