//! From the first word of the command line to the last file removed: signals, the background, sockets, and what a
//! daemon keeps after its clients have come and gone.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testkit::client::{Client, Shape};

mod background;
mod clients;
mod descriptors;
mod edges;
mod frozen;
mod images;
mod logs;
mod managed;
mod meanings;
mod signals;
mod sockets;
mod visits;

/// How long a command line that must be refused may take.
const REFUSAL_LIMIT: Duration = Duration::from_secs(20);

/// A whole session: a write, a flush, the same bytes back.
fn use_disk(socket: &Path, stamp: u8) -> Result<()> {
    let mut client = Client::connect(socket, Shape::small())?;
    let bytes = [stamp; 4096];
    client.write(8192, &bytes, 0)?;
    client.flush()?;
    let found = client.read(8192, bytes.len(), 65_536)?;
    ensure!(found == bytes, "other bytes came back");
    Ok(())
}

/// Neither of these may be there.
fn ensure_gone(paths: &[&Path]) -> Result<()> {
    for path in paths {
        let left = path.symlink_metadata().is_ok();
        ensure!(!left, "{} is left behind", path.display());
    }
    Ok(())
}

/// The number in a pidfile.
fn pid_in(pidfile: &Path) -> Result<u32> {
    let text =
        std::fs::read_to_string(pidfile).with_context(|| format!("read {}", pidfile.display()))?;
    text.trim().parse().with_context(|| format!("the pidfile holds {text:?}"))
}
