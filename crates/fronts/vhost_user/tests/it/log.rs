//! The dirty log: given, replaced, switched on and off while rings are served, in QEMU's order and
//! in others.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::os::fd::{AsFd, OwnedFd};

use crate::front_end::{
    FrontEnd, HIGH, LOG_ALL, LOW, PROTOCOL_FEATURES, RESET_DEVICE, SET_FEATURES, SET_LOG_BASE,
    SET_VRING_ADDR, addresses, memfd, state, words,
};
use crate::mock::{Asked, Mock, split_features};

const PAGE: u64 = 4096;
/// Enough for the memory `LOW`: a bit for each of 256 pages.
const LOG_BYTES: u64 = 32;
/// Where the used ring is for the guest.
const USED: u64 = 0x2000;

fn served(queues: u32) -> FrontEnd {
    let mut front_end = FrontEnd::negotiated();
    front_end.set_memory(&[LOW]);
    for queue in 0..queues {
        front_end.start(queue, 0);
    }
    front_end.mock.asked();
    front_end
}

fn features(log_all: bool) -> Vec<u8> {
    let log_all = if log_all { LOG_ALL } else { 0 };
    words(&[split_features().0 | PROTOCOL_FEATURES | log_all])
}

/// SET_VRING_ADDR with the same addresses, and the used ring logged there.
fn logged(queue: u32, at: Option<u64>) -> Vec<u8> {
    let mut payload = addresses(queue, LOW.user);
    payload[4] = u8::from(at.is_some());
    payload[32..].copy_from_slice(&at.unwrap_or(0).to_le_bytes());
    payload
}

#[track_caller]
fn set_log(front_end: &mut FrontEnd, bytes: u64) -> OwnedFd {
    let fd = memfd(bytes);
    let payload = words(&[bytes, 0]);
    front_end.send_with(SET_LOG_BASE, &payload, &[fd.as_fd()]);
    // The answer has the message's own payload, also without REPLY_ACK.
    assert_eq!(front_end.answer(), Some(payload));
    fd
}

/// The pages marked since the last look.
fn marks(log: &OwnedFd) -> Vec<usize> {
    let mut bytes = [0; 32];
    rustix::io::pread(log, &mut bytes[..], 0).unwrap();
    rustix::io::pwrite(log, &[0; 32], 0).unwrap();
    (0..256).filter(|page| bytes[page / 8] & 1 << (page % 8) != 0).collect()
}

/// Has the ring that the device was given last mark all it may write of itself.
fn write_ring(mock: &Mock, queue: u16) {
    let mut record = mock.record();
    let start = record.served.get_mut(&queue).expect("it is served");
    let mut ring = virtio::Ring::new(std::sync::Arc::clone(&start.memory), start.setup).unwrap();
    ring.set_log(start.log.clone());
}

#[test]
fn a_migration_switches_the_log_on_and_off_while_rings_are_served() {
    let mut front_end = served(2);
    let log = set_log(&mut front_end, LOG_BYTES);
    assert_eq!(front_end.mock.asked(), [Asked::Log(0, false), Asked::Log(1, false)]);
    front_end.done(SET_FEATURES, &features(true));
    assert_eq!(front_end.mock.asked(), [Asked::Log(0, true), Asked::Log(1, true)]);
    write_ring(&front_end.mock, 1);
    assert!(marks(&log).is_empty(), "buffers only, so far");
    for queue in 0..2 {
        front_end.done(SET_VRING_ADDR, &logged(queue, Some(USED)));
        assert_eq!(front_end.mock.asked(), [Asked::Log(u16::try_from(queue).unwrap(), true)]);
    }
    write_ring(&front_end.mock, 1);
    assert_eq!(marks(&log), [2]);
    // Off again: features first, as QEMU does it, and without waiting.
    front_end.done(SET_FEATURES, &features(false));
    front_end.done(SET_VRING_ADDR, &logged(0, None));
    front_end.done(SET_VRING_ADDR, &logged(1, None));
    let asked = front_end.mock.asked();
    assert_eq!(asked[2..], [Asked::Log(0, false), Asked::Log(1, false)]);
    front_end.leave().unwrap();
}

#[test]
fn a_log_is_replaced_while_rings_use_it() {
    let mut front_end = served(1);
    let old = set_log(&mut front_end, LOG_BYTES);
    front_end.done(SET_FEATURES, &features(true));
    front_end.done(SET_VRING_ADDR, &logged(0, Some(USED)));
    write_ring(&front_end.mock, 0);
    assert_eq!(marks(&old), [2]);
    let new = set_log(&mut front_end, LOG_BYTES);
    write_ring(&front_end.mock, 0);
    assert!(marks(&old).is_empty(), "nobody uses it once the message is answered");
    assert_eq!(marks(&new), [2]);
    front_end.leave().unwrap();
}

#[test]
fn a_ring_that_starts_in_mid_migration_has_the_log_from_its_start() {
    let mut front_end = FrontEnd::negotiated();
    // QEMU's order: features, memory, rings, the log, and last the rings are enabled.
    front_end.done(SET_FEATURES, &features(true));
    front_end.set_memory(&[LOW]);
    front_end.describe(0, LOW.user, 0);
    front_end.done(SET_VRING_ADDR, &logged(0, Some(USED)));
    front_end.kick_off(0);
    let log = set_log(&mut front_end, LOG_BYTES);
    front_end.enable(0, 1);
    assert_eq!(front_end.mock.asked(), [Asked::Start(0, 0)]);
    write_ring(&front_end.mock, 0);
    assert_eq!(marks(&log), [2]);
    front_end.leave().unwrap();
}

#[test]
fn a_reset_forgets_the_log() {
    let mut front_end = served(1);
    set_log(&mut front_end, LOG_BYTES);
    front_end.done(SET_FEATURES, &features(true));
    front_end.done(RESET_DEVICE, &[]);
    front_end.done(SET_FEATURES, &features(true));
    front_end.start(0, 0);
    assert!(front_end.mock.record().served[&0].log.is_none());
    front_end.leave().unwrap();
}

#[test]
fn memory_may_grow_as_far_as_the_log_reaches() {
    let mut front_end = served(1);
    set_log(&mut front_end, (HIGH.guest + HIGH.bytes) / PAGE / 8);
    front_end.done(SET_FEATURES, &features(true));
    front_end.add_memory(HIGH);
    assert!(front_end.mock.record().served[&0].log.is_some());
    front_end.leave().unwrap();
}

/// One message that ends the session, with the log in use.
#[track_caller]
fn refused(code: u32, payload: &[u8], expected: &str) {
    let mut front_end = served(1);
    set_log(&mut front_end, LOG_BYTES);
    front_end.done(SET_FEATURES, &features(true));
    let mock = front_end.mock.clone();
    front_end.send(code, payload);
    front_end.refused(expected);
    assert!(mock.record().served.is_empty(), "all rings are stopped");
}

#[test]
fn a_used_ring_outside_the_log_is_refused() {
    let beyond = |last| {
        format!(
            "queue 0 cannot be served: a dirty log of 32 bytes does not reach to guest address {last}"
        )
    };
    // The used ring of 128 has 1030 bytes.
    refused(SET_VRING_ADDR, &logged(0, Some(0x10_0000 - 1029)), &beyond("0x100000"));
    refused(SET_VRING_ADDR, &logged(0, Some(u64::MAX)), &beyond("0xffffffffffffffff"));
    let mut front_end = served(1);
    set_log(&mut front_end, LOG_BYTES);
    front_end.done(SET_VRING_ADDR, &logged(0, Some(0x10_0000 - 1030)));
    front_end.leave().unwrap();
}

#[test]
fn a_log_that_does_not_cover_all_memory_is_refused_once_it_is_used() {
    let mut front_end = served(1);
    set_log(&mut front_end, LOG_BYTES - 1);
    front_end.send(SET_FEATURES, &features(true));
    front_end.refused(
        "queue 0 cannot be served: a dirty log of 31 bytes does not reach to guest address 0xfffff",
    );
    // Memory that grows beyond it is the same.
    let mut front_end = served(1);
    set_log(&mut front_end, LOG_BYTES);
    front_end.done(SET_FEATURES, &features(true));
    let file = memfd(HIGH.bytes);
    let payload = words(&[0, HIGH.guest, HIGH.bytes, HIGH.user, 0]);
    front_end.send_with(crate::front_end::ADD_MEM_REG, &payload, &[file.as_fd()]);
    front_end.refused(
        "queue 0 cannot be served: a dirty log of 32 bytes does not reach to guest address 0x1000fffff",
    );
}

/// A log of these bytes at this place in a file of one page.
#[track_caller]
fn unmappable(bytes: u64, offset: u64, expected: &str) {
    let mut front_end = served(1);
    let fd = memfd(PAGE);
    front_end.send_with(SET_LOG_BASE, &words(&[bytes, offset]), &[fd.as_fd()]);
    front_end.refused(expected);
}

#[test]
fn a_log_that_is_empty_wraps_or_leaves_its_file_is_refused() {
    let invalid = "front end sent a message that cannot be taken: invalid message";
    unmappable(0, 0, invalid);
    unmappable(PAGE, u64::MAX - 1, invalid);
    unmappable(
        PAGE,
        1,
        "cannot map a dirty log of 4096 bytes at byte 1 of its file: \
         memory region at guest address 0x0 ends at byte 4097 of a file of 4096 bytes",
    );
    let mut front_end = served(1);
    front_end.send(SET_LOG_BASE, &words(&[PAGE, 0]));
    front_end
        .refused("front end sent a message that cannot be taken: wrong number of attached fds");
}

#[test]
fn other_features_and_addresses_stay_as_they_are_while_a_ring_is_served() {
    let other = split_features().0 & !(1 << 29) | PROTOCOL_FEATURES | LOG_ALL;
    refused(
        SET_FEATURES,
        &words(&[other]),
        "front end changed the features while queue 0 is being served",
    );
    let mut moved = logged(0, Some(USED));
    moved[8] = 0x40;
    refused(SET_VRING_ADDR, &moved, "queue 0: SET_VRING_ADDR while it is being served");
    refused(
        SET_VRING_ADDR,
        &state(0, 0),
        "front end sent a message that cannot be taken: invalid message",
    );
}

#[test]
fn without_the_protocol_feature_there_is_no_log() {
    let mut front_end = FrontEnd::new();
    let fd = memfd(PAGE);
    front_end.send_with(SET_LOG_BASE, &words(&[PAGE, 0]), &[fd.as_fd()]);
    front_end
        .refused("front end sent a message that cannot be taken: inactive protocol operation: 2");
}
