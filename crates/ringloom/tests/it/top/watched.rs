//! What is seen of a daemon under load, and done from there.

use anyhow::{Result, ensure};
use testkit::process::Bench;
use testkit::qmp::QmpClient;

use super::terminal::Terminal;
use super::{command, quick, serve, under_load};
use crate::control::monitor_socket;
use crate::support::{ringloom, stop, with};

/// The cells of the row that begins with a name, without its mark.
fn row<'a>(shown: &'a str, name: &str) -> Vec<&'a str> {
    let cells = |line: &'a str| {
        let cells = line.split_whitespace();
        cells.skip_while(|it| it.starts_with('!')).collect::<Vec<_>>()
    };
    let mut found = shown.lines().map(cells).filter(|it| it.first() == Some(&name));
    found.next().unwrap_or_default()
}

/// Whether requests of the export are seen.
fn is_busy(shown: &str) -> bool {
    row(shown, "vm1").get(1).is_some_and(|iops| !matches!(*iops, "-" | "0"))
}

fn queues_are_seen_and_moved(bench: &Bench) -> Result<()> {
    let socket = monitor_socket(bench);
    let mut top = Terminal::start(&command(bench, &quick(&socket)), (80, 24))?;
    let shown = top.wait_for("a busy export", is_busy)?;
    ensure!(row(&shown, "idle").contains(&"client"), "{shown}");
    ensure!(shown.contains("2 exports  2 queues"), "{shown}");
    ensure!(top.is_taken() && top.has_colours(), "it is not drawn:\n{shown}");

    top.press("2")?;
    top.wait_for("queues", |shown| row(shown, "vm1").get(2) == Some(&"t0"))?;
    // Sorted by name, the first is queue 0.
    top.press("sm")?;
    top.wait_for_text("move queue 0 of vm1")?;
    top.press("t1\r")?;
    top.wait_for_text("export vm1: queue 0 is served by t1")?;
    top.wait_for("the queue on t1", |shown| row(shown, "vm1").get(2) == Some(&"t1"))?;
    top.press("p")?;
    top.wait_for_text("no pool places this export")?;

    top.press("3")?;
    let shown = top.wait_for("iothreads", |shown| row(shown, "t1").len() > 6)?;
    ensure!(row(&shown, "t1").get(1) == Some(&"1"), "{shown}");

    top.resize(40, 8)?;
    top.wait_for_text("ringloom top needs 60 × 10")?;
    top.resize(120, 40)?;
    // Before it knows of the room it takes no keys.
    top.wait_for_text(" 3 iothreads ")?;
    top.press("1")?;
    top.wait_for("the panel", |shown| shown.contains("── iothreads ") && is_busy(shown))?;
    top.press("q")?;
    ensure!(top.wait()?.success(), "q is no failure");
    top.check_given_back()
}

fn a_read_only_monitor_is_enough(bench: &Bench) -> Result<()> {
    let mut watched = command(bench, &quick(&bench.path("top-qmp.sock")));
    watched.env("NO_COLOR", "1").env("LC_ALL", "C");
    let mut top = Terminal::start(&watched, (100, 24))?;
    top.wait_for("a busy export", is_busy)?;
    let shown = top.shown()?;
    ensure!(!top.has_colours() && shown.is_ascii(), "NO_COLOR and LC_ALL are not heard:\n{shown}");
    top.press("2m")?;
    top.wait_for_text("move queue")?;
    top.press("t0\r")?;
    top.wait_for_text("refused: The command ringloom-move-queue is not available")?;
    // The other monitor is free all the time.
    QmpClient::connect(&monitor_socket(bench))?;
    // Ctrl-C.
    top.press("\u{3}")?;
    ensure!(top.wait()?.success(), "Ctrl-C is no failure");
    top.check_given_back()
}

#[test]
fn a_daemon_is_watched_and_its_queues_are_moved() {
    with(&ringloom(), |_| {
        let bench = Bench::new()?;
        let server = serve(&bench)?;
        under_load(&bench, || {
            queues_are_seen_and_moved(&bench)?;
            a_read_only_monitor_is_enough(&bench)
        })?;
        stop(server, &[&monitor_socket(&bench)]).map(drop)
    });
}
