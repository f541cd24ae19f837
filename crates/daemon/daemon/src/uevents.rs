//! What the kernel tells about block devices: that one of them has changed.
//!
//! Where it stands: the first thread waits for it beside signals, and has the exports look at the sizes of
//! their disks. What is said is not believed, only a reason to look; so it does not matter who says it.
//!
//! Invariants: opened before system calls are filtered, which lets nobody make a socket of this kind.
//! Limits: [`MESSAGES_MAX`] at a time; the kernel drops what does not fit into the socket's queue and says
//! so, which counts as news.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use kernel_io::{FileKind, FileTable};
use rustix::io::Errno;
use rustix::net::netlink::{KOBJECT_UEVENT, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};

/// The group of the kernel's own messages; udev's come in another one.
const KERNEL_GROUP: u32 = 1;

/// The longest message (UEVENT_BUFFER_SIZE is 2048).
const MESSAGE_BYTES_MAX: usize = 8192;

/// The most messages that are taken before somebody else gets his turn.
const MESSAGES_MAX: usize = 256;

/// Listens for kernel uevents which say that a block device has changed.
#[derive(Debug)]
pub(crate) struct UeventMonitor(OwnedFd);

impl UeventMonitor {
    /// Listens from now on.
    pub(crate) fn listen() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (family, kind) = (AddressFamily::NETLINK, SocketType::DGRAM);
        let fd = socket_with(family, kind, flags, Some(KOBJECT_UEVENT))?;
        bind(&fd, &SocketAddrNetlink::new(0, KERNEL_GROUP))?;
        Ok(Self(fd))
    }

    /// Takes what was said, and whether a block device may have changed. Does not wait.
    pub(crate) fn take(&self) -> bool {
        let mut message = [0; MESSAGE_BYTES_MAX];
        let mut changed = false;
        for _ in 0..MESSAGES_MAX {
            match recv(&self.0, &mut message, RecvFlags::empty()) {
                Ok((_, bytes)) => changed |= is_change(&message[..bytes]),
                // Some were lost.
                Err(Errno::NOBUFS) => changed = true,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(errno) => {
                    tracing::debug!("the kernel's news of devices: {errno}");
                    break;
                }
            }
        }
        changed
    }
}

impl AsFd for UeventMonitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Whether a message says that a block device is not what it was: `change@`, the device's path, and then
/// variables, each ended by a zero.
fn is_change(message: &[u8]) -> bool {
    let mut words = message.split(|byte| *byte == 0);
    words.next().is_some_and(|action| action.starts_with(b"change@"))
        && words.any(|word| word == b"SUBSYSTEM=block")
}

/// Where to hear that a block device has changed, if there is one below. Without it sizes are looked at when a client
/// comes or asks.
pub(crate) fn device_news(files: &FileTable) -> Option<UeventMonitor> {
    files.all().iter().find(|file| file.kind() == FileKind::BlockDevice)?;
    let news = UeventMonitor::listen();
    news.inspect_err(|error| {
        tracing::info!(
            "the kernel's news of devices cannot be heard, so a running guest is not told when a disk \
             grows: {error}"
        );
    })
    .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_a_block_device_is_told_from_other_news() {
        let resized =
            b"change@/devices/virtual/block/loop0\0ACTION=change\0SUBSYSTEM=block\0RESIZE=1\0";
        assert!(is_change(resized));
        assert!(!is_change(b"add@/devices/virtual/block/loop0\0ACTION=add\0SUBSYSTEM=block\0"));
        assert!(!is_change(b"change@/devices/net/block\0ACTION=change\0SUBSYSTEM=net\0"));
        assert!(!is_change(b"libudev\0\xfe\xed"));
        assert!(!is_change(b""));
    }

    #[test]
    fn nothing_said_is_no_news() {
        // Hosts without this family of sockets are served too.
        if let Ok(news) = UeventMonitor::listen() {
            news.take();
            assert!(!news.take());
        }
    }
}
