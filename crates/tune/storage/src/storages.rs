//! What variants need below the subjects: made before the first run, taken away on every way out.
//!
//! From the bottom: the directory, or a fresh file system in a file there; the files of a disk; stripes
//! and delay (the kernel's, or data for ringloom's nodes); the image. `run` checks a `StoragePlan`,
//! prepares `Storages` and asks them for the disks of each run.
//!
//! Invariants: whatever exists is on an `Undo`, which takes it away in reverse order when the storage
//! goes, after an error or a signal too. Subjects must have closed their disks by then.
//! Not here: what the user's PATH is (`target`) and who uses it (`in_use`).

pub mod container;
mod files;
mod layout;
mod mapper;
mod qcow2;
mod renewal;
pub mod tools;
pub mod undo;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use layout::Room;
use load::probe::cache_mode;
use plan::lists::unique;
use plan::units::Bytes;
use plan::variant::{Content, Delay, FileSystem, Image, Qcow2, Stripe, Variant};
use undo::{Step, Undo};

use crate::interrupt::Interrupt;
use crate::scratch::{Scratch, free_bytes};
use crate::target::{Kind, Target, disk_bytes};

pub use files::DiskFiles;
pub use layout::{StorageKey, StoragePlan};
pub use mapper::Mapper;
pub use qcow2::create_options;
pub use renewal::{Renewal, stays};
pub use tools::{Tools, VIRSH};

/// Less room than this where images grow is taken for a full disk.
const FULL_BYTES: u64 = 1 << 20;

/// Where and how storage is made.
#[derive(Clone, Copy)]
pub struct Workshop<'a> {
    /// Absolute; all files lie in it or in file systems in it.
    pub directory: &'a Path,
    /// Of each disk, a multiple of 1 MiB.
    pub size: Bytes,
    /// What it is filled with comes from this.
    pub seed: u64,
    /// The programs that make storages.
    pub tools: &'a Tools,
    /// What makes stripes and delays.
    pub mapper: &'a Mapper,
    /// What ends it early.
    pub interrupt: &'a Interrupt,
    /// Hears the bytes written so far, of `StoragePlan::fill_bytes`.
    pub report: &'a dyn Fn(u64),
}

impl std::fmt::Debug for Workshop<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { directory, size, seed, mapper, .. } = self;
        let mut fields = f.debug_struct("Workshop");
        fields.field("directory", directory).field("size", size).field("seed", seed);
        fields.field("mapper", mapper).finish_non_exhaustive()
    }
}

/// The disks of all variants.
#[derive(Debug, Default)]
pub struct Storages {
    by_key: BTreeMap<StorageKey, Storage>,
}

/// Disks that are made alike.
#[derive(Debug)]
struct Storage {
    disks: Vec<DiskFiles>,
    /// The beginning of the names of its files.
    base: PathBuf,
    /// Takes everything away when this value goes.
    _undo: Undo,
}

impl Storages {
    /// Makes all that is planned. Call `StoragePlan::check` before.
    ///
    /// # Errors
    /// The step that failed, or `Interrupted`; what had been made is gone then.
    pub fn prepare(plan: &StoragePlan, workshop: &Workshop<'_>) -> Result<Self> {
        let mut by_key = BTreeMap::new();
        let mut filled = 0;
        for (number, (key, disks)) in plan.storages.iter().enumerate() {
            let builder = Builder::new(workshop, *key, number, &mut filled);
            by_key.insert(*key, builder.build(*disks)?);
            workshop.interrupt.check()?;
        }
        Ok(Self { by_key })
    }

    /// The disk of the user under all variants.
    ///
    /// # Errors
    /// If a variant needs storage that only a scratch file can have.
    pub fn of_user(target: &Target, variants: &[Variant]) -> Result<Self> {
        let mut by_key = BTreeMap::new();
        for variant in variants {
            let disk = user_disk(target, variant)?;
            let base = target.path.clone();
            let storage =
                Storage { disks: vec![disk], base, _undo: Undo::new(&Tools::of_system()) };
            by_key.insert(StorageKey::of(variant), storage);
        }
        Ok(Self { by_key })
    }

    /// Whether there are any.
    pub fn are_made(&self) -> bool {
        !self.by_key.is_empty()
    }

    /// The files and devices of all raw disks.
    pub fn paths(&self) -> Vec<PathBuf> {
        let disks = self.by_key.values().flat_map(|storage| &storage.disks);
        unique(disks.filter(|disk| disk.format == Image::Raw).flat_map(|disk| disk.files.clone()))
    }

    /// The disks of a variant: those of the first machine, then those of the second and so on.
    pub fn disks(&self, variant: &Variant) -> Vec<DiskFiles> {
        let disks = self.storage(variant).disks.iter().take(variant.disks_in_all().into());
        disks.cloned().map(|disk| DiskFiles { format: variant.image, ..disk }).collect()
    }

    /// Makes the images of a variant empty again, if it wants them empty. Call it before each run,
    /// when nobody has the disks open.
    ///
    /// # Errors
    /// If an image cannot be made, or `Interrupted`.
    pub fn reset(&self, variant: &Variant, tools: &Tools, interrupt: &Interrupt) -> Result<()> {
        let Image::Qcow2(image @ Qcow2 { content: Content::Empty, .. }) = variant.image else {
            return Ok(());
        };
        let storage = self.storage(variant);
        for disk in storage.disks.iter().take(variant.disks_in_all().into()) {
            let mut undo = Undo::new(tools);
            let temporary = storage.base.with_extension("tmp");
            write_image(&image, disk, None, &temporary, (tools, &mut undo, interrupt))
                .context("make the image empty again")?;
        }
        Ok(())
    }

    /// Whether the disk below a variant is full, which ends runs with I/O errors: a sentence for
    /// that error.
    pub fn shortage(&self, variant: &Variant) -> Option<String> {
        let disk = self.storage(variant).disks.first()?;
        let path = disk.files.first().filter(|_| disk.kind == Kind::File)?;
        let directory = path.parent()?;
        let free = free_bytes(directory).ok().filter(|free| *free < FULL_BYTES)?;
        Some(format!(
            "{} is full ({} left): the images grew until there was no room; use a smaller --size, \
             free space, or run in another directory",
            directory.display(),
            Bytes(free)
        ))
    }

    fn storage(&self, variant: &Variant) -> &Storage {
        let storage = self.by_key.get(&StorageKey::of(variant));
        storage.expect("all variants of the matrix were prepared")
    }
}

/// The user's disk below a variant. Ringloom can make a delay on it, and it may be an image.
fn user_disk(target: &Target, variant: &Variant) -> Result<DiskFiles> {
    let name = target.path.display();
    let scratch_only = |what: String| {
        format!(
            "disk {name}: {what} is made for scratch files only; leave PATH out, or leave it out"
        )
    };
    if variant.fs != FileSystem::Here {
        bail!(scratch_only(format!("--fs {}", variant.fs)));
    }
    if variant.stripe != Stripe::None {
        bail!(scratch_only(format!("--stripe {}", variant.stripe)));
    }
    if variant.disks_in_all() > 1 {
        let all = variant.disks_in_all();
        bail!("disk {name}: is one disk, but --vms times --disks are {all}; leave PATH out");
    }
    let mut disk = DiskFiles { delay: variant.delay.duration(), ..DiskFiles::of_target(target) };
    if let Image::Qcow2(image) = variant.image {
        let as_it_is = Qcow2 { cache: image.cache, ..Qcow2::default() };
        if image != as_it_is {
            bail!(scratch_only(format!("--image {}", variant.image)));
        }
        let bytes = disk_bytes(&target.path).with_context(|| format!("disk {name}"))?;
        disk.bytes = bytes.with_context(|| {
            format!("disk {name}: is no qcow2 image; measure its bytes with --image raw")
        })?;
        disk.format = variant.image;
    }
    Ok(disk)
}

/// Makes one storage.
struct Builder<'a> {
    workshop: &'a Workshop<'a>,
    key: StorageKey,
    /// The beginning of the names of its files in the directory.
    base: PathBuf,
    undo: Undo,
    /// Bytes written so far, also for storages before.
    filled: &'a mut u64,
    /// Scratch files so far: each has other content.
    files: u64,
}

impl<'a> Builder<'a> {
    fn new(
        workshop: &'a Workshop<'a>,
        key: StorageKey,
        number: usize,
        filled: &'a mut u64,
    ) -> Self {
        let base = format!("ringloom-scratch-{}-{number}", std::process::id());
        let base = workshop.directory.join(base);
        Self { workshop, key, base, undo: Undo::new(workshop.tools), filled, files: 0 }
    }

    fn build(mut self, disks: u16) -> Result<Storage> {
        let Workshop { tools, interrupt, .. } = *self.workshop;
        let room = Room::of(&self.key, self.workshop)?;
        let content = room.kept * u64::from(disks);
        let (fs, undo) = (self.key.fs, &mut self.undo);
        let mounted = container::mount_fresh(fs, &self.base, content, tools, undo, interrupt)
            .with_context(|| format!("make the file system {fs}"))?;
        let place = mounted.as_deref().unwrap_or(self.workshop.directory).to_path_buf();
        let name = self.base.file_name().unwrap_or_default().to_owned();
        let place = place.join(name);
        let disks = (0..disks).map(|disk| self.disk(disk, &place, room)).collect::<Result<_>>()?;
        Ok(Storage { disks, base: self.base, _undo: self.undo })
    }

    fn disk(&mut self, number: u16, place: &Path, room: Room) -> Result<DiskFiles> {
        let disk = match self.key.image {
            Image::Raw => {
                let files = self.members(number, place, room.capacity, Filling::Noise)?;
                self.assembled(files, number, room.capacity)?
            }
            Image::Qcow2(image) => {
                let fixed = self.key.stripe != Stripe::None || self.workshop.is_mapped(&self.key);
                let filling = if fixed { Filling::Reserved } else { Filling::NoAnswer };
                let files = self.members(number, place, room.capacity, filling)?;
                let disk = self.assembled(files, number, room.capacity)?;
                self.image(&image, &disk, number)?;
                DiskFiles { bytes: self.workshop.size.0, ..disk }
            }
        };
        let probe = &disk.files[0];
        let cache = cache_mode(probe).with_context(|| format!("read {}", probe.display()))?;
        Ok(DiskFiles { cache, ..disk })
    }

    /// The files of a disk that hold so many bytes together.
    fn members(
        &mut self,
        disk: u16,
        place: &Path,
        bytes: u64,
        filling: Filling,
    ) -> Result<Vec<PathBuf>> {
        let (count, member) = self.key.members(bytes);
        let mut files = Vec::new();
        for number in 0..count {
            let name = match count {
                1 => format!("{}-{disk}.img", place.display()),
                _ => format!("{}-{disk}-{number}.img", place.display()),
            };
            let path = PathBuf::from(name);
            match filling {
                Filling::Noise => self.noise(path.clone(), Bytes(member))?,
                Filling::Reserved => container::reserved_file(&path, member, &mut self.undo)?,
                Filling::NoAnswer => container::reserved_file(&path, 0, &mut self.undo)?,
            }
            files.push(path);
        }
        Ok(files)
    }

    fn noise(&mut self, path: PathBuf, size: Bytes) -> Result<()> {
        let Workshop { seed, interrupt, report, .. } = *self.workshop;
        let before = *self.filled;
        let seed = seed.wrapping_add(self.files);
        let heard = |bytes| report(before + bytes);
        let scratch = Scratch::create(path, size, seed, interrupt, &heard)?;
        self.undo.push(Step::Scratch(scratch));
        *self.filled += size.0;
        self.files += 1;
        Ok(())
    }

    /// Stripes and delay over the files, as far as the kernel makes them.
    fn assembled(&mut self, files: Vec<PathBuf>, disk: u16, bytes: u64) -> Result<DiskFiles> {
        let StorageKey { stripe, delay, .. } = self.key;
        let (count, member) = self.key.members(bytes);
        let plain = DiskFiles {
            format: Image::Raw,
            kind: Kind::File,
            files,
            chunk: None,
            delay: Duration::ZERO,
            bytes: u64::from(count) * member,
            cache: load::probe::CacheMode::Buffered,
        };
        if self.workshop.is_mapped(&self.key) {
            let device = self.mapped(&plain.files, disk, member, (stripe, delay))?;
            return Ok(DiskFiles { kind: Kind::BlockDevice, files: vec![device], ..plain });
        }
        let chunk = match stripe {
            Stripe::None => None,
            Stripe::Of(stripe) => Some(stripe.chunk().0),
        };
        Ok(DiskFiles { chunk, delay: delay.duration(), ..plain })
    }

    fn mapped(
        &mut self,
        files: &[PathBuf],
        disk: u16,
        member_bytes: u64,
        layers: (Stripe, Delay),
    ) -> Result<PathBuf> {
        let Workshop { tools, interrupt, .. } = *self.workshop;
        let mut devices = Vec::new();
        for file in files {
            devices.push(container::attach(file, tools, &mut self.undo, interrupt)?);
        }
        let name = self.base.file_name().unwrap_or_default().to_string_lossy();
        let name = format!("{name}-{disk}");
        let parts = mapper::Parts { name: &name, devices, member_bytes };
        mapper::assemble(&parts, layers, tools, &mut self.undo, interrupt)
            .context("make stripes and delay with the kernel's device-mapper")
    }

    /// The image of a disk, filled with noise unless it shall be empty.
    fn image(&mut self, image: &Qcow2, disk: &DiskFiles, number: u16) -> Result<()> {
        let Workshop { size, tools, interrupt, .. } = *self.workshop;
        let temporary = PathBuf::from(format!("{}-{number}.tmp", self.base.display()));
        let source = match image.content {
            Content::Empty => None,
            Content::Full => {
                let path = temporary.with_extension("raw");
                self.noise(path.clone(), size)?;
                Some(path)
            }
        };
        let disk = DiskFiles { bytes: size.0, ..disk.clone() };
        let making = (tools, &mut self.undo, interrupt);
        write_image(image, &disk, source.as_deref(), &temporary, making)
            .map_err(|error| explain_full(error, &disk))
            .context("make the qcow2 image")?;
        if source.is_some() {
            self.undo.pop()?;
            *self.filled += size.0;
            (self.workshop.report)(*self.filled);
        }
        Ok(())
    }
}

/// The words of all programs for a full disk, which tell nothing else.
const NO_SPACE: &str = "No space left on device";

/// Adds to the words of a program for a full disk how much room there is.
fn explain_full(error: anyhow::Error, disk: &DiskFiles) -> anyhow::Error {
    let directory = disk.files.first().and_then(|path| path.parent());
    let free = directory.and_then(|directory| free_bytes(directory).ok());
    match (directory, free) {
        (Some(directory), Some(free)) if format!("{error:#}").contains(NO_SPACE) => {
            let (name, free) = (directory.display(), free >> 10);
            error.context(format!(
                "{name} was full ({free}k are free now): use a smaller --size, free space, or run in \
                 another directory"
            ))
        }
        _ => error,
    }
}

/// What is in a file before it is used.
#[derive(Clone, Copy, Debug)]
enum Filling {
    /// Data that does not compress.
    Noise,
    /// Space without data.
    Reserved,
    /// Nothing; it grows.
    NoAnswer,
}

/// Writes an image where the disk's files are; by way of `temporary` if they are stripes, which
/// qemu-img does not know.
fn write_image(
    image: &Qcow2,
    disk: &DiskFiles,
    source: Option<&Path>,
    temporary: &Path,
    making: (&Tools, &mut Undo, &Interrupt),
) -> Result<()> {
    let (tools, undo, interrupt) = making;
    let write = |path: &Path| -> Result<()> {
        qcow2::create(image, path, disk.bytes, tools, interrupt)?;
        match source {
            None => Ok(()),
            Some(source) => qcow2::fill(source, path, tools, interrupt),
        }
    };
    let Some(chunk) = disk.chunk else {
        return write(&disk.files[0]);
    };
    container::reserved_file(temporary, 0, undo)?;
    write(temporary)?;
    qcow2::spread(temporary, &disk.files, chunk, interrupt)?;
    undo.pop()
}

#[cfg(test)]
pub(crate) mod tests;
