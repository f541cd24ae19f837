//! What `ringloom ctl backup` is told.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args;

use crate::units::parse_bytes;

/// Which disks are backed up, and where to.
#[derive(Debug, Args)]
pub(crate) struct BackupArgs {
    /// The exports or nodes, all at one instant
    #[arg(value_name = "EXPORT|NODE", required_unless_present = "list", conflicts_with = "list")]
    pub(crate) targets: Vec<String>,
    /// A directory, or nbd://HOST:PORT/EXPORT, nbd+unix:///EXPORT?socket=PATH
    #[arg(long, value_name = "DIR|URI", required_unless_present = "list", conflicts_with = "list")]
    pub(crate) to: Option<String>,
    /// Say what a directory has, and what of it is whole; needs no daemon
    #[arg(long, value_name = "DIR")]
    pub(crate) list: Option<PathBuf>,
    /// Copy the whole disk, not only what was changed since the last one
    #[arg(long)]
    pub(crate) full: bool,
    /// Keep the last N of each disk: older ones are merged or removed afterwards
    #[arg(long, value_name = "N", conflicts_with = "list")]
    pub(crate) keep: Option<NonZeroUsize>,
    /// The most that is copied of each disk in a second, as 100M
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub(crate) speed: Option<u64>,
    /// What the bitmap is called that says what was changed; default: DIR or URI
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Run before the instant (sh -c): has the guest hold still
    #[arg(long, value_name = "CMD")]
    pub(crate) before: Option<String>,
    /// Run after the instant whatever happens, before anything is copied
    #[arg(long, value_name = "CMD")]
    pub(crate) after: Option<String>,
    /// The NBD export holds what the last backup has put there
    #[arg(long)]
    pub(crate) holds_last: bool,
}
