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

fn wait(kernel: &mut Kernel) {
    kernel.wait(WaitMode::Block).unwrap();
    let event = kernel.next_event();
    assert!(matches!(event, Some(Event::Ready { tag: Tag(1) })), "{event:?}");
    while kernel.next_event().is_some() {}
}

#[test]
fn a_socket_is_told_of_again_when_its_other_side_makes_room_or_writes() {
    on_both(|mut kernel| {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        kernel.poll(ours.as_fd(), Interest::ReadOrWrite, Tag(1));
        // There is room at first.
        wait(&mut kernel);
        for _ in 0..3 {
            let written = fill(&ours);
            kernel.wait(WaitMode::Poll).unwrap();
            while kernel.next_event().is_some() {}
            theirs.read_exact(&mut vec![0; written]).unwrap();
            wait(&mut kernel);
        }
        fill(&ours);
        kernel.wait(WaitMode::Poll).unwrap();
        while kernel.next_event().is_some() {}
        theirs.write_all(&[1]).unwrap();
        wait(&mut kernel);
        kernel.cancel_poll(Tag(1));
    });
}
