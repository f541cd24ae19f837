//! One attempt at a parked operation by a plain system call that may block.
//!
//! Where it stands in the life of a request: the calls behind inline I/O and the workers'.

#![expect(unsafe_code, reason = "the calls name memory that is only reachable through pointers")]

use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use block::{ByteOffset, Durability, Segment};
use rustix::io::Errno;

use crate::StreamDirection;
use crate::allocation::DiscardOrZeroAttempt;
use crate::extent::FileExtent;
use crate::in_flight::IoKind;

/// The most segments of one system call (IOV_MAX).
pub(crate) const SEGMENTS_MAX: usize = 1024;

/// BLKDISCARD of linux/fs.h: _IO(0x12, 119).
const BLKDISCARD: libc::Ioctl = 0x1277;

/// The iovecs of a call: where they are and how many.
pub(crate) type Iovecs = (*const libc::iovec, libc::c_int);

/// The iovecs of one call over this memory. Segment has the layout of iovec.
pub(crate) fn iovecs(memory: &[Segment]) -> Iovecs {
    let count = memory.len().min(SEGMENTS_MAX);
    (memory.as_ptr().cast(), libc::c_int::try_from(count).expect("at most 1024"))
}

/// Has an operation fail with EAGAIN where it would have to wait.
pub(crate) const NOWAIT: libc::c_int = libc::RWF_NOWAIT;

/// The flags of a write.
pub(crate) fn write_flags(durability: Durability) -> libc::c_int {
    match durability {
        Durability::Cached => 0,
        Durability::Stable => libc::RWF_DSYNC,
    }
}

/// Does the work once. The result is that of a completion: bytes transferred, or minus the errno.
///
/// # Safety
/// The iovecs, and the memory they name, must stay as they are during the call; a read writes to
/// that memory.
pub(crate) unsafe fn perform(
    work: IoKind,
    fd: BorrowedFd<'_>,
    offset: ByteOffset,
    (iovecs, segments): Iovecs,
) -> i64 {
    let raw = fd.as_raw_fd();
    let Ok(place) = libc::off_t::try_from(offset.0) else {
        return (-Errno::INVAL.raw_os_error()).into();
    };
    let result = match work {
        IoKind::Read => {
            // SAFETY: the caller keeps the iovecs and their memory during the call.
            match unsafe { read(raw, place, (iovecs, segments)) } {
                // A pipe has no places; io_uring and whoever uses one here ignore them.
                // SAFETY: as above.
                -1 if last_errno() == libc::ESPIPE => unsafe { libc::readv(raw, iovecs, segments) },
                result => result,
            }
        }
        // SAFETY: as for the read.
        IoKind::Write(durability) => unsafe { write(raw, place, durability, (iovecs, segments)) },
        IoKind::Sync => return completion(rustix::fs::fdatasync(fd)).into(),
        IoKind::Space(space) => return change(space, raw, place).into(),
        // As far as it goes: what is asked next is known then.
        IoKind::Extent(_) => return FileExtent::find(fd, offset, u64::MAX).to_result(),
    };
    if result < 0 { (-last_errno()).into() } else { i64::try_from(result).unwrap_or(i64::MAX) }
}

/// Reads. A single segment goes without the list: the kernel need not copy and check it. Such a
/// call is made past libc's wrapper, which makes every call a place where the thread may be
/// cancelled, at a twentieth of the cost of a read from memory.
///
/// # Safety
/// As for [`perform`].
unsafe fn read(fd: RawFd, place: libc::off_t, (iovecs, segments): Iovecs) -> isize {
    if segments == 1 {
        // SAFETY: the caller keeps the one iovec during the call.
        let libc::iovec { iov_base, iov_len } = unsafe { *iovecs };
        // SAFETY: and its memory.
        let result = unsafe { libc::syscall(libc::SYS_pread64, fd, iov_base, iov_len, place) };
        return transferred(result);
    }
    // SAFETY: as above.
    unsafe { libc::preadv2(fd, iovecs, segments, place, 0) }
}

/// Writes; as [`read`].
///
/// # Safety
/// As for [`perform`].
unsafe fn write(
    fd: RawFd,
    place: libc::off_t,
    durability: Durability,
    (iovecs, segments): Iovecs,
) -> isize {
    if segments == 1 && durability == Durability::Cached {
        // SAFETY: the caller keeps the one iovec during the call.
        let libc::iovec { iov_base, iov_len } = unsafe { *iovecs };
        // SAFETY: and its memory.
        let result = unsafe { libc::syscall(libc::SYS_pwrite64, fd, iov_base, iov_len, place) };
        return transferred(result);
    }
    // SAFETY: as above.
    unsafe { libc::pwritev2(fd, iovecs, segments, place, write_flags(durability)) }
}

/// Transfers on a socket what can be transferred without waiting. The result is that of a completion: bytes transferred, or
/// minus the errno.
///
/// # Safety
/// As for [`perform`].
pub(crate) unsafe fn transfer_now(
    direction: StreamDirection,
    socket: RawFd,
    (iovecs, segments): Iovecs,
) -> i64 {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: of this structure all zeroes are a value: no address, no memory, no descriptors.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = iovecs.cast_mut();
    message.msg_iovlen = segments.unsigned_abs() as usize;
    let result = match direction {
        // SAFETY: the caller keeps the iovecs and their memory during the call, and the message lives as long.
        StreamDirection::Receive => unsafe { libc::recvmsg(socket, &raw mut message, flags) },
        // SAFETY: as above.
        StreamDirection::Send => unsafe { libc::sendmsg(socket, &raw const message, flags) },
    };
    if result < 0 { (-last_errno()).into() } else { i64::try_from(result).unwrap_or(i64::MAX) }
}

/// Discards or zeroes a range. The result is that of a completion: 0, or minus the errno.
pub(crate) fn change(space: DiscardOrZeroAttempt, fd: RawFd, place: libc::off_t) -> i32 {
    let Ok(count) = libc::off_t::try_from(space.count) else {
        return -Errno::INVAL.raw_os_error();
    };
    let result = match space.method.mode(space.kind) {
        // SAFETY: the call names no memory.
        Some(mode) => unsafe { libc::fallocate(fd, mode, place, count) },
        None => {
            let range = [place.cast_unsigned(), space.count];
            // SAFETY: BLKDISCARD reads two numbers, which live during the call.
            unsafe { libc::ioctl(fd, BLKDISCARD, &raw const range) }
        }
    };
    if result == 0 { 0 } else { -last_errno() }
}

/// The result of a transfer; one call transfers less than 2 GiB.
fn transferred(result: libc::c_long) -> isize {
    isize::try_from(result).unwrap_or(isize::MAX)
}

fn completion(result: rustix::io::Result<()>) -> i32 {
    result.map_or_else(|errno| -errno.raw_os_error(), |()| 0)
}

fn last_errno() -> i32 {
    let error = std::io::Error::last_os_error();
    error.raw_os_error().expect("the error of a system call has a number")
}
