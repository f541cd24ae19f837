//! `--config FILE`: options of `ringloom serve` in a file of TOML.
//!
//! Where it stands: between the words of the line (`getopt`) and what they mean (`line`). A file becomes the same words that
//! the line has, each with its place in the file, so that all that is checked and said of the one holds for the other.
//!
//! Invariants: a key is the option without its dashes, with the same keys inside; what the line says wins (`merge`); no two
//! files say the same thing.
//! Limits: a file has at most [`CONFIG_BYTES_MAX`] bytes; tables nest as deep as the library lets them (80).
//! Not here: how TOML is read (`document`), which options may stand in a file (`forms`), how a line is written as a file
//! (`printed`).

mod document;
mod forms;
mod key_values;
mod merge;
mod printed;

use std::fmt::{self, Display};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use syntax::{ArgumentError, Hint};

use super::getopt::{OptionKind, ParsedOption};

pub use forms::{OptionDescription, ValueForm, descriptions};
pub(super) use printed::printed;

/// The longest configuration: thousands of disks.
const CONFIG_BYTES_MAX: u64 = 1 << 20;

/// A configuration file that was read, and who else could have written it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigSource {
    /// The file.
    pub path: PathBuf,
    /// Why its content is not only its reader's and the administrator's, if it is not.
    pub writers: Option<String>,
}

/// A place in a configuration file, counted from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilePosition {
    /// The file.
    path: PathBuf,
    line: usize,
    /// In characters.
    column: usize,
}

impl Display for FilePosition {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}:{}", self.path.display(), self.line, self.column)
    }
}

/// What is wrong with a configuration file as a whole, or with a key of its own.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It cannot be read.
    #[error("--config {}: cannot read it", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It is longer than any configuration.
    #[error("--config {}: it has more than {CONFIG_BYTES_MAX} bytes", .0.display())]
    TooLong(PathBuf),
    /// It is no text.
    #[error("{0}: not valid UTF-8")]
    NotUtf8(FilePosition),
    /// It is not TOML.
    #[error("{place}: not valid TOML: {message}")]
    Syntax {
        /// Where.
        place: FilePosition,
        /// What the library says.
        message: String,
    },
    /// A key that is no option.
    #[error("{place}: unknown key '{key}'{}", Hint(*nearest))]
    UnknownKey {
        /// Where.
        place: FilePosition,
        /// The key.
        key: String,
        /// What was probably meant.
        nearest: Option<&'static str>,
    },
    /// An option that a file cannot have.
    #[error("{place}: '{key}' belongs on the command line: {why}")]
    LineOnly {
        /// Where.
        place: FilePosition,
        /// The key.
        key: String,
        /// Why it does.
        why: &'static str,
    },
    /// A value of the wrong type.
    #[error("{place}: '{key}' expects {expected}")]
    WrongType {
        /// Where.
        place: FilePosition,
        /// The key.
        key: String,
        /// What would be right.
        expected: String,
    },
    /// A date, which nothing takes.
    #[error("{0}: no option takes a date")]
    Date(FilePosition),
    /// The same thing in two places, of which none wins.
    #[error("{second}: {what} is said at {first} already; only the command line can change it")]
    Twice {
        /// The option, and its name if it has one.
        what: String,
        /// Where it was said.
        first: FilePosition,
        /// Where it is said again.
        second: FilePosition,
    },
    /// A value that a file cannot have.
    #[error("{option} {text}: TOML has no number above 9223372036854775807")]
    NumberTooLarge {
        /// The option.
        option: &'static str,
        /// Its argument.
        text: String,
    },
}

/// A key of the whole file that stands inside a table.
#[derive(Debug, thiserror::Error)]
#[error("{fault}; keys of the whole file, as '{key}', stand before its first [table]")]
struct MisplacedKey {
    key: String,
    fault: ArgumentError,
}

/// The text of a file, and what places are counted in.
#[derive(Debug)]
struct ConfigText {
    path: PathBuf,
    text: String,
}

impl ConfigText {
    /// Where a byte is.
    fn position(&self, offset: usize) -> FilePosition {
        let before = self.text.get(..offset).unwrap_or(&self.text);
        let start = before.rfind('\n').map_or(0, |end| end + 1);
        FilePosition {
            path: self.path.clone(),
            line: before.matches('\n').count() + 1,
            column: before[start..].chars().count() + 1,
        }
    }
}

/// Where an option stands in a file, with all keys inside it.
#[derive(Debug, Clone)]
pub(super) struct OptionPlace {
    file: Rc<ConfigText>,
    /// The option as a file has it, with its name, for messages.
    what: String,
    /// Where it begins.
    start: usize,
    keys: Rc<Vec<KeyPlace>>,
}

/// Where a key stands, and its value.
#[derive(Debug)]
struct KeyPlace {
    /// The key with all that stand before it, as `addr.path`.
    path: String,
    key: usize,
    value: usize,
}

impl OptionPlace {
    /// Where the option begins.
    pub(super) fn position(&self) -> FilePosition {
        self.file.position(self.start)
    }

    /// Where what is wrong stands: the value of the key that it is about, the key itself if nobody knows it, or else the
    /// option. And how the option is called.
    pub(super) fn of_fault(&self, fault: ArgumentError) -> (FilePosition, String, ArgumentError) {
        let key = fault.key().unwrap_or_default();
        let found = self.keys.iter().find(|known| known.path == key);
        let is_unknown =
            matches!(fault, ArgumentError::UnknownKey { .. } | ArgumentError::KeyNotYet { .. });
        let offset = found.map_or(self.start, |at| if is_unknown { at.key } else { at.value });
        let place = self.file.position(offset);
        let misplaced = is_unknown.then(|| key.to_owned());
        let fault = match misplaced.filter(|key| forms::spec(key).is_some()) {
            Some(key) => ArgumentError::own(MisplacedKey { key, fault }),
            None => fault,
        };
        (place, self.what.clone(), fault)
    }
}

/// The words of a line with those of the files that it names, in an order in which they can be carried out, and which
/// files those are. Without such a file the words stay as they are.
pub(super) fn with_files(
    words: Vec<ParsedOption>,
) -> Result<(Vec<ParsedOption>, Vec<ConfigSource>), ConfigError> {
    let (named, words): (Vec<_>, Vec<_>) =
        words.into_iter().partition(|word| word.name == OptionKind::Config);
    let (mut files, mut sources) = (Vec::new(), Vec::new());
    for word in &named {
        let (text, source) = read(Path::new(&word.argument))?;
        files.extend(document::words(&Rc::new(text))?);
        sources.push(source);
    }
    if sources.is_empty() {
        return Ok((words, sources));
    }
    Ok((merge::merge(files, words)?, sources))
}

fn read(path: &Path) -> Result<(ConfigText, ConfigSource), ConfigError> {
    let failed = |source| ConfigError::Read { path: path.to_owned(), source };
    let file = File::open(path).map_err(failed)?;
    let writers = writers(&file).map_err(failed)?;
    let mut bytes = Vec::new();
    file.take(CONFIG_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > CONFIG_BYTES_MAX {
        return Err(ConfigError::TooLong(path.to_owned()));
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let text = String::from_utf8_lossy(&error.as_bytes()[..valid]).into_owned();
        let text = ConfigText { path: path.to_owned(), text };
        ConfigError::NotUtf8(text.position(valid))
    })?;
    let source = ConfigSource { path: path.to_owned(), writers };
    Ok((ConfigText { path: path.to_owned(), text }, source))
}

/// Who may write a file besides root and whoever runs the daemon. Who may, decides what it opens.
fn writers(file: &File) -> io::Result<Option<String>> {
    let found = file.metadata()?;
    if !found.is_file() {
        return Ok(None);
    }
    let (mode, owner) = (found.mode() & 0o777, found.uid());
    let ours = rustix::process::geteuid().as_raw();
    if mode & 0o022 != 0 {
        return Ok(Some(format!("others than its owner may write it (mode {mode:04o})")));
    }
    Ok((owner != 0 && owner != ours).then(|| format!("it belongs to user {owner}")))
}
