//! Features, queues, configuration space.

use crate::front_end::{
    ALL_PROTOCOL_FEATURES, CHECK_DEVICE_STATE, FrontEnd, GET_CONFIG, GET_FEATURES,
    GET_MAX_MEM_SLOTS, GET_PROTOCOL_FEATURES, GET_QUEUE_NUM, LOG_ALL, LOW, PROTOCOL_FEATURES,
    SET_CONFIG, SET_FEATURES, SET_PROTOCOL_FEATURES, words,
};
use crate::mock::{CONFIG, Mock, split_features};

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
    front_end.refused("front end chose features 0x200000000 but only 0x574007644 are offered");
    let mut front_end = FrontEnd::new();
    front_end.send(SET_PROTOCOL_FEATURES, &words(&[1 << 12]));
    front_end.refused("front end chose protocol features 0x1000 but only 0xa20b are offered");
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

#[test]
fn what_was_not_offered_is_refused() {
    let mut front_end = FrontEnd::negotiated();
    let mut payload = [32_u32, 1, 0].map(u32::to_le_bytes).concat();
    payload.push(1);
    front_end.send(SET_CONFIG, &payload);
    front_end.refused(
        "front end writes 1 bytes at 32 of the configuration space, of which no field is writable",
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
