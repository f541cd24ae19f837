//! The user's own guest (subject `vm:given`): what it is, whether its disk may be measured, the way to it.
//!
//! `run::prepare` reaches it before anything takes time; `measure::given` has fio run there.
//!
//! Invariants: a `Given` has a fio that is new enough and a disk that nobody else uses (`in_use` decides what that means, as
//! for a disk of this host). After a lost connection it is asked everything again and must be the same guest.
//! Limits: whether another program has the device open without holding it (no mount, no layer, no swap) is not seen.
//! Not here: the connection (`ssh`).

mod survey;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use load::fio::{FIO_OLDEST, FioVersion};
use load::probe::CacheMode;
use plan::matrix::Writes;
use plan::settings::GuestEngine;
use plan::units::Bytes;
use records::results::GivenGuest;
use storage::in_use;
use storage::target::DISK_BYTES_MIN;

use self::survey::{Kind, Survey};
use crate::ssh::{Address, Check, Connection};

/// Asks for everything; `device` is set in front of it.
const SURVEY: &str = include_str!("given/survey.sh");
/// Runs fio on the job beside it.
const RUN_FIO: &str = include_str!("given/fio.sh");
/// Its name in our directory in the guest.
pub(crate) const SCRIPT: &str = "fio.sh";
/// What systemd calls QEMU without KVM.
const EMULATED: &str = "qemu";

/// What is wanted of the guest.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    pub(crate) address: Address,
    /// In place of the user's configuration of ssh.
    pub(crate) config: Option<PathBuf>,
    pub(crate) writes: Writes,
    pub(crate) engine: GuestEngine,
}

/// A guest that can be measured.
#[derive(Debug)]
pub(crate) struct Given {
    terms: Terms,
    pub(crate) guest: GivenGuest,
    pub(crate) fio: FioVersion,
    /// What bends the numbers.
    pub(crate) notes: Vec<String>,
    connection: Connection,
}

impl Given {
    /// Logs in and looks.
    ///
    /// # Errors
    /// What keeps the disk from being measured, and what to do; `Interrupted`.
    pub(crate) fn reach(terms: Terms, check: Check<'_>) -> Result<Self> {
        let Terms { address, config, .. } = &terms;
        let mut connection = Connection::open(address, config.as_deref(), check)?;
        let survey = look(&mut connection, check)?;
        let fio = fio(&survey, &terms)?;
        let (guest, notes) = judge(&survey, &terms, fio)?;
        connection.put(SCRIPT, RUN_FIO.as_bytes(), check)?;
        Ok(Self { terms, guest, fio, notes, connection })
    }

    /// The way to the guest, opened again if it was lost.
    ///
    /// # Errors
    /// If it cannot be reached any more or is another one; `Interrupted`.
    pub(crate) fn connection(&mut self, check: Check<'_>) -> Result<&mut Connection> {
        if !self.connection.is_open()? {
            let again = Self::reach(self.terms.clone(), check)?;
            let differences = again.guest.differences(&self.guest);
            ensure!(
                differences.is_empty(),
                "{} is not the guest it was: {}",
                self.terms.address,
                differences.join(", ")
            );
            *self = again;
        }
        Ok(&mut self.connection)
    }

    /// Whether it says that its CPUs are emulated.
    pub(crate) fn is_emulated(&self) -> bool {
        self.guest.hypervisor.as_deref() == Some(EMULATED)
    }

    pub(crate) fn cache(&self) -> CacheMode {
        if self.guest.disk.direct { CacheMode::Direct } else { CacheMode::Buffered }
    }
}

fn look(connection: &mut Connection, check: Check<'_>) -> Result<Survey> {
    let device = connection.address().device().replace('\'', r"'\''");
    let printed = connection.run(&format!("device='{device}'\n{SURVEY}"), check)?;
    Survey::parse(&printed).with_context(|| format!("look at {}", connection.address()))
}

fn fio(survey: &Survey, terms: &Terms) -> Result<FioVersion> {
    let name = &terms.address;
    let Some(path) = survey.value("fio_path") else {
        bail!("fio is not installed in {name}: install the package fio there");
    };
    let said = survey.value("fio").unwrap_or_default();
    let Some(version) = FioVersion::parse(said) else {
        bail!("{path} --version in {name} says '{said}', which is no version of fio");
    };
    ensure!(
        version >= FIO_OLDEST,
        "{path} in {name} is fio {version}, which is too old: {FIO_OLDEST} is the oldest that reports \
         total latencies in bins"
    );
    ensure!(
        terms.engine != GuestEngine::IoUring || !survey.forbids_io_uring(),
        "{name} forbids io_uring (kernel.io_uring_disabled is 2): use --engine libaio"
    );
    Ok(version)
}

/// Whether the disk may be measured; what there is to say of it and of the guest.
fn judge(survey: &Survey, terms: &Terms, fio: FioVersion) -> Result<(GivenGuest, Vec<String>)> {
    let Terms { address, writes, .. } = terms;
    let writes = *writes;
    let place = format!("{} of {address}", address.device());
    let kind = match survey.kind() {
        None => bail!("disk {place}: there is no such device or file"),
        Some("directory") => {
            bail!("disk {place}: is a directory; name a disk file or block device")
        }
        Some("block") => Kind::Block,
        Some("file") => Kind::File,
        Some(_) => bail!("disk {place}: is neither a file nor a block device"),
    };
    let bytes =
        survey.bytes(kind).with_context(|| format!("disk {place}: its size is not known"))?;
    let least = Bytes(DISK_BYTES_MIN);
    ensure!(
        bytes >= DISK_BYTES_MIN,
        "disk {place}: {bytes} bytes are too few to measure, {least} is the least"
    );
    let mut notes = in_use::judge(Path::new(&place), writes, &survey.uses(address.device()))?;
    check_rights(survey, &place, writes)?;
    notes.extend(survey.notes(kind, bytes));
    Ok((survey.guest(address.device(), kind, bytes, fio), notes))
}

fn check_rights(survey: &Survey, place: &str, writes: Writes) -> Result<()> {
    let may = |what: &str| survey.value(what) == Some("yes");
    let rights = "log in as root, or give that user the right";
    ensure!(may("readable"), "disk {place}: that user may not read it: {rights}");
    if writes == Writes::Allowed {
        ensure!(may("writable"), "disk {place}: that user may not write it: {rights}");
        ensure!(survey.value("read_only") != Some("1"), "disk {place}: is read-only");
    }
    Ok(())
}

#[cfg(test)]
mod tests;
