//! The short form: `ringloom serve disk.img --socket disk.sock --iothreads 4`.
//!
//! It is written out to the same steps that the long form gives: iothreads `iothread0` and up,
//! one node `disk`, one export named after the file.
//!
//! Limits: [`IOTHREADS_MAX`] iothreads.

use std::path::{Path, PathBuf};

use exports::{
    ExportKind, ExportOptions, LOGICAL_BLOCK_BYTES, MissingBitmaps, NbdExportOptions,
    SocketOptions, VhostUserBlkOptions, check_num_queues, check_socket_path,
};
use graph::{BaseOptions, Driver, ObjectKind, ObjectOptions, PollOptions, PoolOptions};
use kernel_io::FileKind;
use nbd_server::{ListenAddress, NbdServerOptions};
use syntax::{ArgumentError, parse_flag, parse_number};

use super::fault::{CommandLineError, CommandLineSyntaxError};
use super::getopt::{OptionKind, ParsedOption, ShortFormOption};
use super::image;
use super::long::check_files;
use super::plan::PlanStep;
use super::references::AUTO;

/// The most iothreads of the short form: four times what QEMU's own advice tops out at. More can
/// be had in the long form.
const IOTHREADS_MAX: u64 = 64;

/// The options of the short form, as written.
#[derive(Debug)]
struct ShortForm {
    image: PathBuf,
    socket: Option<PathBuf>,
    /// Where `--nbd` says to listen.
    nbd: Option<ListenAddress>,
    iothreads: ShortIothreads,
    read_only: bool,
    /// Whether NBD clients may write.
    nbd_writable: bool,
    num_queues: Option<u16>,
    cache_direct: bool,
    /// What `--format` says.
    format: Option<&'static Driver>,
}

/// Reads the short form and writes it out to steps, and where the NBD server listens, if there is to be one.
pub(super) fn steps(
    words: &[ParsedOption],
) -> Result<(Vec<PlanStep>, Option<NbdServerOptions>), CommandLineError> {
    let short = ShortForm::read(words)?;
    let is_image = |word: &&ParsedOption| word.name == OptionKind::Short(ShortFormOption::Image);
    let in_file = words.iter().find(is_image).filter(|word| word.place.is_some());
    let wrong = |fault| match in_file {
        Some(word) => word.wrong(fault),
        None => CommandLineError::Image { path: short.image.clone(), fault: Box::new(fault) },
    };
    let kind = image::check(&short.image, short.format).map_err(wrong)?;
    let steps = short.steps(kind);
    steps.iter().try_for_each(check_files).map_err(wrong)?;
    Ok((steps, short.nbd.map(NbdServerOptions::at)))
}

impl ShortForm {
    fn read(words: &[ParsedOption]) -> Result<Self, CommandLineError> {
        let mut short = Self {
            image: image_of(words)?,
            socket: None,
            nbd: None,
            iothreads: ShortIothreads::Number(0),
            read_only: false,
            nbd_writable: false,
            num_queues: None,
            cache_direct: true,
            format: None,
        };
        for word in words {
            let OptionKind::Short(name) = word.name else { continue };
            short.take(name, word).map_err(|fault| word.wrong(fault))?;
        }
        if short.socket.is_none() && short.nbd.is_none() {
            return Err(CommandLineSyntaxError::NoSocket(short.image).into());
        }
        if short.nbd_writable && short.read_only {
            return Err(CommandLineSyntaxError::ReadOnlyAndWritable.into());
        }
        if short.nbd_writable && short.nbd.is_none() {
            return Err(CommandLineSyntaxError::WritableWithoutNbd.into());
        }
        Ok(short)
    }

    fn take(&mut self, name: ShortFormOption, word: &ParsedOption) -> Result<(), ArgumentError> {
        // Text that is not UTF-8 is no number and no known word, and so is the empty one.
        let text = word.argument.to_str().unwrap_or_default();
        match name {
            ShortFormOption::Image => {}
            ShortFormOption::Socket => {
                self.socket = Some(check_socket_path(PathBuf::from(&word.argument))?)
            }
            ShortFormOption::Nbd => {
                self.nbd = Some(match ListenAddress::parse_inet(text) {
                    Some(inet) => inet,
                    None => ListenAddress::unix(check_socket_path(PathBuf::from(&word.argument))?),
                });
            }
            ShortFormOption::Writable => self.nbd_writable = true,
            ShortFormOption::Iothreads => self.iothreads = iothreads(text)?,
            ShortFormOption::ReadOnly => self.read_only = true,
            ShortFormOption::NumQueues => {
                let expected = ArgumentError::ExpectsAlone("a number from 1 to 256");
                self.num_queues = Some(check_num_queues(parse_number(text).ok_or(expected)?)?);
            }
            ShortFormOption::Direct => {
                let expected = ArgumentError::ExpectsAlone("'on' or 'off'");
                self.cache_direct = parse_flag(text).ok_or(expected)?;
            }
            ShortFormOption::Format => self.format = Some(image::format(text)?),
        }
        Ok(())
    }

    /// What the long form would say.
    fn steps(&self, kind: FileKind) -> Vec<PlanStep> {
        let (iothreads, objects): (Vec<String>, Vec<ObjectOptions>) = match &self.iothreads {
            ShortIothreads::Number(number) => (0..*number)
                .map(|number| {
                    let id = format!("iothread{number}");
                    let kind = ObjectKind::Iothread(PollOptions::default());
                    (id.clone(), ObjectOptions { id, kind })
                })
                .unzip(),
            ShortIothreads::Auto(pool) => {
                let (id, kind) = (AUTO.to_owned(), ObjectKind::IothreadPool(pool.clone()));
                (vec![id.clone()], vec![ObjectOptions { id, kind }])
            }
        };
        let objects = objects.into_iter().map(PlanStep::Object);
        let is_written = !self.read_only && (self.socket.is_some() || self.nbd_writable);
        let (read_only, cache_direct) = (!is_written, self.cache_direct);
        let base = BaseOptions { read_only, cache_direct, ..BaseOptions::DEFAULT };
        let mut node = image::node(self.image.clone(), self.format, kind, base);
        node.node_name = Some("disk".to_owned());
        let exports = self.exports(&iothreads).into_iter().map(PlanStep::Export);
        objects.chain([PlanStep::Blockdev(node)]).chain(exports).collect()
    }

    /// One export for each way to the disk.
    fn exports(&self, iothreads: &[String]) -> Vec<ExportOptions> {
        let id = export_id(&self.image);
        let export = |id: String, writable, kind| ExportOptions {
            id,
            node_name: "disk".to_owned(),
            writable,
            iothreads: iothreads.to_vec(),
            writethrough: false,
            kind,
        };
        let device = self.socket.as_ref().map(|socket| {
            let own = VhostUserBlkOptions {
                socket: SocketOptions::at(socket.clone()),
                logical_block_size: LOGICAL_BLOCK_BYTES,
                num_queues: self.num_queues,
                pins: Vec::new(),
            };
            export(id.clone(), !self.read_only, ExportKind::VhostUserBlk(own))
        });
        let nbd = self.nbd.as_ref().map(|_| {
            let own = NbdExportOptions {
                name: id.clone(),
                description: None,
                allocation_depth: false,
                bitmaps: Vec::new(),
                missing_bitmaps: MissingBitmaps::Refused,
            };
            let id = if device.is_some() { format!("{id}-nbd") } else { id };
            export(id, self.nbd_writable, ExportKind::Nbd(own))
        });
        device.into_iter().chain(nbd).collect()
    }
}

/// The one image.
fn image_of(words: &[ParsedOption]) -> Result<PathBuf, CommandLineSyntaxError> {
    let mut images = words
        .iter()
        .filter(|word| word.name == OptionKind::Short(ShortFormOption::Image))
        .map(|word| PathBuf::from(&word.argument));
    match (images.next(), images.next()) {
        (Some(first), Some(second)) => Err(CommandLineSyntaxError::SecondImage { first, second }),
        (Some(only), None) => Ok(only),
        (None, _) => {
            let option = words.iter().find(|word| matches!(word.name, OptionKind::Short(_)));
            Err(option.map_or(CommandLineSyntaxError::Nothing, |word| {
                CommandLineSyntaxError::NoImage(word.option)
            }))
        }
    }
}

/// What `--iothreads` says.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ShortIothreads {
    /// So many; 0 is none but the main thread.
    Number(u64),
    /// As many as pay.
    Auto(PoolOptions),
}

fn iothreads(text: &str) -> Result<ShortIothreads, ArgumentError> {
    const EXPECTED: &str = "a number from 1 to 64, 'none', 'auto' or 'auto:MAX'";
    let number = |text| parse_number(text).filter(|number| (1..=IOTHREADS_MAX).contains(number));
    let expected = || ArgumentError::ExpectsAlone(EXPECTED);
    match text.split_once(':') {
        None if text == "none" => Ok(ShortIothreads::Number(0)),
        None if text == AUTO => Ok(ShortIothreads::Auto(PoolOptions::default())),
        Some((AUTO, max)) => {
            let max = number(max).and_then(|max| u16::try_from(max).ok()).ok_or_else(expected)?;
            Ok(ShortIothreads::Auto(PoolOptions { max: Some(max), ..PoolOptions::default() }))
        }
        None | Some(_) => number(text).map(ShortIothreads::Number).ok_or_else(expected),
    }
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
