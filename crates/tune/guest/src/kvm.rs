//! Whether guests run under KVM here: tried, because a device node says little.
//!
//! Where KVM itself is emulated a guest may come up, hang, or die at its first instruction of some kind.

use std::fs::OpenOptions;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::clock::now;
use crate::console::{end_of, reason_in};
use crate::{Accelerator, Guest, Initramfs, Kernel, MachineSpec, QemuProgram, Watch};

const DEVICE: &str = "/dev/kvm";
/// Names the trial's logs.
const NAME: &str = "kvm-trial";

/// Boots a small guest under KVM. The inner error is the reason in one line why that does not work; the outer
/// one is `watch`'s.
///
/// Takes a second or two where KVM works, as long as it takes QEMU to give up where it does not, and at most
/// `limit` and the limit of a boot.
pub fn try_kvm(
    qemu: &QemuProgram,
    (kernel, equipment): (&Kernel, &Initramfs),
    directory: &Path,
    limit: Duration,
    watch: Watch<'_>,
) -> Result<Result<(), String>> {
    if let Err(error) = OpenOptions::new().read(true).write(true).open(DEVICE) {
        return Ok(Err(format!("{DEVICE}: {error}")));
    }
    let spec = MachineSpec {
        cpus: 2,
        memory_mib: 512,
        accelerator: Accelerator::Kvm,
        slots: 0,
        numa_node: None,
        cold_disk: None,
        name: NAME.to_owned(),
    };
    let deadline = now() + limit;
    let in_time = &mut || match watch() {
        Ok(()) if now() > deadline => {
            bail!("the guest did not come up within {} s", limit.as_secs())
        }
        other => other,
    };
    match Guest::boot(qemu, kernel, equipment, &spec, directory, in_time) {
        Ok(guest) => guest.stop().map(Ok),
        Err(error) => {
            // It may be the watch's: then it says so again.
            watch()?;
            let log = end_of(&directory.join(format!("{NAME}-qemu.log")));
            let told = error.to_string();
            let reason = reason_in(&log).or_else(|| told.lines().next());
            // QEMU's own words may not say that it is about KVM.
            Ok(Err(format!("under KVM, {}", reason.unwrap_or("the guest did not come up"))))
        }
    }
}
