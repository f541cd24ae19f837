//! Front ends that send no messages, or leave in the middle of one.

use std::net::Shutdown;

use crate::front_end::{FrontEnd, LOW, words};

const UNTAKEN: &str = "front end sent a message that cannot be taken: invalid message";

#[track_caller]
fn check(bytes: &[u8], expected: &str) {
    let mut front_end = FrontEnd::negotiated();
    front_end.set_memory(&[LOW]);
    front_end.start(0, 0);
    let mock = front_end.mock.clone();
    front_end.bytes(bytes);
    front_end.stream.shutdown(Shutdown::Write).expect("the socket is open");
    front_end.refused(expected);
    assert!(mock.record().served.is_empty(), "all rings are stopped");
}

fn header(code: u32, flags: u32, bytes: u32) -> Vec<u8> {
    [code, flags, bytes].map(u32::to_le_bytes).concat()
}

#[test]
fn bytes_that_are_no_message_end_the_session() {
    check(&[0xff; 64], UNTAKEN);
    check(&[0; 12], UNTAKEN);
    check(b"GET / HTTP/1.1\r\n\r\n", UNTAKEN);
    check(&header(9999, 1, 0), UNTAKEN);
    // The wrong version, a reply, too many bytes.
    check(&header(3, 2, 0), UNTAKEN);
    check(&header(1, 5, 0), UNTAKEN);
    check(&header(2, 1, u32::MAX), UNTAKEN);
    // A payload where there is none, and of the wrong length.
    check(&[header(1, 1, 8), words(&[0])].concat(), UNTAKEN);
    check(&[header(2, 1, 4), vec![0; 4]].concat(), UNTAKEN);
}

#[test]
fn half_a_message_ends_the_session_when_the_front_end_leaves() {
    let message = [header(2, 1, 8), words(&[1 << 32])].concat();
    for count in [1, 11] {
        let expected = "front end sent a message that cannot be taken: partial message";
        check(&message[..count], expected);
    }
    for count in [12, 13, 19] {
        check(&message[..count], UNTAKEN);
    }
}

#[test]
fn leaving_between_two_messages_is_no_error() {
    FrontEnd::new().leave().unwrap();
    let mut front_end = FrontEnd::negotiated();
    front_end.set_memory(&[LOW]);
    front_end.start(0, 0);
    let mock = front_end.mock.clone();
    front_end.leave().unwrap();
    assert!(mock.record().served.is_empty());
}

#[test]
fn a_front_end_that_leaves_before_its_answer_is_no_error() {
    let mut front_end = FrontEnd::negotiated();
    // More questions than it will wait for answers.
    for _ in 0..20 {
        front_end.send(1, &[]);
    }
    front_end.leave().unwrap();
}

#[test]
fn a_session_ends_when_its_socket_is_shut_down() {
    let front_end = FrontEnd::negotiated();
    front_end.stream.shutdown(Shutdown::Both).unwrap();
    front_end.leave().unwrap();
}
