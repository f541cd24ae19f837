//! An image that is named by its path: the node that it is, if that is said or there is no doubt.
//!
//! Invariants: no format is inferred from a file: what looks like one is refused until it is said what is meant.

use std::fmt::{self, Display};
use std::path::{Path, PathBuf};

use formats::FileExtension;
use graph::{
    BaseOptions, Blockdev, Driver, file_kind, image_format, image_formats, open_fault, waiting_for,
};
use kernel_io::FileKind;
use syntax::{ArgumentError, ConvertHint, nearest};

/// The bytes of a file as they are need no driver above the file.
const RAW: &str = "raw";

/// What `--format` takes.
fn format_names() -> Vec<&'static str> {
    image_formats().map(|format| format.name).collect()
}

/// An image that cannot be served as it was given.
#[derive(Debug, thiserror::Error)]
enum ImageArgumentError {
    /// Neither a regular file nor a block device.
    #[error("not a regular file or a block device")]
    NeitherFileNorDevice,
    /// A file that looks like an image format, without `--format`.
    #[error(
        "looks like {format} ({reason}); say --format raw to serve its bytes as they are, {}",
        FormatHint(format)
    )]
    FormatNotSaid {
        /// What it looks like.
        format: &'static str,
        /// Why.
        reason: String,
    },
}

/// A hint how to serve the disk inside an image of this format.
struct FormatHint<'a>(&'a str);

impl Display for FormatHint<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let format = self.0;
        if format_names().contains(&format) {
            return write!(formatter, "or --format {format} for the disk inside it");
        }
        ConvertHint("or ", format).fmt(formatter)
    }
}

/// The node of the disk in a file or block device; its name is for whoever asks to give. Looks at the file, which may
/// block. `format` is as `--format` has it.
pub fn image_node(
    path: &Path,
    format: Option<&str>,
    base: BaseOptions,
) -> Result<Blockdev, ArgumentError> {
    let format = format.map(self::format).transpose()?;
    let kind = check(path, format)?;
    Ok(node(path.to_owned(), format, kind, base))
}

/// Whether a file can be served in that format, and what kind it is.
pub(crate) fn check(
    path: &Path,
    format: Option<&'static Driver>,
) -> Result<FileKind, ArgumentError> {
    if format.is_none() {
        check_name(path).map_err(ArgumentError::own)?;
    }
    let kind = waiting_for(path, || file_kind(path)).map_err(ArgumentError::own)?;
    let kind = kind.ok_or_else(|| ArgumentError::own(ImageArgumentError::NeitherFileNorDevice))?;
    if format.is_none() {
        check_head(path)?;
    }
    Ok(kind)
}

/// The node of a file that was checked.
pub(crate) fn node(
    path: PathBuf,
    format: Option<&'static Driver>,
    kind: FileKind,
    base: BaseOptions,
) -> Blockdev {
    match format {
        Some(format) if format.name != RAW => Blockdev::of_image(format, path, kind, base),
        Some(_) | None => Blockdev::of_file(path, kind, base),
    }
}

/// Refuses a file whose name says that it is an image format. Nothing is inferred from it: the
/// operator has to say what is meant. The file need not be there.
fn check_name(path: &Path) -> Result<(), ImageArgumentError> {
    match formats::of_name(path) {
        Some(FileExtension { extension, format }) => {
            let reason = format!("its name ends in .{extension}");
            Err(ImageArgumentError::FormatNotSaid { format, reason })
        }
        None => Ok(()),
    }
}

/// Refuses a file whose first bytes say that it is an image format, as [`check_name`] does. Nothing else of it is read.
fn check_head(path: &Path) -> Result<(), ArgumentError> {
    let head = waiting_for(path, || formats::of_head(path));
    match head.map_err(|cause| ArgumentError::own(open_fault(path, cause)))? {
        Some(format) => {
            let reason = "by its first bytes".to_owned();
            Err(ArgumentError::own(ImageArgumentError::FormatNotSaid { format, reason }))
        }
        None => Ok(()),
    }
}

/// The driver that `--format` names.
pub(crate) fn format(text: &str) -> Result<&'static Driver, ArgumentError> {
    if let Some(format) = image_format(text) {
        return Ok(format);
    }
    let (key, value, accepted) = ("format".to_owned(), text.to_owned(), format_names());
    if formats::names().any(|format| format == text) {
        return Err(ArgumentError::ValueNotYet { key, value, accepted });
    }
    let nearest = nearest(text, accepted.iter().copied());
    Err(ArgumentError::UnknownValue { key, value, nearest, accepted })
}
