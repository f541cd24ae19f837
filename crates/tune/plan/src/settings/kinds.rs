//! What a run is made with, as the user names it.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// What puts the load on the disk in the subject `host`; guests always use fio, the client its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LoadKind {
    /// fio
    Fio,
    /// The client's own loop on io_uring
    Own,
}

/// How fio hands requests to the kernel, in guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GuestEngine {
    /// io_uring
    #[value(name = "io_uring")]
    IoUring,
    /// Linux AIO
    Libaio,
    /// Blocking calls, for an iodepth of 1
    Psync,
}

impl GuestEngine {
    /// As fio names it.
    pub fn name(self) -> String {
        self.to_possible_value().map(|it| it.get_name().to_owned()).unwrap_or_default()
    }
}

/// How a guest's CPUs are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Accel {
    /// KVM if a guest really boots with it, else TCG
    Auto,
    /// KVM or nothing
    Kvm,
    /// Emulated: figures do not compare with the host
    Tcg,
}
