//! The options of `ringloom tune` that say which guest is booted and on which CPUs.

use std::path::PathBuf;

use clap::Args;

use crate::settings::Accel;
use crate::units::Bytes;

/// The most CPUs of a guest, and queues of a disk.
pub const VCPUS_MAX: u16 = 64;
/// The most queues of a guest's disk.
pub const QUEUES_MAX: u16 = 256;

/// Options of the guests.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Guests (vm:qemu, vm:ringloom)")]
pub struct GuestArgs {
    /// Your own guest, measured as vm:given
    #[arg(
        long,
        value_name = "ssh://…",
        help = "Your own guest, measured as vm:given: ssh://[USER@]HOST[:PORT]/DEVICE. fio must be there, and a key that \
                asks for nothing"
    )]
    pub guest: Option<String>,

    /// Configuration file of ssh for --guest, with other options of ssh [default: ~/.ssh/config and
    /// the system's]
    #[arg(long, value_name = "FILE", requires = "guest")]
    pub ssh_config: Option<PathBuf>,

    /// CPUs of a guest [default: the cores, at most 16]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=i64::from(VCPUS_MAX)))]
    pub vcpus: Option<u16>,

    /// Queues of each disk [default: one per CPU of the guest]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=i64::from(QUEUES_MAX)))]
    pub queues: Option<u16>,

    /// Memory of a guest [default: 1G, more where the buffers of its load need it]
    #[arg(long)]
    pub memory: Option<Bytes>,

    /// Kernel to boot: a vmlinuz beside its modules, or a directory with boot/ and lib/modules/
    /// [default: the kernel of this host]
    #[arg(long, value_name = "PATH")]
    pub guest_kernel: Option<PathBuf>,

    /// QEMU to use [default: qemu-system-x86_64]
    #[arg(long, value_name = "PROGRAM")]
    pub qemu: Option<PathBuf>,

    /// How a guest's CPUs are run
    #[arg(long, value_enum, default_value = "auto")]
    pub accel: Accel,

    /// CPUs of the host for the CPUs of the guests, such as 0-3,8: one each, in turn
    #[arg(long, value_name = "CPUS")]
    pub pin_vcpus: Option<String>,

    /// CPUs of the host for the iothreads, QEMU's and the daemon's: one each, in turn
    #[arg(long, value_name = "CPUS")]
    pub pin_iothreads: Option<String>,

    /// NUMA node of the host for the memory of the guests
    #[arg(long, value_name = "NODE")]
    pub numa_node: Option<u32>,
}
