//! A short run of the suite; `cargo xtask conform` is the long one.

use std::path::PathBuf;
use std::sync::Arc;

use conform::campaign::{End, Form, Summary, run};
use testkit::ceph::{Cluster, Store};
use testkit::report::skipped;

/// Runs so many stacks, and looks whether they were of any use.
#[track_caller]
fn check(form: &Form, stacks: u64) -> Summary {
    let summary = run(form, 0, End::Stacks(stacks)).unwrap_or_else(|error| panic!("{error:#}"));
    assert!(summary.done > stacks * 50 && summary.held > stacks, "{summary:?}");
    assert!(summary.kept > stacks, "{summary:?}");
    assert!(summary.refused > stacks / 2, "{summary:?}");
    for subject in [
        "null",
        "raw",
        "throttle",
        "delay",
        "stripe",
        "copy-on-read",
        "copy-before-write",
        "faulty",
    ] {
        assert!(summary.subjects.contains_key(subject), "no {subject}: {summary:?}");
    }
    summary
}

#[test]
fn stacks_in_memory_conform() {
    check(&Form::Pure, 1000);
}

#[test]
fn stacks_on_iothreads_conform() {
    let directories = [env!("CARGO_TARGET_TMPDIR"), "/dev/shm"];
    let summary = check(&Form::Live(directories.map(PathBuf::from).to_vec()), 60);
    assert!(summary.subjects["file"] > 0, "{summary:?}");
}

#[test]
fn images_conform_in_memory_and_on_iothreads() {
    let summary =
        run(&Form::Images, 0, End::Stacks(10)).unwrap_or_else(|error| panic!("{error:#}"));
    assert!(summary.done > 1000, "{summary:?}");
    let directories = [env!("CARGO_TARGET_TMPDIR"), "/dev/shm"].map(PathBuf::from).to_vec();
    let live = Form::LiveImages(directories);
    let summary = run(&live, 0, End::Stacks(20)).unwrap_or_else(|error| panic!("{error:#}"));
    assert!(summary.done > 1000, "{summary:?}");
}

/// A third of the stacks has no image, because something else ends them.
#[test]
fn stacks_on_images_of_a_cluster_conform() {
    if let Some(reason) = Cluster::missing() {
        return skipped(&reason);
    }
    let start = || Cluster::start(Store::Memory).map(Arc::new);
    let cluster = start().unwrap_or_else(|error| panic!("{error:#}"));
    let form = Form::Cluster(env!("CARGO_TARGET_TMPDIR").into(), cluster);
    let summary = run(&form, 0, End::Stacks(12)).unwrap_or_else(|error| panic!("{error:#}"));
    assert!(summary.done > 500 && summary.subjects["rbd"] >= 8, "{summary:?}");
}
