//! Configurations to paste: the answer's number of iothreads for QEMU, libvirt and KubeVirt. Pure.
//!
//! The run and `ringloom report` call `files` and `warnings` for the number that is recommended. What a target cannot
//! say is a warning; nothing is dropped in silence. docs/configurations.md is the user's side of it.
//!
//! Invariants: text from outside (paths) is quoted for the syntax it lands in. The graph of the disk is the one that was
//! measured (`storage::DiskFiles`).
//! Not here: `ringloom serve --print` (crate daemon), which says the same of an export that is being served.
#![forbid(unsafe_code)]

pub mod export;
mod kubevirt;
mod libvirt;
mod qemu;
mod version;
mod wanted;
mod warnings;
mod xml;

pub use load::probe::CacheMode;
use plan::contender::{Iothreads, Subject};
use plan::variant::{Device, Image, Variant};
use records::results::Header;

pub use self::version::QemuVersion;
use self::wanted::backend;
pub use self::wanted::{Backend, Provenance, Wanted};

/// The name of the file that a cluster takes.
const KUBEVIRT: &str = "qemu-iothreads/kubevirt.yaml";

/// All names that `EmittedFile` can have.
pub const NAMES: [&str; 6] = [
    "qemu-iothreads/qemu.args",
    "qemu-iothreads/libvirt.xml",
    KUBEVIRT,
    "ringloom/serve.sh",
    "ringloom/qemu.args",
    "ringloom/libvirt.xml",
];

/// A file to be written below the directory `config` of the results.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmittedFile {
    /// Relative path: `qemu-iothreads/libvirt.xml`.
    pub name: &'static str,
    /// Its text, which ends in a newline.
    pub content: String,
}

impl Wanted {
    /// The files; those that a target could not take are missing, which `warnings` tells.
    pub fn files(&self) -> Vec<EmittedFile> {
        let file = |name, content| EmittedFile { name, content };
        match self.by {
            Backend::QemuIothreads => {
                let mut files = vec![file("qemu-iothreads/qemu.args", qemu::args(self))];
                if self.libvirt_takes() {
                    files.push(file("qemu-iothreads/libvirt.xml", libvirt::domain(self)));
                }
                if self.kubevirt_takes() {
                    files.push(file(KUBEVIRT, kubevirt::manifest(self)));
                }
                files
            }
            Backend::Ringloom => vec![
                file("ringloom/serve.sh", qemu::serve(self)),
                file("ringloom/qemu.args", qemu::args(self)),
                file("ringloom/libvirt.xml", libvirt::domain(self)),
            ],
        }
    }

    /// The arguments of `qemu.args` in one line for a shell.
    pub fn qemu_line(&self) -> String {
        qemu::line(self)
    }

    /// What the targets ignore, forbid or need, one sentence each.
    pub fn warnings(&self) -> Vec<String> {
        warnings::of(self)
    }

    /// How many iothreads QEMU gives the disk: none where the device knows none.
    fn mapped(&self) -> u16 {
        match (self.by, self.device) {
            (Backend::Ringloom, _) | (_, Device::Nvme | Device::Ide) => 0,
            (Backend::QemuIothreads, Device::VirtioBlk | Device::VirtioScsi) => {
                self.iothreads.count()
            }
        }
    }

    /// Whether the QEMU that was measured counts seconds until it connects again.
    fn reconnects_in_seconds(&self) -> bool {
        self.qemu.is_some_and(|version| !version.knows_reconnect_ms())
    }

    /// Whether libvirt has the device.
    fn libvirt_takes(&self) -> bool {
        self.device != Device::Nvme
    }

    /// Whether KubeVirt has the device, with iothreads if there are some.
    fn kubevirt_takes(&self) -> bool {
        match self.device {
            Device::VirtioBlk | Device::Ide => true,
            Device::VirtioScsi => self.mapped() == 0,
            Device::Nvme => false,
        }
    }
}

/// The files for a number of iothreads, as it was measured by this subject in this variant: `vm:qemu` gives those of QEMU's
/// iothreads, `vm:kubevirt` that of KubeVirt, `vm:ringloom` and `client` those of ringloom, the others none.
pub fn files(
    header: &Header,
    subject: Subject,
    variant: &Variant,
    iothreads: Iothreads,
) -> Vec<EmittedFile> {
    if destroys(header, variant) {
        return Vec::new();
    }
    let files = Wanted::of(header, subject, variant, iothreads).map(|wanted| wanted.files());
    let mut files = files.unwrap_or_default();
    if subject.is_of_cluster() {
        files.retain(|file| file.name == KUBEVIRT);
    }
    files
}

/// Whether the results have what the files say: a damaged header lacks it.
fn is_told(header: &Header) -> bool {
    let guest = &header.settings.guest;
    !header.is_unknown() && guest.queues > 0 && guest.vcpus > 0 && guest.memory_mib > 0
}

/// Whether a guest would get the bytes of an image as its disk.
pub fn destroys(header: &Header, variant: &Variant) -> bool {
    destroyed(header, variant).is_some()
}

/// The format of that image.
fn destroyed<'a>(header: &'a Header, variant: &Variant) -> Option<&'a str> {
    header.disk.looks_like.as_deref().filter(|_| variant.image == Image::Raw)
}

/// What to know before the files are used, or why there are none, one sentence each.
pub fn warnings(
    header: &Header,
    subject: Subject,
    variant: &Variant,
    iothreads: Iothreads,
) -> Vec<String> {
    if !is_told(header) && backend(subject).is_some() {
        return vec![
            "no configuration is written: the results do not tell which disk was measured how"
                .to_owned(),
        ];
    }
    let Some(wanted) = Wanted::of(header, subject, variant, iothreads) else { return Vec::new() };
    destroyed(header, variant).map_or_else(
        || wanted.warnings(),
        |format| {
            let path = header.disk.path.display();
            let instead = match format {
                "qcow2" => "Measure with --image qcow2",
                _ => "Measure a copy that qemu-img convert -O raw has made",
            };
            vec![format!(
                "no configuration is written: {path} looks like a {format} image and was measured \
                 as a raw disk; the first write of a guest would destroy the image. {instead}"
            )]
        },
    )
}

#[cfg(test)]
mod tests;
