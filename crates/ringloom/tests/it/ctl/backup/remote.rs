//! Backups to the export of an NBD server, qemu-nbd.

use std::time::Duration;

use testkit::deadline::poll_until;
use testkit::process::Program;
use testkit::report::skipped;

use super::*;

fn remote(qemu_nbd: &Program) -> Result<()> {
    let mut place = Place::new()?;
    image::create_filled(&place.bench.path("remote"), usize::try_from(BYTES)?, 3)?;
    let socket = place.bench.text("nbd");
    let words = ["-f", "raw", "-t", "-k", &socket, "--discard=unmap", &place.bench.text("remote")];
    let words: Vec<String> = words.iter().map(|it| (*it).to_owned()).collect();
    let mut kit = qemu_nbd.start(&words, &[place.bench.path("nbd")])?;
    let monitor = monitor_socket(&place.bench);
    let to = |more: &str| {
        let line = format!("backup b --to nbd+unix:///?socket={socket} {more}");
        said(&place.bench, &monitor, &line)
    };
    place.write("b", 0, 1)?;
    ensure!(to("")?.starts_with("b: full (nobody says that the export holds the last one:"), "1");
    place.write("b", 65536, 2)?;
    ensure!(to("")?.starts_with("b: full (nobody says"), "2");
    place.write("b", 4 * 65536, 3)?;
    place.write("b", 0, 4)?;
    let text = to("--holds-last")?;
    ensure!(
        text.starts_with("b: incremental since ") && text.contains(" 128 KiB copied"),
        "{text}"
    );
    let many = format!("backup a b --to nbd+unix:///?socket={socket}");
    check_refused(&place.bench, &monitor, &many, 2, "an export takes one disk")?;
    let keep = format!("backup b --to nbd+unix:///?socket={socket} --keep 3");
    check_refused(&place.bench, &monitor, &keep, 2, "an export has one state")?;
    let tcp = "backup b --to nbd://localhost:2/x";
    check_refused(&place.bench, &monitor, tcp, 1, "--allow-connect")?;
    // A full one that was cut off is not taken for the last one.
    let dead = format!("backup b --to nbd+unix:///?socket={socket} --full --speed 64k");
    place.write("b", 8 * 65536, 5)?;
    let mut child = command(&place.bench, &monitor, &dead).spawn()?;
    let runs = || -> Result<Option<()>> {
        let jobs = place.qmp()?.execute("query-jobs", &json!({}))?;
        let is_backup = |job: &Value| job["type"] == "backup" && job["status"] == "running";
        Ok(jobs.as_array().into_iter().flatten().any(is_backup).then_some(()))
    };
    poll_until("a backup", Duration::from_secs(20), runs)?;
    child.kill()?;
    child.wait()?;
    // It is ended, and what is there is no backup on which another one can stand.
    let text = to("--holds-last")?;
    let full = "b: full (node nb has no bitmap since the last backup";
    ensure!(text.starts_with(full) && text.contains("was cut off"), "{text}");
    place.write("b", 9 * 65536, 6)?;
    let text = to("--holds-last")?;
    ensure!(text.starts_with("b: incremental since "), "{text}");
    place.check_clean()?;
    place.stop()?;
    kit.terminate()?;
    qemu_img(&place.bench, "compare -q -f qcow2 -F raw b.img remote").map(drop)
}

#[test]
fn an_export_gets_what_was_changed_if_it_holds_the_last_backup() {
    let qemu_nbd = Program::named("qemu-nbd", "qemu-nbd", &[]);
    if let Some(reason) = qemu_nbd.missing() {
        skipped(&reason);
        return;
    }
    remote(&qemu_nbd).unwrap_or_else(|error| panic!("{error:#}"));
}
