//! Rings that are moved at random (feature `fault-points`): where they must stay.

use super::*;

use serde_json::Value;
use testkit::rawring::{DirtyLog, RawDevice, RawShape};

/// How often queues were moved, by the last line of `--gauges-fd`.
fn moves(bench: &Bench) -> Result<Option<u64>> {
    let text = std::fs::read_to_string(bench.path("gauges"))?;
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let Some(line) = whole.lines().last() else { return Ok(None) };
    let line: Value = serde_json::from_str(line)?;
    Ok(line["disks"][0]["moves"].as_u64())
}

/// How often they were moved in about a second and a half.
fn moves_in_a_while(bench: &Bench, server: &mut Server) -> Result<u64> {
    let now = || poll_until("a line of gauges", LIMIT, || moves(bench));
    server.wait_while_running(Duration::from_millis(1200))?;
    let before = now()?;
    server.wait_while_running(Duration::from_millis(1200))?;
    Ok(now()? - before)
}

#[test]
fn queues_stay_where_they_are_while_their_guest_is_migrated() {
    let bench = Bench::new().expect("a directory");
    std::fs::write(bench.path("gauges"), "").expect("a file");
    let script = "exec 9>>gauges; exec \"$@\"";
    let binary = env!("CARGO_BIN_EXE_ringloom");
    let program = Program::named("ringloom", "sh", &["-c", script, "sh", binary, "serve"])
        .in_directory(bench.path(""))
        .with_variable("RINGLOOM_MOVES", "5");
    with(&program, |program| {
        let mut server = serve(program, &bench, &["--iothreads", "auto:3", "--gauges-fd", "9"])?;
        let device = RawDevice::connect(&bench.path("s"), RawShape::default())?;
        ensure!(moves_in_a_while(&bench, &mut server)? > 10, "queues are moved: {}", server.log());
        let log = DirtyLog::new(RawDevice::guest_end())?;
        device.start_log(&log)?;
        let moved = moves_in_a_while(&bench, &mut server)?;
        ensure!(moved == 0, "{moved} moves while the guest is migrated");
        device.stop_log()?;
        ensure!(moves_in_a_while(&bench, &mut server)? > 10, "queues are moved again");
        drop(device);
        stop(server, &[&bench.path("s")]).map(drop)
    });
}

#[test]
fn twelve_disks_lose_nothing_while_their_queues_are_moved_at_random() {
    with(&ringloom().with_variable("RINGLOOM_MOVES", "6"), |program| {
        let log = many::many_disks(program)?;
        ensure!(log.contains("queues were moved at random"), "no moves: {log}");
        Ok(())
    });
}
