//! The domain's XML: from a file, or from libvirt by the program virsh.
//!
//! Invariants: libvirt is only asked, with `dumpxml` and `domstate`; nothing of a domain is touched, whether it runs or not.
//! The program does not outlive the call, nor print more than is looked at.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use records::domain::view::XML_BYTES_MAX;
use storage::clock;
use storage::interrupt::Interrupt;
use storage::storages::{Tools, VIRSH};

/// How long virsh may take; a libvirt that answers at all does so within a second.
const LIMIT: Duration = Duration::from_secs(60);

/// Whether the option names a file; libvirt allows no `/` in the name of a domain.
pub(super) fn is_file(option: &str) -> bool {
    let ends = Path::new(option).extension().is_some_and(|it| it.eq_ignore_ascii_case("xml"));
    option.contains('/') || ends
}

pub(super) fn of_file(path: &Path) -> Result<String> {
    if !path.metadata()?.is_file() {
        bail!("it is no file");
    }
    let mut bytes = Vec::new();
    // One byte more says that it is too large.
    let most = u64::try_from(XML_BYTES_MAX).unwrap_or(u64::MAX).saturating_add(1);
    File::open(path)?.take(most).read_to_end(&mut bytes)?;
    text(bytes)
}

/// What virsh prints for this domain.
///
/// # Errors
/// If virsh is missing, takes too long or fails, in its words; `Interrupted`.
pub(super) fn ask(
    command: &[&str],
    name: &str,
    tools: &Tools,
    interrupt: &Interrupt,
) -> Result<String> {
    let named = format!("--domain={name}");
    let arguments: Vec<&OsStr> = command.iter().copied().chain([&*named]).map(OsStr::new).collect();
    let begun = clock::now();
    let ended = tools.end(VIRSH, &arguments, || {
        interrupt.check()?;
        ensure!(begun.elapsed() <= LIMIT, "it took too long");
        Ok(())
    })?;
    if !ended.status.success() {
        let said = ended.messages.lines().map(|it| it.trim_start_matches("error: ").trim());
        let said: Vec<&str> = said.filter(|it| !it.is_empty()).collect();
        bail!("virsh {}: {}", command.join(" "), said.join("; "));
    }
    text(ended.output)
}

/// What may be a domain.
fn text(bytes: Vec<u8>) -> Result<String> {
    if bytes.len() > XML_BYTES_MAX {
        bail!("it is larger than 512 KiB, which no domain is");
    }
    String::from_utf8(bytes).context("it is no text in UTF-8")
}
