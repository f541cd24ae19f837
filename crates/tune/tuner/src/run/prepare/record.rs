//! What the results say of the host, the programs and the disk, before the first run.

use std::path::PathBuf;

use anyhow::{Context, Result};
use plan::matrix::Matrix;
use plan::units::Bytes;
use records::domain::Domain;
use records::environment::{self, Environment};
use records::host_load::HostLoad;
use records::results::{Disk, DiskAccess, Header, Host, Programs, StartNotes};
use storage::interrupt::Interrupt;
use storage::machine::file_system;
use storage::storages::Storages;
use storage::target::{Origin, cache_name};

use super::PreparedCommand;
use crate::progress::say;

impl PreparedCommand {
    /// The first line of the results. Looks at the host for a second.
    ///
    /// # Errors
    /// `Interrupted`.
    pub(in crate::run) fn header(
        &self,
        storages: &Storages,
        interrupt: &Interrupt,
    ) -> Result<Header> {
        for warning in self.environment.warnings() {
            say(&format!("Note: {warning}."));
        }
        let load_before = HostLoad::before(&mut || Ok(interrupt.check()?))?;
        if let Some(sentence) = load_before.sentence() {
            say(&format!("Warning: {sentence}."));
        }
        let host = Host {
            machine: self.machine.clone(),
            environment: self.environment.clone(),
            load_before: Some(load_before),
        };
        let disk = self.disk(storages)?;
        let header = Header {
            domain: self.domain.clone(),
            ..Header::new(self.programs.clone(), host, disk, self.settings.clone())
        };
        let given = self.given.as_ref().map(|given| given.guest.clone());
        Ok(header.with_given(given).with_known(self.known()))
    }

    /// What forbids to go on with these results, as far as it is known before anything is filled.
    pub(super) fn differences(&self, old: &Header) -> Vec<String> {
        let mut differences = self.programs.differences(&old.programs);
        let disk = self.disk_there().unwrap_or_else(|| self.disk_to_be(&old.disk));
        differences.extend(disk.differences(&old.disk));
        if let (Some(given), Some(old)) = (&self.given, &old.given) {
            differences.extend(given.guest.differences(old));
        }
        differences.extend(self.environment.differences(&old.environment));
        differences.extend(Domain::difference(self.domain.as_ref(), old.domain.as_ref()));
        differences
    }

    /// Reads the host, once all programs are known.
    pub(super) fn with_environment(mut self) -> Self {
        let path = self.target.as_ref().map_or(&self.directory, |target| &target.path);
        let Programs { qemu, fio, .. } = self.programs.clone();
        let ringloom = Some(env!("CARGO_PKG_VERSION").to_owned());
        self.environment = Environment::read(path, environment::Programs { ringloom, qemu, fio });
        self
    }

    fn known(&self) -> StartNotes {
        let Matrix { skipped, pruned, .. } = &self.matrix;
        StartNotes { notes: self.notes.clone(), left_out: pruned.clone(), skipped: skipped.clone() }
    }

    /// As much of the disk that is made as is known before: below stripes its size is rounded.
    fn disk_to_be(&self, old: &Disk) -> Disk {
        let bytes = if self.storage_plan().is_plain() { self.size.0 } else { old.bytes };
        let path = self.directory.join("scratch");
        Disk { origin: Origin::Scratch, path, bytes, ..old.clone() }
    }

    /// The disk, unless it is one that is made.
    fn disk_there(&self) -> Option<Disk> {
        if let Some(target) = &self.target {
            return Some(Disk {
                origin: Origin::User,
                path: target.path.clone(),
                bytes: target.bytes,
                description: target.description(),
                opened: Some(DiskAccess::new(target.kind, target.cache)),
                looks_like: target.looks_like.map(str::to_owned),
                holes: target.holes,
            });
        }
        let given = self.given.as_ref().filter(|_| !self.has_storage())?;
        let disk = &given.guest.disk;
        Some(Disk {
            origin: Origin::Guest,
            path: PathBuf::from(&disk.path),
            bytes: disk.bytes,
            description: disk.description(),
            opened: None,
            looks_like: None,
            holes: disk.holes,
        })
    }

    fn disk(&self, storages: &Storages) -> Result<Disk> {
        if let Some(disk) = self.disk_there() {
            return Ok(disk);
        }
        let variants = self.variants();
        let disks = storages.disks(variants.first().context("a matrix has a variant")?);
        let disk = disks.first().context("a variant has a disk")?;
        let description = format!(
            "{} on {}, {}",
            Bytes(disk.bytes),
            file_system(&self.directory),
            cache_name(disk.cache)
        );
        let path = disk.files.first().context("a disk has a file")?.clone();
        Ok(Disk {
            origin: Origin::Scratch,
            path,
            bytes: disk.bytes,
            description,
            opened: Some(DiskAccess::new(disk.kind, disk.cache)),
            looks_like: None,
            holes: false,
        })
    }
}
