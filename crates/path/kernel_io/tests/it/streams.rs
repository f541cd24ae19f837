//! Transfers on stream sockets: with io_uring and without.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use block::HostMemory;
use kernel_io::{
    EngineKernel, Event, Kernel, StreamDirection, StreamEnd, StreamGoal, StreamTransfer, Tag,
    WaitMode,
};
use rustix::io::Errno;

use crate::waits::on_both;

const RECEIVE: StreamDirection = StreamDirection::Receive;
const SEND: StreamDirection = StreamDirection::Send;

fn pair() -> (UnixStream, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    theirs.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    theirs.set_write_timeout(Some(Duration::from_secs(60))).unwrap();
    (ours, theirs)
}

/// A transfer of so many bytes, in two parts.
fn transfer(bytes: &[u8]) -> StreamTransfer {
    let mut transfer = StreamTransfer::default();
    let (first, second) = bytes.split_at(bytes.len() / 3);
    transfer.push(HostMemory::of(first), 0..first.len());
    transfer.push(HostMemory::of(second), 0..second.len());
    transfer
}

fn bytes(transfer: &mut StreamTransfer) -> Vec<u8> {
    let count = transfer.transferred();
    let parts = transfer.take_parts();
    let mut all: Vec<u8> = parts.flat_map(|(memory, bytes)| memory[bytes].to_vec()).collect();
    all.truncate(count);
    all
}

/// Waits for the end of one of the transfers.
fn over(kernel: &mut Kernel) -> (Tag, StreamTransfer) {
    loop {
        match kernel.next_event() {
            Some(Event::Transferred { tag, transfer }) => return (tag, transfer),
            Some(other) => panic!("{other:?}"),
            None => kernel.wait(WaitMode::AtMost(Duration::from_secs(60))).unwrap(),
        }
    }
}

/// Nothing of a transfer is told.
fn goes_on(kernel: &mut Kernel) {
    for _ in 0..3 {
        kernel.wait(WaitMode::AtMost(Duration::from_millis(1))).unwrap();
        assert!(kernel.next_event().is_none());
    }
}

#[test]
fn what_has_arrived_ends_a_receive_of_some_and_all_has_to_arrive_for_one_of_all() {
    on_both(|mut kernel| {
        let (ours, mut theirs) = pair();
        let fd = ours.as_fd();
        kernel.begin_transfer(fd, transfer(&[0; 100]), (RECEIVE, StreamGoal::Some), Tag(1));
        goes_on(&mut kernel);
        theirs.write_all(b"abc").unwrap();
        let (tag, mut some) = over(&mut kernel);
        assert_eq!((tag, some.end(), bytes(&mut some)), (Tag(1), StreamEnd::Done, b"abc".to_vec()));
        kernel.begin_transfer(fd, transfer(&[0; 100]), (RECEIVE, StreamGoal::All), Tag(2));
        // A peer that sends one byte at a time.
        let sent: Vec<u8> = (0..100).collect();
        for byte in &sent[..99] {
            theirs.write_all(&[*byte]).unwrap();
            kernel.wait(WaitMode::Poll).unwrap();
            assert!(kernel.next_event().is_none());
        }
        theirs.write_all(&sent[99..]).unwrap();
        let (tag, mut all) = over(&mut kernel);
        assert_eq!((tag, all.end(), bytes(&mut all)), (Tag(2), StreamEnd::Done, sent));
        // And nothing at all is over at once.
        kernel.begin_transfer(fd, StreamTransfer::default(), (RECEIVE, StreamGoal::All), Tag(3));
        assert_eq!(over(&mut kernel).0, Tag(3));
    });
}

#[test]
fn a_send_is_over_when_the_peer_has_room_for_all_of_it() {
    on_both(|mut kernel| {
        let (ours, mut theirs) = pair();
        let sent: Vec<u8> = (0..3_000_000_u32).map(|number| (number % 251) as u8).collect();
        let (expected, mut found) = (sent.clone(), vec![0; sent.len()]);
        kernel.begin_transfer(ours.as_fd(), transfer(&sent), (SEND, StreamGoal::All), Tag(1));
        // Beside it, the peer's bytes arrive.
        let receive = transfer(&[0; 10]);
        kernel.begin_transfer(ours.as_fd(), receive, (RECEIVE, StreamGoal::Some), Tag(2));
        goes_on(&mut kernel);
        theirs.write_all(b"beside").unwrap();
        let (tag, mut beside) = over(&mut kernel);
        assert_eq!((tag, bytes(&mut beside)), (Tag(2), b"beside".to_vec()));
        std::thread::scope(|scope| {
            scope.spawn(|| theirs.read_exact(&mut found).unwrap());
            let (tag, send) = over(&mut kernel);
            assert_eq!((tag, send.end(), send.left()), (Tag(1), StreamEnd::Done, 0));
        });
        assert_eq!(found, expected);
    });
}

#[test]
fn what_is_cancelled_says_how_far_it_got_and_is_gone_on_with() {
    on_both(|mut kernel| {
        let (ours, mut theirs) = pair();
        let sent: Vec<u8> = (0..3_000_000_u32).map(|number| (number % 251) as u8).collect();
        let (mut send, mut found) = (transfer(&sent), vec![0; sent.len()]);
        let mut read = 0;
        while send.left() > 0 {
            kernel.begin_transfer(ours.as_fd(), send, (SEND, StreamGoal::All), Tag(1));
            kernel.wait(WaitMode::Poll).unwrap();
            kernel.cancel_transfer(Tag(1));
            kernel.cancel_transfer(Tag(1));
            (_, send) = over(&mut kernel);
            assert!(matches!(send.end(), StreamEnd::Cancelled | StreamEnd::Done));
            let more = &mut found[read..send.transferred()];
            read += more.len();
            theirs.read_exact(more).unwrap();
        }
        assert_eq!(found, sent);
        let receive = transfer(&[0; 100]);
        kernel.begin_transfer(ours.as_fd(), receive, (RECEIVE, StreamGoal::All), Tag(2));
        theirs.write_all(b"abc").unwrap();
        kernel.wait(WaitMode::Block).unwrap();
        kernel.cancel_transfer(Tag(2));
        let (_, mut receive) = over(&mut kernel);
        assert_eq!((receive.end(), bytes(&mut receive)), (StreamEnd::Cancelled, b"abc".to_vec()));
        // Of one that is over, nothing is told again.
        kernel.cancel_transfer(Tag(2));
        goes_on(&mut kernel);
    });
}

/// Whoever cancels while bytes arrive loses none of them.
#[test]
fn no_byte_is_lost_or_doubled_by_cancellations() {
    on_both(|mut kernel| {
        let (ours, mut theirs) = pair();
        let sent: Vec<u8> = (0..400_000_u32).map(|number| (number % 251) as u8).collect();
        let expected = sent.clone();
        let writer = std::thread::spawn(move || {
            sent.chunks(777).for_each(|chunk| theirs.write_all(chunk).unwrap());
        });
        let mut found = Vec::new();
        for round in 0.. {
            let goal = if round % 2 == 0 { StreamGoal::All } else { StreamGoal::Some };
            let receive = transfer(&[0; 3000]);
            kernel.begin_transfer(ours.as_fd(), receive, (RECEIVE, goal), Tag(round));
            (0..round % 3).for_each(|_| kernel.wait(WaitMode::Poll).unwrap());
            kernel.cancel_transfer(Tag(round));
            let (tag, mut receive) = over(&mut kernel);
            assert_eq!(tag, Tag(round));
            found.extend(bytes(&mut receive));
            if receive.end() == StreamEnd::EndOfStream {
                break;
            }
        }
        writer.join().unwrap();
        assert!(found == expected, "{} of {} bytes", found.len(), expected.len());
    });
}

#[test]
fn a_peer_that_dies_ends_what_is_under_way() {
    on_both(|mut kernel| {
        let (ours, mut theirs) = pair();
        let send = transfer(&vec![1; 3_000_000]);
        kernel.begin_transfer(ours.as_fd(), send, (SEND, StreamGoal::All), Tag(1));
        let receive = transfer(&[0; 100]);
        kernel.begin_transfer(ours.as_fd(), receive, (RECEIVE, StreamGoal::All), Tag(2));
        theirs.write_all(b"last").unwrap();
        kernel.wait(WaitMode::Poll).unwrap();
        theirs.read_exact(&mut [0; 1000]).unwrap();
        kernel.wait(WaitMode::Poll).unwrap();
        drop(theirs);
        let mut ends = [over(&mut kernel), over(&mut kernel)];
        ends.sort_by_key(|(tag, _)| tag.0);
        let [(_, send), (_, mut receive)] = ends;
        let gone = [Errno::PIPE, Errno::CONNRESET].map(StreamEnd::Failed);
        assert!(gone.contains(&send.end()), "{:?}", send.end());
        let end = [StreamEnd::EndOfStream, StreamEnd::Failed(Errno::CONNRESET)];
        assert!(end.contains(&receive.end()), "{:?}", receive.end());
        assert_eq!(bytes(&mut receive), b"last");
    });
}

#[test]
fn a_socket_that_does_not_wait_is_waited_for_all_the_same() {
    on_both(|mut kernel| {
        let (ours, mut theirs) = pair();
        ours.set_nonblocking(true).unwrap();
        let receive = transfer(&[0; 6]);
        kernel.begin_transfer(ours.as_fd(), receive, (RECEIVE, StreamGoal::All), Tag(1));
        for part in [b"ab", b"cd"] {
            goes_on(&mut kernel);
            theirs.write_all(part).unwrap();
        }
        goes_on(&mut kernel);
        kernel.cancel_transfer(Tag(1));
        let (_, mut receive) = over(&mut kernel);
        assert_eq!((receive.end(), bytes(&mut receive)), (StreamEnd::Cancelled, b"abcd".to_vec()));
        let send = transfer(&vec![5; 3_000_000]);
        kernel.begin_transfer(ours.as_fd(), send, (SEND, StreamGoal::All), Tag(2));
        let reader = std::thread::spawn(move || {
            theirs.read_exact(&mut vec![0; 3_000_000]).unwrap();
        });
        assert_eq!(over(&mut kernel).1.end(), StreamEnd::Done);
        reader.join().unwrap();
    });
}

#[test]
fn a_kernel_that_is_dropped_waits_for_no_peer() {
    on_both(|mut kernel| {
        let pairs: Vec<_> = (0..20).map(|_| pair()).collect();
        for (number, (ours, _)) in pairs.iter().enumerate() {
            let (receive, send) = (transfer(&[0; 100]), transfer(&vec![0; 1 << 20]));
            let tag = |more: u64| Tag(number as u64 * 2 + more);
            kernel.begin_transfer(ours.as_fd(), receive, (RECEIVE, StreamGoal::All), tag(0));
            kernel.begin_transfer(ours.as_fd(), send, (SEND, StreamGoal::All), tag(1));
            if number % 2 == 0 {
                kernel.wait(WaitMode::Poll).unwrap();
            }
        }
        drop(kernel);
    });
}
