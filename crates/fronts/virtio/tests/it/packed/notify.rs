//! Completions, kicks and interrupts, with flags and with EVENT_IDX, also across the ring's end.

use virtio::{Chain, Head, Interrupt, Ring, RingBase};

use super::driver::{AT_DESCRIPTOR, DISABLE, Driver, ENABLE, Place, WRITE};
use crate::guest::BUFFERS;

fn offer(driver: &mut Driver, id: u16) {
    driver.offer(id, &[(BUFFERS, 16, 0)]);
}

fn pop(ring: &mut Ring) -> Option<Head> {
    ring.pop(&mut Chain::default()).expect("the ring is sound")
}

/// Serves `count` chains of one descriptor in one batch.
fn serve(driver: &mut Driver, ring: &mut Ring, count: u16) -> Interrupt {
    for id in 0..count {
        offer(driver, id);
    }
    while let Some(head) = pop(ring) {
        ring.push_used(head, 0);
    }
    let interrupt = ring.publish();
    assert_eq!(driver.take_used().len(), usize::from(count));
    interrupt
}

fn place(slot: u16, wrap: bool) -> Place {
    Place { slot, wrap }
}

#[test]
fn completions_are_seen_only_when_published_and_skip_whole_chains() {
    let mut driver = Driver::new(7);
    let mut ring = driver.ring();
    driver.offer(3, &[(BUFFERS, 16, 0), (BUFFERS, 16, WRITE), (BUFFERS, 1, WRITE)]);
    driver.offer(1, &[(BUFFERS, 16, 0), (BUFFERS, 1, WRITE)]);
    driver.offer(2, &[(BUFFERS, 16, 0), (BUFFERS, 1, WRITE)]);
    let heads: Vec<Head> = std::iter::from_fn(|| pop(&mut ring)).collect();
    assert_eq!(heads, [Head(3), Head(1), Head(2)]);
    ring.push_used(Head(2), 1);
    ring.push_used(Head(3), 17);
    assert!(driver.take_used().is_empty());
    assert_eq!(ring.base(), RingBase(0x8000_0000), "what is staged is not used");
    assert_eq!(ring.publish(), Interrupt::Wanted);
    assert_eq!(driver.take_used(), [(2, 1), (3, 17)]);
    assert_eq!(ring.publish(), Interrupt::Suppressed);
    assert_eq!(ring.base(), RingBase(0x8005_0000));
    ring.push_used(Head(1), 0);
    assert_eq!(ring.publish(), Interrupt::Wanted);
    assert_eq!(driver.take_used(), [(1, 0)]);
    assert_eq!(ring.base(), RingBase(0));
    assert_eq!(ring.size(), 7);
}

#[test]
fn a_ring_goes_on_where_it_was_left() {
    let mut driver = Driver::new(5);
    for _ in 0..7 {
        // Each turn is served by a new ring, as after a reconnect.
        let mut ring = driver.ring();
        assert_eq!(serve(&mut driver, &mut ring, 3), Interrupt::Wanted);
        assert_eq!(ring.base(), driver.base());
    }
    assert_eq!(driver.base(), RingBase(0x8001_8001));
}

#[test]
fn a_base_of_the_low_half_alone_is_enough() {
    let mut driver = Driver::new(8);
    let setup = virtio::RingSetup { base: RingBase(0x8000), ..driver.setup() };
    let mut ring = driver.ring_with(setup);
    assert_eq!(serve(&mut driver, &mut ring, 5), Interrupt::Wanted);
    assert_eq!(ring.base(), driver.base());
}

#[test]
fn a_driver_that_polls_is_not_interrupted() {
    let mut driver = Driver::new(8);
    let mut ring = driver.ring();
    driver.set_events(DISABLE, place(0, false));
    assert_eq!(serve(&mut driver, &mut ring, 2), Interrupt::Suppressed);
    driver.set_events(ENABLE, place(0, false));
    assert_eq!(serve(&mut driver, &mut ring, 2), Interrupt::Wanted);
    // Neither is a position without EVENT_IDX nor a reserved value a reason to keep still.
    for flags in [AT_DESCRIPTOR, 3] {
        driver.set_events(flags, place(0, false));
        assert_eq!(serve(&mut driver, &mut ring, 1), Interrupt::Wanted);
    }
}

/// One batch of `count` descriptors from `start` in a ring of 8, with the event at `event`, after
/// the first interrupt, which every new ring gives.
#[track_caller]
fn check_event(start: Place, event: Place, count: u16, expected: Interrupt) {
    let before = start.forward(15, 8);
    let mut driver = Driver::at(8, before);
    let mut ring = driver.event_ring();
    driver.set_events(AT_DESCRIPTOR, start.forward(8, 8));
    assert_eq!(serve(&mut driver, &mut ring, 1), Interrupt::Wanted);
    assert_eq!(driver.used, start);
    driver.set_events(AT_DESCRIPTOR, event);
    let found = serve(&mut driver, &mut ring, count);
    assert_eq!(found, expected, "{count} from {start:?}, event {event:?}");
}

#[test]
fn an_interrupt_comes_when_the_used_position_passes_the_event() {
    check_event(place(2, true), place(2, true), 1, Interrupt::Wanted);
    check_event(place(2, true), place(3, true), 1, Interrupt::Suppressed);
    check_event(place(2, true), place(1, true), 1, Interrupt::Suppressed);
    check_event(place(2, true), place(2, false), 1, Interrupt::Suppressed);
    check_event(place(2, false), place(4, false), 3, Interrupt::Wanted);
    check_event(place(2, false), place(5, false), 3, Interrupt::Suppressed);
}

#[test]
fn an_interrupt_comes_across_the_end_of_the_ring() {
    check_event(place(7, true), place(7, true), 1, Interrupt::Wanted);
    check_event(place(7, true), place(0, false), 1, Interrupt::Suppressed);
    check_event(place(7, true), place(0, false), 2, Interrupt::Wanted);
    check_event(place(6, false), place(1, true), 4, Interrupt::Wanted);
    check_event(place(6, false), place(2, true), 4, Interrupt::Suppressed);
    check_event(place(6, false), place(6, true), 8, Interrupt::Suppressed);
    check_event(place(6, false), place(5, true), 8, Interrupt::Wanted);
    check_event(place(0, true), place(7, true), 8, Interrupt::Wanted);
}

#[test]
fn an_event_is_passed_by_the_whole_length_of_a_chain() {
    let mut driver = Driver::new(8);
    let mut ring = driver.event_ring();
    assert_eq!(serve(&mut driver, &mut ring, 1), Interrupt::Wanted);
    driver.set_events(AT_DESCRIPTOR, place(3, true));
    driver.offer(0, &[(BUFFERS, 16, 0), (BUFFERS, 16, 0), (BUFFERS, 1, WRITE)]);
    let head = pop(&mut ring).expect("a chain was offered");
    ring.push_used(head, 1);
    assert_eq!(ring.publish(), Interrupt::Wanted);
    assert_eq!(driver.take_used(), [(0, 1)]);
    driver.set_events(DISABLE, place(4, true));
    assert_eq!(serve(&mut driver, &mut ring, 4), Interrupt::Suppressed);
}

#[test]
fn kicks_are_turned_off_and_on_by_the_flag() {
    let mut driver = Driver::new(8);
    let mut ring = driver.ring();
    assert_eq!(driver.device_events().0, ENABLE);
    ring.suppress_kicks();
    assert_eq!(driver.device_events().0, DISABLE);
    offer(&mut driver, 0);
    assert!(ring.request_kicks(), "a chain arrived meanwhile");
    assert_eq!(driver.device_events().0, ENABLE);
    pop(&mut ring);
    assert!(!ring.request_kicks());
}

#[test]
fn kicks_are_turned_off_and_on_by_the_position() {
    for start in [place(0, true), place(5, false), place(7, true)] {
        let mut driver = Driver::at(8, start);
        let mut ring = driver.event_ring();
        assert_eq!(driver.device_events(), (AT_DESCRIPTOR, start.bits()));
        ring.suppress_kicks();
        assert_eq!(driver.device_events().0, DISABLE);
        offer(&mut driver, 0);
        assert!(ring.request_kicks());
        pop(&mut ring);
        assert!(!ring.request_kicks());
        let next = start.forward(1, 8);
        assert_eq!(driver.device_events(), (AT_DESCRIPTOR, next.bits()));
        // The driver passed the event with this chain: nothing to write.
        offer(&mut driver, 1);
        ring.suppress_kicks();
        assert_eq!(driver.device_events(), (AT_DESCRIPTOR, next.bits()));
    }
}

#[test]
fn a_ring_left_without_kicks_asks_for_them_when_served_again() {
    let driver = Driver::new(8);
    driver.ring().suppress_kicks();
    assert_eq!(driver.device_events().0, DISABLE);
    driver.ring();
    assert_eq!(driver.device_events().0, ENABLE);
}

#[test]
fn a_ring_of_any_size_goes_round() {
    for size in [1, 2, 3, 100, 257, 32767, 32768] {
        let mut driver = Driver::at(size, place(size - 1, false));
        let mut ring = driver.ring();
        for _ in 0..5 {
            assert_eq!(serve(&mut driver, &mut ring, size.min(300)), Interrupt::Wanted);
        }
        assert_eq!(ring.base(), driver.base());
    }
}
