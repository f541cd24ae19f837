//! The runbook, `docs/operations.md`, is carried out: every command, in its order, on two hosts with systemd and libvirt, and
//! what it shows is what is printed.
//!
//! What a command needs to happen first (a storage hangs, a file is removed) stands in the page as a comment, `<!-- test: … -->`,
//! and is done here. The hosts are systems of systemd-nspawn on one kernel; guests are emulated, and have no system but a boot
//! sector that writes and reads.

mod hosts;
mod lines;
mod page;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use testkit::deadline::Deadline;
use testkit::fuse_faults::FaultDisk;
use testkit::report::{note, skipped};

use self::hosts::Hosts;
use self::page::Part;

/// All of it takes half a minute on a quiet machine.
const LIMIT: Duration = Duration::from_secs(600);

/// The page.
fn text() -> Result<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/operations.md");
    std::fs::read_to_string(&path).with_context(|| format!("{}", path.display()))
}

/// Why it cannot be carried out here, if so.
fn missing() -> Option<String> {
    let programs =
        ["systemd-nspawn", "libvirtd", "virsh", "qemu-system-x86_64", "sshd", "dpkg-deb"];
    let absent = programs.iter().find(|name| !super::has(name));
    absent.map(|name| format!("{name} is not installed")).or_else(FaultDisk::missing)
}

/// Does what a comment of the page says.
fn act(hosts: &mut Hosts, what: &str) -> Result<()> {
    match what {
        "the guest works" => hosts.guest_works(),
        "the storage hangs" => hosts.storage_hangs(),
        "the storage answers" => hosts.storage_answers(),
        "the file system is full" => hosts.file_system_is_full(),
        "there is room again" => hosts.there_is_room(),
        "guests without memory and with the disk of another" => hosts.guests_that_hang(),
        "the image is removed" => hosts.image_is_removed(),
        "somebody else has the image" => hosts.somebody_has_the_image(),
        "nobody else has the image" => hosts.nobody_has_the_image(),
        other => bail!("nobody knows what to do for <!-- test: {other} -->"),
    }
}

fn carried_out() -> Result<()> {
    let text = text()?;
    let parts = page::parts(&text)?;
    let clock = Deadline::after(LIMIT);
    let mut hosts = Hosts::start()?;
    let mut printed = String::new();
    note(&format!("two hosts: {:?}", clock.elapsed()));
    for part in &parts {
        match part {
            Part::Act(what) => act(&mut hosts, what).with_context(|| format!("test: {what}"))?,
            Part::Run { line, script, fails } => {
                let done = hosts.run(script).with_context(|| format!("line {line}"))?;
                printed = done.printed;
                let (status, log) = (done.succeeded, || hosts.log());
                ensure!(status != *fails, "line {line}: {script}\n{printed}\n{}", log());
                note(&format!("line {line}: done after {:?}", clock.elapsed()));
            }
            Part::Shown { line, lines } => page::compare(lines, &printed).with_context(|| {
                format!("line {line} shows what is not printed\n{}", hosts.log())
            })?,
        }
    }
    hosts.end()
}

#[test]
fn every_command_of_the_runbook_does_what_it_says() {
    if let Some(reason) = missing() {
        return skipped(&reason);
    }
    if let Err(error) = carried_out() {
        panic!("{error:#}");
    }
}
