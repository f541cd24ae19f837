//! Descriptors that are watched for room to write, too.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use kernel_io::{EngineKernel, Event, Interest, Kernel, Tag, WaitMode};

use crate::waits::on_both;

/// Writes until there is no room.
fn fill(mut socket: &UnixStream) -> usize {
    let mut count = 0;
    while let Ok(more) = socket.write(&[1; 4096]) {
        count += more;
    }
    count
}

/// What the next event says of the socket: whether it can only be written.
fn is_only_writable(kernel: &mut Kernel) -> bool {
    kernel.wait(WaitMode::Block).unwrap();
    let is_only_writable = match kernel.next_event() {
        Some(Event::Writable { tag: Tag(1) }) => true,
        Some(Event::Ready { tag: Tag(1) }) => false,
        other => panic!("{other:?}"),
    };
    while kernel.next_event().is_some() {}
    is_only_writable
}

#[test]
fn a_socket_is_told_of_again_when_its_other_side_makes_room_or_writes() {
    on_both(|mut kernel| {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        kernel.poll(ours.as_fd(), Interest::ReadOrWrite, Tag(1));
        // There is room at first.
        assert!(is_only_writable(&mut kernel));
        for _ in 0..3 {
            let written = fill(&ours);
            kernel.wait(WaitMode::Poll).unwrap();
            while kernel.next_event().is_some() {}
            theirs.read_exact(&mut vec![0; written]).unwrap();
            assert!(is_only_writable(&mut kernel));
        }
        fill(&ours);
        kernel.wait(WaitMode::Poll).unwrap();
        while kernel.next_event().is_some() {}
        theirs.write_all(&[1]).unwrap();
        assert!(!is_only_writable(&mut kernel));
        drop(theirs);
        assert!(!is_only_writable(&mut kernel), "a failure is to be read");
        kernel.cancel_poll(Tag(1));
    });
}
