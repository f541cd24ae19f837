//! The node: which children make a stripe, and what it says of itself.

use std::sync::Arc;

use block::{Access, ByteCount, Child, Node, Rights};
use layers::{ChunkSize, StripeDiscards, StripeError, StripeNode};

use super::child::{Fake, limits};

const CHUNK: u64 = 64 << 10;

fn stripe(children: Vec<Arc<Child>>) -> Result<StripeNode, StripeError> {
    let chunk = ChunkSize::new(ByteCount(CHUNK)).unwrap();
    StripeNode::new("s", children, chunk, Access::ReadWrite, StripeDiscards::Passed)
}

fn fakes(sizes: &[u64]) -> Vec<Fake> {
    sizes.iter().enumerate().map(|(place, bytes)| Fake::new(place, *bytes)).collect()
}

fn children(sizes: &[u64]) -> Vec<Arc<Child>> {
    fakes(sizes).into_iter().map(Fake::into_child).collect()
}

#[track_caller]
fn check_refused(children: Vec<Arc<Child>>, sentence: &str) {
    assert_eq!(stripe(children).unwrap_err().to_string(), sentence);
}

#[test]
fn the_size_is_that_of_the_whole_chunks() {
    let node = stripe(children(&[3 * CHUNK + 512, 4 * CHUNK - 512, 3 * CHUNK])).unwrap();
    assert_eq!(node.size().0, ByteCount(9 * CHUNK));
}

/// Sizes that Linux 6.12 shows of such arrays.
#[test]
fn the_size_is_the_one_that_md_shows() {
    let size = |chunk: u64, members: &[u64]| {
        let chunk = ChunkSize::new(ByteCount(chunk << 10)).unwrap();
        let (access, discards) = (Access::ReadWrite, StripeDiscards::Passed);
        let node = StripeNode::new("s", children(members), chunk, access, discards);
        node.unwrap().size().sectors()
    };
    assert_eq!(size(4, &[1 << 20; 2]), 4096);
    assert_eq!(size(12, &[2 << 20; 3]), 12192);
    assert_eq!(size(64, &[(1 << 20) + (20 << 10); 5]), 10240);
}

#[test]
fn children_that_make_no_stripe_are_refused_by_name() {
    check_refused(children(&[CHUNK]), "node s: 1 children; a stripe has 2 to 64");
    check_refused(children(&[CHUNK; 65]), "node s: 65 children; a stripe has 2 to 64");
    assert!(stripe(children(&[CHUNK; 64])).is_ok());
    check_refused(
        children(&[2 * CHUNK, 3 * CHUNK - 1, 3 * CHUNK]),
        "node s: children of unequal size: c0 has 131072 bytes, c2 has 196608 bytes (whole chunks \
         of 65536 bytes count)",
    );
    check_refused(
        children(&[CHUNK, CHUNK - 512]),
        "node s: the node c1 has 65024 bytes, fewer than one chunk of 65536",
    );
    let large = 1 << 62;
    check_refused(
        children(&[large; 2]),
        "node s: 2 children of 4611686018427387904 bytes make a disk of 2^63 bytes or more",
    );
}

#[test]
fn a_node_is_a_child_once() {
    let node: Arc<dyn Node> = Arc::new(Fake::new(0, CHUNK));
    let twice = [(); 2].map(|()| Child::new(Arc::clone(&node))).to_vec();
    check_refused(twice, "node s: the node c0 is a child twice");
}

#[test]
fn the_limits_suit_the_most_demanding_child() {
    let fakes = [limits(512, 16384), limits(4096, 512)];
    let fakes = fakes
        .into_iter()
        .enumerate()
        .map(|(place, limits)| Fake::new(place, CHUNK).with_limits(limits).into_child());
    assert_eq!(stripe(fakes.collect()).unwrap().limits(), limits(4096, 16384));
}

#[test]
fn a_discard_is_worth_it_if_each_child_has_enough_of_it() {
    let check = |below: u32, expected: u32| {
        let fake = |place| Fake::new(place, CHUNK).with_limits(limits(below, below)).into_child();
        let node = stripe((0..3).map(fake).collect()).unwrap();
        assert_eq!(node.limits().discard_granularity.get(), expected);
    };
    check(512, 512);
    check(64 << 10, 64 << 10);
    check(1 << 20, 4 << 20);
    check(1 << 31, 1 << 31);
}

#[test]
fn a_flush_reaches_every_child_even_if_one_fails() {
    let fakes = fakes(&[CHUNK; 3]);
    let notes: Vec<_> = fakes.iter().map(Fake::notes).collect();
    notes[1].lock().unwrap().fails_flush = true;
    let node = stripe(fakes.into_iter().map(Fake::into_child).collect()).unwrap();
    assert_eq!(node.flush().unwrap_err().to_string(), "c1");
    assert!(notes.iter().all(|notes| notes.lock().unwrap().flushes == 1));
    notes[1].lock().unwrap().fails_flush = false;
    assert!(node.flush().is_ok());
}

#[test]
fn all_children_are_claimed_or_none() {
    let fakes = fakes(&[CHUNK; 3]);
    let notes: Vec<_> = fakes.iter().map(Fake::notes).collect();
    let claims = || notes.iter().map(|notes| notes.lock().unwrap().claims).collect::<Vec<_>>();
    let node = stripe(fakes.into_iter().map(Fake::into_child).collect()).unwrap();
    notes[2].lock().unwrap().refuses_claim = true;
    let rights = Rights::of_user(Access::ReadWrite);
    assert_eq!(node.claim(rights).unwrap_err().node, "c2");
    assert_eq!(claims(), [0, 0, 0]);
    notes[2].lock().unwrap().refuses_claim = false;
    let claim = node.claim(rights).unwrap();
    assert_eq!(claims(), [1, 1, 1]);
    drop(claim);
    assert_eq!(claims(), [0, 0, 0]);
}
