//! The options of `ringloom tune` that say what stands between the load and the bytes. Each is a list; all
//! combinations are measured.

use clap::Args;

use crate::variant::{Aio, Delay, Device, FileSystem, Image, Stripe};

/// Options of the variants.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Comparison (lists; all combinations are measured)")]
pub struct StackArgs {
    /// Devices of vm:qemu: virtio-blk, virtio-scsi, nvme, ide [default: virtio-blk]
    #[arg(long, value_delimiter = ',')]
    pub device: Vec<Device>,

    /// Images: raw, qcow2, or qcow2 with :cluster=SIZE, :cache=SIZE, :preallocation=MODE, :empty
    /// [default: raw]
    #[arg(long, value_delimiter = ',')]
    pub image: Vec<Image>,

    /// Asynchronous I/O of what serves the disk: auto, native, threads, io_uring
    /// [default: auto]
    #[arg(long, value_delimiter = ',')]
    pub aio: Vec<Aio>,

    /// File systems under the scratch file, made on a loop device: here (none is made), ext4, xfs
    #[arg(long, value_delimiter = ',', default_value = "here")]
    pub fs: Vec<FileSystem>,

    /// Stripes: none, or a number of files and a chunk, such as 8x64k
    #[arg(long, value_delimiter = ',', default_value = "none")]
    pub stripe: Vec<Stripe>,

    /// Delays below the disk, as of slow storage, such as 0,2ms
    #[arg(long, value_delimiter = ',', default_value = "0")]
    pub delay: Vec<Delay>,

    /// Guests that run at once
    #[arg(long, value_delimiter = ',', default_value = "1",
        value_parser = clap::value_parser!(u16).range(1..=16))]
    pub vms: Vec<u16>,

    /// Disks of each guest; every disk gets all jobs
    #[arg(long, value_delimiter = ',', default_value = "1",
        value_parser = clap::value_parser!(u16).range(1..=16))]
    pub disks: Vec<u16>,
}
