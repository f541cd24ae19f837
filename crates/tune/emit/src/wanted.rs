//! What the files shall say: a number of iothreads for one disk of one guest, and where that number comes from.

use std::path::{Path, PathBuf};
use std::time::Duration;

use load::probe::CacheMode;
use plan::contender::{Iothreads, Subject};
use plan::units::counted;
use plan::variant::{Aio, Content, Device, FileSystem, Image, Variant};
use records::calendar::Date;
use records::pinning::CpuList;
use records::results::{Disk, DiskAccess, Header};
use storage::storages::{DiskFiles, create_options};
use storage::target::{Kind, Origin, cache_name};

use super::is_told;
use super::version::QemuVersion;

/// Where ringloom listens unless the user changes it.
const SOCKET: &str = "/run/ringloom-disk.sock";
/// Stands for a disk that was made for the measurement and is gone.
const SOME_DISK: &str = "/path/to/disk";

/// Who serves the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// QEMU, with iothreads of its own.
    QemuIothreads,
    /// `ringloom serve`, over vhost-user-blk.
    Ringloom,
}

/// Where a number comes from, for the first lines of the files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Provenance {
    /// The version of ringloom.
    pub version: String,
    /// `2026-11-22`.
    pub date: String,
    /// `vm:qemu`.
    pub subject: String,
    /// The path of the disk that was measured.
    pub disk: String,
}

/// Everything that the files depend on.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// How many; `none` gives no iothread.
    pub iothreads: Iothreads,
    /// Who serves the disk.
    pub by: Backend,
    /// The disk's file or device.
    pub disk: PathBuf,
    /// Which of both.
    pub kind: Kind,
    /// What is in it.
    pub image: Image,
    /// Past the page cache or through it.
    pub cache: CacheMode,
    /// What the guest sees; ringloom's is always virtio-blk.
    pub device: Device,
    /// The engine to name; `auto` names none.
    pub aio: Aio,
    /// Of the disk.
    pub queues: u16,
    /// Of the guest.
    pub vcpus: u16,
    /// Of the guest, in MiB.
    pub memory_mib: u32,
    /// The host's CPUs that the iothreads are bound to, one each in turn.
    pub pin_iothreads: Option<CpuList>,
    /// The same for the guest's CPUs.
    pub pin_vcpus: Option<CpuList>,
    /// The host's NUMA node of the guest's memory.
    pub numa_node: Option<u32>,
    /// The QEMU that was measured, if it is known: the files are for it and those after it.
    pub qemu: Option<QemuVersion>,
    /// Where ringloom listens.
    pub socket: PathBuf,
    /// Whether CPUs, memory and pins of the guest are those of one that was measured.
    pub guest_measured: bool,
    /// Where the number comes from.
    pub measured: Provenance,
    /// What was measured and is in no file, one sentence each.
    pub notes: Vec<String>,
}

impl Wanted {
    /// A raw virtio-blk disk in a file, with O_DIRECT and four queues for four CPUs; the fields are there to be changed.
    pub fn new(by: Backend, iothreads: Iothreads, disk: PathBuf) -> Self {
        let measured = Provenance {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            date: Date::of(0).to_string(),
            subject: match by {
                Backend::QemuIothreads => Subject::VmQemu,
                Backend::Ringloom => Subject::VmRingloom,
            }
            .to_string(),
            disk: disk.display().to_string(),
        };
        Self {
            iothreads,
            by,
            disk,
            kind: Kind::File,
            image: Image::Raw,
            cache: CacheMode::Direct,
            device: Device::VirtioBlk,
            aio: Aio::Auto,
            queues: 4,
            vcpus: 4,
            memory_mib: 4096,
            pin_iothreads: None,
            pin_vcpus: None,
            numa_node: None,
            qemu: None,
            socket: PathBuf::from(SOCKET),
            guest_measured: true,
            measured,
            notes: Vec::new(),
        }
    }

    /// What was measured; `None` for subjects whose iothreads nobody sets, and where the results do not tell it.
    pub fn of(
        header: &Header,
        subject: Subject,
        variant: &Variant,
        iothreads: Iothreads,
    ) -> Option<Self> {
        let by = backend(subject).filter(|_| is_told(header))?;
        let guest = &header.settings.guest;
        // Only guests and what serves them are pinned.
        let pinned = subject.is_booted();
        let list = |text: &Option<String>| text.as_ref().filter(|_| pinned)?.parse().ok();
        let stands = header.disk.origin == Origin::User;
        let disk = if stands { header.disk.path.clone() } else { PathBuf::from(SOME_DISK) };
        let (kind, cache) = opened(&header.disk);
        let measured = Provenance {
            version: header.ringloom.clone(),
            date: Date::of(header.started_unix_s).to_string(),
            subject: subject.to_string(),
            disk: header.disk.path.display().to_string(),
        };
        let mut wanted = Self {
            kind: if stands { kind } else { Kind::File },
            image: variant.image,
            cache,
            device: variant.device,
            aio: variant.aio,
            queues: queues(header, subject),
            guest_measured: subject != Subject::Client,
            vcpus: guest.vcpus,
            memory_mib: guest.memory_mib,
            pin_iothreads: list(&guest.pin_iothreads),
            pin_vcpus: list(&guest.pin_vcpus),
            numa_node: guest.numa_node.filter(|_| pinned),
            qemu: header.programs.qemu.as_deref().and_then(QemuVersion::read),
            measured,
            notes: notes(header, subject, variant),
            ..Self::new(by, iothreads, disk)
        };
        if by == Backend::QemuIothreads {
            wanted.aio = wanted.disk_files().qemu_aio(variant.aio, qemu_had_io_uring(header));
        }
        Some(wanted)
    }

    /// The disk as the measurements open it.
    pub(super) fn disk_files(&self) -> DiskFiles {
        DiskFiles {
            format: self.image,
            kind: self.kind,
            files: vec![self.disk.clone()],
            chunk: None,
            delay: Duration::ZERO,
            bytes: 0,
            cache: self.cache,
        }
    }

    /// The first lines of every file.
    pub(super) fn head(&self) -> Vec<String> {
        let Provenance { version, date, subject, disk } = &self.measured;
        let threads = match self.iothreads {
            Iothreads::NONE => "no iothread".to_owned(),
            Iothreads::AUTO => "as many iothreads as pay".to_owned(),
            n => counted(n.count().into(), "iothread"),
        };
        let (queues, vcpus) =
            (counted(self.queues.into(), "queue"), counted(self.vcpus.into(), "CPU"));
        let guest = if self.guest_measured {
            format!("The guest has {vcpus}, its {} disk {queues}.", self.device)
        } else {
            format!(
                "No guest was measured: the client had {queues}; {vcpus} and memory are examples."
            )
        };
        vec![
            format!(
                "Written by ringloom tune {version}: {threads}, as measured on {date} by {subject}"
            ),
            format!("on {disk}. {guest}"),
        ]
    }
}

/// Who serves the disk of a subject; `None` where nobody sets iothreads.
pub(super) fn backend(subject: Subject) -> Option<Backend> {
    match subject {
        Subject::Host | Subject::VmGiven | Subject::Pod => None,
        // KubeVirt's virtual machines are QEMU's.
        Subject::VmQemu | Subject::VmKubevirt => Some(Backend::QemuIothreads),
        Subject::Client | Subject::VmRingloom => Some(Backend::Ringloom),
    }
}

/// Of each disk: the client has one for each job, at most as many as there are jobs.
fn queues(header: &Header, subject: Subject) -> u16 {
    let guest = header.settings.guest.queues;
    match subject {
        Subject::Client => header.settings.jobs.iter().copied().max().unwrap_or(guest),
        Subject::Host
        | Subject::VmGiven
        | Subject::VmQemu
        | Subject::VmRingloom
        | Subject::Pod
        | Subject::VmKubevirt => guest,
    }
}

/// How the disk was opened, which earlier versions recorded in words only.
fn opened(disk: &Disk) -> (Kind, CacheMode) {
    let in_words = || DiskAccess {
        block_device: disk.description.contains(" on block device, "),
        direct: !disk.description.ends_with(cache_name(CacheMode::Buffered)),
    };
    let DiskAccess { block_device, direct } = disk.opened.unwrap_or_else(in_words);
    (
        if block_device { Kind::BlockDevice } else { Kind::File },
        if direct { CacheMode::Direct } else { CacheMode::Buffered },
    )
}

/// Whether QEMU could use io_uring when it was measured.
fn qemu_had_io_uring(header: &Header) -> bool {
    let allowed = || header.environment.kernel.io_uring_disabled.is_none_or(|level| level == 0);
    header.programs.qemu_io_uring.unwrap_or_else(allowed)
}

/// What of the measurement is in no file.
fn notes(header: &Header, subject: Subject, variant: &Variant) -> Vec<String> {
    let Variant { image, aio, fs, vms, disks, .. } = *variant;
    let mut notes = Vec::new();
    if header.disk.origin != Origin::User {
        let gone = header.disk.path.parent().unwrap_or(Path::new("/")).display();
        notes.push(format!(
            "the disk that was measured was made in {gone} and is gone: put the path of yours in \
             place of {SOME_DISK}"
        ));
    }
    if subject == Subject::Client {
        notes.push(
            "measured without a guest: --subject vm:ringloom tells whether the number holds in one"
                .to_owned(),
        );
    }
    if subject == Subject::VmQemu && aio == Aio::Auto && header.programs.qemu_io_uring.is_none() {
        notes.push(
            "these results do not tell which engine --aio auto was for QEMU: the files name \
             io_uring unless the kernel forbade it"
                .to_owned(),
        );
    }
    if fs != FileSystem::Here {
        notes.push(format!("the disk was measured on a fresh {fs}: make yours on one"));
    }
    if variant.is_layered() {
        let Variant { stripe, delay, .. } = variant;
        notes.push(format!(
            "measured with stripe {stripe} and delay {delay}, which no file makes: stripe a disk \
             by md, LVM or the driver stripe of ringloom serve"
        ));
    }
    notes.extend(image_note(image, header.disk.origin));
    if disks > 1 {
        notes.push(format!(
            "measured with {disks} disks that share the iothreads, each beginning with the one \
             after the last of the disk before; the files have one disk"
        ));
    }
    if vms > 1 {
        notes.push(format!(
            "measured with {vms} guests at once, each with as many iothreads of its own; the files \
             are for one"
        ));
    }
    notes
}

/// Which image was measured, and how to make one like it.
fn image_note(image: Image, origin: Origin) -> Option<String> {
    let Image::Qcow2(qcow2) = image else { return None };
    if origin == Origin::User {
        return Some(
            "measured on the image as it was: another size of clusters, or more or fewer of them \
             allocated, may want another number"
                .to_owned(),
        );
    }
    let options = match create_options(&qcow2) {
        options if options.is_empty() => options,
        options => format!(" -o {options}"),
    };
    let state = match qcow2.content {
        Content::Full => "every cluster allocated",
        Content::Empty => "nothing allocated",
    };
    Some(format!(
        "measured on an image made by qemu-img create -f qcow2{options}, with {state}: another \
         image may want another number"
    ))
}
