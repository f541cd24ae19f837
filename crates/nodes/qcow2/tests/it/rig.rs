//! The rig of `testkit::qcow2rig` on this crate: deaths and losses of power at any step, failing operations, and
//! mischief that must be found.
//!
//! Limits: the short form. `cargo xtask conform --form images` goes on for as long as one likes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Result;
use block::{
    Access, ByteCount, Child, ComputeThreads, ComputeWork, Lane, LaneContext, LaneError, Node,
};
use qcow2::{Children, FreedClusterDiscards, OverlapCheck, Qcow2Node, Qcow2Settings};
use testkit::qcow2rig::make::Recipe;
use testkit::qcow2rig::{Forgotten, Mischief, Options, Played, Setup, Subject, peer, play};
use testkit::report;
use testkit::rng::Rng;

/// What the crate serves.
#[derive(Debug)]
struct Image;

impl Subject for Image {
    fn open(&self, setup: &Setup) -> Result<Arc<dyn Node>> {
        let mut rng = Rng::new(setup.seed);
        let child = |node: &Arc<dyn Node>| Child::new(Arc::clone(node));
        let settings = Qcow2Settings {
            access: Access::ReadWrite,
            discards: if rng.one_in(2) {
                FreedClusterDiscards::Passed
            } else {
                FreedClusterDiscards::Ignored
            },
            // Often so little that tables come and go.
            l2_cache: ByteCount(if rng.one_in(2) { 0 } else { 1 << 20 }),
            refcount_cache: ByteCount(if rng.one_in(2) { 0 } else { 1 << 20 }),
            clean_after: rng.one_in(2).then_some(Duration::from_millis(20)),
            overlap_check: [OverlapCheck::None, OverlapCheck::Cached, OverlapCheck::All]
                [rng.index(3)],
        };
        let mut backing = setup.backing.clone();
        for file in &setup.backing_images {
            let (file, below) = (child(file), backing.as_ref().map(child));
            let children = Children { file, backing: below, data_file: None };
            let settings = Qcow2Settings { access: Access::ReadOnly, ..settings };
            let engines = Arc::clone(&setup.engines);
            backing = Some(Arc::new(Qcow2Node::open("below", children, settings, engines)?));
        }
        let children = Children {
            file: child(&setup.file),
            backing: backing.as_ref().map(child),
            data_file: setup.data_file.as_ref().map(child),
        };
        Ok(Arc::new(Qcow2Node::open("image", children, settings, Arc::clone(&setup.engines))?))
    }
}

/// The same, with some lanes that compress what they write.
#[derive(Debug)]
struct CompressedImage;

impl Subject for CompressedImage {
    fn open(&self, setup: &Setup) -> Result<Arc<dyn Node>> {
        let (node, lanes) = (Image.open(setup)?, AtomicU64::new(setup.seed % 2));
        Ok(Arc::new(Compressing { node, lanes }))
    }
}

/// A node of which every second lane compresses, the first one or not.
#[derive(Debug)]
struct Compressing {
    node: Arc<dyn Node>,
    lanes: AtomicU64,
}

/// Compresses at once: threads would do so at times of their own.
#[derive(Debug)]
struct AtOnce;

impl ComputeThreads for AtOnce {
    fn run(&self, work: ComputeWork) {
        work();
    }
}

impl Node for Compressing {
    testkit::same_node_as!(node);

    fn open_lane(&self, io: &LaneContext) -> Result<Box<dyn Lane>, LaneError> {
        let threads: Arc<dyn ComputeThreads> = Arc::new(AtOnce);
        match self.lanes.fetch_add(1, Ordering::Relaxed) % 2 {
            0 => self.node.open_lane(&io.compressing(&threads)),
            _ => self.node.open_lane(io),
        }
    }
}

/// Images of any shape that the crate serves.
fn any_recipe(rng: &mut Rng) -> Recipe {
    Recipe::any(rng, 9..17)
}

/// So many images, or as many as `RINGLOOM_RIG_IMAGES` says: for whoever looks for a rare mistake.
pub(crate) fn rounds(usual: u64) -> u64 {
    let wanted = std::env::var("RINGLOOM_RIG_IMAGES").ok();
    wanted.and_then(|number| number.parse().ok()).unwrap_or(usual)
}

fn options(seed: u64, mischief: Mischief) -> Options {
    let recipe = any_recipe(&mut Rng::new(seed));
    Options {
        recipe,
        lives: 8,
        chain: seed % 2 == 1,
        mischief,
        fail_one_in: 0,
        fail_syncs_one_in: 0,
        channels_one_in: if mischief == Mischief::ForgetfulChannels { 1 } else { 0 },
        peer_one_in: 0,
    }
}

#[test]
fn images_live_through_deaths_and_losses_of_power() {
    let peer_one_in = if peer::missing().is_none() { 20 } else { 0 };
    let mut all = Played::default();
    for seed in 0..rounds(16) {
        let options = Options { peer_one_in, ..options(seed, Mischief::None) };
        all.add(&play(seed, &Image, &options).unwrap());
    }
    report::note(&format!("{all:?}"));
    assert!(all.closed > 0 && all.killed > 0 && all.powerless > 0);
    assert_eq!(all.leaks_of_closed, 0, "what is closed leaks nothing");
    if let Some(reason) = peer::missing() {
        report::skipped(&reason);
    }
}

#[test]
fn images_whose_clusters_are_compressed_live_through_the_same() {
    let peer_one_in = if peer::missing().is_none() { 20 } else { 0 };
    let mut all = Played::default();
    for seed in 0..rounds(6) {
        let options = Options { peer_one_in, ..options(seed, Mischief::None) };
        all.add(&play(seed, &CompressedImage, &options).unwrap());
    }
    report::note(&format!("{all:?}"));
    assert!(all.closed > 0 && all.killed > 0 && all.powerless > 0);
    assert_eq!(all.leaks_of_closed, 0, "what is closed leaks nothing");
    if let Some(reason) = peer::missing() {
        report::skipped(&reason);
    }
}

#[test]
fn operations_may_fail() {
    for seed in 0..10 {
        let options = Options { fail_one_in: 300, ..options(seed, Mischief::None) };
        play(seed, &Image, &options).unwrap();
        if seed < 3 {
            play(seed, &CompressedImage, &options).unwrap();
        }
    }
}

#[test]
fn a_sync_that_has_failed_is_remembered() {
    let mut failed = 0;
    for seed in 0..10 {
        let options = Options { fail_syncs_one_in: 30, ..options(seed, Mischief::None) };
        failed += play(seed, &Image, &options).unwrap().tally.failed;
    }
    assert!(failed > 0, "no request has failed");
}

#[test]
fn images_live_behind_channels() {
    for seed in 0..10 {
        let options = Options { channels_one_in: 2, ..options(seed, Mischief::None) };
        play(seed, &Image, &options).unwrap();
    }
}

/// Mischief must be found, whatever the image.
fn check_found(mischief: Mischief) {
    check_found_in(&Image, mischief);
}

fn check_found_in(subject: &dyn Subject, mischief: Mischief) {
    let found = |seed: &u64| play(*seed, subject, &options(*seed, mischief)).is_err();
    let images = (0..rounds(60)).find(found).map(|last| last + 1);
    report::note(&format!("{mischief:?} is found in {images:?} images"));
    assert!(images.is_some(), "{mischief:?} is not found");
}

#[test]
fn metadata_that_each_iothread_has_for_itself_is_found() {
    check_found(Mischief::ClonedMetadata);
}

#[test]
fn zeroings_that_come_late_are_found() {
    check_found(Mischief::LateZeroing);
}

#[test]
fn metadata_that_is_written_late_and_in_any_order_is_found() {
    check_found(Mischief::UnwrittenMetadata);
}

#[test]
fn syncs_that_do_nothing_are_found() {
    check_found(Mischief::LyingSyncs);
}

#[test]
fn syncs_of_tasks_that_do_nothing_are_found() {
    check_found(Mischief::LyingLaneSyncs);
    check_found_in(&CompressedImage, Mischief::LyingLaneSyncs);
}

#[test]
fn clusters_that_are_freed_too_soon_are_found() {
    check_found(Mischief::EarlyEnds);
}

#[test]
fn channels_that_forget_what_was_under_way_are_found() {
    check_found(Mischief::ForgetfulChannels);
}

/// The crate remembers no answer. Whoever changes that finds here what must end one.
#[test]
fn answers_that_are_remembered_for_too_long_are_found() {
    for seed in 0..10 {
        let mischief = Mischief::Remembers(Forgotten::Nothing);
        play(seed, &Image, &options(seed, mischief)).unwrap();
    }
    for forgotten in [Forgotten::Writes, Forgotten::Discards, Forgotten::Zeroings] {
        check_found(Mischief::Remembers(forgotten));
    }
}
