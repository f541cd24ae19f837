//! Guests as a process: booted under QEMU, made to obey, given disks, brought down.
//!
//! Booting takes both processors for some seconds, so the tests of one behaviour each share a guest; a test that needs
//! one that dies boots its own.
#![expect(clippy::unwrap_used, reason = "test code: a surprise must fail the test")]

mod disks;
mod falls;
mod obeys;
mod rig;

/// One guest for all that leaves it in order.
#[test]
fn a_guest_obeys_and_takes_disks() {
    let Some(rig) = rig::Rig::new() else { return };
    let mut guest = rig.boot("all", 12).unwrap();
    let pid = guest.pid();
    obeys::scripts(&mut guest);
    obeys::what_was_printed_so_far(&mut guest);
    obeys::files(&mut guest);
    obeys::threads(&mut guest);
    disks::each_controller_twice(&rig, &mut guest);
    disks::several_at_once(&rig, &mut guest);
    disks::iothreads(&rig, &mut guest);
    disks::read_only(&rig, &mut guest);
    disks::a_server_that_starts_again(&rig, &mut guest);
    disks::what_is_refused(&rig, &mut guest);
    guest.stop().unwrap();
    assert!(rig::has_ended(pid));
}

/// The other one: it ends badly, in the last thing that is tried with it.
#[test]
fn a_guest_with_a_cold_disk_hangs_and_panics() {
    let Some(rig) = rig::Rig::new() else { return };
    let mut guest = rig.boot_with_cold_disk("cold").unwrap();
    disks::cold(&mut guest);
    falls::a_script_that_hangs(&mut guest);
    drop(guest);
    let mut guest = rig.boot("panics", 0).unwrap();
    falls::a_kernel_that_panics(&mut guest);
}

#[test]
fn a_watch_that_errs_ends_a_boot_at_once() {
    let Some(rig) = rig::Rig::new() else { return };
    falls::a_boot_that_is_watched(&rig);
}

#[test]
fn kvm_works_or_has_a_reason() {
    let Some(rig) = rig::Rig::new() else { return };
    falls::kvm(&rig);
}

#[test]
fn a_qemu_that_refuses_its_arguments_is_told() {
    let Some(rig) = rig::Rig::new() else { return };
    falls::a_qemu_that_refuses(&rig);
}
