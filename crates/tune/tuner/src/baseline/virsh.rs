//! The domain's XML: from a file, or from libvirt by the program virsh.
//!
//! Invariants: libvirt is only asked, with `dumpxml` and `domstate`; nothing of a domain is touched, whether it runs or not.
//! The program does not outlive the call, nor print more than is looked at.

use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use load::child::{Request, Supervised};
use storage::clock;
use storage::interrupt::Interrupt;
use storage::storages::{Tools, VIRSH};

use records::domain::view::XML_BYTES_MAX;

/// How long virsh may take; a libvirt that answers at all does so within a second.
const LIMIT: Duration = Duration::from_secs(60);
/// Far more than a domain has; what is larger is refused when it is read.
const PRINTED_MAX: u64 = 4 << 20;
const POLL: Duration = Duration::from_millis(10);

/// Whether the option names a file; libvirt allows no `/` in the name of a domain.
pub(super) fn is_file(option: &str) -> bool {
    let ends = Path::new(option).extension().is_some_and(|it| it.eq_ignore_ascii_case("xml"));
    option.contains('/') || ends
}

pub(super) fn of_file(path: &Path) -> Result<String> {
    if !path.metadata()?.is_file() {
        bail!("it is no file");
    }
    read(File::open(path)?)
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
    let program = tools.find(VIRSH)?;
    let (output, messages) = (tempfile::tempfile()?, tempfile::tempfile()?);
    let mut virsh = Command::new(program);
    virsh.args(command).arg(format!("--domain={name}")).env("LC_ALL", "C");
    virsh.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(messages.try_clone()?);
    let mut child = Supervised::start(&mut virsh, Request::Kill, Duration::ZERO)?;
    let begun = clock::now();
    let status = loop {
        if let Some(status) = child.poll()? {
            break status;
        }
        interrupt.check()?;
        let [printed, said] = [&output, &messages].map(|it| it.metadata().map_or(0, |it| it.len()));
        if begun.elapsed() > LIMIT || printed.max(said) > PRINTED_MAX {
            bail!("virsh {} was ended: it took too long or printed too much", command.join(" "));
        }
        clock::pause(POLL);
    };
    if !status.success() {
        let said = read(messages).unwrap_or_default();
        let said = said.lines().map(|it| it.trim_start_matches("error: ").trim());
        let said: Vec<&str> = said.filter(|it| !it.is_empty()).collect();
        bail!("virsh {}: {}", command.join(" "), said.join("; "));
    }
    read(output)
}

/// All of a file that may be a domain; one byte more says that it is too large.
fn read(mut file: File) -> Result<String> {
    file.rewind()?;
    let mut bytes = Vec::new();
    let most = u64::try_from(XML_BYTES_MAX).unwrap_or(u64::MAX).saturating_add(1);
    file.take(most).read_to_end(&mut bytes)?;
    if bytes.len() > XML_BYTES_MAX {
        bail!("it is larger than 512 KiB, which no domain is");
    }
    String::from_utf8(bytes).context("it is no text in UTF-8")
}
