//! A crash after every single store: of the ring, of the region, of a recovery.
//!
//! A driver and a ring do random things. After each store the memory of both is copied as a killed
//! process would leave it; then a successor starts from each copy. Each request must come back to
//! the driver exactly once, and the successor must get them in the order in which they were made
//! available.

mod driver;
mod hostile;
mod note;

use std::cell::RefCell;
use std::rc::Rc;

use super::{InflightGeometry, InflightQueue, InflightRegion};
use crate::fault_point::watch;
use crate::{Chain, Head, Ring, RingLayout};
use driver::{Driver, Image};

/// Entries of each queue of the region: more than the ring has descriptors.
const ENTRIES: u16 = 7;
const QUEUES: u16 = 2;
/// Which queue is tried; not the first, so that a wrong place would be noticed.
const QUEUE: u16 = 1;

/// A linear congruential generator (Knuth's constants): the tests print its seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        usize::try_from(self.0 >> 33).expect("31 bits") % limit
    }
}

#[expect(clippy::print_stdout, reason = "the last line tells where a test failed")]
fn note(line: &str) {
    println!("{line}");
}

/// The state of everything that a killed process leaves.
#[derive(Clone)]
struct Snapshot {
    driver: Driver,
    guest: Vec<u8>,
    region: Vec<u8>,
}

/// The side that survives: the driver and both memories.
struct World {
    driver: Driver,
    guest: Image,
    region: Image,
}

impl World {
    fn new(layout: RingLayout) -> Self {
        let guest = Image::new(&[0; driver::GUEST_BYTES]);
        let driver = Driver::new(layout, &guest);
        let bytes = InflightGeometry { queues: QUEUES, queue_size: ENTRIES }.bytes(layout);
        let region = Image::new(&vec![0; usize::try_from(bytes).expect("small")]);
        Self { driver, guest, region }
    }

    fn snapshot(&self) -> Snapshot {
        let (guest, region) = (self.guest.content(), self.region.content());
        Snapshot { driver: self.driver.clone(), guest, region }
    }

    fn restore(snapshot: &Snapshot) -> Self {
        let (guest, region) = (Image::new(&snapshot.guest), Image::new(&snapshot.region));
        Self { driver: snapshot.driver.clone(), guest, region }
    }

    /// The ring as a new process starts it. Its base is that of a ring nobody has served: the
    /// region decides, once it was used.
    fn start(&self) -> Ring {
        let setup = self.driver.setup();
        Ring::tracked(self.guest.memory(), setup, &self.queue()).expect("the region is sound")
    }

    fn queue(&self) -> InflightQueue {
        let shape = InflightGeometry::check(QUEUES, ENTRIES).expect("a possible shape");
        let bytes = self.region.bytes();
        let region =
            InflightRegion::map(self.region.fd(), shape, bytes, 0, &std::sync::Arc::default())
                .expect("it lies in the file");
        InflightQueue { region: region.into(), queue: QUEUE }
    }

    fn offer(&mut self, descriptors: u16) -> bool {
        self.driver.offer(&self.guest, descriptors)
    }

    /// The driver takes what was returned; it panics at a request that it does not wait for.
    fn take_used(&mut self) {
        self.driver.take_used(&self.guest);
    }
}

/// A process that serves the ring.
struct Device {
    ring: Ring,
    chain: Chain,
    in_flight: Vec<(Head, u32)>,
    last: Option<u32>,
}

impl Device {
    fn new(ring: Ring) -> Self {
        Self { ring, chain: Chain::default(), in_flight: Vec::new(), last: None }
    }

    /// Pops a request; its number must be higher than that of the one before.
    fn pop(&mut self) -> bool {
        let Some(head) = self.ring.pop(&mut self.chain).expect("the driver keeps the rules") else {
            return false;
        };
        let mut number = [0; 4];
        assert_eq!(self.chain.readable.copy_to(0, &mut number), 4);
        let number = u32::from_le_bytes(number);
        assert!(self.last < Some(number), "{number} comes after {:?}", self.last);
        self.last = Some(number);
        self.in_flight.push((head, number));
        true
    }

    /// Completes one of the requests; the driver finds its number as the bytes written.
    fn complete(&mut self, place: usize) {
        let (head, number) = self.in_flight.swap_remove(place);
        self.ring.push_used(head, number);
    }

    fn publish(&mut self) {
        let _interrupt = self.ring.publish();
    }
}

/// What happens from one start of a process until its end; `steps` random deeds, then all that is
/// left is served.
fn serve(world: &Rc<RefCell<World>>, dice: &mut Dice, steps: usize) {
    let ring = world.borrow().start();
    let mut device = Device::new(ring);
    for _ in 0..steps {
        match dice.below(6) {
            0 | 1 => {
                let descriptors = u16::try_from(1 + dice.below(3)).expect("small");
                world.borrow_mut().offer(descriptors);
            }
            2 => {
                device.pop();
            }
            3 | 4 if !device.in_flight.is_empty() => {
                let place = dice.below(device.in_flight.len());
                device.complete(place);
            }
            3 | 4 => {}
            _ => {
                device.publish();
                if dice.below(2) == 0 {
                    world.borrow_mut().take_used();
                }
            }
        }
    }
    loop {
        while device.pop() {}
        if device.in_flight.is_empty() {
            break;
        }
        // Two at a time and not in their order, so that batches are cut differently than before.
        let place = dice.below(device.in_flight.len());
        device.complete(place);
        if device.in_flight.len().is_multiple_of(2) {
            device.publish();
            world.borrow_mut().take_used();
        }
    }
    device.publish();
    let mut world = world.borrow_mut();
    world.take_used();
    assert!(world.driver.waits_for().is_empty(), "never returned: {:?}", world.driver.waits_for());
}

/// Serves, and gives a copy of everything after each store.
fn crashes(world: World, dice: &mut Dice, steps: usize) -> Vec<Snapshot> {
    let world = Rc::new(RefCell::new(world));
    let snapshots = Rc::new(RefCell::new(vec![world.borrow().snapshot()]));
    let watcher = {
        let (world, snapshots) = (Rc::clone(&world), Rc::clone(&snapshots));
        move || snapshots.borrow_mut().push(world.borrow().snapshot())
    };
    watch::during(watcher, || serve(&world, dice, steps));
    snapshots.take()
}

/// The driver goes on while nobody serves, then a successor does; `steps` as above.
fn succeed(snapshot: &Snapshot, dice: &mut Dice, steps: usize) -> Vec<Snapshot> {
    let mut world = World::restore(snapshot);
    if dice.below(2) == 0 {
        world.take_used();
        world.offer(1);
    }
    crashes(world, dice, steps)
}

fn check(layout: RingLayout, seed: u64) {
    let mut dice = Dice(seed);
    for (first, snapshot) in crashes(World::new(layout), &mut dice, 120).iter().enumerate() {
        note(&format!("{layout}, seed {seed}, crash after store {first}"));
        let again = succeed(snapshot, &mut dice, 10);
        // A crash of the successor, and of its recovery, at some of its stores.
        let skip = dice.below(7);
        for (second, snapshot) in again.iter().enumerate().skip(skip).step_by(7) {
            note(&format!("{layout}, seed {seed}, crash after stores {first} and {second}"));
            succeed(snapshot, &mut dice, 0);
        }
    }
}

#[test]
fn a_split_ring_returns_each_request_once_whatever_store_it_dies_after() {
    for seed in 1..=6 {
        check(RingLayout::Split, seed);
    }
}

#[test]
fn a_packed_ring_returns_each_request_once_whatever_store_it_dies_after() {
    for seed in 1..=6 {
        check(RingLayout::Packed, seed);
    }
}

/// Every store of a recovery, not only some: the copies in which most is in flight.
#[test]
fn a_recovery_can_die_after_any_store() {
    for layout in [RingLayout::Split, RingLayout::Packed] {
        for seed in 10..14 {
            let mut dice = Dice(seed);
            for snapshot in crashes(World::new(layout), &mut dice, 60).iter().step_by(5) {
                for again in succeed(snapshot, &mut dice, 0) {
                    succeed(&again, &mut dice, 0);
                }
            }
        }
    }
}

/// A process that ends in order leaves a region in which nothing is in flight.
#[test]
fn an_orderly_end_leaves_nothing_to_recover() {
    for layout in [RingLayout::Split, RingLayout::Packed] {
        let world = Rc::new(RefCell::new(World::new(layout)));
        let mut dice = Dice(20);
        assert!(!world.borrow().start().is_inherited(), "nobody has served it");
        serve(&world, &mut dice, 50);
        let ring = world.borrow().start();
        assert!(ring.is_inherited());
        assert_eq!(ring.pending(), 0);
        serve(&world, &mut dice, 50);
    }
}

#[test]
fn what_is_in_flight_is_seen_as_available_and_comes_before_new_requests() {
    for layout in [RingLayout::Split, RingLayout::Packed] {
        let mut world = World::new(layout);
        assert!(world.offer(1) && world.offer(1));
        let mut device = Device::new(world.start());
        assert!(device.pop() && device.pop());
        assert!(world.offer(1));
        let mut ring = world.start();
        assert_eq!(ring.pending(), 2);
        assert!(ring.has_available());
        ring.suppress_kicks();
        assert!(ring.request_kicks(), "no kick will come for them");
        let mut device = Device::new(ring);
        assert!(device.pop() && device.pop() && device.pop());
        assert_eq!(
            device.in_flight.iter().map(|(_, number)| *number).collect::<Vec<_>>(),
            [1, 2, 3]
        );
        assert_eq!(device.ring.pending(), 0);
    }
}
