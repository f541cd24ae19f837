//! How it ends, rests and goes on: signals, a daemon that goes and comes back, a panic.

use std::os::unix::process::ExitStatusExt;

use anyhow::{Result, ensure};
use testkit::deadline::poll_until;
use testkit::process::{Bench, Signal};
use testkit::qmp::QmpClient;

use super::terminal::Terminal;
use super::{LIMIT, command, quick, serve};
use crate::control::monitor_socket;
use crate::support::{ringloom, stop, with};

fn start(bench: &Bench) -> Result<Terminal> {
    let mut top = Terminal::start(&command(bench, &quick(&monitor_socket(bench))), (80, 24))?;
    top.wait_for_text("no client")?;
    Ok(top)
}

/// A signal ends it as if it had not been caught.
fn dies_of(bench: &Bench, signal: Signal) -> Result<()> {
    let mut top = start(bench)?;
    top.signal(signal)?;
    let status = top.wait()?;
    ensure!(status.signal() == Some(signal.as_raw()), "{signal:?}: {status}");
    top.check_given_back()
}

/// It stops, by a key or from outside, and goes on.
fn rests_and_goes_on(bench: &Bench) -> Result<()> {
    let mut top = start(bench)?;
    for is_by_key in [true, false] {
        if is_by_key {
            top.press("\u{1a}")?;
        } else {
            top.signal(Signal::TSTP)?;
        }
        poll_until("it stops", LIMIT, || Ok(top.is_stopped()?.then_some(())))?;
        top.check_given_back()?;
        top.signal(Signal::CONT)?;
        top.wait_for_text("no client")?;
        ensure!(top.is_taken(), "it is not drawn again");
    }
    top.press("q")?;
    ensure!(top.wait()?.success(), "q is no failure");
    top.check_given_back()
}

#[test]
fn the_terminal_is_given_back_whatever_ends_it() {
    with(&ringloom(), |_| {
        let bench = Bench::new()?;
        let server = serve(&bench)?;
        for signal in [Signal::TERM, Signal::HUP, Signal::INT] {
            dies_of(&bench, signal)?;
        }
        rests_and_goes_on(&bench)?;
        stop(server, &[&monitor_socket(&bench)]).map(drop)
    });
}

#[test]
fn a_daemon_that_comes_later_is_found_and_one_that_is_gone_is_told_until_it_comes_back() {
    with(&ringloom(), |_| {
        let bench = Bench::new()?;
        // A pattern also has those that come later.
        let mut top = Terminal::start(&command(&bench, "-i 0.2 q*.sock"), (80, 24))?;
        top.wait_for_text("no socket is called q*.sock")?;
        let mut server = serve(&bench)?;
        top.wait_for_text("no client")?;
        server.kill()?;
        let shown = top.wait_for_text("!! daemon qmp.sock: gone for")?;
        ensure!(shown.contains("1 BAD") && !shown.contains("no client"), "{shown}");
        top.wait_for_text("nobody serves")?;
        let server = serve(&bench)?;
        top.wait_for_text("no client")?;
        top.wait_for_text("nothing wrong")?;
        stop(server, &[&monitor_socket(&bench)])?;
        top.wait_for_text("there is no socket")?;
        top.press("q")?;
        ensure!(top.wait()?.success(), "q is no failure");
        top.check_given_back()
    });
}

#[test]
fn a_monitor_that_serves_another_client_is_waited_for_aloud() {
    with(&ringloom(), |_| {
        let bench = Bench::new()?;
        let server = serve(&bench)?;
        let other = QmpClient::connect(&monitor_socket(&bench))?;
        let mut top =
            Terminal::start(&command(&bench, &quick(&monitor_socket(&bench))), (120, 24))?;
        top.wait_for_text("which may serve another client")?;
        drop(other);
        top.wait_for_text("no client")?;
        stop(server, &[&monitor_socket(&bench)]).map(drop)
    });
}

/// What is said of it is seen on the screen that was there before.
#[cfg(feature = "fault-points")]
#[test]
fn a_panic_gives_the_terminal_back() -> Result<()> {
    let bench = Bench::new()?;
    let mut watched = command(&bench, &quick(&monitor_socket(&bench)));
    watched.env("RINGLOOM_TOP_FAULT", "1").env("RUST_BACKTRACE", "0");
    let mut top = Terminal::start(&watched, (80, 24))?;
    top.wait_for_text("there is no socket")?;
    top.press("!")?;
    let status = top.wait()?;
    ensure!(status.signal() == Some(Signal::ABORT.as_raw()), "{status}");
    top.check_given_back()?;
    let shown = top.shown()?;
    ensure!(shown.contains("a test has asked for it"), "{shown}");
    Ok(())
}
