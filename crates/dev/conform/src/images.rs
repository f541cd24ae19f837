//! qcow2 images in memory whose process dies and whose power goes: the long form of the rig of `testkit::qcow2rig`.
//!
//! Where it stands: `crates/nodes/qcow2/tests` has the short form, and the mischief that must be found.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use block::{Access, ByteCount, Child, Node};
use qcow2::{Children, FreedClusterDiscards, OverlapCheck, Qcow2Node, Qcow2Settings};
use testkit::conformance::play::Played;
use testkit::conformance::workload::Tally;
use testkit::qcow2rig::make::Recipe;
use testkit::qcow2rig::{Mischief, Options, Setup, Subject, peer, play};
use testkit::rng::Rng;

/// How often the image of one seed is opened.
const LIVES: u64 = 12;
/// One of so many images has operations that fail.
const FAILING_ONE_IN: u64 = 4;
/// One of so many images has syncs that fail.
const FAILING_SYNCS_ONE_IN: u64 = 8;

#[derive(Debug)]
struct Image;

impl Subject for Image {
    fn open(&self, setup: &Setup) -> Result<Arc<dyn Node>> {
        let child = |node: &Arc<dyn Node>| Child::new(Arc::clone(node));
        let settings = any_settings(&mut Rng::new(setup.seed));
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

/// How an image is used; often with so little memory that tables come and go.
pub(crate) fn any_settings(rng: &mut Rng) -> Qcow2Settings {
    Qcow2Settings {
        access: Access::ReadWrite,
        discards: if rng.one_in(2) {
            FreedClusterDiscards::Passed
        } else {
            FreedClusterDiscards::Ignored
        },
        l2_cache: ByteCount(if rng.one_in(2) { 0 } else { 1 << 20 }),
        refcount_cache: ByteCount(if rng.one_in(2) { 0 } else { 1 << 20 }),
        clean_after: rng.one_in(2).then_some(Duration::from_millis(20)),
        overlap_check: [OverlapCheck::None, OverlapCheck::Cached, OverlapCheck::All][rng.index(3)],
    }
}

/// Plays with the image of this seed.
pub(crate) fn play_image(seed: u64) -> Result<Played> {
    let rng = &mut Rng::new(seed);
    let options = Options {
        recipe: Recipe::any(rng, 9..18),
        lives: LIVES,
        chain: seed.is_multiple_of(3),
        mischief: Mischief::None,
        fail_one_in: if seed.is_multiple_of(FAILING_ONE_IN) { 300 } else { 0 },
        fail_syncs_one_in: if seed % FAILING_SYNCS_ONE_IN == 1 { 30 } else { 0 },
        channels_one_in: if seed.is_multiple_of(2) { 2 } else { 0 },
        peer_one_in: if peer::missing().is_none() { 30 } else { 0 },
    };
    let played = play(seed, &Image, &options)?;
    let asked = played.tally;
    let done = asked.reads + asked.writes + asked.zeroings + asked.flushes - asked.failed;
    Ok(Played {
        names: vec!["qcow2"],
        tally: Tally { done, refused: asked.failed },
        held: 0,
        kept: 0,
    })
}
