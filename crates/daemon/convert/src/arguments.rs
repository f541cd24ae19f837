//! What `ringloom convert` and `ringloom map` are told.

use std::num::NonZeroU16;

use clap::{ArgAction, Args};
use syntax::parse_size;

/// The arguments of `ringloom convert`.
#[derive(Debug, Clone, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own on the command line")]
pub struct ConvertArgs {
    /// A path, an NBD URI (nbd://HOST:PORT/EXPORT, nbd+unix:///EXPORT?socket=PATH), or a node as `--blockdev` of
    /// `ringloom serve` has it (driver=…,… or JSON)
    pub source: String,

    /// The same; a file that is not there is made
    pub target: String,

    /// What is in the source's file: raw or qcow2; needed if it looks like an image
    #[arg(short = 'f', long, visible_alias = "format", value_name = "FORMAT")]
    pub source_format: Option<String>,

    /// What the target's file is to have: raw or qcow2
    #[arg(short = 'O', long, value_name = "FORMAT", default_value = "raw")]
    pub target_format: String,

    /// Write into a target that is there, over what it has
    #[arg(short = 'n', long)]
    pub into_existing: bool,

    /// With --into-existing: the target has zeroes only, which need not be made again
    #[arg(long, requires = "into_existing")]
    pub target_is_zero: bool,

    /// Compress what is written to a qcow2 target, as far as its clusters shrink by that
    #[arg(short = 'c', long)]
    pub compress: bool,

    /// Compare source and target afterwards, byte by byte
    #[arg(long)]
    pub verify: bool,

    /// The most bytes of the disk in a second, as 100M
    #[arg(long, value_name = "SIZE", value_parser = rate)]
    pub rate: Option<u64>,

    /// How many threads copy; default: as many as CPUs, 4 at most
    #[arg(long, value_name = "N")]
    pub threads: Option<NonZeroU16>,

    /// The shortest run of zeroes that takes no room in the target, a power of two from 512
    #[arg(short = 'S', long, value_name = "SIZE", default_value = "4k", value_parser = zero_unit)]
    pub sparse: usize,

    /// Go past the host's page cache
    #[arg(long)]
    pub direct: bool,

    /// Leave it to the host when the target is durable
    #[arg(long)]
    pub no_flush: bool,

    /// Which files may be opened that only an image names, as for `ringloom serve`: on or off
    #[arg(long, value_name = "on|off", default_value = "off", value_parser = named_files,
          action = ArgAction::Set)]
    pub named_files: bool,

    /// Read a source that somebody else may be writing: what is copied is no state that it ever had
    #[arg(short = 'U', long)]
    pub force_share: bool,

    /// Say nothing but what goes wrong
    #[arg(short, long)]
    pub quiet: bool,

    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

/// The arguments of `ringloom map`.
#[derive(Debug, Clone, Args)]
pub struct MapArgs {
    /// A path, an NBD URI (nbd://HOST:PORT/EXPORT, nbd+unix:///EXPORT?socket=PATH), or a node as `--blockdev` of
    /// `ringloom serve` has it (driver=…,… or JSON)
    pub source: String,

    /// What is in the source's file: raw or qcow2; needed if it looks like an image
    #[arg(short = 'f', long, visible_alias = "format", value_name = "FORMAT")]
    pub source_format: Option<String>,

    /// Which files may be opened that only an image names, as for `ringloom serve`: on or off
    #[arg(long, value_name = "on|off", default_value = "off", value_parser = named_files,
          action = ArgAction::Set)]
    pub named_files: bool,

    /// Read a source that somebody else may be writing: what is copied is no state that it ever had
    #[arg(short = 'U', long)]
    pub force_share: bool,

    /// Print it as `qemu-img map --output=json` does
    #[arg(long)]
    pub json: bool,
}

fn rate(text: &str) -> Result<u64, String> {
    let size = parse_size(text).filter(|size| *size > 0);
    size.ok_or_else(|| "expected a size above 0, as 100M".to_owned())
}

fn zero_unit(text: &str) -> Result<usize, String> {
    let size = parse_size(text).and_then(|size| usize::try_from(size).ok());
    let size = size.filter(|size| size.is_power_of_two() && (512..=262_144).contains(size));
    size.ok_or_else(|| "expected a power of two from 512 to 256k".to_owned())
}

fn named_files(text: &str) -> Result<bool, String> {
    syntax::parse_flag(text).ok_or_else(|| "expected 'on' or 'off'".to_owned())
}
