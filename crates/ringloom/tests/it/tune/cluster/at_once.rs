//! Many workers at once, workers that are lost together, and clocks that are off.

use anyhow::ensure;
use fake_cluster::Fake;
use serde_json::{Value, json};

use super::super::{LIMIT, OUT, check_sound, list, of_kind, with_rig};
use super::{check_nothing_left, line};

/// As many as one small machine runs a fio for.
const MANY: usize = 64;
/// How far the clock of a node is ahead.
const AHEAD_S: i64 = 90;

#[test]
fn many_workers_are_measured_at_once() {
    with_rig(|rig| {
        let fake = Fake::with_pods();
        let changes = [
            ("[1, 2]", "[64]"),
            ("runtime: 1, ramp: 0.2", "runtime: 6, ramp: 2"),
            ("rounds: 2", "rounds: 1"),
            ("startSeconds: 5", "startSeconds: 100"),
        ];
        let ran = rig.run(&line(rig, &fake, &changes)?)?;
        ensure!(ran.status.success(), "{ran:?}");
        check_nothing_left(rig, &fake, &[OUT])?;
        let lines = rig.lines()?;
        check_sound(&lines)?;
        let parts = list(&lines[0], "parts")?;
        ensure!(lines.len() == 1 && parts.len() == MANY, "{} parts", parts.len());
        let of = |node: &str| parts.iter().filter(|it| it["node"] == node).count();
        ensure!(of("one") == MANY / 2 && of("two") == MANY / 2, "{parts:?}");
        let report = rig.report()?;
        ensure!(report.contains("local, 64 at once"), "{report}");
        Ok(())
    });
}

#[test]
fn a_clock_that_is_off_is_told_and_runs_start_together_all_the_same() {
    with_rig(|rig| {
        let fake = Fake::with_pods();
        fake.state().ahead_ns.insert("two".to_owned(), AHEAD_S * 1_000_000_000);
        let changes = [("[1, 2]", "[2]"), ("runtime: 1, ramp", "runtime: 2, ramp")];
        let ran = rig.run(&line(rig, &fake, &changes)?)?;
        ensure!(ran.status.success(), "{ran:?}");
        let told = "Note: the clock of two is 90.0s ahead of this machine's; runs start together all the same.";
        ensure!(ran.stderr.matches("Note: the clock of").count() == 1, "once for a node: {ran:?}");
        ensure!(ran.stderr.contains(told), "{ran:?}");
        let lines = rig.lines()?;
        check_sound(&lines)?;
        for run in &lines {
            let (covered, all) = (&run["cost"]["covered_ns"], &run["elapsed_ns"]);
            let share = covered.as_f64().unwrap_or(0.0) / all.as_f64().unwrap_or(f64::MAX);
            // A machine that others use starts one of them late; what is 90 s apart has nothing in common.
            ensure!(share > 0.5, "they ran together for {share} of the time: {run}");
        }
        Ok(())
    });
}

#[test]
fn the_clock_of_a_machine_that_is_off_is_told() {
    with_rig(|rig| {
        let fake = Fake::with_pods();
        fake.state().has_kubevirt = true;
        for node in ["one", "two"] {
            fake.state().ahead_ns.insert(node.to_owned(), -AHEAD_S * 1_000_000_000);
        }
        let changes = [
            ("{agent: a:1}", "{agent: a:1, guest: g:1}"),
            ("[pod]", "[vm]"),
            ("[1, 2]", "[2]"),
            ("runtime: 1, ramp", "runtime: 2, ramp"),
            ("rounds: 2", "rounds: 1"),
        ];
        let ran = rig.run(&line(rig, &fake, &changes)?)?;
        ensure!(ran.status.success(), "{ran:?}");
        // Each guest has a clock of its own.
        ensure!(ran.stderr.matches("is 90.0s behind this machine's").count() == 2, "{ran:?}");
        check_sound(&rig.lines()?)
    });
}

#[test]
fn a_clock_that_is_set_between_two_runs_keeps_nobody_from_starting() {
    with_rig(|rig| {
        let fake = Fake::with_pods();
        let changes = [
            ("[1, 2]", "[2]"),
            ("runtime: 1, ramp", "runtime: 2, ramp"),
            ("jobs: 1", "jobs: [1, 2]"),
            ("rounds: 2", "rounds: 1"),
        ];
        let mut tuning = rig.start(&line(rig, &fake, &changes)?)?;
        tuning.wait_until("a result", || {
            let text = std::fs::read_to_string(rig.path(OUT).join("results.jsonl"));
            Ok(text.ok().filter(|text| text.lines().count() > 1))
        })?;
        // The second run may just have been told when to start: then it ends apart, and the next one does not.
        fake.state().ahead_ns.insert("two".to_owned(), AHEAD_S * 1_000_000_000);
        let ran = tuning.end(LIMIT)?;
        ensure!(ran.stderr.contains("the clock of two is 90.0s ahead"), "{ran:?}");
        ensure!(of_kind(&rig.lines()?, "failure").is_empty(), "{ran:?}");
        Ok(())
    });
}

/// Makes a pod one that its node has thrown out.
fn evict(fake: &Fake, pod: &str) {
    fake.change(pod, |pod: &mut Value| {
        pod["status"] = json!({ "phase": "Failed", "reason": "Evicted", "message": "The node was low on memory." });
    });
}

#[test]
fn workers_that_are_lost_together_are_one_failure_that_names_them() {
    with_rig(|rig| {
        let fake = Fake::with_pods();
        let changes = [
            ("[1, 2]", "[3]"),
            ("runtime: 1", "runtime: 6"),
            ("rounds: 2", "rounds: 1"),
            ("jobs: 1", "jobs: [1, 2]"),
        ];
        let mut tuning = rig.start(&line(rig, &fake, &changes)?)?;
        let jobs = rig.path(OUT).join("jobs");
        tuning.wait_until("the job of fio", || Ok(jobs.exists().then_some(())))?;
        let pods: Vec<_> = fake.made().into_iter().filter(|it| it.contains("/pods/")).collect();
        ensure!(pods.len() == 3, "{pods:?}");
        pods[..2].iter().for_each(|pod| evict(&fake, pod));
        let ran = tuning.end(LIMIT)?;
        ensure!(ran.status.code() == Some(1), "{ran:?}");
        ensure!(ran.stderr.contains("2 of 3 workers: pod ringloom-"), "{ran:?}");
        check_nothing_left(rig, &fake, &[OUT])?;
        let lines = rig.lines()?;
        ensure!(of_kind(&lines, "failure").len() == 1, "{lines:?}");
        ensure!(of_kind(&lines, "run").len() == 1, "the next one has others: {lines:?}");
        Ok(())
    });
}
