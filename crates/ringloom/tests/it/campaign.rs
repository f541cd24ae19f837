//! The short form of `cargo xtask crash`: ringloom is killed again and again under load, and nothing may be lost, come
//! back or be done twice. The tests that take something away (image lock, in-flight region) show that it would be
//! found.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use testkit::crash::campaign::{self, Ending, Format, Locking, Medium, Plan, Rings, Tracking};
use testkit::process::Program;
use testkit::report::{note, skipped};

use crate::support::{is_root, ringloom, with};

/// Kills of the short form: four images.
const ROUNDS: u32 = 20;
/// How many campaigns a mistake may go through unseen.
const TRIES: u64 = 5;

fn run(program: &Program, plan: &Plan) -> Result<()> {
    let summary = campaign::run(program, plan, &mut note)?;
    note(&summary.to_string());
    Ok(())
}

/// Runs campaigns until one finds something, which must be one of these.
fn must_be_found(program: &Program, plan: &Plan, expected: &[&str]) -> Result<()> {
    for seed in 0..TRIES {
        if let Err(error) = run(program, &Plan { seed, ..plan.clone() }) {
            let text = format!("{error:#}");
            ensure!(expected.iter().any(|it| text.contains(it)), "found something else: {text}");
            note(&text);
            return Ok(());
        }
    }
    bail!("{TRIES} campaigns found nothing");
}

/// Shows that the rig is right, without kills.
#[test]
fn the_peer_stopped_in_order_loses_nothing() {
    let plan = Plan {
        ending: Ending::QuietStops,
        tracking: Tracking::Nothing,
        iothreads: 1,
        rings: vec![Rings::Split],
        ..Plan::new(ROUNDS, 1)
    };
    with(&Program::qemu_storage_daemon(), |program| run(program, &plan));
}

#[test]
fn nothing_is_lost_when_the_server_is_stopped_in_order() {
    for tracking in [Tracking::Nothing, Tracking::Region] {
        let plan = Plan { ending: Ending::Stops, tracking, ..Plan::new(ROUNDS, 1) };
        with(&ringloom(), |program| run(program, &plan));
    }
}

#[test]
fn nothing_is_lost_or_done_twice_when_the_server_is_killed() {
    with(&ringloom(), |program| run(program, &Plan::new(ROUNDS, 1)));
}

#[test]
fn nothing_is_lost_or_done_twice_when_the_server_is_killed_at_its_own_work() {
    let plan = Plan { media: vec![Medium::Memory], ..Plan::new(ROUNDS, 1) };
    with(&ringloom(), |program| run(program, &plan));
}

#[test]
fn nothing_comes_back_from_a_killed_server_s_slow_disk() {
    if !is_root() {
        skipped("FUSE and a loop device need root");
        return;
    }
    let plan = Plan { media: vec![Medium::Slow], ..Plan::new(ROUNDS, 1) };
    with(&ringloom(), |program| run(program, &plan));
}

/// After each kill qemu-img finds nothing worse than leaks.
#[test]
fn a_qcow2_image_loses_nothing_when_the_server_is_killed() {
    for (format, seed) in [(Format::Qcow2, 1), (Format::Overlay, 2)] {
        let media = vec![Medium::File, Medium::Memory];
        let plan = Plan { format, media, ..Plan::new(ROUNDS, seed) };
        with(&ringloom(), |program| run(program, &plan));
    }
}

#[test]
fn a_qcow2_image_loses_nothing_when_the_server_is_stopped_in_order() {
    let (ending, format) = (Ending::Stops, Format::Overlay);
    let plan = Plan { ending, format, ..Plan::new(ROUNDS, 3) };
    with(&ringloom(), |program| run(program, &plan));
}

#[test]
fn a_qcow2_image_on_a_slow_disk_loses_nothing_when_the_server_is_killed() {
    if !is_root() {
        skipped("FUSE and a loop device need root");
        return;
    }
    for (format, seed) in [(Format::Qcow2, 4), (Format::Overlay, 5)] {
        let plan = Plan { format, media: vec![Medium::Slow], ..Plan::new(ROUNDS / 2, seed) };
        with(&ringloom(), |program| run(program, &plan));
    }
}

#[test]
fn without_the_image_lock_late_io_of_a_killed_server_is_found() {
    if !is_root() {
        skipped("FUSE and a loop device need root");
        return;
    }
    let plan = Plan { media: vec![Medium::Slow], locking: Locking::Off, ..Plan::new(ROUNDS, 0) };
    let expected = ["went back", "after it had completed", "none of its own", " up to byte "];
    with(&ringloom(), |program| must_be_found(program, &plan, &expected));
}

#[test]
fn without_an_in_flight_region_lost_requests_are_found() {
    let patience = Duration::from_secs(3);
    let plan = Plan { tracking: Tracking::Nothing, patience, ..Plan::new(ROUNDS, 0) };
    // The successor does not know of a request, does one again that was completed, or finds the same one twice in the
    // ring and refuses it.
    let expected = ["not completed", "done twice", "the server ended the session"];
    with(&ringloom(), |program| {
        must_be_found(program, &Plan { rings: vec![Rings::Split], ..plan }, &expected)
    });
}

/// Rings go from iothread to iothread every few milliseconds, iothreads start and end, servers are killed, also between
/// the two halves of a move, stopped and taken over.
#[cfg(feature = "fault-points")]
#[test]
fn nothing_is_lost_or_done_twice_when_rings_are_moved_at_random() {
    let (steps, moves) = (campaign::Steps::Known, campaign::Moves::Random);
    let media = vec![Medium::Memory, Medium::File];
    let plan = Plan { steps, moves, media, ..Plan::new(ROUNDS, 1) };
    with(&ringloom(), |program| run(program, &plan));
}

#[cfg(feature = "fault-points")]
#[test]
fn nothing_is_lost_or_done_twice_when_the_server_is_killed_between_two_steps() {
    let steps = campaign::Steps::Known;
    let plan = Plan { steps, media: vec![Medium::Memory], ..Plan::new(2 * ROUNDS, 1) };
    with(&ringloom(), |program| run(program, &plan));
}
