//! Kicks and interrupts: who is told when, with flags and with EVENT_IDX, also where indices wrap.

use virtio::{Chain, Head, Interrupt, Ring, RingBase};

use crate::driver::Driver;
use crate::guest::BUFFERS;

fn offer(driver: &mut Driver, head: u16) {
    driver.offer(head, &[(BUFFERS, 16, 0)]);
}

fn pop(ring: &mut Ring) -> Option<Head> {
    ring.pop(&mut Chain::default()).expect("the ring is sound")
}

/// Serves `count` chains in one batch.
fn serve(driver: &mut Driver, ring: &mut Ring, count: u16) -> Interrupt {
    for head in 0..count {
        offer(driver, head);
    }
    while let Some(head) = pop(ring) {
        ring.push_used(head, 0);
    }
    ring.publish()
}

#[test]
fn completions_are_seen_only_when_published_and_in_order() {
    let mut driver = Driver::new(8, 0);
    let mut ring = driver.ring();
    for head in [3, 1, 2] {
        offer(&mut driver, head);
    }
    let heads: Vec<Head> = std::iter::from_fn(|| pop(&mut ring)).collect();
    assert_eq!(heads, [Head(3), Head(1), Head(2)]);
    ring.push_used(Head(2), 5);
    ring.push_used(Head(3), 7);
    assert!(driver.take_used().is_empty());
    assert_eq!(ring.publish(), Interrupt::Wanted);
    assert_eq!(driver.take_used(), [(2, 5), (3, 7)]);
    assert_eq!(ring.publish(), Interrupt::Suppressed);
    assert_eq!(ring.base(), RingBase(3));
    assert_eq!(ring.size(), 8);
}

#[test]
fn the_used_index_goes_on_where_it_was_left() {
    let mut driver = Driver::new(4, 65534);
    for _ in 0..3 {
        // Each turn is served by a new ring, as after a reconnect.
        let mut ring = driver.ring();
        assert_eq!(serve(&mut driver, &mut ring, 4), Interrupt::Wanted);
        assert_eq!(ring.base(), RingBase(driver.available.into()));
        assert_eq!(driver.take_used().len(), 4);
    }
    assert_eq!(driver.used_index(), 10);
}

#[test]
fn a_driver_that_polls_is_not_interrupted() {
    let mut driver = Driver::new(8, 0);
    let mut ring = driver.ring();
    driver.set_available_flags(1);
    assert_eq!(serve(&mut driver, &mut ring, 2), Interrupt::Suppressed);
    driver.set_available_flags(0);
    assert_eq!(serve(&mut driver, &mut ring, 2), Interrupt::Wanted);
}

/// One batch of `count` completions from index `start`, with the event at `event`, after the first
/// interrupt, which every new ring gives.
#[track_caller]
fn check_event(start: u16, event: u16, count: u16, expected: Interrupt) {
    let mut driver = Driver::new(8, start.wrapping_sub(1));
    let mut ring = driver.event_ring();
    driver.set_used_event(start.wrapping_add(100));
    assert_eq!(serve(&mut driver, &mut ring, 1), Interrupt::Wanted);
    driver.set_used_event(event);
    // EVENT_IDX has the flag ignored.
    driver.set_available_flags(1);
    let found = serve(&mut driver, &mut ring, count);
    assert_eq!(found, expected, "{count} from {start}, event {event}");
}

#[test]
fn an_interrupt_comes_when_the_used_index_passes_the_event() {
    check_event(10, 10, 1, Interrupt::Wanted);
    check_event(10, 11, 1, Interrupt::Suppressed);
    check_event(10, 9, 1, Interrupt::Suppressed);
    check_event(10, 12, 3, Interrupt::Wanted);
    check_event(10, 13, 3, Interrupt::Suppressed);
}

#[test]
fn an_interrupt_comes_across_the_wrap_of_the_used_index() {
    check_event(65535, 65535, 1, Interrupt::Wanted);
    check_event(65535, 0, 1, Interrupt::Suppressed);
    check_event(65535, 0, 2, Interrupt::Wanted);
    check_event(65533, 1, 5, Interrupt::Wanted);
    check_event(65533, 2, 5, Interrupt::Suppressed);
    check_event(0, 65535, 4, Interrupt::Suppressed);
    check_event(0, 0, 1, Interrupt::Wanted);
}

#[test]
fn kicks_are_turned_off_and_on_by_the_flag() {
    let mut driver = Driver::new(8, 0);
    let mut ring = driver.ring();
    assert_eq!(driver.used_flags(), 0);
    ring.suppress_kicks();
    assert_eq!(driver.used_flags(), 1);
    offer(&mut driver, 0);
    assert!(ring.request_kicks(), "a chain arrived meanwhile");
    assert_eq!(driver.used_flags(), 0);
    pop(&mut ring);
    assert!(!ring.request_kicks());
}

#[test]
fn kicks_are_turned_off_and_on_by_the_event_index() {
    for start in [0, 7, 65535] {
        let mut driver = Driver::new(8, start);
        let mut ring = driver.event_ring();
        assert_eq!(driver.available_event(), start);
        ring.suppress_kicks();
        assert_eq!(driver.used_flags(), 0, "EVENT_IDX keeps the flag clear");
        assert_eq!(driver.available_event(), start.wrapping_sub(1));
        offer(&mut driver, 0);
        assert!(ring.request_kicks());
        pop(&mut ring);
        assert!(!ring.request_kicks());
        assert_eq!(driver.available_event(), start.wrapping_add(1));
        // The driver passed the event with this chain: nothing to write.
        offer(&mut driver, 1);
        ring.suppress_kicks();
        assert_eq!(driver.available_event(), start.wrapping_add(1));
    }
}

#[test]
fn a_ring_left_without_kicks_asks_for_them_when_served_again() {
    let driver = Driver::new(8, 0);
    driver.ring().suppress_kicks();
    assert_eq!(driver.used_flags(), 1);
    driver.ring();
    assert_eq!(driver.used_flags(), 0);
}

#[test]
fn a_ring_of_any_size_goes_round() {
    for size in [1, 2, 256, 32768] {
        let mut driver = Driver::new(size, 65535);
        let mut ring = driver.ring();
        for _ in 0..3 {
            assert_eq!(serve(&mut driver, &mut ring, size.min(300)), Interrupt::Wanted);
            assert_eq!(driver.take_used().len(), usize::from(size.min(300)));
        }
    }
}
