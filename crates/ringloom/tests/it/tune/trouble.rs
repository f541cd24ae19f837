//! Guests that do not come up, die or hang: the run fails with what they said last, the sweep goes on.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{
    BRIEF, DAEMON_LIMIT, LIMIT, OUT, Rig, Tuning, check_sound, contender, emulated, names, of_kind,
    text, with_guest, with_kernel,
};

/// `host`, `vm:qemu none` and `vm:qemu 1` are measured in an order with the host in the middle.
const HOST_IN_THE_MIDDLE: &str = "--seed 2";

/// Hands all on to QEMU, with one more argument for the kernel.
const WRAPPER: &str = "#!/bin/sh\n\
    for word; do\n\
      shift\n\
      case $word in console=ttyS0*) word=\"$word ARGUMENT\";; esac\n\
      set -- \"$@\" \"$word\"\n\
    done\n\
    exec qemu-system-x86_64 \"$@\"\n";

fn signal(pid: u32, signal: Signal) -> Result<()> {
    let pid = Pid::from_raw(pid.cast_signed()).context("a process id")?;
    kill_process(pid, signal).context("signal QEMU")
}

/// Waits until so many runs have had their job files written: the load is about to start.
fn wait_for_jobs(rig: &Rig, tuning: &mut Tuning, count: usize) -> Result<()> {
    tuning.wait_until(&format!("{count} job files"), || {
        let jobs = rig.path(OUT).join("jobs");
        let found = if jobs.exists() { names(&jobs)?.len() } else { 0 };
        Ok((found >= count).then_some(()))
    })
}

/// What the runs that failed say.
fn failures(lines: &[Value]) -> Result<Vec<&str>> {
    of_kind(lines, "failure").into_iter().map(|it| text(it, "error")).collect()
}

/// Killed in one run, stopped in the next: each costs its run and a new guest. Then Ctrl-C, twice. In the end all is there.
/// About 65 s, the slowest of all.
#[test]
fn runs_whose_guests_die_hang_or_are_interrupted_are_made_up_for() {
    with_guest(|rig| {
        let line = format!(
            "{BRIEF} --subject vm:qemu,vm:ringloom --iothreads none,1 --out {OUT} {}",
            emulated()
        )
        .replace("--runtime 0.5", "--runtime 1");
        let mut tuning = rig.start(&line)?;
        let first = tuning.wait_for_child("qemu", "guest-1", None)?;
        wait_for_jobs(rig, &mut tuning, 1)?;
        signal(first, Signal::KILL)?;
        let second = tuning.wait_for_child("qemu", "guest-2", None)?;
        wait_for_jobs(rig, &mut tuning, 2)?;
        signal(second, Signal::STOP)?;
        tuning.wait_for_child("qemu", "guest-3", None)?;
        wait_for_jobs(rig, &mut tuning, 3)?;
        let ran = tuning.interrupt(&[DAEMON_LIMIT])?;
        rig.check_nothing_left(&[OUT])?;
        let lines = rig.lines()?;
        let failures = failures(&lines)?;
        let [killed, stopped] = failures[..] else { panic!("two failures: {failures:?}") };
        for (error, guest, words) in
            [(killed, "guest-1", "SIGKILL"), (stopped, "guest-2", "has not answered for")]
        {
            let console = format!("{guest}-console.log");
            for words in [guest, words, "the end of its console", &console] {
                ensure!(error.contains(words), "{words:?} is missing in: {error}");
                ensure!(ran.stderr.contains(words), "{words:?} is missing in: {}", ran.stderr);
            }
        }
        ensure!(lines.len() == 2, "{lines:?}");

        // Interrupted once more, while disks are plugged after the first run.
        let resumed = format!("{line} --resume");
        let mut tuning = rig.start(&resumed)?;
        tuning.wait_until("a run", || Ok((rig.lines()?.len() == 3).then_some(())))?;
        tuning.interrupt(&[DAEMON_LIMIT])?;
        rig.check_nothing_left(&[OUT])?;

        let ran = rig.measure(&resumed)?;
        ensure!(ran.stderr.contains("1 run done already"), "{ran:?}");
        let lines = rig.lines()?;
        let runs: Vec<Value> = of_kind(&lines, "run").into_iter().cloned().collect();
        check_sound(&runs)?;
        let measured: BTreeSet<String> = runs.iter().map(contender).collect();
        let all = ["vm:qemu 1", "vm:qemu none", "vm:ringloom 1", "vm:ringloom none"];
        ensure!(measured.iter().eq(all.iter()) && runs.len() == all.len(), "{measured:?}");
        ensure!(!rig.report()?.contains("guest-1"), "it is made up for: {}", rig.report()?);
        Ok(())
    });
}

/// KVM is tried, not assumed; and a guest that died while nobody needed it costs no run. About 50 s.
#[test]
fn kvm_is_tried_and_a_guest_that_died_at_rest_is_replaced() {
    with_guest(|rig| {
        // Long enough that the guest is killed within the host's run on a busy machine too.
        let line =
            BRIEF.replace("--seed 1", HOST_IN_THE_MIDDLE).replace("--runtime 0.5", "--runtime 5");
        let mut tuning = rig.start(&format!(
            "{line} --subject host,vm:qemu --iothreads none,1 {}",
            with_kernel()
        ))?;
        let guest = tuning.wait_for_child("qemu", "guest-1", None)?;
        tuning.wait_until("the host's turn", || {
            let jobs = rig.path(OUT).join("jobs");
            let jobs = if jobs.exists() { names(&jobs)? } else { Vec::new() };
            Ok(jobs.iter().any(|it| it.contains("-host-")).then_some(()))
        })?;
        signal(guest, Signal::KILL)?;
        let ran = tuning.end(LIMIT)?;
        ensure!(ran.status.code() == Some(0), "{ran:?}");
        ensure!(ran.stderr.contains("Note: guest guest-1 is ended"), "{}", ran.stderr);
        let lines = rig.lines()?;
        check_sound(&lines)?;
        ensure!(lines.len() == 3 && lines[1]["subject"] == "host", "{lines:?}");
        let programs = &rig.header()?["programs"];
        if programs["accelerator"] == "kvm" {
            ensure!(lines.iter().all(|it| it["emulated"] == false), "{lines:?}");
            return Ok(());
        }
        let reason = text(programs, "emulated_because")?;
        ensure!(reason.contains("kvm") || reason.contains("KVM"), "{reason}");
        for said in [ran.stderr, ran.stdout, rig.report()?] {
            let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
            ensure!(said.contains(reason), "{reason:?} is missing in: {said}");
        }
        Ok(())
    });
}

/// About 10 s.
#[test]
fn a_guest_that_does_not_come_up_is_told_with_what_it_said() {
    with_guest(|rig| {
        let line = format!("{BRIEF} --subject vm:qemu --iothreads none {}", emulated());
        let wrapper = rig.path("wrapper");
        std::fs::write(&wrapper, WRAPPER.replace("ARGUMENT", "rdinit=/no/init"))?;
        std::fs::set_permissions(&wrapper, std::fs::Permissions::from_mode(0o755))?;
        let words = ["guest-1", "Kernel panic", "the end of its console", "guest-1-console.log"];
        rig.refuse(&format!("{line} --qemu {} --out {OUT}", wrapper.display()), &words)?;
        let lines = rig.lines()?;
        ensure!(failures(&lines)?.len() == 1 && lines.len() == 1, "{lines:?}");
        rig.check_nothing_left(&[OUT, "wrapper"])?;

        // An image that was cut off in its header: QEMU itself refuses it.
        let kernel = testkit::guest::kernel()?;
        let name = kernel.image().file_name().context("a name")?;
        let modules = rig.path("kernel/lib/modules");
        std::fs::create_dir_all(rig.path("kernel/boot"))?;
        std::fs::create_dir_all(modules.join(kernel.version()).join("kernel"))?;
        std::fs::write(modules.join(kernel.version()).join("modules.builtin"), builtin())?;
        let image = std::fs::read(kernel.image())?;
        std::fs::write(rig.path("kernel/boot").join(name), &image[..700])?;
        let cut = line.replace(&with_kernel(), "--memory 512M");
        let words = ["start guest guest-1", "QEMU ended with", "kernel"];
        rig.refuse(
            &format!("{cut} --guest-kernel {} --out cut", rig.path("kernel").display()),
            &words,
        )
    });
}

/// As if all that guests need was built in.
fn builtin() -> String {
    let names = ["virtio_pci", "virtio_console", "virtio_blk", "virtio_scsi", "nvme", "ahci"];
    names.map(|name| format!("kernel/drivers/{name}.ko\n")).concat()
}
