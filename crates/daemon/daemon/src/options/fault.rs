//! What can be wrong with a command line, in the operator's words.
//!
//! Each message names the thing and the value. An [`OptionError`] says which argument, its source
//! what is wrong with it; whoever prints joins the chain.

use std::fmt::{self, Display};
use std::io;
use std::path::PathBuf;

use layers::{Chunk, HistogramError, LimitsError, TooLong};
use thiserror::Error;

use crate::permissions::Conflict;

/// A command line that cannot be served.
#[derive(Debug, Error)]
pub enum OptionError {
    /// An argument of an option is wrong.
    #[error("{option} {text}")]
    Argument {
        /// The option, as `--blockdev`.
        option: &'static str,
        /// Its argument as written.
        text: String,
        /// What is wrong with it.
        #[source]
        fault: Box<Fault>,
    },
    /// The image of the short form is wrong.
    #[error("serve {}", path.display())]
    Image {
        /// The image as written.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        fault: Box<Fault>,
    },
    /// The line as a whole is wrong.
    #[error(transparent)]
    Line(#[from] LineFault),
}

/// What is wrong with a line as a whole.
#[derive(Debug, Error)]
pub enum LineFault {
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
        Quoted(names)
    )]
    NotAbbreviated {
        /// The option as written.
        option: String,
        /// What it could be.
        names: Vec<&'static str>,
    },
    /// An abbreviation of several options.
    #[error("option '{option}' is ambiguous; it could be {}", Names(names))]
    Ambiguous {
        /// The option as written.
        option: String,
        /// What it could be.
        names: Vec<&'static str>,
    },
    /// An option of qemu-storage-daemon that ringloom does not have yet.
    #[error("option '{option}' is not supported yet")]
    NotYet {
        /// The option.
        option: &'static str,
    },
    /// An option without its argument.
    #[error("option '{option}' requires an argument")]
    NeedsArgument {
        /// The option.
        option: &'static str,
    },
    /// An argument where none is taken.
    #[error("option '{option}' takes no argument")]
    TakesNoArgument {
        /// The option.
        option: &'static str,
    },
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
        long: &'static str,
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
    #[error("{option} needs an image to serve, as in: ringloom serve disk.img --socket disk.sock")]
    NoImage {
        /// The option.
        option: &'static str,
    },
    /// The short form without a socket.
    #[error("serve {}: option '--socket' is missing", image.display())]
    NoSocket {
        /// The image.
        image: PathBuf,
    },
    /// An empty line.
    #[error("nothing to serve: give an image, or --blockdev and --export; see --help")]
    Nothing,
}

/// What is wrong with one argument.
#[derive(Debug, Error)]
pub enum Fault {
    /// Linux AIO blocks on what goes through the page cache. QEMU's sentence.
    #[error("aio=native was specified, but it requires cache.direct=on, which was not specified.")]
    NativeBuffered,
    /// Who writes cannot let others write. QEMU's sentence.
    #[error("force-share=on can only be used with read-only images")]
    ForceShareWritable,
    /// All sizes of an image's caches at once. QEMU's sentence.
    #[error("cache-size, l2-cache-size and refcount-cache-size may not be set at the same time")]
    CacheThrice,
    /// One of an image's caches larger than both. QEMU's sentence.
    #[error("{key} may not exceed cache-size")]
    CacheAboveBoth {
        /// The key.
        key: &'static str,
    },
    /// An image that takes changes in a file that takes none.
    #[error(
        "node '{child}' is read-only, and image '{node}' in it is not; say read-only=on for both"
    )]
    ReadOnlyFile {
        /// The image.
        node: String,
        /// The file.
        child: String,
    },
    /// An inactive node below an active one. QEMU's sentence.
    #[error("Inactive '{child}' can't be a {role} child of active '{node}'")]
    InactiveChild {
        /// The active one.
        node: String,
        /// The inactive one.
        child: String,
        /// The key that it stands under.
        role: String,
    },
    /// Limits of a throttle group that do not go together.
    #[error(transparent)]
    Limits(#[from] LimitsError),
    /// One limit with two values.
    #[error("{key}={limit} and {property}={other} are the same limit")]
    SaidTwice {
        /// The key in `limits`.
        key: String,
        /// Its value.
        limit: u64,
        /// The property.
        property: String,
        /// Its value.
        other: u64,
    },
    /// Not JSON.
    #[error("not valid JSON")]
    Json(#[source] serde_json::Error),
    /// A key that no option can have.
    #[error("invalid parameter '{key}'")]
    InvalidKey {
        /// The key.
        key: String,
    },
    /// A key without a value.
    #[error("expected '=' after parameter '{key}'")]
    NoEquals {
        /// The key.
        key: String,
    },
    /// Both a value and something nested, or names and numbers mixed.
    #[error("parameters '{prefix}.*' used inconsistently")]
    Inconsistent {
        /// What they have in common.
        prefix: String,
    },
    /// Nested without end.
    #[error("parameter '{key}' is nested deeper than {levels_max} levels")]
    TooDeep {
        /// The key.
        key: String,
        /// The bound.
        levels_max: usize,
    },
    /// A key that must be there.
    #[error("parameter '{key}' is missing")]
    Missing {
        /// The key.
        key: String,
    },
    /// A key that nobody knows.
    #[error("unknown option '{key}' of {of}{}", HintOr(nearest.as_deref(), supported))]
    UnknownKey {
        /// The key.
        key: String,
        /// What it was given to.
        of: &'static str,
        /// What was probably meant.
        nearest: Option<String>,
        /// What there is.
        supported: Vec<&'static str>,
    },
    /// A key of qemu-storage-daemon that ringloom does not have yet.
    #[error("option '{key}' of {of} is not supported yet")]
    KeyNotYet {
        /// The key.
        key: String,
        /// What it was given to.
        of: &'static str,
    },
    /// A value of the wrong kind.
    #[error("parameter '{key}' expects {expected}")]
    Expects {
        /// The key.
        key: String,
        /// What would be right.
        expected: &'static str,
    },
    /// A value where there are keys.
    #[error(
        "parameter '{key}' has no value but keys of its own: {key}.KEY=VALUE{}",
        QemuCache(key)
    )]
    ExpectsKeys {
        /// The key.
        key: String,
    },
    /// A top-level option's value of the wrong kind.
    #[error("expects {expected}")]
    ExpectsAlone {
        /// What would be right.
        expected: &'static str,
    },
    /// A value that nobody knows.
    #[error("parameter '{key}' does not accept value '{value}'{}", HintOr(*nearest, accepted))]
    UnknownValue {
        /// The key.
        key: String,
        /// The value.
        value: String,
        /// What was probably meant.
        nearest: Option<&'static str>,
        /// What there is.
        accepted: Vec<&'static str>,
    },
    /// A value of qemu-storage-daemon that ringloom does not have yet.
    #[error(
        "{key} '{value}' is not supported yet (supported: {}){}",
        Names(accepted),
        Convert("; ", value)
    )]
    ValueNotYet {
        /// The key.
        key: String,
        /// The value.
        value: String,
        /// What there is.
        accepted: Vec<&'static str>,
    },
    /// An object's id that is no identifier.
    #[error(
        "parameter '{key}' expects an identifier, not '{value}': letters, digits, '-', '.', '_', \
         starting with a letter"
    )]
    NotAnIdentifier {
        /// The key.
        key: &'static str,
        /// The value.
        value: String,
    },
    /// A node-name longer than QEMU's.
    #[error("node-name '{name}' has {} bytes; the limit is {bytes_max}", name.len())]
    NodeNameTooLong {
        /// The node-name.
        name: String,
        /// The bound.
        bytes_max: usize,
    },
    /// A top-level node without a name.
    #[error("'node-name' must be specified for the root node")]
    NoNodeName,
    /// A name given twice.
    #[error("{what} '{name}' exists already")]
    Duplicate {
        /// What kind of thing it names.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// A name of something that does not exist, or not yet.
    #[error("{what} '{name}' is not defined before its use{}", Hint(nearest.as_deref()))]
    NotFound {
        /// What kind of thing it names.
        what: &'static str,
        /// The name.
        name: String,
        /// What was probably meant.
        nearest: Option<String>,
    },
    /// A name of something that comes too late.
    #[error("{what} '{name}' is defined only after its use; options are carried out in order")]
    Later {
        /// What kind of thing it names.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// Nodes that would stand on each other in a circle.
    #[error("node '{}' would stand on itself: {}", way[0], way.join(" -> "))]
    Cycle {
        /// The way down from the node to itself; never empty.
        way: Vec<String>,
    },
    /// A node that is used in a way which somebody else who uses it does not allow.
    #[error(transparent)]
    Conflict(#[from] Box<Conflict>),
    /// One iothread twice in an export.
    #[error("iothread '{id}' is listed twice")]
    IothreadTwice {
        /// The iothread.
        id: String,
    },
    /// A list that must have an element.
    #[error("parameter '{key}' is an empty list; leave it out to serve without iothread")]
    EmptyList {
        /// The key.
        key: String,
    },
    /// Too few or too many nodes below one.
    #[error("parameter '{key}' takes {least} to {most} nodes, not {given}")]
    ChildCount {
        /// The key of the list.
        key: String,
        /// How many there are.
        given: usize,
        /// The fewest.
        least: usize,
        /// The most.
        most: usize,
    },
    /// One node in two places below another one.
    #[error("parameter '{key}' names node '{name}' twice")]
    ChildTwice {
        /// The key of the list.
        key: String,
        /// The node.
        name: String,
    },
    /// A chunk that no stripe can have.
    #[error(
        "parameter '{key}' must be a multiple of {} between {} and {}, not {bytes}",
        Chunk::BYTES_MIN,
        Chunk::BYTES_MIN,
        Chunk::BYTES_MAX
    )]
    Chunk {
        /// The key.
        key: String,
        /// Its value.
        bytes: u64,
    },
    /// A writable export of something that is not.
    #[error("cannot export read-only node '{node_name}' as writable")]
    ReadOnlyNode {
        /// The node.
        node_name: String,
    },
    /// A block size that no guest can have.
    #[error("parameter logical-block-size must be a power of 2 between 512 and 2097152, not {0}")]
    LogicalBlockSize(u64),
    /// Too few or too many queues.
    #[error("parameter num-queues must be between 1 and 256, not {0}")]
    NumQueues(u64),
    /// A socket path that the kernel cannot take.
    #[error("socket path '{}' has {bytes} bytes; the limit is 107", path.display())]
    SocketPathTooLong {
        /// The path.
        path: PathBuf,
        /// Its length.
        bytes: usize,
    },
    /// No path at all.
    #[error("the {what} is empty")]
    EmptyPath {
        /// Whose path.
        what: &'static str,
    },
    /// A file that cannot be opened.
    #[error("could not open '{}'", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        cause: io::Error,
    },
    /// A file that can be opened, but not to write.
    #[error(
        "could not open '{}' for writing; say --read-only, or read-only=on of its node, to serve it for reading",
        path.display()
    )]
    OpenForWriting {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        cause: io::Error,
    },
    /// A file of another kind than the driver serves.
    #[error("'{driver}' driver requires '{}' to be {expected}", path.display())]
    FileKind {
        /// The driver.
        driver: &'static str,
        /// The file.
        path: PathBuf,
        /// What it should be.
        expected: &'static str,
    },
    /// A delay out of range.
    #[error("parameter '{key}'")]
    Latency {
        /// The key.
        key: String,
        /// What is wrong with it.
        #[source]
        source: TooLong,
    },
    /// A delay for what has no delay of its own, where everything has.
    #[error("parameter 'latency-ns' has no effect: read, write and flush have their own delays")]
    LatencyOfNothing,
    /// Bounds in the wrong order, with what they are.
    #[error("parameter '{}' ({}) is above '{}' ({})", least.0, least.1, most.0, most.1)]
    Bounds {
        /// What should be below.
        least: (String, u64),
        /// What should be above.
        most: (String, u64),
    },
    /// A file that is no histogram.
    #[error("histogram '{}'", path.display())]
    Histogram {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: HistogramError,
    },
    /// Neither a regular file nor a block device.
    #[error("not a regular file or a block device")]
    NeitherFileNorDevice,
    /// A file that looks like an image format, without `--format`.
    #[error(
        "looks like {format} ({reason}); say --format raw to serve its bytes as they are, {}",
        Inside(format)
    )]
    FormatNotSaid {
        /// What it looks like.
        format: &'static str,
        /// Why.
        reason: String,
    },
}

/// How to serve the disk that is inside an image of this format.
struct Inside<'a>(&'a str);

impl Display for Inside<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let format = self.0;
        if super::short::FORMATS.contains(&format) {
            return write!(formatter, "or --format {format} for the disk inside it");
        }
        Convert("or ", format).fmt(formatter)
    }
}

/// After a lead, what to do with an image of a format that is not supported; nothing, if it is no image format.
struct Convert<'a>(&'a str, &'a str);

impl Display for Convert<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(lead, format) = self;
        if formats::names().any(|known| known == *format) {
            write!(formatter, "{lead}convert it: qemu-img convert -f {format} -O qcow2 OLD NEW")?;
        }
        Ok(())
    }
}

/// Where QEMU's modes of a cache are, which have other names in its own options.
struct QemuCache<'a>(&'a str);

impl Display for QemuCache<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 != "cache" && !self.0.ends_with(".cache") {
            return Ok(());
        }
        formatter.write_str(
            " (cache=none is cache.direct=on, cache=unsafe is cache.no-flush=on, cache=writethrough is \
             writethrough=on of the export)",
        )
    }
}

/// `; did you mean 'x'?`, or nothing.
struct Hint<'a>(Option<&'a str>);

impl Display for Hint<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(name) => write!(formatter, "; did you mean '{name}'?"),
            None => Ok(()),
        }
    }
}

/// The nearest name, or all names.
struct HintOr<'a>(Option<&'a str>, &'a [&'static str]);

impl Display for HintOr<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(_) => Hint(self.0).fmt(formatter),
            None => write!(formatter, " (supported: {})", Names(self.1)),
        }
    }
}

/// The same in quotes.
struct Quoted<'a>(&'a [&'static str]);

impl Display for Quoted<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "'{}'", self.0.join("', '"))
    }
}

/// Names with commas between them.
struct Names<'a>(&'a [&'static str]);

impl Display for Names<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0.join(", "))
    }
}
