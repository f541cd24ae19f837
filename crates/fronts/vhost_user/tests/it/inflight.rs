//! The region in which requests in flight are tracked.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::fstat;
use virtio::CacheMode;

use crate::front_end::{
    FrontEnd, GET_INFLIGHT_FD, LOW, RESET_DEVICE, SET_CONFIG, SET_FEATURES, SET_INFLIGHT_FD,
    SET_VRING_ENABLE, memfd, state, words,
};
use crate::mock::{Asked, Mock, split_features};
use crate::negotiation::{set_config, writeback};

/// Bytes for each ring of 128: a header and an entry for each descriptor, on 64 bytes.
const SPLIT_PART: u64 = 2112;
const PACKED_PART: u64 = 4160;
/// Bytes for the cache mode, behind parts of either layout.
const NOTE: u64 = 64;

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
    // With the padding, in which nothing of the daemon's memory may be.
    assert_eq!(answer, description(bytes, 0, queues, 128));
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
fn a_region_has_room_for_all_rings_of_either_layout_and_the_cache_mode() {
    for front_end in [FrontEnd::negotiated(), FrontEnd::packed()] {
        let mut front_end = with_memory(front_end);
        let (bytes, fd) = get(&mut front_end, 3);
        assert_eq!(bytes, 3 * PACKED_PART + NOTE);
        assert_eq!(u64::try_from(fstat(&fd).unwrap().st_size).unwrap(), bytes);
        front_end.leave().unwrap();
    }
}

const BACK: CacheMode = CacheMode::WriteBack;
const THROUGH: CacheMode = CacheMode::WriteThrough;

/// Switches by SET_CONFIG.
fn switch(front_end: &mut FrontEnd, mode: CacheMode) {
    front_end.done(SET_CONFIG, &set_config(32, &[mode.to_byte()]));
}

/// What a back end says that begins in this mode and gets the region.
#[track_caller]
fn check_successor(fd: &OwnedFd, bytes: u64, begins: CacheMode, expected: CacheMode) {
    let mock = Mock::default();
    mock.record().cache = Some(begins);
    let mut front_end = with_memory(FrontEnd::on(&mock).negotiate());
    set(&mut front_end, fd, bytes, 1);
    let asked = if begins == expected { vec![] } else { vec![Asked::Cache(expected)] };
    assert_eq!(mock.asked(), asked, "begins in {begins:?}");
    assert_eq!(writeback(&mut front_end), expected.to_byte());
    front_end.leave().expect("the session ends well");
}

/// The content of a file, at a place of its own.
fn copy(fd: &OwnedFd, bytes: u64) -> OwnedFd {
    let mut content = vec![0; usize::try_from(bytes).expect("a small region")];
    assert_eq!(rustix::io::pread(fd, &mut content[..], 0), Ok(content.len()));
    let copy = memfd(bytes);
    assert_eq!(rustix::io::pwrite(&copy, &content, 0), Ok(content.len()));
    copy
}

#[test]
fn the_cache_mode_goes_with_the_region_and_only_becomes_stronger() {
    let mut front_end = with_memory(FrontEnd::negotiated());
    let (bytes, fd) = get(&mut front_end, 1);
    set(&mut front_end, &fd, bytes, 1);
    for mode in [BACK, THROUGH, BACK, THROUGH] {
        switch(&mut front_end, mode);
        // Write-back is noted after the answer; the next answer says that it is.
        assert_eq!(writeback(&mut front_end), mode.to_byte());
        for begins in [BACK, THROUGH] {
            check_successor(&copy(&fd, bytes), bytes, begins, mode.or_stronger(begins));
        }
    }
    front_end.leave().unwrap();
}

#[test]
fn a_new_region_and_one_of_a_weaker_mode_note_the_mode_that_is() {
    let mut front_end = with_memory(FrontEnd::negotiated());
    let (bytes, weaker) = get(&mut front_end, 1);
    front_end.done(RESET_DEVICE, &[]);
    switch(&mut front_end, THROUGH);
    check_successor(&copy(&weaker, bytes), bytes, BACK, BACK);
    let (_, fresh) = get(&mut front_end, 1);
    check_successor(&fresh, bytes, BACK, THROUGH);
    set(&mut front_end, &weaker, bytes, 1);
    check_successor(&weaker, bytes, BACK, THROUGH);
    front_end.leave().unwrap();
}

#[test]
fn rings_stop_for_the_mode_of_a_region() {
    let mut front_end = with_memory(FrontEnd::negotiated());
    let (bytes, fd) = get(&mut front_end, 1);
    switch(&mut front_end, THROUGH);
    front_end.leave().unwrap();
    let mut front_end = with_memory(FrontEnd::negotiated());
    front_end.start(0, 5);
    front_end.mock.asked();
    set(&mut front_end, &fd, bytes, 1);
    let asked = [Asked::Stop(0), Asked::Cache(THROUGH), Asked::Start(0, 15)];
    assert_eq!(front_end.mock.asked(), asked);
    front_end.leave().unwrap();
}

/// A switch that fails is not answered, so the note must not become weaker; and the back end that
/// has failed is in write-through.
#[test]
fn a_switch_that_fails_leaves_the_stronger_mode_noted() {
    for (first, next) in [(THROUGH, BACK), (BACK, THROUGH)] {
        let mut front_end = with_memory(FrontEnd::negotiated());
        let (bytes, fd) = get(&mut front_end, 1);
        switch(&mut front_end, first);
        front_end.mock.record().lossy = true;
        front_end.send(SET_CONFIG, &set_config(32, &[next.to_byte()]));
        assert!(front_end.answer().is_none_or(|answer| answer != words(&[0])));
        front_end.leave().unwrap_err();
        check_successor(&fd, bytes, BACK, THROUGH);
    }
}

/// At every moment before the answer to a switch to write-back, the driver may still be told that
/// it failed: the note is still write-through when the device is switched.
#[test]
fn write_through_is_noted_before_the_answer_and_write_back_after() {
    let mut front_end = with_memory(FrontEnd::negotiated());
    let (bytes, fd) = get(&mut front_end, 1);
    let file = fd.try_clone().unwrap();
    front_end.mock.record().on_cache = Some(Box::new(move || {
        let mut byte = [0xee];
        assert_eq!(rustix::io::pread(&file, &mut byte[..], bytes - NOTE + 10).unwrap(), 1);
        byte[0]
    }));
    for mode in [THROUGH, BACK, THROUGH] {
        switch(&mut front_end, mode);
    }
    assert_eq!(front_end.mock.record().noted, [THROUGH.to_byte(); 3]);
    front_end.leave().unwrap();
}

#[test]
fn a_region_of_another_back_end_says_nothing_of_the_mode() {
    for bytes in [SPLIT_PART, PACKED_PART + NOTE] {
        let fd = memfd(bytes);
        for begins in [BACK, THROUGH] {
            check_successor(&fd, bytes, begins, begins);
        }
        let mut front_end = with_memory(FrontEnd::negotiated());
        set(&mut front_end, &fd, bytes, 1);
        switch(&mut front_end, THROUGH);
        front_end.leave().unwrap();
        check_successor(&fd, bytes, BACK, BACK);
    }
}

#[test]
fn a_region_whose_mode_cannot_be_taken_ends_the_session() {
    let mut front_end = with_memory(FrontEnd::negotiated());
    let (bytes, fd) = get(&mut front_end, 1);
    switch(&mut front_end, THROUGH);
    front_end.leave().unwrap();
    let mut front_end = FrontEnd::negotiated();
    front_end.mock.record().lossy = true;
    front_end.send_with(SET_INFLIGHT_FD, &description(bytes, 0, 1, 128), &[fd.as_fd()]);
    front_end.refused(
        "cannot switch to write-through: what was written before cannot be made durable: the disk is \
         gone",
    );
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
