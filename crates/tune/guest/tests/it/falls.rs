//! Guests that hang, die or do not come up.

use std::time::Duration;

use anyhow::{Result, bail};
use guest::{Guest, MachineSpec, try_kvm};
use testkit::deadline::{Deadline, poll_until};
use testkit::report::note;

use crate::rig::{LIMIT, Rig, patient, processes_naming};

/// Its error has what the console said last.
pub(crate) fn a_script_that_hangs(guest: &mut Guest) {
    let script = "echo something happened > /dev/console; sleep 1000";
    let error = guest.run(script, Duration::from_secs(3), &mut patient).unwrap_err().to_string();
    assert!(error.contains("waited 3s for a script's end"), "{error}");
    assert!(error.contains("something happened"), "{error}");
    assert!(error.contains("-console.log"), "{error}");
    guest.check_alive().unwrap();
    guest.run("true", LIMIT, &mut patient).unwrap_err();
}

/// It is noticed at once, not at the limit.
pub(crate) fn a_kernel_that_panics(guest: &mut Guest) {
    guest.start("echo 1 > /proc/sys/kernel/sysrq; echo c > /proc/sysrq-trigger").unwrap();
    let error = poll_until("its end", LIMIT, || match guest.poll() {
        Ok(None) => Ok(None),
        Ok(Some(finished)) => panic!("{finished:?}"),
        Err(error) => Ok(Some(error.to_string())),
    })
    .unwrap();
    assert!(error.contains("its kernel gave up: Kernel panic"), "{error}");
    guest.check_alive().unwrap_err();
}

/// The watch's own error comes back; QEMU is gone.
pub(crate) fn a_boot_that_is_watched(rig: &Rig) {
    for looks_max in [0, 20, 60] {
        let mut looks = 0;
        let mut watch = || -> Result<()> {
            looks += 1;
            if looks > looks_max {
                bail!("enough");
            }
            Ok(())
        };
        let spec = rig.spec("watched", 1);
        let Rig { qemu, kernel, equipment, .. } = rig;
        let begin = Deadline::after(LIMIT);
        let booted = Guest::boot(qemu, kernel, equipment, &spec, &rig.logs(), &mut watch);
        let error = booted.unwrap_err();
        assert_eq!(error.root_cause().to_string(), "enough");
        assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
    }
    let left = processes_naming(&rig.logs());
    assert!(left.is_empty(), "{left:?}");
}

/// Its reason is one line, and comes soon.
pub(crate) fn kvm(rig: &Rig) {
    let Rig { qemu, kernel, equipment, .. } = rig;
    let begin = Deadline::after(LIMIT);
    match try_kvm(qemu, (kernel, equipment), &rig.logs(), LIMIT, &mut patient).unwrap() {
        Ok(()) => note("KVM works"),
        Err(reason) => {
            note(&reason);
            assert!(reason.to_lowercase().contains("kvm") && !reason.contains('\n'), "{reason}");
        }
    }
    assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", begin.elapsed());
}

/// QEMU's own words are told.
pub(crate) fn a_qemu_that_refuses(rig: &Rig) {
    let spec = MachineSpec { numa_node: Some(127), ..rig.spec("refused", 0) };
    let error = format!("{:#}", rig.boot_spec(&spec).unwrap_err());
    assert!(error.contains("start guest refused: QEMU ended with exit status: 1"), "{error}");
    assert!(error.contains("host-nodes") || error.contains("bind"), "{error}");
}
