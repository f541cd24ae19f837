//! Ctrl-C before the first run: the command ends soon, and nothing of it is left.
//!
//! Not here: Ctrl-C in runs (`trouble`).

use anyhow::{Context, Result, ensure};
use testkit::report::skipped;

use super::{
    BRIEF, OUT, Ran, Rig, UNMOUNT_LIMIT, emulated, names, with_guest, with_kernel, with_rig,
};
use crate::support::is_root;

/// What an interrupted command keeps; it has said how to go on.
fn check_kept(rig: &Rig, ran: &Ran) -> Result<()> {
    ensure!(ran.stderr.contains("interrupted"), "{ran:?}");
    let kept = if rig.path(OUT).exists() { &[OUT][..] } else { &[] };
    rig.check_nothing_left(kept)
}

/// The scratch file that is being filled, if there is one with something in it.
fn filling(rig: &Rig) -> Result<Option<()>> {
    use std::os::unix::fs::MetadataExt;
    let name = names(&rig.path(""))?.into_iter().find(|it| it.starts_with("ringloom-scratch"));
    let Some(name) = name else { return Ok(None) };
    // Gone meanwhile.
    let Ok(found) = std::fs::metadata(rig.path(&name)) else { return Ok(None) };
    Ok((found.blocks() > 0).then_some(()))
}

#[test]
fn a_fill_is_interrupted() {
    with_rig(|rig| {
        let line = BRIEF.replace("16M", "3G");
        let mut tuning = rig.start(&format!("{line} --subject host --load fio"))?;
        tuning.wait_until("a scratch file", || filling(rig))?;
        check_kept(rig, &tuning.interrupt(&[])?)
    });
}

#[test]
fn a_file_system_in_the_making_is_interrupted() {
    if !is_root() {
        skipped("loop devices and mounts need root");
        return;
    }
    with_rig(|rig| {
        let line = BRIEF.replace("16M", "1G");
        let mut tuning = rig.start(&format!("{line} --subject host --load fio --fs ext4,xfs"))?;
        let here = rig.bench.text("");
        tuning.wait_until("a mount", || {
            let mounts = std::fs::read_to_string("/proc/self/mounts").context("mounts")?;
            Ok(mounts.contains(&here).then_some(()))
        })?;
        check_kept(rig, &tuning.interrupt(&[UNMOUNT_LIMIT; 2])?)
    });
}

/// The trial of KVM, then the boot of the first guest.
#[test]
fn a_boot_is_interrupted() {
    with_guest(|rig| {
        let line = format!("{BRIEF} --subject vm:qemu --iothreads none");
        for (options, name) in [(with_kernel(), "kvm-trial"), (emulated(), "guest-1")] {
            if name == "kvm-trial" && !std::path::Path::new("/dev/kvm").exists() {
                skipped("there is no /dev/kvm to try");
                continue;
            }
            let mut tuning = rig.start(&format!("{line} {options} --out {OUT}-{name}"))?;
            tuning.wait_for_child("qemu", name, None)?;
            let ran = tuning.interrupt(&[])?;
            ensure!(ran.stderr.contains("interrupted"), "{ran:?}");
        }
        rig.check_nothing_left(&[&format!("{OUT}-kvm-trial"), &format!("{OUT}-guest-1")])
    });
}
