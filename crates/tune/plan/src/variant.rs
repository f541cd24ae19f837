//! What stands between the load and the bytes, besides the subject and its iothreads.
//!
//! Options are lists of each choice, and all their combinations are variants. `storage` makes what
//! a variant needs; `fits` tells which subjects exist in it.
//!
//! Not here: the cell (operation, block size, jobs, iodepth).

mod choice;
mod claim;
mod image;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use choice::{Aio, Delay, Device, FileSystem, Stripe};
pub use claim::{CLAIM_NAME_MAX, ClaimName, Placement};
pub use image::{Content, Image, Preallocation, Qcow2};

use crate::cell::Cell;
use crate::contender::{Contender, Subject};

/// The most pods or virtual machines of a cluster that are measured at once; of one host the options allow 16.
pub const WORKERS_MAX: u16 = 128;
/// The most disks of a guest.
pub const DISKS_MAX: u16 = 16;

/// One combination of choices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Variant {
    /// What a guest sees its disk as.
    pub device: Device,
    /// The format of the disk.
    pub image: Image,
    /// How the disk is read and written.
    pub aio: Aio,
    /// The file system that it lies on.
    pub fs: FileSystem,
    /// Over how many devices it is striped.
    pub stripe: Stripe,
    /// What each request takes longer.
    pub delay: Delay,
    /// Virtual machines at once, 1 to `WORKERS_MAX`.
    #[serde(deserialize_with = "up_to::<WORKERS_MAX, _>")]
    pub vms: u16,
    /// Disks of each, 1 to `DISKS_MAX`.
    #[serde(deserialize_with = "up_to::<DISKS_MAX, _>")]
    pub disks: u16,
    /// The storage of a cluster, by its name in the job file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<ClaimName>,
    /// Where those that are measured at once stand in a cluster.
    #[serde(default, skip_serializing_if = "is_default")]
    pub placement: Placement,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn up_to<'de, const MOST: u16, D: serde::Deserializer<'de>>(from: D) -> Result<u16, D::Error> {
    let number = u16::deserialize(from)?;
    if (1..=MOST).contains(&number) {
        return Ok(number);
    }
    Err(serde::de::Error::custom(format!("{number} is not between 1 and {MOST}")))
}

impl Default for Variant {
    fn default() -> Self {
        Self {
            device: Device::default(),
            image: Image::default(),
            aio: Aio::default(),
            fs: FileSystem::default(),
            stripe: Stripe::default(),
            delay: Delay::default(),
            vms: 1,
            disks: 1,
            claim: None,
            placement: Placement::default(),
        }
    }
}

/// Only what differs from the default; nothing for the default.
impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, image, aio, fs, stripe, delay, vms, disks, claim, placement } = *self;
        let default = Self::default();
        // A cluster has pods beside virtual machines.
        let kind = if claim.is_some() { "at once" } else { "VMs" };
        let parts = [
            (device != default.device).then(|| device.to_string()),
            (image != default.image).then(|| format!("{image:#}")),
            (aio != default.aio).then(|| format!("aio={aio}")),
            (fs != default.fs).then(|| fs.to_string()),
            (stripe != default.stripe).then(|| format!("stripe {stripe}")),
            (delay != default.delay).then(|| format!("delay {delay}")),
            claim.map(|claim| claim.to_string()),
            (vms > 1).then(|| format!("{vms} {kind}")),
            (placement != default.placement).then(|| placement.to_string()),
            (disks > 1).then(|| format!("{disks} disks")),
        ];
        f.write_str(&parts.into_iter().flatten().collect::<Vec<_>>().join(", "))
    }
}

/// Who makes stripes and delays of a variant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Layers {
    /// The kernel's device-mapper: below every subject.
    Kernel,
    /// Nodes of ringloom: below those that it serves. The reason says why the kernel does not.
    Ringloom {
        /// Why the kernel cannot.
        reason: String,
    },
}

impl Variant {
    /// What is chosen besides the number of guests and disks, as it is called.
    pub fn choices(&self) -> [String; 8] {
        let Self { device, image, aio, fs, stripe, delay, claim, placement, .. } = *self;
        [
            device.to_string(),
            format!("{image:#}"),
            format!("aio={aio}"),
            fs.to_string(),
            format!("stripe {stripe}"),
            format!("delay {delay}"),
            claim.map_or_else(|| "no claim".to_owned(), |claim| claim.to_string()),
            placement.to_string(),
        ]
    }

    /// The threads that want a core: of each guest the jobs, but no more than it has queues, which it has one of per CPU,
    /// and those that serve them. Without a guest, the jobs of all disks.
    pub fn busy_threads(&self, contender: Contender, cell: &Cell, queues: u16) -> usize {
        let jobs = usize::from(cell.shape().jobs()) * usize::from(self.disks);
        let vms = usize::from(self.vms);
        let serving = contender.iothreads().map_or(0, |iothreads| usize::from(iothreads.busy()));
        match contender.subject() {
            Subject::Host | Subject::Client => jobs * vms + serving,
            Subject::VmQemu | Subject::VmRingloom => vms * (jobs.min(queues.into()) + serving),
            // Their CPUs need not be of this host.
            Subject::VmGiven | Subject::Pod | Subject::VmKubevirt => 0,
        }
    }

    /// How many disks there are in all.
    pub fn disks_in_all(&self) -> u16 {
        self.vms * self.disks
    }

    /// Whether stripes or delays stand on the files.
    pub fn is_layered(&self) -> bool {
        self.stripe != Stripe::None || !self.delay.is_none()
    }

    /// Whether this subject with so many iothreads (0: none) is measured; `layers` as
    /// `storage::Mapper::layers` gives them for this variant.
    ///
    /// # Errors
    /// Why not, as the end of a sentence that names the subject and the variant.
    pub fn fits(&self, subject: Subject, iothreads: u16, layers: &Layers) -> Result<(), String> {
        if let Some(reason) = self.misfit(subject, iothreads) {
            return Err(reason);
        }
        match (subject, layers) {
            (Subject::Host | Subject::VmQemu, Layers::Ringloom { reason }) if self.is_layered() => {
                Err(format!(
                    "stripes and delays are made by ringloom here, so only the subjects client \
                     and vm:ringloom have them: {reason}"
                ))
            }
            _ => Ok(()),
        }
    }

    /// Whether the subject can keep so many requests in flight per job.
    ///
    /// # Errors
    /// As `fits`.
    pub fn fits_iodepth(&self, subject: Subject, iodepth: u16) -> Result<(), String> {
        if subject == Subject::Host && self.aio == Aio::Threads && iodepth > 1 {
            return Err("blocking calls of the host's load keep one request in flight: only \
                        iodepth 1 is measured with aio threads, more jobs do the same"
                .to_owned());
        }
        Ok(())
    }

    /// Why the subject is not measured, whoever makes the layers.
    fn misfit(&self, subject: Subject, iothreads: u16) -> Option<String> {
        let is_virtio_blk = self.device == Device::VirtioBlk;
        let reason = match (subject, self.device) {
            (Subject::Host, _) if !is_virtio_blk => {
                "the host has no virtual device: its row with virtio-blk holds for all devices"
            }
            (Subject::Host, _) if self.image != Image::Raw => {
                "the kernel reads no qcow2: the host's row with raw is what to compare with"
            }
            (Subject::Client, _) if !is_virtio_blk => "a vhost-user client speaks virtio-blk only",
            (Subject::Client, _) if self.disks_in_all() > 1 => {
                "the client drives one disk; several are measured with the subjects vm:qemu and \
                 vm:ringloom"
            }
            (Subject::VmRingloom, _) if !is_virtio_blk => {
                "ringloom serves virtio-blk only (vhost-user-blk)"
            }
            (Subject::VmGiven, _) if *self != Self::default() => {
                "your own guest is measured as it stands, without other variants"
            }
            (Subject::VmQemu, device @ (Device::Nvme | Device::Ide)) if iothreads > 0 => {
                return Some(format!("QEMU's {device} knows no iothreads: only none is measured"));
            }
            (Subject::VmQemu, Device::Ide) if self.disks > 1 => {
                "ide disks cannot be hot-plugged: one per virtual machine is measured"
            }
            _ => return None,
        };
        Some(reason.to_owned())
    }
}

#[cfg(test)]
mod tests;
