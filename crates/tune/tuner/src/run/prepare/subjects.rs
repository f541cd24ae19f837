//! What is measured where the user does not say: a guest, where it runs as fast as this host lets it.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use load::fio;
use plan::args::TuneArgs;
use plan::args::defaults::{variants, without_guests};
use plan::contender::{Iothreads, Subject};
use plan::settings::Accel;
use plan::settings::{GuestSettings, Mode};
use storage::interrupt::Interrupt;

use crate::fleet::{Conditions, Fleet};
use crate::progress::say;

/// What a guest that nobody asked for may take to come up; one that was asked for may take as long as any boot.
const TRIAL_LIMIT: Duration = Duration::from_secs(10);

/// What is measured, and the guests if they were tried. `--accel kvm` and `--accel tcg` insist on guests.
///
/// # Errors
/// `Interrupted`; what is missing for guests on which the user insists.
pub(super) fn of_this_host(
    tune: &TuneArgs,
    cores: usize,
    out: &Path,
    interrupt: &Interrupt,
) -> Result<(Vec<Subject>, Option<Fleet>)> {
    if tune.measure().guest.guest.is_some() {
        return Ok((vec![Subject::VmGiven], None));
    }
    let logs = out.join("guests");
    let settings = GuestSettings::new(tune, cores);
    let slots = variants(tune.measure()).iter().map(|it| it.disks).max().unwrap_or(1);
    let qemu = tune.measure().guest.qemu.as_deref();
    let conditions = Conditions { qemu, slots, logs: &logs, kvm_limit: TRIAL_LIMIT };
    let insists = settings.accel != Accel::Auto;
    let reason = match fleet(&settings, conditions, interrupt) {
        Ok(fleet) => match fleet.emulated_because() {
            Some(reason) if !insists => reason.to_owned(),
            _ => return Ok((guests(tune), Some(fleet))),
        },
        Err(error) if insists => return Err(error),
        Err(error) => {
            interrupt.check()?;
            format!("{error:#}")
        }
    };
    // Only the trial's consoles are there, if anything.
    drop(std::fs::remove_dir_all(&logs));
    say(&format!("No guest is measured: {reason}."));
    Ok((without_guests(tune.mode()), None))
}

/// Beside the host QEMU's own device, or that of the daemon if something is named that only that has. Block sizes are compared
/// between both.
fn guests(tune: &TuneArgs) -> Vec<Subject> {
    match tune.mode() {
        Mode::Sizes => vec![Subject::Host, Subject::VmQemu, Subject::VmRingloom],
        Mode::Sweep | Mode::Hysteresis | Mode::Curve => vec![Subject::Host, guest(tune)],
    }
}

fn guest(tune: &TuneArgs) -> Subject {
    let args = tune.measure();
    let is_served = args.daemon.is_some() || args.iothreads.contains(&Iothreads::AUTO);
    if is_served { Subject::VmRingloom } else { Subject::VmQemu }
}

fn fleet(
    settings: &GuestSettings,
    conditions: Conditions<'_>,
    interrupt: &Interrupt,
) -> Result<Fleet> {
    // Guests have the fio of this host.
    fio::program()?;
    Fleet::prepare(settings, conditions, interrupt)
}

#[cfg(test)]
mod tests {
    use plan::testing::parse;

    use super::*;

    #[test]
    fn guests_are_on_the_daemon_where_something_is_named_that_only_it_has() {
        for (line, expected) in [
            ("--iothreads none,1,2", Subject::VmQemu),
            ("--iothreads none,auto", Subject::VmRingloom),
            ("curve --daemon ./ringloom", Subject::VmRingloom),
        ] {
            assert_eq!(guest(&parse(line).unwrap()), expected, "{line}");
        }
    }
}
