//! Regions that a front end has spoilt, cut or confused.

use super::{Device, ENTRIES, QUEUE, QUEUES, World};
use crate::inflight::{
    ENTRIES_FIELD, InflightError, InflightFault, InflightGeometry, InflightQueue, InflightRegion,
    VERSION_FIELD,
};
use crate::{Ring, RingError, RingLayout, catch_lost_memory};

/// A ring with three requests, two of them in flight.
fn interrupted(layout: RingLayout) -> World {
    let mut world = World::new(layout);
    let mut device = Device::new(world.start());
    for _ in 0..3 {
        assert!(world.offer(1));
    }
    assert!(device.pop() && device.pop());
    world
}

/// Where the part of the ring starts.
fn part(layout: RingLayout) -> u64 {
    let shape = InflightGeometry { queues: QUEUES, queue_size: ENTRIES };
    shape.bytes(layout) / u64::from(QUEUES) * u64::from(QUEUE)
}

#[track_caller]
fn refused(world: &World, expected: &str) {
    let setup = world.driver.setup();
    let error = Ring::tracked(world.guest.memory(), setup, &world.queue()).expect_err(expected);
    assert_eq!(error.to_string(), expected);
}

#[track_caller]
fn spoilt(layout: RingLayout, offset: usize, value: u16, expected: &str) {
    let world = interrupted(layout);
    world.region.put(part(layout) + offset as u64, &value.to_ne_bytes());
    refused(&world, expected);
}

#[test]
fn a_header_that_nobody_has_defined_is_refused() {
    for layout in [RingLayout::Split, RingLayout::Packed] {
        let known = "in-flight region has version 2, only 1 is known";
        spoilt(layout, VERSION_FIELD, 2, known);
        spoilt(layout, 0, 4, "in-flight region has features 0x4, none is known");
        let said = "in-flight region has 6 entries for each ring and was said to have 7";
        spoilt(layout, ENTRIES_FIELD, 6, said);
    }
}

#[test]
fn a_split_region_that_does_not_fit_the_ring_is_refused() {
    let split = |offset, value, expected| spoilt(RingLayout::Split, offset, value, expected);
    let stale = "in-flight region belongs to used index 65524, the ring of 4 descriptors is at \
                 65532";
    split(14, 65524, stale);
    // One behind: the head of a batch that is none.
    let world = interrupted(RingLayout::Split);
    world.region.put(part(RingLayout::Split) + 14, &0xfffb_u16.to_ne_bytes());
    world.region.put(part(RingLayout::Split) + 12, &9_u16.to_ne_bytes());
    refused(&world, "in-flight region has a broken list at entry 9");
    // The mark of entry 5, which the ring of 4 has not.
    split(16 + 16 * 5, 1, "in-flight region marks chain 5 of a ring of 4 descriptors");
}

#[test]
fn a_packed_region_that_does_not_fit_the_ring_is_refused() {
    let packed = |offset, value, expected| spoilt(RingLayout::Packed, offset, value, expected);
    let field = |entry: usize, field: usize| 32 + 32 * entry + field;
    let position = "in-flight region has used position 5 (wrap counter 1) of 5 descriptors";
    packed(16, 5, position);
    packed(18, 5, position);
    packed(20, 0x0102, "in-flight region has used position 0 (wrap counter 2) of 5 descriptors");
    // The free list leads back, or ends too soon.
    packed(field(4, 2), 3, "in-flight region has a broken list at entry 3");
    packed(field(2, 2), 9, ROOM);
    // A chain without descriptors, with more than there are, or through free entries.
    let none = "in-flight region has 0 descriptors in flight and 5 free entries for a ring of 5";
    packed(field(0, 6), 0, none);
    let many = "in-flight region has 6 descriptors in flight and 5 free entries for a ring of 5";
    packed(field(0, 6), 6, many);
    packed(field(1, 6), 2, "in-flight region has a broken list at entry 2");
    // An id that is none, or taken.
    packed(
        field(0, 16),
        5,
        "in-flight region marks buffer id 5, which is in use or beyond the ring",
    );
    packed(
        field(0, 16),
        1,
        "in-flight region marks buffer id 1, which is in use or beyond the ring",
    );
}

const ROOM: &str =
    "in-flight region has 2 descriptors in flight and 1 free entries for a ring of 5";

#[test]
fn a_saved_chain_that_is_no_chain_breaks_the_ring() {
    let layout = RingLayout::Packed;
    for (flags, expected) in [
        (1_u16, "chain 2 is longer than the 1 descriptors of the ring that are not in use"),
        (5, "chain 2: indirect descriptor with a next descriptor"),
    ] {
        let world = interrupted(layout);
        world.region.put(part(layout) + 32 + 18, &flags.to_ne_bytes());
        let mut ring = world.start();
        let error = ring.pop(&mut crate::Chain::default()).expect_err(expected);
        assert_eq!(error.to_string(), expected);
    }
}

/// Random bytes over a sound region: refused, or a ring that keeps to its rules.
#[test]
fn no_content_of_a_region_makes_a_panic() {
    let mut dice = super::Dice(30);
    for layout in [RingLayout::Split, RingLayout::Packed] {
        let start = part(layout);
        for round in 0..3000 {
            let world = interrupted(layout);
            for _ in 0..=dice.below(4) {
                let at = dice.below(usize::try_from(world.region.bytes() - start).expect("small"));
                let byte = u8::try_from(dice.below(9)).expect("small");
                world.region.put(start + at as u64, &[byte]);
            }
            super::note(&format!("{layout}, round {round}"));
            let setup = world.driver.setup();
            let Ok(mut ring) = Ring::tracked(world.guest.memory(), setup, &world.queue()) else {
                continue;
            };
            let mut chain = crate::Chain::default();
            while let Ok(Some(head)) = ring.pop(&mut chain) {
                ring.push_used(head, 1);
                let _interrupt = ring.publish();
            }
        }
    }
}

#[test]
fn a_ring_that_has_no_place_in_the_region_is_refused() {
    let world = World::new(RingLayout::Packed);
    let open = |queues, queue_size, bytes, queue| {
        let shape = InflightGeometry::check(queues, queue_size).expect("possible");
        let region =
            InflightRegion::map(world.region.fd(), shape, bytes, 0, &std::sync::Arc::default())
                .expect("mapped");
        InflightQueue { region: region.into(), queue }
    };
    let bytes = world.region.bytes();
    let check = |queue: InflightQueue, expected: Result<(), InflightFault>| {
        assert_eq!(queue.check(RingLayout::Packed, 5), expected);
    };
    check(open(2, 7, bytes, 1), Ok(()));
    check(open(2, 7, bytes, 2), Err(InflightFault::NoSuchQueue { queue: 2, queues: 2 }));
    check(open(2, 4, bytes, 0), Err(InflightFault::RingTooLarge { size: 5, queue_size: 4 }));
    let needed = u32::try_from(bytes).expect("small");
    let small = InflightFault::TooSmall { bytes: needed - 1, needed };
    check(open(2, 7, bytes - 1, 0), Err(small));
    let setup = world.driver.setup();
    let error = Ring::tracked(world.guest.memory(), setup, &open(2, 7, bytes - 1, 0));
    assert_eq!(error.expect_err("too small"), RingError::Inflight(small));
}

#[test]
fn a_region_that_is_not_in_its_file_is_refused() {
    let world = World::new(RingLayout::Split);
    let shape = InflightGeometry::check(QUEUES, ENTRIES).expect("possible");
    let map = |bytes, offset| {
        InflightRegion::map(world.region.fd(), shape, bytes, offset, &std::sync::Arc::default())
    };
    let bytes = world.region.bytes();
    for (bytes, offset) in [(0, 0), (bytes + 1, 0), (bytes, 8), (u64::MAX, 8), (8, u64::MAX)] {
        let error = map(bytes, offset).expect_err("outside");
        assert!(matches!(error, InflightError::BeyondFile { .. }), "{error}");
    }
    assert!(matches!(map(8, 4), Err(InflightError::Misaligned { offset: 4 })));
    for (queues, size) in [(0, 1), (257, 1), (1, 0), (1, 32769)] {
        assert!(matches!(InflightGeometry::check(queues, size), Err(InflightError::Shape { .. })));
    }
}

/// The file is cut before the ring starts, and while it is served.
#[test]
fn a_region_that_is_taken_away_breaks_the_ring() {
    catch_lost_memory().expect("the handler is installed");
    for layout in [RingLayout::Split, RingLayout::Packed] {
        let mut world = interrupted(layout);
        let queue = world.queue();
        let mut ring =
            Ring::tracked(world.guest.memory(), world.driver.setup(), &queue).expect("sound");
        world.region.cut(0);
        let mut chain = crate::Chain::default();
        let head = ring.pop(&mut chain).expect("nothing was touched yet").expect("in flight");
        ring.push_used(head, 1);
        let _interrupt = ring.publish();
        world.take_used();
        let lost = RingError::Inflight(InflightFault::Lost);
        assert_eq!(ring.pop(&mut chain).expect_err("lost"), lost);
        let again = Ring::tracked(world.guest.memory(), world.driver.setup(), &queue);
        assert_eq!(again.expect_err("lost"), lost);
    }
}

/// A front end cannot cut the file that it was given.
#[test]
fn a_region_of_ours_is_sealed() {
    let shape = InflightGeometry::check(QUEUES, ENTRIES).expect("possible");
    let (_region, fd) = InflightRegion::create(shape, &std::sync::Arc::default()).expect("memory");
    for bytes in [0, shape.region_bytes() + 4096] {
        assert_eq!(rustix::fs::ftruncate(&fd, bytes), Err(rustix::io::Errno::PERM));
    }
}
