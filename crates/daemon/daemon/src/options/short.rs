//! The short form: `ringloom serve disk.img --socket disk.sock --iothreads 4`.
//!
//! It is written out to the same steps that the long form gives: iothreads `iothread0` and up,
//! one node `disk`, one export named after the file.
//!
//! Limits: [`IOTHREADS_MAX`] iothreads.

use std::path::{Path, PathBuf};

use super::export::{LOGICAL_BLOCK_BYTES, check_num_queues, check_socket_path};
use super::fault::{Fault, LineFault, OptionError};
use super::fields::{parse_flag, parse_number};
use super::files::{self, FileKind};
use super::nearest::nearest;
use super::plan::{
    Activity, AutoReadOnly, Backing, Blockdev, Child, Discard, Driver, ExportOptions, Flushes,
    IothreadObject, Locking, NamedChild, NamedFiles, Object, PollOptions, Qcow2Caches,
    SocketOptions, Step,
};
use super::words::{Name, ShortName, Word};

/// The most iothreads of the short form: four times what QEMU's own advice tops out at. More can
/// be had in the long form.
const IOTHREADS_MAX: u64 = 64;

/// The short form as written.
#[derive(Debug)]
struct Short {
    image: PathBuf,
    socket: PathBuf,
    iothreads: u64,
    read_only: bool,
    num_queues: Option<u16>,
    cache_direct: bool,
    format: Format,
}

/// What `--format` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    /// Nothing.
    NotSaid,
    /// The file's bytes are the disk's.
    Raw,
    /// The disk is in an image.
    Qcow2,
}

/// What `--format` takes.
pub(super) const FORMATS: &[&str] = &["raw", "qcow2"];

/// Reads the short form and writes it out to steps.
pub(super) fn steps(words: &[Word]) -> Result<Vec<Step>, OptionError> {
    let short = Short::read(words)?;
    let image = |fault| OptionError::Image { path: short.image.clone(), fault: Box::new(fault) };
    if short.format == Format::NotSaid {
        files::check_name(&short.image).map_err(image)?;
    }
    let kind = files::file_kind(&short.image).map_err(image)?;
    let kind = kind.ok_or_else(|| image(Fault::NeitherFileNorDevice))?;
    if short.format == Format::NotSaid {
        files::check_head(&short.image).map_err(image)?;
    }
    let steps = short.steps(kind);
    steps.iter().try_for_each(files::check).map_err(image)?;
    Ok(steps)
}

impl Short {
    fn read(words: &[Word]) -> Result<Self, OptionError> {
        let mut short = Self {
            image: image(words)?,
            socket: PathBuf::new(),
            iothreads: 0,
            read_only: false,
            num_queues: None,
            cache_direct: true,
            format: Format::NotSaid,
        };
        for word in words {
            let Name::Short(name) = word.name else {
                continue;
            };
            short.take(name, word).map_err(|fault| OptionError::Argument {
                option: word.option,
                text: word.argument.display().to_string(),
                fault: Box::new(fault),
            })?;
        }
        if short.socket.as_os_str().is_empty() {
            return Err(LineFault::NoSocket { image: short.image }.into());
        }
        Ok(short)
    }

    fn take(&mut self, name: ShortName, word: &Word) -> Result<(), Fault> {
        // Text that is not UTF-8 is no number and no known word, and so is the empty one.
        let text = word.argument.to_str().unwrap_or_default();
        match name {
            ShortName::Image => {}
            ShortName::Socket => self.socket = check_socket_path(PathBuf::from(&word.argument))?,
            ShortName::Iothreads => self.iothreads = iothreads(text)?,
            ShortName::ReadOnly => self.read_only = true,
            ShortName::NumQueues => {
                let expected = Fault::ExpectsAlone { expected: "a number from 1 to 256" };
                self.num_queues = Some(check_num_queues(parse_number(text).ok_or(expected)?)?);
            }
            ShortName::Direct => {
                let expected = Fault::ExpectsAlone { expected: "'on' or 'off'" };
                self.cache_direct = parse_flag(text).ok_or(expected)?;
            }
            ShortName::Format => self.format = format(text)?,
        }
        Ok(())
    }

    /// What the long form would say.
    fn steps(&self, kind: FileKind) -> Vec<Step> {
        let iothreads: Vec<String> =
            (0..self.iothreads).map(|number| format!("iothread{number}")).collect();
        let objects = iothreads
            .iter()
            .cloned()
            .map(|id| IothreadObject { id, polling: PollOptions::default() })
            .map(|object| Step::Object(Object::Iothread(object)));
        let filename = self.image.clone();
        let mut node = Blockdev {
            node_name: Some("disk".to_owned()),
            driver: match kind {
                FileKind::Regular => {
                    Driver::File { filename, aio: None, locking: Locking::Automatic }
                }
                FileKind::BlockDevice => {
                    Driver::HostDevice { filename, aio: None, locking: Locking::Automatic }
                }
            },
            children: Vec::new(),
            read_only: self.read_only,
            auto_read_only: AutoReadOnly::Off,
            discard: Discard::Ignore,
            cache_direct: self.cache_direct,
            flushes: Flushes::Obeyed,
            force_share: false,
            activity: Activity::Active,
        };
        if self.format == Format::Qcow2 {
            node = image_in(node);
        }
        let export = ExportOptions {
            id: export_id(&self.image),
            node_name: "disk".to_owned(),
            socket: SocketOptions { path: self.socket.clone(), mode: None, group: None },
            writable: !self.read_only,
            logical_block_size: LOGICAL_BLOCK_BYTES,
            num_queues: self.num_queues,
            iothreads: iothreads.clone(),
            writethrough: false,
        };
        objects.chain([Step::Blockdev(node), Step::Export(export)]).collect()
    }
}

/// The disk that is in an image in this node.
fn image_in(file: Blockdev) -> Blockdev {
    let below = Blockdev { node_name: None, discard: Discard::Unmap, ..file.clone() };
    let node = Child::Inline(Box::new(below));
    let caches = Qcow2Caches::default();
    let (backing, named_files) = (Backing::OfImage, NamedFiles::Refused);
    Blockdev {
        driver: Driver::Qcow2 { caches, backing, named_files },
        children: vec![NamedChild { name: "file".to_owned(), node }],
        ..file
    }
}

/// The one image.
fn image(words: &[Word]) -> Result<PathBuf, LineFault> {
    let mut images = words
        .iter()
        .filter(|word| word.name == Name::Short(ShortName::Image))
        .map(|word| PathBuf::from(&word.argument));
    match (images.next(), images.next()) {
        (Some(first), Some(second)) => Err(LineFault::SecondImage { first, second }),
        (Some(only), None) => Ok(only),
        (None, _) => {
            let option = words.iter().find(|word| matches!(word.name, Name::Short(_)));
            Err(option
                .map_or(LineFault::Nothing, |word| LineFault::NoImage { option: word.option }))
        }
    }
}

fn iothreads(text: &str) -> Result<u64, Fault> {
    if text == "none" {
        return Ok(0);
    }
    parse_number(text)
        .filter(|number| (1..=IOTHREADS_MAX).contains(number))
        .ok_or(Fault::ExpectsAlone { expected: "a number from 1 to 64, or 'none'" })
}

fn format(text: &str) -> Result<Format, Fault> {
    match text {
        "raw" => return Ok(Format::Raw),
        "qcow2" => return Ok(Format::Qcow2),
        _ => {}
    }
    let (key, value, accepted) = ("format".to_owned(), text.to_owned(), FORMATS.to_vec());
    if formats::names().any(|format| format == text) {
        return Err(Fault::ValueNotYet { key, value, accepted });
    }
    let nearest = nearest(text, FORMATS.iter().copied());
    Err(Fault::UnknownValue { key, value, nearest, accepted })
}

/// An export id that says which file it is: the name without extension, other characters than an
/// identifier's as `-`, with `disk-` before it if it starts with no letter.
fn export_id(image: &Path) -> String {
    let stem = image.file_stem().unwrap_or_default().to_string_lossy();
    let id: String = stem
        .chars()
        .map(|char| match char {
            '-' | '.' | '_' => char,
            char if char.is_ascii_alphanumeric() => char,
            _ => '-',
        })
        .collect();
    if id.starts_with(|first: char| first.is_ascii_alphabetic()) {
        return id;
    }
    format!("disk-{id}")
}
