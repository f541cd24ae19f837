//! When a ring is served and when it is not.

use std::os::fd::AsFd;

use virtio::{Features, RingAddresses, RingBase, RingLayout, RingSetup};

use crate::front_end::{
    FrontEnd, GET_VRING_BASE, HIGH, LOW, RESET_DEVICE, RESET_OWNER, SET_FEATURES, SET_VRING_ADDR,
    SET_VRING_BASE, SET_VRING_CALL, SET_VRING_ENABLE, SET_VRING_ERR, SET_VRING_KICK, SET_VRING_NUM,
    addresses, event, memfd, state, words,
};
use crate::mock::{Asked, PROGRESS, is_same, split_features};

const NO_DESCRIPTOR: u64 = 0x100;

fn with_memory() -> FrontEnd {
    let mut front_end = FrontEnd::negotiated();
    front_end.set_memory(&[LOW]);
    front_end
}

#[test]
fn a_ring_that_is_started_and_enabled_is_served_as_it_was_described() {
    let mut front_end = with_memory();
    let (call, error) = (event(), event());
    front_end.done_with(SET_VRING_CALL, &words(&[3]), &[call.as_fd()]);
    front_end.done_with(SET_VRING_ERR, &words(&[3]), &[error.as_fd()]);
    front_end.describe(3, LOW.user, 77);
    front_end.kick_off(3);
    assert!(front_end.mock.asked().is_empty(), "it is not enabled yet");
    front_end.enable(3, 1);
    assert_eq!(front_end.mock.asked(), [Asked::Start(3, 77)]);
    {
        let record = front_end.mock.record();
        let start = &record.served[&3];
        let expected = RingSetup {
            layout: RingLayout::Split,
            size: 128,
            addresses: RingAddresses {
                descriptors: LOW.user,
                available: LOW.user + 0x1000,
                used: LOW.user + 0x2000,
            },
            base: RingBase(77),
            event_idx: true,
            indirect: true,
        };
        assert_eq!(start.setup, expected);
        assert_eq!(start.features, split_features());
        assert!(is_same(&start.kick, &front_end.kick));
        assert!(is_same(start.call.as_ref().unwrap(), &call));
        assert!(is_same(start.error.as_ref().unwrap(), &error));
    }
    front_end.leave().unwrap();
}

#[test]
fn the_order_of_the_messages_about_a_ring_is_free() {
    let mut front_end = FrontEnd::negotiated();
    front_end.enable(0, 1);
    front_end.kick_off(0);
    front_end.done(SET_VRING_BASE, &state(0, 4));
    front_end.done(SET_VRING_ADDR, &addresses(0, LOW.user));
    front_end.done(SET_VRING_NUM, &state(0, 128));
    assert!(front_end.mock.asked().is_empty(), "there is no memory yet");
    front_end.set_memory(&[LOW]);
    assert_eq!(front_end.mock.asked(), [Asked::Start(0, 4)]);
    front_end.leave().unwrap();
}

#[test]
fn a_ring_that_is_disabled_pauses_and_goes_on_where_it_was() {
    let mut front_end = with_memory();
    front_end.start(0, 65530);
    front_end.enable(0, 1);
    front_end.enable(0, 0);
    front_end.enable(0, 0);
    front_end.enable(0, 1);
    let next = 65530_u16.wrapping_add(PROGRESS);
    let asked = [Asked::Start(0, 65530), Asked::Stop(0), Asked::Start(0, next.into())];
    assert_eq!(front_end.mock.asked(), asked);
    front_end.leave().unwrap();
}

#[test]
fn a_ring_whose_base_was_asked_for_waits_for_its_next_kick_descriptor() {
    let mut front_end = with_memory();
    front_end.start(0, 100);
    assert_eq!(front_end.base(0), 110);
    assert_eq!(front_end.base(0), 110, "it may be asked for again");
    front_end.enable(0, 0);
    front_end.enable(0, 1);
    assert_eq!(front_end.mock.asked(), [Asked::Start(0, 100), Asked::Stop(0)]);
    front_end.kick_off(0);
    assert_eq!(front_end.mock.asked(), [Asked::Start(0, 110)]);
    assert_eq!(front_end.base(200), 0, "a ring nobody named starts at 0");
    front_end.leave().unwrap();
}

#[test]
fn without_protocol_features_a_ring_starts_enabled() {
    let mut front_end = with_memory();
    let features = split_features().without(Features::RING_EVENT_IDX);
    front_end.done(SET_FEATURES, &words(&[features.0]));
    front_end.describe(0, LOW.user, 0);
    front_end.kick_off(0);
    assert_eq!(front_end.mock.asked(), [Asked::Start(0, 0)]);
    assert!(!front_end.mock.record().served[&0].setup.event_idx);
    front_end.leave().unwrap();
}

#[test]
fn the_call_descriptor_changes_without_a_pause_and_the_kick_descriptor_with_one() {
    let mut front_end = with_memory();
    front_end.start(0, 0);
    let call = event();
    front_end.done_with(SET_VRING_CALL, &words(&[0]), &[call.as_fd()]);
    front_end.done(SET_VRING_CALL, &words(&[NO_DESCRIPTOR]));
    let asked = [Asked::Start(0, 0), Asked::Call(0, true), Asked::Call(0, false)];
    assert_eq!(front_end.mock.asked(), asked);
    front_end.kick = event();
    front_end.kick_off(0);
    assert_eq!(front_end.mock.asked(), [Asked::Stop(0), Asked::Start(0, 10)]);
    assert!(is_same(&front_end.mock.record().served[&0].kick, &front_end.kick));
    front_end.leave().unwrap();
}

#[test]
fn the_device_rests_when_the_last_ring_has_stopped() {
    let check = |name: &str, end: fn(&mut FrontEnd)| {
        let mut front_end = with_memory();
        front_end.start(0, 5);
        front_end.start(1, 6);
        front_end.ask(GET_VRING_BASE, &state(1, 0));
        let rests = front_end.mock.record().rests;
        end(&mut front_end);
        assert_eq!(front_end.mock.record().rests, rests + 1, "{name}");
        front_end.leave().unwrap();
    };
    check("stop", |front_end| drop(front_end.ask(GET_VRING_BASE, &state(0, 0))));
    check("disable", |front_end| front_end.enable(0, 0));
    check("reset", |front_end| front_end.done(RESET_DEVICE, &[]));
}

#[test]
fn a_reset_forgets_rings_and_features_but_not_the_memory() {
    let mut front_end = with_memory();
    front_end.start(0, 0);
    front_end.start(9, 0);
    front_end.done(RESET_DEVICE, &[]);
    let asked = front_end.mock.asked();
    assert_eq!(asked[2..], [Asked::Stop(0), Asked::Stop(9)]);
    assert_eq!(front_end.base(0), 0);
    let features = split_features().0 | crate::front_end::PROTOCOL_FEATURES;
    front_end.done(SET_FEATURES, &words(&[features]));
    front_end.start(0, 3);
    assert_eq!(front_end.mock.asked(), [Asked::Start(0, 3)]);
    front_end.leave().unwrap();
}

#[test]
fn reset_owner_disables_all_rings() {
    let mut front_end = with_memory();
    front_end.start(0, 0);
    front_end.done(RESET_OWNER, &[]);
    assert_eq!(front_end.mock.asked(), [Asked::Start(0, 0), Asked::Stop(0)]);
    front_end.kick_off(0);
    assert!(front_end.mock.asked().is_empty());
    front_end.enable(0, 1);
    assert_eq!(front_end.mock.asked(), [Asked::Start(0, 10)]);
    front_end.leave().unwrap();
}

#[test]
fn all_256_queues_are_served_and_stopped() {
    let mut front_end = with_memory();
    for queue in 0..256 {
        front_end.start(queue, queue);
    }
    assert_eq!(front_end.mock.record().served.len(), 256);
    assert_eq!(front_end.base(255), 265);
    let mock = front_end.mock.clone();
    front_end.leave().unwrap();
    assert!(mock.record().served.is_empty());
}

/// One message that ends the session; queue 0 is served.
#[track_caller]
fn refused(code: u32, payload: &[u8], expected: &str) {
    let mut front_end = with_memory();
    front_end.start(0, 0);
    let mock = front_end.mock.clone();
    front_end.send(code, payload);
    front_end.refused(expected);
    assert!(mock.record().served.is_empty(), "all rings are stopped");
}

#[test]
fn a_ring_that_is_served_is_not_described_anew() {
    let expected = "queue 0: SET_VRING_NUM while it is being served";
    refused(SET_VRING_NUM, &state(0, 64), expected);
    let expected = "queue 0: SET_VRING_ADDR while it is being served";
    refused(SET_VRING_ADDR, &addresses(0, LOW.user + 0x4000), expected);
    let expected = "queue 0: SET_VRING_BASE while it is being served";
    refused(SET_VRING_BASE, &state(0, 0), expected);
}

#[test]
fn a_queue_that_does_not_exist_is_refused() {
    let expected = "queue 256 does not exist, the export has 256 queues";
    refused(SET_VRING_NUM, &state(256, 1), expected);
    refused(SET_VRING_ENABLE, &state(256, 1), expected);
    refused(GET_VRING_BASE, &state(256, 1), expected);
    let expected = "queue 4294967295 does not exist, the export has 256 queues";
    refused(SET_VRING_BASE, &state(u32::MAX, 1), expected);
    refused(SET_VRING_ADDR, &addresses(u32::MAX, LOW.user), expected);
}

#[test]
fn a_ring_that_cannot_be_is_refused() {
    let expected = "queue 1: ring size 65536 is no power of two up to 32768";
    refused(SET_VRING_NUM, &state(1, 65536), expected);
    refused(SET_VRING_NUM, &state(1, 100), "queue 1: ring size 100 is no power of two up to 32768");
    let expected = "queue 1: 65536 is not an available index of a split ring";
    refused(SET_VRING_BASE, &state(1, 65536), expected);
    let expected = "queue 1: front end gives no kick descriptor; polling for kicks is not served";
    refused(SET_VRING_KICK, &words(&[1 | NO_DESCRIPTOR]), expected);
}

const OUTSIDE: &str = "queue 0 cannot be served: the descriptor table of 1024 bytes at front-end \
                       address 0x71000000 is not in guest memory";

#[test]
fn a_ring_that_lies_outside_known_memory_is_refused_when_it_is_described() {
    let mut front_end = with_memory();
    front_end.done(SET_VRING_NUM, &state(0, 64));
    front_end.send(SET_VRING_ADDR, &addresses(0, HIGH.user));
    front_end.refused(OUTSIDE);
}

#[test]
fn a_ring_that_was_described_before_memory_is_checked_when_it_starts() {
    let mut front_end = FrontEnd::negotiated();
    front_end.done(SET_VRING_NUM, &state(0, 64));
    front_end.done(SET_VRING_ADDR, &addresses(0, HIGH.user));
    front_end.set_memory(&[LOW]);
    front_end.kick_off(0);
    front_end.send(SET_VRING_ENABLE, &state(0, 1));
    front_end.refused(OUTSIDE);
}

#[test]
fn a_ring_that_cannot_be_stopped_ends_the_session() {
    let mut front_end = with_memory();
    front_end.start(0, 0);
    front_end.start(1, 0);
    front_end.mock.record().stuck = Some(0);
    let mock = front_end.mock.clone();
    front_end.send(GET_VRING_BASE, &state(0, 0));
    front_end.refused("queue 0 cannot be stopped: a request does not end");
    let stops = [Asked::Stop(0), Asked::Stop(1)];
    assert_eq!(mock.asked()[2..], stops, "each once, the others too");
}

#[test]
fn a_descriptor_that_is_no_eventfd_is_refused() {
    for (message, name) in
        [(SET_VRING_KICK, "kick"), (SET_VRING_CALL, "call"), (SET_VRING_ERR, "error")]
    {
        let mut front_end = with_memory();
        let file = memfd(4096);
        front_end.send_with(message, &words(&[0]), &[file.as_fd()]);
        front_end.refused(&format!("queue 0: its {name} descriptor is no eventfd"));
    }
}

/// Every descriptor counts, with the copies that may be made of it.
#[test]
fn a_session_with_too_many_descriptors_is_ended() {
    let mut front_end = with_memory();
    let region = vhost_user::DESCRIPTORS_PER_REGION;
    let queue = vhost_user::DESCRIPTORS_PER_QUEUE;
    let max = vhost_user::DESCRIPTORS_PER_SESSION + region + queue;
    front_end.mock.record().descriptors_max = Some(max);
    let bell = event();
    // Those of one queue, again and again.
    for _ in 0..3 {
        for message in [SET_VRING_CALL, SET_VRING_ERR] {
            front_end.done_with(message, &words(&[3]), &[bell.as_fd()]);
        }
        front_end.kick_off(3);
    }
    front_end.send_with(SET_VRING_ERR, &words(&[4]), &[bell.as_fd()]);
    front_end.refused(&format!(
        "the front end would have this process hold {} descriptors; a session may hold {max} (see the limit of open \
         files)",
        max + 2
    ));
}
