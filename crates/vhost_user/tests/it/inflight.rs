//! The region in which requests in flight are tracked.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::fstat;

use crate::front_end::{
    FrontEnd, GET_INFLIGHT_FD, LOW, RESET_DEVICE, SET_FEATURES, SET_INFLIGHT_FD, SET_VRING_ENABLE,
    memfd, state, words,
};
use crate::mock::{Asked, split_features};

/// Bytes of a region for rings of 128: a header and an entry for each descriptor, on 64 bytes.
const SPLIT_PART: u64 = 2112;
const PACKED_PART: u64 = 4160;

/// Size, offset, queues and ring size, filled up to eight bytes.
fn description(bytes: u64, offset: u64, queues: u16, ring: u16) -> Vec<u8> {
    let mut payload = words(&[bytes, offset]);
    payload.extend(queues.to_le_bytes());
    payload.extend(ring.to_le_bytes());
    payload.extend([0; 4]);
    payload
}

fn with_memory(mut front_end: FrontEnd) -> FrontEnd {
    front_end.set_memory(&[LOW]);
    front_end
}

fn get(front_end: &mut FrontEnd, queues: u16) -> (u64, OwnedFd) {
    let (answer, fd) = front_end.ask_fd(GET_INFLIGHT_FD, &description(0, 0, queues, 128));
    let bytes = u64::from_le_bytes(answer[..8].try_into().expect("eight bytes"));
    assert_eq!(answer[..20], description(bytes, 0, queues, 128)[..20]);
    (bytes, fd)
}

fn set(front_end: &mut FrontEnd, fd: &OwnedFd, bytes: u64, queues: u16) {
    let payload = description(bytes, 0, queues, 128);
    front_end.done_with(SET_INFLIGHT_FD, &payload, &[fd.as_fd()]);
}

fn tracked(front_end: &FrontEnd, queue: u16) -> Option<u16> {
    let record = front_end.mock.record();
    record.served[&queue].inflight.as_ref().map(|inflight| inflight.queue)
}

#[test]
fn a_region_has_room_for_all_rings_of_the_layout() {
    for (front_end, part) in
        [(FrontEnd::negotiated(), SPLIT_PART), (FrontEnd::packed(), PACKED_PART)]
    {
        let mut front_end = with_memory(front_end);
        let (bytes, fd) = get(&mut front_end, 3);
        assert_eq!(bytes, 3 * part);
        assert_eq!(u64::try_from(fstat(&fd).unwrap().st_size).unwrap(), bytes);
        front_end.leave().unwrap();
    }
}

#[test]
fn rings_are_tracked_once_the_front_end_has_a_region() {
    let mut front_end = with_memory(FrontEnd::negotiated());
    front_end.start(0, 0);
    assert_eq!(tracked(&front_end, 0), None);
    let (bytes, fd) = get(&mut front_end, 2);
    set(&mut front_end, &fd, bytes, 2);
    front_end.start(1, 0);
    assert_eq!([0, 1].map(|queue| tracked(&front_end, queue)), [Some(0), Some(1)]);
    front_end.leave().unwrap();
}

#[test]
fn rings_stop_before_the_region_changes_and_go_on_after() {
    let mut front_end = with_memory(FrontEnd::negotiated());
    front_end.start(0, 5);
    front_end.mock.asked();
    set(&mut front_end, &memfd(SPLIT_PART), SPLIT_PART, 1);
    assert_eq!(front_end.mock.asked(), [Asked::Stop(0), Asked::Start(0, 15)]);
    front_end.leave().unwrap();
}

/// As QEMU does when the guest resets the device, or before that when it has no RESET_DEVICE.
#[test]
fn a_reset_forgets_the_region() {
    let mut front_end = with_memory(FrontEnd::negotiated());
    set(&mut front_end, &memfd(SPLIT_PART), SPLIT_PART, 1);
    front_end.start(0, 0);
    assert_eq!(tracked(&front_end, 0), Some(0));
    front_end.done(RESET_DEVICE, &[]);
    let features = split_features().0 | crate::front_end::PROTOCOL_FEATURES;
    front_end.done(SET_FEATURES, &words(&[features]));
    front_end.start(0, 0);
    assert_eq!(tracked(&front_end, 0), None);
    front_end.leave().unwrap();
}

/// QEMU says which memory there is after it has given the region back.
#[test]
fn the_region_may_come_before_everything_else() {
    let mut front_end = FrontEnd::packed();
    set(&mut front_end, &memfd(PACKED_PART), PACKED_PART, 1);
    front_end.set_memory(&[LOW]);
    front_end.start(0, 0x8000_8000);
    assert_eq!(tracked(&front_end, 0), Some(0));
    front_end.leave().unwrap();
}

#[test]
fn a_ring_that_cannot_be_tracked_is_refused() {
    for (packed, bytes, queue, expected) in [
        (false, SPLIT_PART, 1, "queue 1 is not in the in-flight region, which has 1 queues"),
        (false, SPLIT_PART - 1, 0, "in-flight region has 2111 bytes and needs 2112"),
        (true, SPLIT_PART, 0, "in-flight region has 2112 bytes and needs 4160"),
    ] {
        let front_end = if packed { FrontEnd::packed() } else { FrontEnd::negotiated() };
        let mut front_end = with_memory(front_end);
        set(&mut front_end, &memfd(bytes), bytes, 1);
        front_end.describe(queue, LOW.user, if packed { 0x8000_8000 } else { 0 });
        front_end.kick_off(queue.into());
        front_end.send(SET_VRING_ENABLE, &state(queue, 1));
        front_end.refused(&format!("queue {queue} cannot be tracked: {expected}"));
    }
}

#[test]
fn a_region_that_cannot_be_is_refused() {
    let no_shape = "in-flight region for 257 queues of 128 descriptors: 1 to 256 queues of 1 to \
                    32768 descriptors are possible";
    let mut front_end = FrontEnd::negotiated();
    front_end.send(GET_INFLIGHT_FD, &description(0, 0, 257, 128));
    front_end.refused(no_shape);
    let outside = "in-flight region of 4096 bytes at byte 64 of a file of 4096 bytes";
    for (description, expected) in [
        (description(4096, 64, 1, 128), outside),
        (description(4096, 0, 257, 128), no_shape),
        (
            description(64, 4, 1, 128),
            "in-flight region at byte 4 of its file is not aligned to 8 bytes",
        ),
    ] {
        let mut front_end = FrontEnd::negotiated();
        front_end.send_with(SET_INFLIGHT_FD, &description, &[memfd(4096).as_fd()]);
        front_end.refused(expected);
    }
}
