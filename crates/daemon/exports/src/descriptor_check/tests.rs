//! The check on a thread of the test, with connections whose other end is the test's.

use std::fs::File;
use std::os::unix::net::UnixStream;

use rustix::fs::{MemfdFlags, memfd_create};

use super::*;

fn send(stream: &UnixStream, fds: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(40))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
    let header = [0; vhost_user::HEADER_BYTES];
    sendmsg(stream, &[IoSlice::new(&header)], &mut control, SendFlags::empty()).unwrap();
}

fn look(check: &ExportDescriptorCheck, fds: &[BorrowedFd<'_>]) -> DescriptorCloseRisk {
    let (ours, theirs) = UnixStream::pair().unwrap();
    send(&theirs, fds);
    check.look(ours.as_fd(), &answers().unwrap()).unwrap()
}

#[test]
fn what_asks_nobody_is_taken_wherever_it_is_among_the_descriptors() {
    let check = DescriptorCheck::on_thread().for_export();
    let memory = memfd_create("memory", MemfdFlags::CLOEXEC).unwrap();
    let event = answers().unwrap();
    let (socket, _other) = UnixStream::pair().unwrap();
    let foreign = [File::open("/dev/null").unwrap(), File::open("/").unwrap()];
    let good = [memory.as_fd(), event.as_fd(), socket.as_fd()];
    for count in [1, 2, 3, 8, 31, 32] {
        let mut fds: Vec<BorrowedFd<'_>> = good.into_iter().cycle().take(count).collect();
        assert_eq!(look(&check, &fds), DescriptorCloseRisk::None, "{count}");
        for place in [0, count / 2, count - 1] {
            for foreign in &foreign {
                let good = std::mem::replace(&mut fds[place], foreign.as_fd());
                assert_eq!(look(&check, &fds), DescriptorCloseRisk::MayBlock, "{place} of {count}");
                fds[place] = good;
            }
        }
    }
}

#[test]
fn the_message_stays_and_a_session_asks_again_and_again() {
    let check = DescriptorCheck::on_thread().for_export();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let answers = answers().unwrap();
    send(&theirs, &[theirs.as_fd()]);
    for _ in 0..100 {
        assert_eq!(check.look(ours.as_fd(), &answers).unwrap(), DescriptorCloseRisk::None);
    }
}

#[test]
fn whoever_has_no_check_left_hears_it() {
    let (ours, theirs) = pair().unwrap();
    let check = Arc::new(DescriptorCheck::of(ours, &Arc::default(), false)).for_export();
    drop(theirs);
    let (connection, _other) = UnixStream::pair().unwrap();
    let error = check.look(connection.as_fd(), &answers().unwrap()).unwrap_err();
    assert!(matches!(error, DescriptorCheckError::Ended), "{error}");
}
