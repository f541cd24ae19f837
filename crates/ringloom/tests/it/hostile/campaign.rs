//! The short form of `cargo xtask hostile`: attackers of all kinds beside clients that must notice nothing, and a daemon
//! that is replaced and killed meanwhile. The tests in which the rig itself does harm show that harm is found.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testkit::hostile::campaign::{self, Bounds, Mischief, Plan};
use testkit::report::note;

use crate::support::{ringloom, with};

/// How long the short form has attackers.
const TIME: Duration = Duration::from_secs(12);
/// How long the rig's own harm may go unseen, beside what it waits for.
const SOON: Duration = Duration::from_secs(2);

fn run(plan: &Plan) -> Result<campaign::Summary> {
    let summary = campaign::run(&ringloom(), plan, &mut note)?;
    summary.lines.iter().for_each(|line| note(line));
    note(&summary.to_string());
    Ok(summary)
}

#[test]
fn bystanders_notice_nothing_of_attacks_of_all_kinds() {
    with(&ringloom(), |_| {
        let summary = run(&Plan::new(1, TIME))?;
        ensure!(summary.has_all_attacks, "not each attack came in {TIME:?}: {summary}");
        Ok(())
    });
}

/// Nobody attacks, and nothing happens to the daemon, but for what the plan is given.
fn alone() -> Plan {
    let quiet = Duration::from_millis(200);
    let bounds = Bounds { release: SOON, ..Bounds::default() };
    Plan { attackers: 0, events: Vec::new(), quiet, bounds, ..Plan::new(2, SOON) }
}

/// The plan must fail with one of these sentences.
fn must_be_found(plan: &Plan, sentences: &[&str]) {
    with(&ringloom(), |_| {
        let found = campaign::run(&ringloom(), plan, &mut note).err();
        let text = format!("{:#}", found.context("nothing was found")?);
        let expected = sentences.iter().any(|it| text.contains(it));
        ensure!(expected, "found something else: {text}");
        Ok(())
    });
}

fn mischief_is_found(mischief: Mischief, sentences: &[&str]) {
    must_be_found(&Plan { mischief: Some(mischief), ..alone() }, sentences);
}

#[test]
fn without_attackers_nothing_is_found() {
    with(&ringloom(), |_| run(&alone()).map(drop));
}

#[test]
fn bytes_changed_behind_a_bystander_s_back_are_found() {
    mischief_is_found(Mischief::ForeignBytes, &["is not version"]);
}

#[test]
fn a_daemon_that_stands_still_is_found() {
    mischief_is_found(Mischief::Stall, &["a request took", "99th percentile"]);
}

#[test]
fn an_image_that_somebody_else_can_lock_is_found() {
    mischief_is_found(Mischief::Unlocked, &["somebody else got the lock"]);
}

#[test]
fn a_daemon_that_dies_by_itself_is_found() {
    mischief_is_found(Mischief::Death, &["the daemon has ended by itself"]);
}

#[test]
fn what_the_daemon_keeps_of_an_attacker_is_found() {
    mischief_is_found(Mischief::Kept, &["the daemon to give back what it held"]);
}

#[test]
fn a_daemon_that_grows_is_found() {
    let bounds = Bounds { memory_kib: 0, ..Bounds::default() };
    let (attackers, only) = (1, "compressed".to_owned());
    must_be_found(&Plan { attackers, only, bounds, ..alone() }, &["the daemon grew"]);
}

#[test]
fn a_log_without_bounds_is_found() {
    let bounds = Bounds { lines: 0, lines_per_second: 0, ..Bounds::default() };
    must_be_found(&Plan { bounds, ..alone() }, &["the daemon wrote"]);
}
