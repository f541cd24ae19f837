//! Features, queues, configuration space.

use virtio::{CacheMode, Features};

use crate::front_end::{
    ALL_PROTOCOL_FEATURES, CHECK_DEVICE_STATE, FrontEnd, GET_CONFIG, GET_FEATURES,
    GET_MAX_MEM_SLOTS, GET_PROTOCOL_FEATURES, GET_QUEUE_NUM, LOG_ALL, LOW, PROTOCOL_FEATURES,
    SET_CONFIG, SET_FEATURES, SET_PROTOCOL_FEATURES, words,
};
use crate::mock::{Asked, CONFIG, Mock, split_features};

fn config(front_end: &mut FrontEnd, offset: u32, count: u32) -> Vec<u8> {
    let mut payload = [offset, count, 0].map(u32::to_le_bytes).concat();
    payload.resize(12 + count as usize, 0);
    let answer = front_end.ask(GET_CONFIG, &payload);
    assert_eq!(answer.len(), payload.len(), "as many bytes as were asked for");
    answer[12..].to_vec()
}

#[test]
fn a_front_end_learns_what_the_device_has() {
    let mut front_end = FrontEnd::negotiated();
    let features = CONFIG.features().0 | PROTOCOL_FEATURES | LOG_ALL;
    assert_eq!(front_end.ask(GET_FEATURES, &[]), words(&[features]));
    let protocol = front_end.ask(GET_PROTOCOL_FEATURES, &[]);
    assert_eq!(protocol, words(&[ALL_PROTOCOL_FEATURES]));
    assert_eq!(front_end.ask(GET_QUEUE_NUM, &[]), words(&[256]));
    assert_eq!(front_end.ask(GET_MAX_MEM_SLOTS, &[]), words(&[509]));
    front_end.leave().unwrap();
}

#[test]
fn the_configuration_space_is_cut_or_filled_up_to_what_is_asked_for() {
    let mut front_end = FrontEnd::negotiated();
    let space = CONFIG.to_bytes();
    assert_eq!(config(&mut front_end, 0, 60), space);
    assert_eq!(config(&mut front_end, 0, 8), space[..8]);
    let long = config(&mut front_end, 0, 256);
    assert_eq!(long[..60], space);
    assert_eq!(long[60..], [0; 196]);
    assert_eq!(config(&mut front_end, 8, 8), space[8..16]);
    assert_eq!(config(&mut front_end, 58, 4), [space[58], space[59], 0, 0]);
    assert_eq!(config(&mut front_end, 100, 4), [0; 4]);
    // Cloud Hypervisor.
    assert_eq!(config(&mut front_end, 0x100, 60), space);
    front_end.leave().unwrap();
}

#[test]
fn features_that_were_not_offered_are_refused() {
    let mut front_end = FrontEnd::new();
    front_end.send(SET_FEATURES, &words(&[1 << 33]));
    front_end.refused("front end chose features 0x200000000 but only 0x574007e44 are offered");
    let mut front_end = FrontEnd::new();
    front_end.send(SET_PROTOCOL_FEATURES, &words(&[1 << 2]));
    front_end.refused("front end chose protocol features 0x4 but only 0xb22b are offered");
}

#[test]
fn features_stay_as_they_are_while_a_ring_is_served() {
    let mut front_end = FrontEnd::negotiated();
    front_end.set_memory(&[LOW]);
    front_end.start(7, 0);
    let features = split_features().0 | PROTOCOL_FEATURES;
    front_end.done(SET_FEATURES, &words(&[features]));
    front_end.send(SET_FEATURES, &words(&[1 << 32]));
    front_end.refused("front end changed the features while queue 7 is being served");
}

#[test]
fn legacy_drivers_are_refused() {
    let mut front_end = FrontEnd::negotiated();
    front_end.set_memory(&[LOW]);
    front_end.done(SET_FEATURES, &words(&[PROTOCOL_FEATURES]));
    front_end.describe(0, LOW.user, 0);
    front_end.enable(0, 1);
    let kick = front_end.kick.try_clone().unwrap();
    let fds = [std::os::fd::AsFd::as_fd(&kick)];
    front_end.send_with(crate::front_end::SET_VRING_KICK, &words(&[0]), &fds);
    front_end.refused(
        "queue 0: driver did not choose VIRTIO_F_VERSION_1; legacy drivers are not served",
    );
}

/// The payload of SET_CONFIG.
pub(crate) fn set_config(offset: u32, bytes: &[u8]) -> Vec<u8> {
    let count = u32::try_from(bytes.len()).expect("few bytes");
    [[offset, count, 0].map(u32::to_le_bytes).concat(), bytes.to_vec()].concat()
}

/// `writeback` as the front end reads it.
pub(crate) fn writeback(front_end: &mut FrontEnd) -> u8 {
    config(front_end, 32, 1)[0]
}

#[test]
fn the_cache_mode_changes_while_no_ring_is_served() {
    let mut front_end = FrontEnd::negotiated();
    front_end.set_memory(&[LOW]);
    front_end.start(0, 5);
    front_end.start(2, 7);
    assert_eq!(writeback(&mut front_end), 1);
    front_end.mock.asked();
    let rests = front_end.mock.record().rests;
    front_end.done(SET_CONFIG, &set_config(32, &[0]));
    let through = Asked::Cache(CacheMode::WriteThrough);
    let [stop, start] =
        [[Asked::Stop(0), Asked::Stop(2)], [Asked::Start(0, 15), Asked::Start(2, 17)]];
    assert_eq!(front_end.mock.asked(), [&stop[..], &[through], &start].concat());
    assert_eq!(writeback(&mut front_end), 0);
    assert_eq!(front_end.mock.record().rests, rests, "a pause is no rest");
    // Nothing pauses for a mode that is there already.
    front_end.done(SET_CONFIG, &set_config(32, &[0]));
    assert!(front_end.mock.asked().is_empty());
    // As in QEMU, whatever is not 0 is write-back.
    front_end.done(SET_CONFIG, &set_config(32, &[7]));
    assert_eq!(writeback(&mut front_end), 1);
    front_end.leave().unwrap();
}

#[test]
fn a_change_to_write_through_that_loses_data_ends_the_session() {
    let mut front_end = FrontEnd::negotiated();
    front_end.mock.record().lossy = true;
    front_end.send(SET_CONFIG, &set_config(32, &[0]));
    front_end.refused(
        "cannot switch to write-through: what was written before cannot be made durable: the disk is \
         gone",
    );
}

#[test]
fn a_driver_without_flushes_is_shown_write_through() {
    let mut front_end = FrontEnd::negotiated();
    let flushless = split_features().without(Features::BLK_FLUSH);
    front_end.done(SET_FEATURES, &words(&[flushless.0 | PROTOCOL_FEATURES]));
    assert_eq!(writeback(&mut front_end), 0);
    // One that cannot ask does not care.
    let unaware = flushless.without(Features::BLK_CONFIG_WCE);
    front_end.done(SET_FEATURES, &words(&[unaware.0 | PROTOCOL_FEATURES]));
    assert_eq!(writeback(&mut front_end), 1);
    front_end.leave().unwrap();
}

#[test]
fn what_was_not_offered_is_refused() {
    let mut front_end = FrontEnd::negotiated();
    let payload = set_config(33, &[1]);
    front_end.send(SET_CONFIG, &payload);
    front_end.refused(
        "front end writes 1 bytes at 33 of the configuration space, of which only the byte at 32 is \
         writable",
    );
    // The crate answers this one itself.
    let mut front_end = FrontEnd::negotiated();
    assert_eq!(front_end.ask(CHECK_DEVICE_STATE, &[]), words(&[1]));
    front_end.leave().unwrap();
}

#[test]
fn a_new_front_end_finds_nothing_of_the_old_one() {
    let mock = Mock::default();
    for _ in 0..3 {
        let mut front_end = FrontEnd::on(&mock).negotiate();
        front_end.set_memory(&[LOW]);
        front_end.start(0, 5);
        assert_eq!(mock.record().served.len(), 1);
        front_end.leave().unwrap();
        assert!(mock.record().served.is_empty(), "all rings are stopped");
    }
}
