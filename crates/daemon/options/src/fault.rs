//! What can be wrong with a command line as a whole, in the operator's words.
//!
//! A [`CommandLineError`] says which argument, its source what is wrong with it; whoever prints joins the chain.

use std::error::Error;
use std::fmt::{self, Display};
use std::io;
use std::iter;
use std::path::PathBuf;

use syntax::{ArgumentError, Hint, NameList};

use super::config::{ConfigError, FilePosition};

/// A command line that cannot be served: which argument, and what is wrong with it.
#[derive(Debug, thiserror::Error)]
pub enum CommandLineError {
    /// An argument of an option is wrong.
    #[error("{option} {text}")]
    Argument {
        /// The option, as `--blockdev`.
        option: &'static str,
        /// Its argument as written.
        text: String,
        /// What is wrong with it.
        #[source]
        fault: Box<ArgumentError>,
    },
    /// An option in a configuration file is wrong.
    #[error("{place}: {what}")]
    InFile {
        /// Where.
        place: FilePosition,
        /// The option, and its name if it has one.
        what: String,
        /// What is wrong with it.
        #[source]
        fault: Box<ArgumentError>,
    },
    /// A configuration file is wrong.
    #[error(transparent)]
    Config(Box<ConfigError>),
    /// The image of the short form is wrong.
    #[error("serve {}", path.display())]
    Image {
        /// The image as written.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        fault: Box<ArgumentError>,
    },
    /// The line as a whole is wrong.
    #[error(transparent)]
    Line(#[from] CommandLineSyntaxError),
    /// The line as a whole is wrong, with what its configuration files say.
    #[error(transparent)]
    LineWithFiles(CommandLineSyntaxError),
}

impl CommandLineError {
    /// The same of a line that has configuration files.
    pub(super) fn with_files(self) -> Self {
        match self {
            Self::Line(fault) => Self::LineWithFiles(fault),
            Self::Argument { .. }
            | Self::InFile { .. }
            | Self::Config(_)
            | Self::Image { .. }
            | Self::LineWithFiles(_) => self,
        }
    }

    /// Whether a configuration file is wrong in itself, or does not go with the others and the line: no system call has
    /// failed, so that it stays wrong until somebody changes it.
    pub fn is_of_configuration(&self) -> bool {
        let is_there = match self {
            Self::InFile { .. } | Self::Config(_) | Self::LineWithFiles(_) => true,
            Self::Argument { .. } | Self::Image { .. } | Self::Line(_) => false,
        };
        let mut causes = iter::successors(self.source(), |&error| error.source());
        is_there && !causes.any(|error| error.is::<io::Error>() || error.is::<rustix::io::Errno>())
    }
}

impl From<ConfigError> for CommandLineError {
    fn from(error: ConfigError) -> Self {
        Self::Config(Box::new(error))
    }
}

/// What is wrong with the options of a command line before any argument is read: unknown, ambiguous, mixed or missing
/// ones.
#[derive(Debug, thiserror::Error)]
pub enum CommandLineSyntaxError {
    /// No such option.
    #[error("unknown option '{option}'{}", Hint(*nearest))]
    Unknown {
        /// The option as written.
        option: String,
        /// What was probably meant.
        nearest: Option<&'static str>,
    },
    /// An abbreviation of options that cannot be abbreviated.
    #[error(
        "unknown option '{option}'; did you mean {}? (of options that qemu-storage-daemon does not have, \
         write the whole name)",
        QuotedNames(names)
    )]
    NotAbbreviated {
        /// The option as written.
        option: String,
        /// What it could be.
        names: Vec<&'static str>,
    },
    /// An abbreviation of several options.
    #[error("option '{option}' is ambiguous; it could be {}", NameList(names))]
    Ambiguous {
        /// The option as written.
        option: String,
        /// What it could be.
        names: Vec<&'static str>,
    },
    /// An option of qemu-storage-daemon that ringloom does not have yet.
    #[error("option '{0}' is not supported yet")]
    NotYet(&'static str),
    /// An option without its argument.
    #[error("option '{0}' requires an argument")]
    NeedsArgument(&'static str),
    /// An argument where none is taken.
    #[error("option '{0}' takes no argument")]
    TakesNoArgument(&'static str),
    /// An argument that is not UTF-8.
    #[error("{option} {}: not valid UTF-8", text.display())]
    NotUtf8 {
        /// The option.
        option: &'static str,
        /// Its argument.
        text: PathBuf,
    },
    /// An option of the short form in the long form.
    #[error("{short} cannot be combined with {long}: give either an image or the long options")]
    Mixed {
        /// What belongs to the short form.
        short: String,
        /// What belongs to the long form.
        long: String,
    },
    /// Two images in the short form.
    #[error(
        "{}: unexpected argument; the short form serves one image ({}), use --blockdev and \
         --export for several",
        second.display(), first.display()
    )]
    SecondImage {
        /// The first image.
        first: PathBuf,
        /// The one too many.
        second: PathBuf,
    },
    /// An option of the short form without an image.
    #[error("{0} needs an image to serve, as in: ringloom serve disk.img --socket disk.sock")]
    NoImage(&'static str),
    /// The short form without a socket.
    #[error("serve {}: option '--socket' or '--nbd' is missing", .0.display())]
    NoSocket(PathBuf),
    /// Both at once.
    #[error("--read-only and --writable contradict each other")]
    ReadOnlyAndWritable,
    /// Where writing is the rule.
    #[error(
        "--writable is for --nbd; over --socket a disk is writable unless --read-only is given"
    )]
    WritableWithoutNbd,
    /// Two places for one NBD server.
    #[error("--nbd makes the NBD server that --nbd-server makes: give one of them")]
    TwoNbdServers,
    /// An NBD export that nobody could reach.
    #[error(
        "export '{0}' is an NBD export, and there is no NBD server: --nbd-server says where it listens"
    )]
    NoNbdServer(String),
    /// An empty line.
    #[error("nothing to serve: give an image, or --blockdev and --export; see --help")]
    Nothing,
}

/// Names in quotes, for a message.
struct QuotedNames<'a>(&'a [&'static str]);

impl Display for QuotedNames<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "'{}'", self.0.join("', '"))
    }
}
