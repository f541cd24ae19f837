//! qcow2 images for the rows: made by qemu-img and qemu-io, on a tmpfs.
//!
//! Limits: sparse images take memory as they are written; rows that write get new ones for every sample.
//! Not here: how a server is told of an image (`server`).

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use tempfile::{Builder, TempPath};

use crate::disks::{DISK_BYTES, TMPFS};

const MAKER: &str = "qemu-img";
const WRITER: &str = "qemu-io";
/// Images of a chain, the one that is served included.
const CHAIN: usize = 4;

/// An image of a row, and how it is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Image {
    /// What rows on it are called.
    pub(crate) name: &'static str,
    pub(crate) content: Content,
    pub(crate) cluster_bytes: u64,
    /// `l2-cache-size` in bytes; `None` leaves it to the server.
    pub(crate) l2_cache: Option<u64>,
}

/// What is in an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Content {
    /// What is in the raw file on tmpfs: every cluster is allocated and was written.
    Full,
    /// The same, as a chain: an overlay has every fourth cluster, the lowest image has all.
    Chain,
    /// So many bytes: every cluster has its place, of which nothing was written.
    Mapped(u64),
    /// So many bytes, of which nothing is allocated.
    Empty(u64),
}

impl Image {
    /// The size of the disk.
    pub(crate) fn bytes(self) -> u64 {
        match self.content {
            Content::Full | Content::Chain => DISK_BYTES,
            Content::Mapped(bytes) | Content::Empty(bytes) => bytes,
        }
    }

    /// Whether it takes memory as it is written.
    pub(crate) fn is_sparse(self) -> bool {
        matches!(self.content, Content::Mapped(_) | Content::Empty(_))
    }

    /// Makes it, as a copy of `full` if it has content. The image that is served comes first, then what
    /// it is backed by.
    pub(crate) fn make(self, full: &Path) -> Result<Vec<TempPath>> {
        let mut paths = vec![empty_file()?];
        let lowest: &Path = &paths[0];
        match self.content {
            Content::Full | Content::Chain => {
                let options = self.options("metadata");
                let convert = ["convert", "-f", "raw", "-O", "qcow2", "-o", &options];
                run(Command::new(MAKER).args(convert).arg(full).arg(lowest))?;
            }
            Content::Mapped(bytes) => create(lowest, &self.options("metadata"), bytes)?,
            Content::Empty(bytes) => create(lowest, &self.options("off"), bytes)?,
        }
        if self.content == Content::Chain {
            for place in 1..CHAIN {
                let overlay = self.overlay(&paths[0], place as u64)?;
                paths.insert(0, overlay);
            }
        }
        Ok(paths)
    }

    fn options(self, preallocation: &str) -> String {
        format!("cluster_size={},preallocation={preallocation}", self.cluster_bytes)
    }

    /// An image above another, with those of every [`CHAIN`] clusters.
    fn overlay(self, below: &Path, place: u64) -> Result<TempPath> {
        let path = empty_file()?;
        let options = format!("cluster_size={}", self.cluster_bytes);
        let create = ["create", "-q", "-f", "qcow2", "-F", "qcow2", "-o", &options, "-b"];
        run(Command::new(MAKER).args(create).arg(below).arg(&path))?;
        let mut command = Command::new(WRITER);
        command.args(["-f", "qcow2"]).arg(&path).stdin(Stdio::piped());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().with_context(|| format!("start {WRITER}"))?;
        let mut script = child.stdin.take().expect("it is a pipe");
        let bytes = self.cluster_bytes;
        for cluster in (place..self.bytes() / bytes).step_by(CHAIN) {
            writeln!(script, "write -q {} {bytes}", cluster * bytes).context("tell qemu-io")?;
        }
        drop(script);
        let status = child.wait().context("wait for qemu-io")?;
        ensure!(status.success(), "{WRITER} ended with {status}");
        Ok(path)
    }
}

fn empty_file() -> Result<TempPath> {
    let made = Builder::new().prefix("ringloom-bench-").suffix(".qcow2").tempfile_in(TMPFS);
    Ok(made.with_context(|| format!("make a file in {TMPFS}"))?.into_temp_path())
}

fn create(path: &Path, options: &str, bytes: u64) -> Result<()> {
    let create = ["create", "-q", "-f", "qcow2", "-o", options];
    run(Command::new(MAKER).args(create).arg(path).arg(bytes.to_string()))
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("start {MAKER}"))?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?} ended with {}: {complaint}", output.status);
    Ok(())
}
