//! The back end's own channel: given, replaced, of no use, and not given.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use crate::front_end::{
    ALL_PROTOCOL_FEATURES, FrontEnd, GET_FEATURES, GET_PROTOCOL_FEATURES, RESET_DEVICE,
    SET_BACKEND_REQ_FD, SET_PROTOCOL_FEATURES, event, words,
};

/// VHOST_USER_BACKEND_CONFIG_CHANGE_MSG: request, version, no payload.
fn config_change() -> Vec<u8> {
    [2_u32, 1, 0].map(u32::to_le_bytes).concat()
}

fn give(front_end: &mut FrontEnd) -> UnixStream {
    let (ours, theirs) = UnixStream::pair().unwrap();
    front_end.done_with(SET_BACKEND_REQ_FD, &[], &[theirs.as_fd()]);
    ours
}

#[track_caller]
fn hears(front_end: &FrontEnd, channel: &mut UnixStream) {
    let said = front_end.mock.record().channel.clone().unwrap();
    said.config_changed().unwrap();
    let mut message = vec![0; 12];
    channel.read_exact(&mut message).unwrap();
    assert_eq!(message, config_change());
}

#[test]
fn a_front_end_hears_on_the_last_channel_that_it_gave() {
    let mut front_end = FrontEnd::negotiated();
    assert!(front_end.mock.record().channel.is_none());
    let mut first = give(&mut front_end);
    hears(&front_end, &mut first);
    let mut second = give(&mut front_end);
    hears(&front_end, &mut second);
    // A reset of the device is none of the connection.
    front_end.done(RESET_DEVICE, &[]);
    hears(&front_end, &mut second);
    // Nobody holds the first one any more.
    assert_eq!(first.read(&mut [0; 12]).unwrap(), 0);
    front_end.leave().unwrap();
}

#[test]
fn a_channel_is_a_socket_of_the_right_kind() {
    let mut front_end = FrontEnd::negotiated();
    front_end.send_with(SET_BACKEND_REQ_FD, &[], &[event().as_fd()]);
    while front_end.answer().is_some() {}
    assert!(front_end.mock.record().channel.is_none());
    front_end.leave().unwrap_err();
}

#[test]
fn a_channel_without_the_feature_ends_the_session() {
    let mut front_end = FrontEnd::new();
    front_end.ask(GET_FEATURES, &[]);
    front_end.ask(GET_PROTOCOL_FEATURES, &[]);
    front_end.send(SET_PROTOCOL_FEATURES, &words(&[ALL_PROTOCOL_FEATURES & !(1 << 5)]));
    let (_ours, theirs) = UnixStream::pair().unwrap();
    front_end.send_with(SET_BACKEND_REQ_FD, &[], &[theirs.as_fd()]);
    while front_end.answer().is_some() {}
    assert!(front_end.mock.record().channel.is_none());
    front_end.leave().unwrap_err();
}
