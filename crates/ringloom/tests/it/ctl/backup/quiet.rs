//! `--before` and `--after`: the second one is run whatever happens, and before anything is copied.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use testkit::deadline::poll_until;

use super::*;

const LIMIT: Duration = Duration::from_secs(30);

/// A backup with commands that may have blanks.
fn quiet(place: &Place, words: &str, before: &str, after: &str) -> std::process::Command {
    let line = format!("backup {words} --to backups");
    let mut command = command(&place.bench, &monitor_socket(&place.bench), &line);
    command.args(["--before", before, "--after", after]);
    command
}

fn commands() -> Result<()> {
    let place = Place::new()?;
    let told = || std::fs::read_to_string(place.bench.path("told")).unwrap_or_default();
    // The copy takes a second, and the guest holds still for less.
    let slow =
        quiet(&place, "a --speed 4M", "echo still >told", "ls -A backups >>told; echo on >>told");
    let (code, stdout, stderr) = run(slow)?;
    ensure!(code == Some(0) && stdout.contains("guest held still for "), "{stdout}{stderr}");
    let text = told();
    ensure!(text.starts_with("still\n") && text.ends_with("on\n"), "{text}");
    ensure!(text.contains(".part\n"), "after the copy, not after the instant: {text}");
    // It could not hold still.
    let (code, stdout, stderr) =
        run(quiet(&place, "a", "echo no >told; exit 4", "echo on >>told"))?;
    ensure!(code == Some(1) && stdout.is_empty(), "{stdout}{stderr}");
    ensure!(
        stderr.contains("has ended with status 4") && told() == "no\non\n",
        "{stderr}{}",
        told()
    );
    // It did, and the backup could not begin.
    let mut qmp = place.qmp()?;
    let busy = json!({
        "job-id": "busy", "device": "na", "target": "other", "sync": "none",
    });
    image::create_sparse(&place.bench.path("other"), BYTES)?;
    let node = json!({
        "driver": "file", "node-name": "other", "filename": place.bench.text("other"),
    });
    qmp.execute("blockdev-add", &node)?;
    qmp.execute("blockdev-backup", &busy)?;
    drop(qmp);
    let (code, _, stderr) = run(quiet(&place, "a", "echo still >told", "echo on >>told"))?;
    ensure!(code == Some(1) && told() == "still\non\n", "{code:?} {stderr}{}", told());
    let mut qmp = place.qmp()?;
    qmp.execute("job-cancel", &json!({"id": "busy"}))?;
    qmp.event("BLOCK_JOB_CANCELLED")?;
    drop(qmp);
    // It may hold still for ever: the backup is there, and that is said.
    let (code, stdout, stderr) = run(quiet(&place, "a", ":", "exit 5"))?;
    ensure!(code == Some(3) && stdout.starts_with("a: incremental"), "{code:?}: {stdout}{stderr}");
    ensure!(stderr.contains("the guest may hold still"), "{stderr}");
    place.check_clean()?;
    stop(place.server, &[]).map(drop)
}

#[test]
fn a_guest_goes_on_whatever_happens() {
    commands().unwrap_or_else(|error| panic!("{error:#}"));
}

/// Ctrl-C, or worse, while the guest is being told.
fn signals() -> Result<()> {
    let place = Place::new()?;
    for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
        let told = place.bench.path("told");
        let _may_be_gone = std::fs::remove_file(&told);
        std::fs::write(place.bench.path("wait"), "")?;
        let before = "echo still >told; while [ -e wait ]; do sleep 0.05; done";
        let mut child = quiet(&place, "a", before, "echo on >>told").spawn()?;
        let read = || std::fs::read_to_string(&told).unwrap_or_default();
        poll_until("--before", LIMIT, || Ok((read() == "still\n").then_some(())))?;
        let pid = Pid::from_raw(i32::try_from(child.id())?).context("a process")?;
        kill_process(pid, signal)?;
        std::fs::remove_file(place.bench.path("wait"))?;
        let status = child.wait()?;
        ensure!(!status.success(), "{signal:?}: {status}");
        poll_until("--after", LIMIT, || Ok((read() == "still\non\n").then_some(())))
            .with_context(|| format!("{signal:?}"))?;
    }
    ensure!(place.list()?.iter().all(|it| it["whole"] == false), "{:?}", place.list()?);
    ensure!(place.backup("a")?.contains("full (the first one there)"), "something was left");
    place.check_clean()?;
    stop(place.server, &[]).map(drop)
}

#[test]
fn a_guest_goes_on_when_the_backup_is_interrupted() {
    signals().unwrap_or_else(|error| panic!("{error:#}"));
}
