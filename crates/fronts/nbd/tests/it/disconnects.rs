//! Connections that end: in order, and at any moment.

use std::io::Write;
use std::net::Shutdown;
use std::time::Duration;

use kernel_io::ReactorChoice;
use nbd::wire::command;
use nbd::{ConnectionEnd, HeaderStyle, LostConnection, ProtocolFault};
use testkit::deadline::poll_until;
use testkit::rng::Rng;

use crate::client::{Ask, Client};
use crate::server::{Server, on_both};

const LIMIT: Duration = Duration::from_secs(60);

fn wait_for_ends(server: &Server, count: usize) -> ConnectionEnd {
    poll_until("the end of a connection", LIMIT, || {
        Ok((server.ends.get().len() >= count).then_some(()))
    })
    .unwrap();
    server.ends.get()[count - 1].clone()
}

fn disconnect(client: &mut Client) {
    client.send(Ask { command: command::DISC, ..Ask::default() }, &[]);
}

#[test]
fn a_client_that_leaves_has_its_answers_first() {
    on_both(|reactors| {
        let server = Server::of_file(reactors, 4 << 20);
        let (mut client, placed) = server.connect(HeaderStyle::Structured);
        client.write(0, &[7; 1 << 20], 0);
        client.read(1 << 20, 1 << 20);
        disconnect(&mut client);
        for _ in 0..2 {
            assert_eq!(client.answer().error, 0);
        }
        assert_eq!(wait_for_ends(&server, 1), ConnectionEnd::ClientLeft);
        assert!(placed.stop().into_front().is_settled());
        // Without waiting for them.
        let (mut client, placed) = server.connect(HeaderStyle::Structured);
        for _ in 0..20 {
            client.read(0, 1 << 20);
        }
        disconnect(&mut client);
        drop(client);
        // The kernel may refuse its answers before its word is read.
        let end = wait_for_ends(&server, 2);
        let closed = ConnectionEnd::Lost(LostConnection::Closed);
        assert!(end == ConnectionEnd::ClientLeft || end == closed, "{end:?}");
        placed.stop();
    });
}

#[test]
fn a_client_that_closes_its_half_has_its_answers() {
    let server = Server::of_null(ReactorChoice::Any, 4 << 20);
    let (mut client, placed) = server.connect(HeaderStyle::Structured);
    for _ in 0..5 {
        client.read(0, 1 << 20);
    }
    client.socket.shutdown(Shutdown::Write).unwrap();
    (0..5).for_each(|_| assert_eq!(client.answer().data.len(), 1 << 20));
    assert_eq!(wait_for_ends(&server, 1), ConnectionEnd::Lost(LostConnection::Closed));
    assert!(placed.stop().into_front().is_settled());
}

/// Whatever was sent until then; what was there as a whole is written.
#[test]
fn a_connection_may_be_cut_anywhere() {
    on_both(|reactors| {
        let server = Server::of_file(reactors, 4 << 20);
        let rng = &mut Rng::new(99);
        for round in 0..150_u8 {
            let style = [HeaderStyle::Simple, HeaderStyle::Extended][usize::from(round % 2)];
            let (mut client, placed) = server.connect(style);
            let data = vec![round; 4096 * (1 + rng.index(40))];
            let flags = if round % 2 == 1 { nbd::wire::command_flag::PAYLOAD_LEN } else { 0 };
            let write =
                |offset| Ask { command: command::WRITE, flags, offset, length: data.len() as u64 };
            let whole = client.bytes(write(0), &data).1;
            let mut bytes = whole.clone();
            bytes.extend(client.bytes(write(1 << 20), &data).1);
            let read = Ask { command: command::READ, offset: 0, length: 3 << 20, flags: 0 };
            bytes.extend(client.bytes(read, &[]).1);
            let sent = rng.index(bytes.len() + 1);
            client.socket.write_all(&bytes[..sent]).unwrap();
            if rng.one_in(3) {
                placed.move_to(&server.iothreads[1]).unwrap();
            }
            if rng.one_in(2) {
                client.socket.shutdown(Shutdown::Both).unwrap();
            }
            drop(client);
            let end = wait_for_ends(&server, usize::from(round) + 1);
            assert!(matches!(end, ConnectionEnd::Lost(_)), "{end:?}");
            placed.stop();
            if sent >= whole.len() {
                let (mut reader, placed) = server.connect(HeaderStyle::Simple);
                reader.read(0, data.len() as u64);
                assert!(reader.answer().data == data, "round {round}");
                // Its own end is not told of.
                placed.stop();
            }
        }
    });
}

/// Half of a header, or half of the data of a write: nothing waits for the rest.
#[test]
fn a_client_that_stalls_holds_up_no_move_and_no_stop() {
    on_both(|reactors| {
        let server = Server::of_file(reactors, 4 << 20);
        let (mut client, mut placed) = server.connect(HeaderStyle::Simple);
        let data: Vec<u8> = (0_u8..251).cycle().take(100 * 4096).collect();
        let write = Ask { command: command::WRITE, flags: 0, offset: 0, length: data.len() as u64 };
        let whole = client.bytes(write, &data).1;
        let mut sent = 0;
        for part in [1, 5, 28, 29, 3000, 5000, 100_000, 100_001, whole.len() - 1, whole.len()] {
            client.socket.write_all(&whole[sent..part]).unwrap();
            sent = part;
            placed.move_to(&server.iothreads[1]).unwrap();
            placed.move_to(&server.iothreads[0]).unwrap();
            placed = server.place(placed.stop().into_front(), 0);
        }
        assert_eq!(client.answer().error, 0);
        client.read(0, data.len() as u64);
        assert!(client.answer().data == data);
        placed.stop();
    });
}

/// Behind a batch of 64 requests nothing is begun before the client has read some; then it gets all.
#[test]
fn for_a_client_that_reads_nothing_little_is_read_ahead() {
    const READS: u64 = 128;
    on_both(|reactors| {
        let server = Server::of_file(reactors, 4 << 20);
        let (mut client, placed) = server.connect(HeaderStyle::Structured);
        for _ in 0..READS {
            client.read(0, 256 << 10);
        }
        let mut seen = (0, 0);
        let begun = poll_until("reads that wait for the client", LIMIT, || {
            let now = placed.visit(|front, _| front.memory_bytes()).expect("it is served");
            let times = if now == seen.1 { seen.0 + 1 } else { 0 };
            seen = (times, now);
            Ok((now > 1 << 20 && times == 100).then_some(now))
        });
        let begun = begun.unwrap();
        assert!(begun < 20 << 20, "{begun} bytes of memory");
        assert!((0..READS).all(|_| client.answer().data.len() == 256 << 10));
        placed.stop();
    });
}

/// It is told below TLS and in it.
#[test]
fn clients_behind_tls_leave_and_are_lost_like_others() {
    on_both(|reactors| {
        let server = Server::of_file(reactors, 4 << 20);
        let (mut client, placed) = server.connect_tls(HeaderStyle::Structured);
        client.write(0, &[7; 1 << 20], 0);
        client.read(0, 1 << 20);
        disconnect(&mut client);
        for _ in 0..2 {
            assert_eq!(client.answer().error, 0);
        }
        assert_eq!(wait_for_ends(&server, 1), ConnectionEnd::ClientLeft);
        assert!(placed.stop().into_front().is_settled());
        let (mut client, placed) = server.connect_tls(HeaderStyle::Structured);
        client.read(0, 1 << 20);
        drop(client);
        assert!(matches!(wait_for_ends(&server, 2), ConnectionEnd::Lost(_)));
        placed.stop();
        let (mut client, placed) = server.connect_tls(HeaderStyle::Structured);
        client.socket.write_all(&[0x17; 5000]).unwrap();
        let end = wait_for_ends(&server, 3);
        assert!(matches!(end, ConnectionEnd::ProtocolBroken(ProtocolFault::Tls(_))), "{end:?}");
        placed.stop();
    });
}
