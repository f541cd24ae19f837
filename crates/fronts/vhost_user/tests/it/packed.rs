//! Sessions whose front end has chosen packed rings.

use virtio::{RingBase, RingLayout};

use crate::front_end::{
    FrontEnd, GET_VRING_BASE, LOW, RESET_DEVICE, SET_FEATURES, SET_VRING_ADDR, SET_VRING_BASE,
    SET_VRING_ENABLE, SET_VRING_KICK, SET_VRING_NUM, addresses, state, words,
};
use crate::mock::{Asked, CONFIG, split_features};

fn with_memory() -> FrontEnd {
    let mut front_end = FrontEnd::packed();
    front_end.set_memory(&[LOW]);
    front_end
}

#[test]
fn both_halves_of_the_base_go_to_the_device_and_come_back() {
    let mut front_end = with_memory();
    front_end.start(0, 0x8007_8007);
    assert_eq!(front_end.mock.asked(), [Asked::Start(0, 0x8007_8007)]);
    {
        let record = front_end.mock.record();
        let start = &record.served[&0];
        assert_eq!(start.setup.layout, RingLayout::Packed);
        assert_eq!(start.setup.base, RingBase(0x8007_8007));
        assert_eq!(start.features, CONFIG.features());
    }
    assert_eq!(front_end.base(0), 0x8011_8011);
    assert_eq!(front_end.base(0), 0x8011_8011, "it may be asked for again");
    front_end.kick_off(0);
    assert_eq!(front_end.mock.asked(), [Asked::Stop(0), Asked::Start(0, 0x8011_8011)]);
    front_end.leave().unwrap();
}

#[test]
fn a_ring_nobody_named_starts_with_both_wrap_counters_at_1() {
    let mut front_end = with_memory();
    assert_eq!(front_end.base(9), 0x8000_8000);
    front_end.done(SET_VRING_NUM, &state(1, 128));
    front_end.done(SET_VRING_ADDR, &addresses(1, LOW.user));
    front_end.kick_off(1);
    front_end.enable(1, 1);
    assert_eq!(front_end.mock.asked(), [Asked::Start(1, 0x8000_8000)]);
    front_end.leave().unwrap();
}

#[test]
fn a_packed_ring_has_any_size_up_to_32768() {
    let mut front_end = with_memory();
    for (queue, size) in (0..).zip([1, 3, 100, 32768]) {
        front_end.done(SET_VRING_NUM, &state(queue, size));
        front_end.done(SET_VRING_BASE, &state(queue, 0x8000_8000));
        front_end.done(SET_VRING_ADDR, &addresses_behind(queue, size));
        front_end.kick_off(queue.into());
        front_end.enable(queue, 1);
        assert_eq!(u32::from(front_end.mock.record().served[&0].setup.size), 1);
    }
    assert_eq!(front_end.mock.record().served.len(), 4);
    front_end.leave().unwrap();
}

/// A ring of any size at the start of memory, with its event areas behind it.
fn addresses_behind(queue: u32, size: u32) -> Vec<u8> {
    let user = LOW.user;
    let behind = user + 16 * u64::from(size);
    let mut payload = state(queue, 0);
    payload.extend(words(&[user, behind, behind + 4, 0]));
    payload
}

/// After a reset the driver may choose the other layout; nothing of the old one is left.
#[test]
fn a_reset_allows_the_other_layout() {
    let mut front_end = with_memory();
    front_end.start(0, 0x8001_8001);
    front_end.done(RESET_DEVICE, &[]);
    let features = split_features().0 | crate::front_end::PROTOCOL_FEATURES;
    front_end.done(SET_FEATURES, &words(&[features]));
    assert_eq!(front_end.base(0), 0);
    front_end.start(0, 5);
    assert_eq!(front_end.mock.record().served[&0].setup.layout, RingLayout::Split);
    front_end.leave().unwrap();
}

/// A front end that starts a ring anew says its size before its base: the old base does not count.
#[test]
fn a_smaller_ring_may_be_described_before_its_base() {
    let mut front_end = with_memory();
    front_end.start(0, 0x8064_8064);
    assert_eq!(front_end.base(0), 0x806e_806e);
    front_end.done(SET_VRING_NUM, &state(0, 16));
    front_end.done(SET_VRING_BASE, &state(0, 0x8000_8000));
    front_end.kick_off(0);
    assert_eq!(front_end.mock.record().served[&0].setup.size, 16);
    front_end.leave().unwrap();
}

#[track_caller]
fn refused(code: u32, payload: &[u8], expected: &str) {
    let mut front_end = with_memory();
    front_end.send(code, payload);
    front_end.refused(expected);
}

#[test]
fn a_packed_ring_that_cannot_be_is_refused() {
    for size in [0, 32769, 65536, u32::MAX] {
        let expected = format!("queue 1: packed ring size {size} is not from 1 to 32768");
        refused(SET_VRING_NUM, &state(1, size), &expected);
    }
    refused(GET_VRING_BASE, &state(256, 1), "queue 256 does not exist, the export has 256 queues");
}

#[test]
fn a_base_outside_the_ring_is_refused_when_the_ring_starts() {
    for (base, name) in [(0x8000_8080, "0x80008080"), (0x8001_8000, "0x80018000")] {
        let mut front_end = with_memory();
        front_end.describe(0, LOW.user, base);
        let kick = front_end.kick.try_clone().unwrap();
        let fds = [std::os::fd::AsFd::as_fd(&kick)];
        front_end.done_with(SET_VRING_KICK, &words(&[0]), &fds);
        front_end.send(SET_VRING_ENABLE, &state(0, 1));
        front_end.refused(&format!(
            "queue 0 cannot be served: base {name} is no position in a packed ring of 128 \
             descriptors"
        ));
    }
}

/// Of alignment the crate has checked what a split ring needs.
#[test]
fn a_packed_ring_at_an_impossible_place_is_refused_when_it_is_described() {
    let place = |descriptors, used, available| {
        let mut payload = state(0, 0);
        payload.extend(words(&[descriptors, used, available, 0]));
        payload
    };
    let user = LOW.user;
    for (payload, expected) in [
        (
            place(user + LOW.bytes - 1024, user, user + 4),
            "the descriptor ring of 2048 bytes at front-end address 0x700ffc00 is not in guest \
             memory",
        ),
        (
            place(user, user + LOW.bytes, user),
            "the device event suppression of 4 bytes at front-end address 0x70100000 is not in \
             guest memory",
        ),
        (
            place(user, user, user + 2),
            "the driver event suppression at front-end address 0x70000002 is not aligned to 4 \
             bytes",
        ),
    ] {
        let mut front_end = with_memory();
        front_end.done(SET_VRING_NUM, &state(0, 128));
        front_end.send(SET_VRING_ADDR, &payload);
        front_end.refused(&format!("queue 0 cannot be served: {expected}"));
    }
}
